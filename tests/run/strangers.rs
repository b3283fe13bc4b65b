//! Processes that are not of the job, mostly another user's: whatever they make of themselves, they delay no KILL, and
//! cost the guard no memory.

use crate::support::dlock::BINARY;
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::process::{Signal, geteuid};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Deaf to TERM, so that only KILL ends it.
const DEAF: &str = "trap '' TERM; echo $$ > job.tmp; mv job.tmp job.pid; while :; do sleep 0.05; done";
/// What the guard may need while it stops a small job, in KiB: pages of its own program, mostly.
const STOPPING: u64 = 4096;

/// Processes that claim to have a huge environment and huge arguments (`claims.c`).
struct Strangers(Child);

impl Strangers {
    /// Another user's, if this one may become another one. `None`, and a word about it, where there can be none.
    fn start(world: &World, count: usize, megabytes: usize, command_of_one: &[&str]) -> Option<Self> {
        world.open_to_all();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/claims.c");
        let built = Command::new("cc").args(["-O1", "-o"]).arg(world.path("claims")).arg(&source).status();
        assert!(built.expect("cc is installed").success(), "cc cannot build the strangers");
        let mut command = if geteuid().is_root() {
            let mut command = world.command("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", "./claims"]);
            command
        } else {
            world.command("./claims")
        };
        command.args([count, megabytes].map(|number| number.to_string())).args(command_of_one);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it is built");
        let mut strangers = Self(child);
        if strangers.line() != "ready" {
            println!("skipped: this kernel lets nobody move his environment");
            return None;
        }
        Some(strangers)
    }

    /// What one of them says next.
    fn line(&mut self) -> String {
        let said = self.0.stdout.as_mut().expect("a pipe was asked for");
        // Byte by byte: what a buffer read ahead would be gone the next time.
        let next = || {
            let mut byte = [0];
            said.read_exact(&mut byte).ok().map(|()| byte[0])
        };
        let bytes = std::iter::from_fn(next).take_while(|&byte| byte != b'\n').collect();
        String::from_utf8(bytes).expect("text")
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_stranger_with_an_environment_of_gigabytes() {
    a_job_is_killed_beside(3, 2000);
}

#[test]
fn hundreds_of_strangers_with_large_environments() {
    a_job_is_killed_beside(300, 64);
}

/// Each of these reads a gigabyte and more at once where a guard reads what strangers claim.
fn a_job_is_killed_beside(strangers: usize, megabytes: usize) {
    let world = World::new(Backend::Redis);
    let Some(strangers) = Strangers::start(&world, strangers, megabytes, &[]) else { return };
    let options = ["--max-run", "1s", "--grace", "500ms"];
    let holder = world.run("k", &options, DEAF).status(124).any_stderr().spawn();
    let job = world.wait_for_pid("job.pid");
    let guard = holder.guard();
    let before = proc::peak_memory(guard);
    // A dlock that is stopped leaves the guard there when the job is over, so that its memory can be looked at.
    holder.signal(Signal::STOP);
    wait_until("the job is dead", || !proc::alive(job));
    let needed = proc::peak_memory(guard) - before;
    assert!(needed < STOPPING, "{needed} KiB");
    holder.signal(Signal::CONT);
    holder.finish();
    drop(strangers);
}

/// The script that has the lock is named by its arguments.
#[test]
fn a_script_with_huge_arguments_acquires() {
    let world = World::new(Backend::Redis);
    let acquire = [BINARY, "--store", &world.url(), "acquire", "-k", "k", "-t", "1m"];
    let Some(mut script) = Strangers::start(&world, 1, 200, &acquire) else { return };
    assert_ne!(script.line(), "", "a token");
    let peak: u64 = script.line().parse().expect("a number");
    assert!(peak < 64 * 1024, "{peak} KiB");
}
