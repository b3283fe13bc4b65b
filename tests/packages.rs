//! The Debian package, in a copy of this machine whose changes are thrown away: what a fresh install offers, what an
//! upgrade does to a job that holds a lock, and that a purge leaves nothing behind. `./test --packages` runs it, as root
//! (or with sudo).

use crate::support::dlock::BINARY;
use crate::support::pty::Terminal;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::World;
use rustix::process::geteuid;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The copy: an overlay on the root directory, in a mount namespace that a process keeps.
struct Machine<'w> {
    world: &'w World,
    keeper: Child,
    pid: i32,
}

const KEEPER: &str = r#"
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
rm -f "$1"/root/etc/dpkg/dpkg.cfg.d/* "$1"/root/etc/dlock.toml
echo $$ > "$2"
read -r _
"#;

impl<'w> Machine<'w> {
    fn start(world: &'w World) -> Self {
        world.write("machine/pid", "");
        let keeper = as_root(world, "unshare")
            .args(["--mount", "--propagation", "slave", "sh", "-c", KEEPER, "sh"])
            .args([world.path("machine"), world.path("pid")])
            .stdin(Stdio::piped())
            .spawn()
            .expect("unshare");
        let pid = world.wait_for_pid("pid");
        Self { world, keeper, pid }
    }

    /// What stands before a command that is to run there.
    fn entrance(&self) -> [String; 6] {
        let root = self.world.path("machine/root").display().to_string();
        ["-t".into(), self.pid.to_string(), "-m".into(), "chroot".into(), root, "env".into()]
    }

    /// A shell line, there, by root, with nothing of this environment.
    fn command(&self, line: &str) -> Command {
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

    /// What a shell line prints, which has to succeed.
    #[track_caller]
    fn run(&self, line: &str) -> String {
        let output = self.command(line).output().expect("nsenter");
        printed(line, &output)
    }

    /// Installs a package.
    #[track_caller]
    fn install(&self, package: &Path) {
        let line = "cat > /dlock.deb && dpkg --install /dlock.deb && rm /dlock.deb";
        let file = File::open(package).expect("a package");
        printed(line, &self.command(line).stdin(file).output().expect("nsenter"));
    }

    /// Everything that a package could leave behind. What dpkg and man-db note of every package is their own.
    fn files(&self) -> Vec<String> {
        let kept = ["/var/lib/dpkg/", "/var/cache/man", "/var/log/"];
        let all = self.run("find /etc /usr /var -xdev | sort");
        all.lines()
            .filter(|path| !kept.iter().any(|place| path.starts_with(place)))
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        drop(self.command("touch /root/job/go").output());
        // The namespace and its mounts go with the last process in it.
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

#[track_caller]
fn printed(what: &str, output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}

/// Builds the package around the binary under test, and the same again as a later version.
fn packages(world: &World) -> [PathBuf; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut build = Command::new(root.join("packaging/build"));
    printed("packaging/build", &build.args(["--binary", BINARY, "deb"]).output().expect("packaging/build"));
    let directory = fs::read_dir(root.join("target/packages")).expect("packages");
    let mut paths = directory.flatten().map(|entry| entry.path());
    let first = paths.find(|path| path.extension().is_some_and(|end| end == "deb")).expect("a package");
    let later =
        "dpkg-deb --raw-extract \"$1\" later && sed -i 's/^Version: .*/&+later/' later/DEBIAN/control &&
        dpkg-deb -Zgzip -z1 --root-owner-group --build later later.deb";
    let output = world.command("sh").args(["-c", later, "sh"]).arg(&first).output();
    printed("dpkg-deb", &output.expect("sh"));
    [first, world.path("later.deb")]
}

#[test]
#[ignore = "needs cargo-deb and root; ./test --packages"]
fn a_package_is_installed_used_upgraded_and_purged() {
    let world = World::without_redis();
    let [first, later] = packages(&world);
    let machine = Machine::start(&world);
    let before = machine.files();
    machine.install(&first);

    // Whatever the pages point to is there.
    let page = machine.run("MANWIDTH=80 man dlock-run | col -bx");
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("NAME dlock-run - Take the lock"), "{page}");
    let wide = page.lines().filter(|line| line.chars().count() > 80).collect::<Vec<_>>();
    assert!(wide.is_empty(), "{wide:#?}");
    machine.run("man dlock >/dev/null && man dlock-status >/dev/null");
    let named = machine.run(
        "zcat /usr/share/man/man1/dlock*.1.gz | sed 's/\\\\//g' | grep -o 'docs/[a-z.]*[a-z]' | sort -u",
    );
    assert!(named.contains("docs/report.md"), "{named}");
    for page in named.lines() {
        machine.run(&format!("test -e /usr/share/doc/dlock/{page}"));
    }

    // The settings are all comments, and an administrator's line is kept by what comes later.
    assert_eq!(machine.run("grep -v '^#' /etc/dlock.toml || true").trim(), "");
    machine.run("echo 'store = \"file:/root/locks\"' >> /etc/dlock.toml");
    machine.run("for key in nightly-report nightly-backup db:main; do dlock run -k $key -- true; done");

    completes_in_every_shell(&machine);

    // A job that runs while its dlock is replaced, and another one that waits for it.
    let held = "mkdir /root/job && cd /root/job && exec dlock run -k held -t 5s -w -- sh -c 'echo up > up; until test -e go; do sleep 0.1; done'";
    let mut holder = machine.command(held).spawn().expect("nsenter");
    wait_until("the job runs", || machine.run("cat /root/job/up 2>/dev/null || true") == "up\n");
    let mut waiter = machine.command("exec dlock run -q -k held -w -- true").spawn().expect("nsenter");
    let waits = || machine.run("dlock status held --json").contains("\"waiting_ms\"");
    wait_until("the other one waits", waits);
    machine.install(&later);
    assert!(machine.run("dpkg -s dlock").contains("+later"));
    let fence = machine.run("dlock run -k held -E 0 -- echo ran; dlock status held");
    assert!(fence.contains("held") && !fence.contains("ran"), "{fence}");
    machine.run("touch /root/job/go");
    assert!(holder.wait().expect("our child").success());
    assert!(waiter.wait().expect("our child").success());
    assert!(machine.run("tail -1 /etc/dlock.toml").starts_with("store = "));

    machine.run("dpkg --purge dlock");
    let left = machine.files();
    assert_eq!(left.iter().filter(|path| !before.contains(path)).collect::<Vec<_>>(), [""; 0]);
    assert_eq!(before.iter().filter(|path| !left.contains(path)).collect::<Vec<_>>(), [""; 0]);
}

/// A command and a key that the store knows, in shells that were told nothing of dlock.
fn completes_in_every_shell(machine: &Machine<'_>) {
    let fish = |typed: &str| machine.run(&format!("fish -c 'complete -C \"{typed}\"'"));
    wait_until("fish", || fish("dlock ru").starts_with("run\t"));
    wait_until("fish", || fish("dlock run -k nightly-r") == "nightly-report\n");
    for (shell, load) in [
        ("bash --norc --noprofile", "PS1='READY> '; source /usr/share/bash-completion/bash_completion"),
        ("zsh -f", "PS1='READY> '; autoload -U compinit; compinit -D -u"),
    ] {
        let mut terminal = Terminal::open(machine.world);
        let entrance = machine.entrance().join(" ");
        let sudo = if geteuid().is_root() { "" } else { "sudo -n " };
        terminal.press(&format!(
            "exec {sudo}nsenter {entrance} -i HOME=/root TERM=xterm LC_ALL=C.UTF-8 PATH=/usr/bin:/bin {shell}\n"
        ));
        terminal.press(&format!("{load}; echo $((40+2))-loaded\n"));
        terminal.expect("42-loaded");
        terminal.expect("READY> ");
        for (typed, completed) in [
            ("echo dlock; dlock ru\t --help | head -1", "Take the lock, run a command under it"),
            ("dlock history nightly-r\t", "nightly-report"),
        ] {
            wait_for(&format!("{shell} completes {typed:?}"), || {
                terminal.press(&format!("{typed}\n"));
                let shown = terminal.expect("READY> ");
                shown.contains(completed).then_some(())
            });
        }
        terminal.press("exit\n");
    }
}
