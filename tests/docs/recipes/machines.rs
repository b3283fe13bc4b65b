//! The recipes that need root, a cron daemon or systemd, on machines to throw away: `./test
//! --packages`.

use super::blocks;
use crate::support::dlock::BINARY;
use crate::support::machine::Machine;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::World;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Two hosts with a cron daemon each run the lines of the page every minute. One host runs each
/// job, and neither host sends mail of that. A job that fails is tried on both, and both send mail.
/// Both write metrics.
#[test]
#[ignore = "takes a minute and needs root; ./test --packages"]
fn cron_on_two_hosts_runs_a_job_once_and_mails_failures() {
    let world = World::with_redis(&[]);
    let lines = blocks("crontab").into_iter().flat_map(str::lines).collect::<Vec<_>>();
    let line = |part: &str| lines.iter().find(|line| line.contains(part)).map(|line| every_minute(line));
    let [nightly, often, key_per_day] =
        ["-w 4h", "*/10 3-5", "--min-hold 1d"].map(|part| line(part).expect("a line of the page"));
    let metrics = lines.iter().find(|line| line.contains("dlock metrics")).expect("metrics");
    let failing = nightly.replace("nightly-report", "failing").replace("bin/report", "bin/fail");
    // The page tries it again for hours; here both hosts start it in the same minute.
    let often = often.replace("nightly-report", "evening-report");
    let crontab =
        ["MAILTO=ops@example.com", &nightly, &often, &key_per_day, &failing, metrics, ""].join("\n");
    world.write("crontab", &crontab);
    let store = blocks("toml")[0].replace("redis://redis.internal:6379", &world.url());
    world.write("dlock.toml", &store);
    // Each machine has its own: a directory in /dev/shm is the same in all.
    let log = "/log";
    world.write("report", &format!("#!/bin/sh\necho report >> {log}\n"));
    world.write("fail", &format!("#!/bin/sh\necho fail >> {log}\necho broken\nexit 3\n"));
    world.write("sendmail", "#!/bin/sh\ncat >> /mail\n");
    let machines = ["web-1", "web-2"].map(|name| {
        let machine = Machine::start(&world, name);
        let program = nightly.split_whitespace().find(|word| word.ends_with("/dlock")).expect("dlock");
        machine.copy(Path::new(BINARY), program);
        machine.copy(&world.path("dlock.toml"), "/etc/dlock.toml");
        machine.copy(&world.path("report"), "/usr/local/bin/report");
        machine.copy(&world.path("fail"), "/usr/local/bin/fail");
        machine.copy(&world.path("sendmail"), "/usr/sbin/sendmail");
        machine.copy(&world.path("crontab"), "/crontab");
        machine.run("mkdir -p /var/lib/node_exporter; rm -rf /var/spool/cron/crontabs/* /etc/cron.d/*");
        machine.run(": > /log && : > /etc/crontab && crontab /crontab");
        machine
    });
    let daemons = machines.each_ref().map(|machine| {
        let mut daemon = machine.command("exec cron -f");
        daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("cron")
    });
    // The other host has found the job done.
    let found_done = || {
        let text = world.dlock(["metrics", "nightly-report"]).any_stdout().run().stdout;
        text.contains("dlock_done_total{key=\"nightly-report\"} 1\n")
    };
    // cron starts jobs at full minutes, and the machine may be busy then.
    wait_within(Duration::from_secs(120), "one host finds the job done", || found_done().then_some(()));
    let mails =
        || machines.iter().map(|machine| machine.run("cat /mail 2>/dev/null || true")).collect::<String>();
    wait_until("the failures are mailed", || mails().matches("\nbroken").count() == 2);
    wait_until("every job has run", || {
        machines.iter().flat_map(|machine| lines_of(machine, log)).filter(|line| line == "report").count()
            == 3
    });
    for machine in &machines {
        wait_until("the metrics", || !machine.run("cat /var/lib/node_exporter/*.prom || true").is_empty());
    }
    for mut daemon in daemons {
        drop(daemon.kill());
        drop(daemon.wait());
    }
    let mut log = machines.iter().flat_map(|machine| lines_of(machine, log)).collect::<Vec<_>>();
    log.sort();
    assert_eq!(log, ["fail", "fail", "report", "report", "report"]);
    let mails = mails();
    assert_eq!(mails.matches("\nSubject:").count(), 2, "{mails}");
    assert!(!mails.contains("dlock:"), "{mails}");
}

/// A line of a crontab, with every minute in place of its own time.
fn every_minute(line: &str) -> String {
    let command = line.splitn(6, ' ').nth(5).expect("five fields and a command");
    format!("* * * * * {command}")
}

fn lines_of(machine: &Machine<'_>, file: &str) -> Vec<String> {
    machine.run(&format!("cat {file}")).lines().map(str::to_owned).collect()
}

/// systemd runs the standby of the page, as two services of one host. One runs the server and the
/// other waits. An error that waiting cannot fix, here a changed password, makes systemd restart
/// the services until it is fixed. A stop ends the server by TERM, and then the other service runs
/// it.
#[test]
#[ignore = "needs root; ./test --packages"]
fn a_standby_takes_over_and_survives_a_store_that_refuses_it() {
    let world = World::with_redis(&["--requirepass", "new"]);
    let settings = |password: &str| format!("store = \"{}\"\npassword = \"{password}\"\n", world.url());
    world.write("right", &settings("new"));
    world.write("wrong", &settings("old"));
    let server =
        "#!/bin/sh\ntrap 'echo TERM >> /log; exit' TERM\necho up >> /log\nwhile :; do sleep 0.1; done\n";
    world.write("server", server);
    let block = blocks("ini").into_iter().find(|block| block.contains("leader.service")).expect("a standby");
    world.write("unit", block);
    // Otherwise so many restarts would take half a minute.
    world.write("sooner", "[Service]\nRestartSec=100ms\n");
    let machine = Machine::start(&world, "web-1");
    machine.copy(Path::new(BINARY), "/usr/bin/dlock");
    machine.copy(&world.path("server"), "/usr/local/bin/server");
    machine.copy(&world.path("wrong"), "/etc/dlock.toml");
    for service in ["leader", "standby"] {
        machine.copy(&world.path("unit"), &format!("/etc/systemd/user/{service}.service"));
        machine.copy(&world.path("sooner"), &format!("/etc/systemd/user/{service}.service.d/sooner.conf"));
    }
    let mut manager = systemd(&machine);
    machine.run(&format!("{ASK_SYSTEMD} start leader"));
    wait_until("more starts than systemd allows by default", || {
        let starts = machine.run(&format!("{ASK_SYSTEMD} show leader --value -p NRestarts"));
        starts.trim().parse::<u32>().is_ok_and(|starts| starts > 7)
    });
    let log = || lines_of(&machine, "/log");
    machine.run("touch /log");
    machine.copy(&world.path("right"), "/etc/dlock.toml");
    wait_until("the server runs", || log() == ["up"]);
    machine.run(&format!("{ASK_SYSTEMD} start standby"));
    wait_until("the other one waits", || {
        machine.run("dlock status leader --json").contains("\"waiting_ms\"")
    });
    assert_eq!(log(), ["up"]);
    machine.run(&format!("{ASK_SYSTEMD} stop leader"));
    wait_until("the other one runs the server", || log() == ["up", "TERM", "up"]);
    machine.run(&format!("{ASK_SYSTEMD} stop standby"));
    assert_eq!(log(), ["up", "TERM", "up", "TERM"]);
    machine.run(&format!("{ASK_SYSTEMD} exit"));
    drop(manager.wait());
}

/// The beginning of a command to the systemd of a machine.
const ASK_SYSTEMD: &str = "SYSTEMD_IGNORE_CHROOT=1 XDG_RUNTIME_DIR=/run/manager systemctl --user";

/// Starts a systemd that manages units on a machine. It is a user's systemd, because PID 1 is
/// another process.
fn systemd(machine: &Machine<'_>) -> Child {
    let line = "mkdir -p /run/systemd/system /run/manager
        XDG_RUNTIME_DIR=/run/manager exec /lib/systemd/systemd --user";
    let mut manager = machine.command(line);
    let manager = manager.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    wait_until("systemd answers", || {
        let asked = machine.command(&format!("{ASK_SYSTEMD} is-system-running")).output().expect("nsenter");
        ["running\n", "degraded\n"].iter().any(|state| asked.stdout == state.as_bytes())
    });
    manager.expect("nsenter")
}

/// `systemd-analyze verify` accepts the units without a word.
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
        // A drop-in is read with its unit.
        units.extend(Some(path).filter(|path| !path.ends_with(".conf")));
    }
    assert!(units.len() >= 3, "{units:?}");
    let said = machine.run(&format!("systemd-analyze --man=no verify {} 2>&1", units.join(" ")));
    assert_eq!(said, "");
}
