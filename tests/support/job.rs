//! The jobs of scenarios: shell scripts that write files in the world's directory. A process
//! announces itself by a file with its process id, written and then renamed, so that it is never
//! read half.

use super::proc;
use super::wait::wait_until;
use super::world::World;

/// The members of [`FAMILY`]: the leader, which is CMD and logs TERM but does not end; one in a
/// session of its own; one with an emptied environment; one with both; one that ignores TERM; one
/// that is stopped and logs TERM when it is continued; one whose parents are gone; and one that
/// only its descent connects with the job.
const MEMBERS: [&str; 8] = ["leader", "session", "naked", "stranger", "deaf", "frozen", "daemon", "ghost"];

/// Starts a family that tries to escape, and logs `born` when all are there. TERM ends none of the
/// members that matter.
pub const FAMILY: &str = "sh family";

/// Logs `overlap NAME` for each member of the family that still runs, then `next`. A process that
/// got SIGKILL does not count, even if a busy machine has not removed it yet.
pub const SUCCESSOR: &str = "sh successor";

/// Writes the scripts behind [`FAMILY`] and [`SUCCESSOR`].
pub fn prepare(world: &World) {
    world.write("member", MEMBER);
    world.write("family", FAMILY_SCRIPT);
    world.write("successor", SUCCESSOR_SCRIPT);
}

/// Waits until the family is complete.
#[track_caller]
pub fn family(world: &World) -> Vec<i32> {
    let pids = MEMBERS.map(|name| world.wait_for_pid(&format!("{name}.pid"))).to_vec();
    let frozen = world.wait_for_pid("frozen.pid");
    wait_until("the frozen one stops", || proc::stopped(frozen));
    pids
}

/// The members of the family that can still do something, by name.
pub fn survivors(world: &World) -> Vec<&'static str> {
    MEMBERS.into_iter().filter(|name| proc::acts(world.wait_for_pid(&format!("{name}.pid")))).collect()
}

const MEMBER: &str = r#"
echo $$ > "$1.tmp"
mv "$1.tmp" "$1.pid"
case $1 in
leader) trap 'echo term >> log' TERM; while :; do sleep 0.1; done ;;
frozen) trap 'echo thawed >> log' TERM; kill -STOP $$ ;;
deaf) trap '' TERM INT HUP QUIT ;;
esac
exec sleep 1000
"#;

const FAMILY_SCRIPT: &str = r#"
setsid sh member session &
env -i sh member naked &
env -i setsid sh member stranger &
sh member deaf &
sh member frozen &
(setsid sh -c 'sh member daemon & exit' &)
(env -i setsid sh -c 'sh member ghost & exit' &)
exec sh member leader
"#;

const SUCCESSOR_SCRIPT: &str = r#"
for file in *.pid; do
    read -r pid < "$file"
    state=gone
    { read -r _ _ state _ < "/proc/$pid/stat"; } 2> /dev/null
    case $state in
    gone | Z | X) ;;
    *)
        killed=$(grep -h '^ShdPnd.*[13579bdf]..$' "/proc/$pid/status" 2> /dev/null)
        [ -n "$killed" ] || [ ! -e "/proc/$pid" ] || echo "overlap $file" >> log
        ;;
    esac
done
echo next >> log
"#;
