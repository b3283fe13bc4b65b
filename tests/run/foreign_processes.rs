//! Processes that do not belong to the job, mostly of another user: whatever they claim in /proc,
//! they delay no KILL, and cost the guard no memory.

use crate::support::dlock::BINARY;
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::process::{Signal, geteuid};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The job ignores TERM, so that only KILL ends it.
const DEAF: &str = "trap '' TERM; echo $$ > job.tmp; mv job.tmp job.pid; while :; do sleep 0.1; done";
/// Memory that the guard may need while it stops a small job, in KiB: mostly pages of its own
/// program.
const STOPPING: u64 = 4096;

/// Processes that claim to have a huge environment and huge arguments (`claims.c`).
struct ForeignProcesses(Child);

impl ForeignProcesses {
    /// Starts them, as another user if this one is root. If the kernel forbids their claims, prints
    /// that and returns `None`.
    fn start(world: &World, count: usize, megabytes: usize, command_of_one: &[&str]) -> Option<Self> {
        world.open_to_all();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/claims.c");
        let built = Command::new("cc").args(["-O1", "-o"]).arg(world.path("claims")).arg(&source).status();
        assert!(built.expect("cc is installed").success(), "cc cannot build claims.c");
        let mut command = if geteuid().is_root() {
            let mut command = world.command("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", "./claims"]);
            command
        } else {
            world.command("./claims")
        };
        command.args([count, megabytes].map(|number| number.to_string())).args(command_of_one);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it is built");
        let mut foreign = Self(child);
        if foreign.line() != "ready" {
            println!("skipped: this kernel lets nobody move his environment");
            return None;
        }
        Some(foreign)
    }

    /// Reads the next line of their output.
    fn line(&mut self) -> String {
        let said = self.0.stdout.as_mut().expect("a pipe was asked for");
        // Byte by byte, because a buffer would read ahead and lose the rest.
        let next = || {
            let mut byte = [0];
            said.read_exact(&mut byte).ok().map(|()| byte[0])
        };
        let bytes = std::iter::from_fn(next).take_while(|&byte| byte != b'\n').collect();
        String::from_utf8(bytes).expect("text")
    }
}

impl Drop for ForeignProcesses {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_foreign_process_with_an_environment_of_gigabytes() {
    a_job_is_killed_beside(3, 2000);
}

#[test]
fn hundreds_of_foreign_processes_with_large_environments() {
    a_job_is_killed_beside(300, 64);
}

/// If a guard read what these processes claim, it would read more than a gigabyte at once.
fn a_job_is_killed_beside(foreign: usize, megabytes: usize) {
    let world = World::new(Backend::Redis);
    let Some(foreign) = ForeignProcesses::start(&world, foreign, megabytes, &[]) else { return };
    let options = ["--max-run", "1s", "--grace", "500ms"];
    let holder = world.run("k", &options, DEAF).status(124).any_stderr().spawn();
    let job = world.wait_for_pid("job.pid");
    let guard = holder.guard();
    let before = proc::peak_memory(guard);
    // While dlock is stopped, the guard stays after the end of the job, and its memory can be read.
    holder.signal(Signal::STOP);
    wait_until("the job is dead", || !proc::alive(job));
    let needed = proc::peak_memory(guard) - before;
    assert!(needed < STOPPING, "{needed} KiB");
    holder.signal(Signal::CONT);
    holder.finish();
    drop(foreign);
}

/// The holder is named by the arguments of the script.
#[test]
fn a_script_with_huge_arguments_acquires() {
    let world = World::new(Backend::Redis);
    let acquire = [BINARY, "--store", &world.url(), "acquire", "-k", "k", "-t", "1m"];
    let Some(mut script) = ForeignProcesses::start(&world, 1, 200, &acquire) else { return };
    assert_ne!(script.line(), "", "a token");
    let peak: u64 = script.line().parse().expect("a number");
    assert!(peak < 64 * 1024, "{peak} KiB");
}
