//! A machine that a test may change: a copy of this one whose changes are thrown away, with a host
//! name of its own, for tests that need /etc, /usr and root. It shares the network with this one.

use super::proc;
use super::wait::wait_for;
use super::world::World;
use rustix::process::geteuid;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// The copy: an overlay on the root directory, and namespaces that a keeper process holds open. All
/// processes in it end with it.
pub struct Machine<'w> {
    world: &'w World,
    name: String,
    keeper: Child,
    pid: i32,
}

const KEEPER: &str = r#"
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount --rbind /sys "$1/root/sys"
rm -f "$1"/root/etc/dpkg/dpkg.cfg.d/* "$1"/root/etc/dlock.toml
echo "$2" > "$1/root/proc/sys/kernel/hostname"
echo up
read -r _
"#;

impl<'w> Machine<'w> {
    /// Starts a machine of that name.
    pub fn start(world: &'w World, name: &str) -> Self {
        world.write(&format!("{name}/.there"), "");
        let mut keeper = as_root(world, "unshare")
            .args(["--mount", "--propagation", "slave", "--uts", "--pid", "--fork", "--kill-child"])
            .args(["sh", "-c", KEEPER, "sh"])
            .arg(world.path(name))
            .arg(name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut line = String::new();
        let said = keeper.stdout.take().expect("a pipe was asked for");
        BufReader::new(said).read_line(&mut line).expect("a line");
        assert_eq!(line, "up\n");
        let started = i32::try_from(keeper.id()).expect("a process id");
        let pid = wait_for("the first process there", || {
            proc::pids().into_iter().find(|pid| proc::is_below(*pid, started) && proc::name(*pid) == "sh")
        });
        Self { world, name: name.to_owned(), keeper, pid }
    }

    /// The words before a command that run it in the machine.
    pub fn entrance(&self) -> Vec<String> {
        let root = self.world.path(&self.name).join("root");
        format!("--target {} --mount --uts --pid chroot {} env", self.pid, root.display())
            .split(' ')
            .map(str::to_owned)
            .collect()
    }

    /// Copies a file into the machine; all users may read and run it. A process there sees the old
    /// file or all of the new one: an empty configuration, for one, means another store.
    pub fn copy(&self, from: &Path, to: &str) {
        let file = File::open(from).expect("a file");
        let line = format!("mkdir -p $(dirname {to}) && cat > {to}~ && chmod 755 {to}~ && mv {to}~ {to}");
        printed(&line, &self.command(&line).stdin(file).output().expect("nsenter"));
    }

    /// A shell line in the machine, as root, without this environment.
    pub fn command(&self, line: &str) -> Command {
        let mut command = as_root(self.world, "nsenter");
        command.args(self.entrance()).args([
            "-i",
            "HOME=/root",
            "LC_ALL=C.UTF-8",
            "DEBIAN_FRONTEND=noninteractive",
        ]);
        command.args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c", line]);
        command
    }

    /// Runs a shell line, expects success, and returns its output.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        let output = self.command(line).output().expect("nsenter");
        printed(line, &output)
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        // The first process ends, and all others with it; then the namespaces and their mounts are
        // removed.
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }
}

fn as_root(world: &World, program: &str) -> Command {
    if geteuid().is_root() {
        return world.command(program);
    }
    let mut command = world.command("sudo");
    command.args(["-n", program]);
    command
}

/// Expects a program's success, and returns its output.
#[track_caller]
pub fn printed(what: &str, output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}
