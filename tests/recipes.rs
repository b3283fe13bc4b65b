//! Do the recipes work as they are written? Those that need a cron daemon, systemd's own checks or root run on machines
//! to throw away, by `./test --packages`; what CI runners do to a step is done here. The examples of one line are
//! `readme`'s, the shop's scripts `oversell`'s.

use crate::support::dlock::BINARY;
use crate::support::machine::Machine;
use crate::support::proc;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::World;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// The fenced blocks of a language in docs/recipes.md.
fn blocks(language: &str) -> Vec<&'static str> {
    let text = include_str!("../docs/recipes.md");
    let parts = text.split("\n```").skip(1).step_by(2);
    parts.filter_map(|part| part.strip_prefix(language)?.strip_prefix('\n')).collect()
}

/// Two hosts with a cron daemon each, and the crontab that the page begins with, every minute. One runs the job; nobody
/// gets mail of that, nor of the other one that stood by. A job that fails is tried on both, and both send mail.
#[test]
#[ignore = "takes a minute and needs root; ./test --packages"]
fn cron_on_two_hosts_runs_a_job_once_and_mails_what_fails() {
    let world = World::with_redis(&[]);
    let line = blocks("crontab")[0].lines().next().expect("a line");
    let every_minute = line.strip_prefix("0 3 * * *").map(|command| format!("* * * * *{command}"));
    let every_minute = every_minute.expect("at three in the morning");
    let failing = every_minute.replace("nightly-report", "failing").replace("bin/report", "bin/fail");
    let crontab = format!("MAILTO=ops@example.com\n{every_minute}\n{failing}\n");
    world.write("crontab", &crontab);
    let store = blocks("toml")[0].replace("redis://redis.internal:6379", &world.url());
    world.write("dlock.toml", &store);
    let log = world.path("log").display().to_string();
    world.write("log", "");
    world.write("report", &format!("#!/bin/sh\necho report >> {log}\n"));
    world.write("fail", &format!("#!/bin/sh\necho fail >> {log}\necho broken\nexit 3\n"));
    world.write("sendmail", "#!/bin/sh\ncat >> /mail\n");
    let machines = ["web-1", "web-2"].map(|name| {
        let machine = Machine::start(&world, name);
        let program = line.split_whitespace().find(|word| word.ends_with("/dlock")).expect("dlock");
        machine.copy(Path::new(BINARY), program);
        machine.copy(&world.path("dlock.toml"), "/etc/dlock.toml");
        machine.copy(&world.path("report"), "/usr/local/bin/report");
        machine.copy(&world.path("fail"), "/usr/local/bin/fail");
        machine.copy(&world.path("sendmail"), "/usr/sbin/sendmail");
        machine.copy(&world.path("crontab"), "/crontab");
        machine
            .run("rm -rf /var/spool/cron/crontabs/* /etc/cron.d/* && : > /etc/crontab && crontab /crontab");
        machine
    });
    let daemons = machines.each_ref().map(|machine| {
        let mut daemon = machine.command("exec cron -f");
        daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("cron")
    });
    // The other one has found it done.
    let found_done = || {
        let text = world.dlock(["metrics", "nightly-report"]).any_stdout().run().stdout;
        text.contains("dlock_done_total{key=\"nightly-report\"} 1\n")
    };
    // cron starts jobs at full minutes, and the machine may be busy then.
    wait_within(Duration::from_secs(120), "one host finds the job done", || found_done().then_some(()));
    let mails =
        || machines.iter().map(|machine| machine.run("cat /mail 2>/dev/null || true")).collect::<String>();
    wait_until("the failures are mailed", || mails().matches("\nbroken").count() == 2);
    for mut daemon in daemons {
        drop(daemon.kill());
        drop(daemon.wait());
    }
    let mut log = machines.iter().flat_map(|machine| lines(machine, &log)).collect::<Vec<_>>();
    log.sort();
    assert_eq!(log, ["fail", "fail", "report"]);
    let mails = mails();
    assert_eq!(mails.matches("\nSubject:").count(), 2, "{mails}");
    assert!(!mails.contains("dlock:"), "{mails}");
}

fn lines(machine: &Machine<'_>, file: &str) -> Vec<String> {
    machine.run(&format!("cat {file}")).lines().map(str::to_owned).collect()
}

/// The units are what systemd understands, every word.
#[test]
#[ignore = "needs root; ./test --packages"]
fn systemd_finds_nothing_wrong_with_the_units() {
    let world = World::without_redis();
    let machine = Machine::start(&world, "web-1");
    world.write("program", "#!/bin/sh\n");
    let mut units = Vec::new();
    for unit in blocks("ini").into_iter().filter(|block| block.starts_with("# /etc/systemd/system/")) {
        let path = unit.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a path");
        world.write("unit", unit);
        machine.copy(&world.path("unit"), path);
        machine.run(&format!("chmod 644 {path}"));
        let program = unit.lines().find_map(|line| line.strip_prefix("ExecStart="));
        for word in program.into_iter().flat_map(str::split_whitespace).filter(|word| word.starts_with('/')) {
            machine.copy(&world.path("program"), word);
        }
        units.push(path);
    }
    assert!(units.len() >= 3, "{units:?}");
    let said = machine.run(&format!("systemd-analyze --man=no verify {} 2>&1", units.join(" ")));
    assert_eq!(said, "");
}

/// The lists of words, as containers, Kubernetes and Ansible have them, are commands that dlock understands.
#[test]
fn lists_of_words_are_understood() {
    let world = World::without_redis();
    let mut lists = 0;
    for line in ["dockerfile", "yaml"].into_iter().flat_map(blocks).flat_map(str::lines) {
        let Some((_, list)) = line.split_once('[').filter(|(_, list)| list.contains("dlock")) else {
            continue;
        };
        let words = list.trim_end_matches(']').split(", ").map(|word| word.trim_matches('"'));
        let arguments = words.skip(1).take_while(|word| *word != "--");
        // The second is busy, by the --min-hold of the first, and -E makes that 0.
        world.dlock(arguments).args(["--", "true"]).any_stderr().run();
        lists += 1;
    }
    assert_eq!(lists, 3);
}

/// How a runner starts a step, and whom it signals to cancel it.
struct Runner {
    shell: &'static [&'static str],
    signal: Signal,
    whole_group: bool,
}

/// A cancelled step leaves no deployment running, and the lock is free.
#[test]
fn a_cancelled_step_takes_its_deployment_with_it() {
    let step = |line: &&str| line.contains("exec dlock run") && line.contains("./deploy.sh");
    let command = |line: &str| {
        let line = line.trim().trim_start_matches("- ").trim_start_matches("sh '").trim_end_matches('\'');
        line.to_owned()
    };
    let [gitlab, github, jenkins] = ["yaml", "yaml", "groovy"].map(blocks);
    let gitlab = command(gitlab.iter().flat_map(|block| block.lines()).find(step).expect("GitLab's"));
    let github = command(github.iter().skip(1).flat_map(|block| block.lines()).find(step).expect("GitHub's"));
    let jenkins = command(jenkins.iter().flat_map(|block| block.lines()).find(step).expect("Jenkins'"));
    for (line, runner) in [
        // It feeds a shell, and kills its process group.
        (
            format!(": | eval '{gitlab}'"),
            Runner { shell: &["bash"], signal: Signal::KILL, whole_group: true },
        ),
        // It starts a script, and signals that: first so, last with KILL.
        (github.clone(), Runner { shell: &["bash", "-e"], signal: Signal::INT, whole_group: false }),
        (github, Runner { shell: &["bash", "-e"], signal: Signal::KILL, whole_group: false }),
        (jenkins, Runner { shell: &["sh", "-xe"], signal: Signal::TERM, whole_group: false }),
    ] {
        let world = World::with_redis(&[]);
        world.script("deploy.sh", "#!/bin/sh\necho $$ > pid\nsleep 300\n");
        world.write("step", &line);
        let [shell, options @ ..] = runner.shell else { unreachable!() };
        let mut shell = world.command(shell);
        let bin = Path::new(BINARY).parent().expect("a directory").display().to_string();
        shell.args(options).arg("step").process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
        shell.env("PATH", format!("{bin}:/usr/bin:/bin")).env("DLOCK_STORE", world.url());
        let mut shell = shell.spawn().expect("a shell");
        let deployment = world.wait_for_pid("pid");
        let pid = Pid::from_raw(i32::try_from(shell.id()).expect("a process id")).expect("a process id");
        match runner.whole_group {
            true => kill_process_group(pid, runner.signal).expect("it runs"),
            false => kill_process(pid, runner.signal).expect("it runs"),
        }
        wait_until(&format!("no deployment: {line}"), || !proc::alive(deployment));
        world.wait_for_state("deploy-production", "free");
        drop(shell.wait());
    }
}
