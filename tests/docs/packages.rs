//! The packages, in a copy of this machine whose changes are thrown away. The Debian package: a
//! fresh install, an upgrade while a job holds a lock, and a purge that leaves nothing behind. The
//! rpm: it installs the same files, and keeps an administrator's settings. `./test --packages` runs
//! these tests, as root (or with sudo).

use crate::support::dlock::BINARY;
use crate::support::machine::{Machine, printed};
use crate::support::pty::Terminal;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::World;
use rustix::process::geteuid;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

#[track_caller]
fn install(machine: &Machine<'_>, package: &Path) {
    machine.copy(package, "/dlock.deb");
    machine.run("dpkg --install /dlock.deb && rm /dlock.deb");
}

/// All files that a package could leave behind, except the records that dpkg and man-db keep of
/// every package.
fn files(machine: &Machine<'_>) -> BTreeSet<String> {
    let kept = ["/var/lib/dpkg/", "/var/cache/man", "/var/log/"];
    let all = machine.run("find /etc /usr /var -xdev");
    all.lines().filter(|path| !kept.iter().any(|place| path.starts_with(place))).map(str::to_owned).collect()
}

/// Builds the packages around the binary under test, once for all tests.
fn packages() -> &'static [PathBuf; 2] {
    static PACKAGES: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut build = Command::new(root.join("packaging/build"));
        let build = build.args(["--binary", BINARY, "deb", "rpm"]);
        printed("packaging/build", &build.output().expect("packaging/build"));
        let directory = fs::read_dir(root.join("target/packages")).expect("packages");
        let paths = directory.flatten().map(|entry| entry.path()).collect::<Vec<_>>();
        ["deb", "rpm"].map(|kind| {
            let mut paths = paths.iter().filter(|path| path.extension().is_some_and(|end| end == kind));
            paths.next().unwrap_or_else(|| panic!("no {kind}")).clone()
        })
    });
    &PACKAGES
}

/// The same package as a later version.
fn later(world: &World, package: &Path) -> PathBuf {
    let later =
        "dpkg-deb --raw-extract \"$1\" later && sed -i 's/^Version: .*/&+later/' later/DEBIAN/control &&
        dpkg-deb -Zgzip -z1 --root-owner-group --build later later.deb";
    let output = world.command("sh").args(["-c", later, "sh"]).arg(package).output();
    printed("dpkg-deb", &output.expect("sh"));
    world.path("later.deb")
}

/// The rpm has the same files as the Debian package. It keeps the settings when it is installed
/// again, and leaves only them when it is removed. rpm works on a separate directory, because this
/// machine has another package manager.
#[test]
#[ignore = "needs cargo-deb, cargo-generate-rpm and root; ./test --packages"]
fn an_rpm_installs_the_files_of_the_debian_package() {
    let world = World::without_redis();
    let [deb, rpm] = packages();
    let machine = Machine::start(&world, "web-1");
    machine.copy(deb, "/dlock.deb");
    machine.copy(rpm, "/dlock.rpm");
    // Differences that the conventions of the distributions require.
    let usual = |list: String| {
        let paths = list.lines().filter(|path| !path.ends_with('/'));
        let paths = paths.map(|path| {
            let path = path.trim_start_matches('.').trim_end_matches(".gz");
            let path = path.replace("zsh/site-functions", "zsh/vendor-completions");
            path.replace("/usr/share/licenses/dlock/", "/usr/share/doc/dlock/")
        });
        paths.filter(|path| !path.ends_with("/copyright")).collect::<BTreeSet<_>>()
    };
    let of_deb = usual(machine.run("dpkg-deb --fsys-tarfile /dlock.deb | tar -t"));
    let of_rpm = usual(machine.run("rpm -qlp /dlock.rpm"));
    assert_eq!(of_rpm.symmetric_difference(&of_deb).collect::<Vec<_>>(), [""; 0]);
    assert_eq!(machine.run("rpm -qcp /dlock.rpm").trim(), "/etc/dlock.toml");

    machine
        .run("mkdir /there && rpm --root /there --initdb && rpm --root /there --install --nodeps /dlock.rpm");
    machine.run("rpm --root /there --verify --nodeps dlock && /there/usr/bin/dlock --version");
    machine.run("echo 'prefix = \"mine:\"' >> /there/etc/dlock.toml");
    machine.run("rpm --root /there --upgrade --nodeps --force /dlock.rpm");
    assert_eq!(machine.run("tail -n 1 /there/etc/dlock.toml"), "prefix = \"mine:\"\n");
    machine.run("rpm --root /there --erase dlock");
    let left = machine.run("find /there -type f | grep -vE 'rpmdb|^/there/var/'");
    assert_eq!(left, "/there/etc/dlock.toml.rpmsave\n");
}

#[test]
#[ignore = "needs cargo-deb, cargo-generate-rpm and root; ./test --packages"]
fn a_package_is_installed_used_upgraded_and_purged() {
    let world = World::without_redis();
    let [first, _] = packages();
    let machine = Machine::start(&world, "web-1");
    let before = files(&machine);
    install(&machine, first);

    // All files that the pages name exist.
    let page = machine.run("MANWIDTH=80 man dlock-run | col -bx");
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("NAME dlock-run - Take the lock"), "{page}");
    let wide = page.lines().filter(|line| line.chars().count() > 80).collect::<Vec<_>>();
    assert!(wide.is_empty(), "{wide:#?}");
    machine.run("man dlock >/dev/null && man dlock-status >/dev/null && man dlock.toml >/dev/null");
    let named = machine.run(
        "zcat /usr/share/man/man1/dlock*.1.gz | sed 's/\\\\//g' | grep -o 'docs/[a-z.]*[a-z]' | sort -u",
    );
    assert!(named.contains("docs/report.md"), "{named}");
    for page in named.lines() {
        machine.run(&format!("test -e /usr/share/doc/dlock/{page}"));
    }

    // All settings are comments, and an upgrade keeps an administrator's line.
    assert_eq!(machine.run("grep -v '^#' /etc/dlock.toml || true").trim(), "");
    machine.run("echo 'store = \"file:/root/locks\"' >> /etc/dlock.toml");
    machine.run("for key in nightly-report nightly-backup db:main; do dlock run -k $key -- true; done");

    completes_in_every_shell(&world, &machine);

    // One job runs while its dlock is replaced, and another one waits for its lock.
    let held = "mkdir /root/job && cd /root/job && exec dlock run -k held -t 5s -w -- sh -c 'echo up > up; until test -e go; do sleep 0.1; done'";
    let mut holder = machine.command(held).spawn().expect("nsenter");
    wait_until("the job runs", || machine.run("cat /root/job/up 2>/dev/null || true") == "up\n");
    let mut waiter = machine.command("exec dlock run -q -k held -w -- true").spawn().expect("nsenter");
    let waits = || machine.run("dlock status held --json").contains("\"waiting_ms\"");
    wait_until("the other one waits", waits);
    install(&machine, &later(&world, first));
    assert!(machine.run("dpkg -s dlock").contains("+later"));
    let fence = machine.run("dlock run -k held -E 0 -- echo ran; dlock status held");
    assert!(fence.contains("held") && !fence.contains("ran"), "{fence}");
    machine.run("touch /root/job/go");
    assert!(holder.wait().expect("our child").success());
    assert!(waiter.wait().expect("our child").success());
    assert!(machine.run("tail -1 /etc/dlock.toml").starts_with("store = "));

    machine.run("dpkg --purge dlock");
    let left = files(&machine);
    assert_eq!(left.symmetric_difference(&before).collect::<Vec<_>>(), [""; 0]);
}

/// Completes a command and a key of the store, in shells without any setup for dlock.
fn completes_in_every_shell(world: &World, machine: &Machine<'_>) {
    let fish = |typed: &str| machine.run(&format!("fish -c 'complete -C \"{typed}\"'"));
    wait_until("fish", || fish("dlock ru").starts_with("run\t"));
    wait_until("fish", || fish("dlock run -k nightly-r") == "nightly-report\n");
    for (shell, load) in [
        ("bash --norc --noprofile", "PS1='READY> '; source /usr/share/bash-completion/bash_completion"),
        ("zsh -f", "PS1='READY> '; autoload -U compinit; compinit -D -u"),
    ] {
        let mut terminal = Terminal::open(world);
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
