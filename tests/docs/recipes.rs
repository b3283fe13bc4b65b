//! Do the recipes work as they are written? Those that need a cron daemon, systemd's own checks or root run on machines
//! to throw away, by `./test --packages`; what CI runners do to a step is done here. The shop's scripts are `oversell`'s,
//! the script that takes a lock itself is `acquire`'s, the alerts and the dashboard are `observability`'s.

use crate::support::dlock::BINARY;
use crate::support::machine::Machine;
use crate::support::masters::steered_clock;
use crate::support::proc;
use crate::support::redis::Redis;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::World;
use regex_lite::Regex;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The fenced blocks of a language in docs/recipes.md.
fn blocks(language: &str) -> Vec<&'static str> {
    let text = include_str!("../../docs/recipes.md");
    let parts = text.split("\n```").skip(1).step_by(2);
    parts.filter_map(|part| part.strip_prefix(language)?.strip_prefix('\n')).collect()
}

/// Two hosts with a cron daemon each, and the lines of the page, every minute. One host runs each job; nobody gets mail
/// of that, nor of the other one that stood by. A job that fails is tried on both, and both send mail. Both write metrics.
#[test]
#[ignore = "takes a minute and needs root; ./test --packages"]
fn cron_on_two_hosts_runs_a_job_once_and_mails_what_fails() {
    let world = World::with_redis(&[]);
    let lines = blocks("crontab");
    let line = |part: &str| lines.iter().find(|line| line.contains(part)).map(|line| every_minute(line));
    let [nightly, often, key_per_day] =
        ["-w 4h", "*/10 3-5", "--min-hold 1d"].map(|part| line(part).expect("a line of the page"));
    let metrics = lines.iter().find(|line| line.contains("dlock metrics")).expect("metrics");
    let failing = nightly.replace("nightly-report", "failing").replace("bin/report", "bin/fail");
    // At night it is tried again for hours; here both lines come at the same minute.
    let often = often.replace("nightly-report", "evening-report");
    let crontab =
        ["MAILTO=ops@example.com", &nightly, &often, &key_per_day, &failing, metrics, ""].join("\n");
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
        let program = nightly.split_whitespace().find(|word| word.ends_with("/dlock")).expect("dlock");
        machine.copy(Path::new(BINARY), program);
        machine.copy(&world.path("dlock.toml"), "/etc/dlock.toml");
        machine.copy(&world.path("report"), "/usr/local/bin/report");
        machine.copy(&world.path("fail"), "/usr/local/bin/fail");
        machine.copy(&world.path("sendmail"), "/usr/sbin/sendmail");
        machine.copy(&world.path("crontab"), "/crontab");
        machine.run("mkdir -p /var/lib/node_exporter; rm -rf /var/spool/cron/crontabs/* /etc/cron.d/*");
        machine.run(": > /etc/crontab && crontab /crontab");
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
    wait_until("every job has run", || {
        machines.iter().flat_map(|machine| lines_of(machine, &log)).filter(|line| line == "report").count()
            == 3
    });
    for machine in &machines {
        wait_until("the metrics", || !machine.run("cat /var/lib/node_exporter/*.prom || true").is_empty());
    }
    for mut daemon in daemons {
        drop(daemon.kill());
        drop(daemon.wait());
    }
    let mut log = machines.iter().flat_map(|machine| lines_of(machine, &log)).collect::<Vec<_>>();
    log.sort();
    assert_eq!(log, ["fail", "fail", "report", "report", "report"]);
    let mails = mails();
    assert_eq!(mails.matches("\nSubject:").count(), 2, "{mails}");
    assert!(!mails.contains("dlock:"), "{mails}");
}

/// A line of a crontab, at every minute in place of its own time.
fn every_minute(line: &str) -> String {
    let command = line.splitn(6, ' ').nth(5).expect("five fields and a command");
    format!("* * * * * {command}")
}

fn lines_of(machine: &Machine<'_>, file: &str) -> Vec<String> {
    machine.run(&format!("cat {file}")).lines().map(str::to_owned).collect()
}

/// systemd itself runs the standby of the page, as two services of one host. One runs the server and the other waits. What
/// waiting cannot mend, here a password that was changed, has the services started again for as long as it lasts. A stop
/// ends the server by TERM, and then the other one runs it.
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
    // Else the test takes half a minute for more starts than systemd allows by default.
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

/// Before the words of a question to the systemd of a machine.
const ASK_SYSTEMD: &str = "SYSTEMD_IGNORE_CHROOT=1 XDG_RUNTIME_DIR=/run/manager systemctl --user";

/// Starts a systemd that manages units on a machine: as a user's, for the first process there is another one.
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
        // The second finds it done.
        world.dlock(arguments).args(["--", "true"]).any_stderr().run();
        lists += 1;
    }
    assert_eq!(lists, 3);
}

/// The blocks of shell do their work as they stand, and what they start runs under the lock that they name.
#[test]
fn shell_blocks_run_as_they_are_written() {
    let mut run = 0;
    for block in blocks("sh").into_iter().filter(|block| !block.starts_with("#!/bin/sh\n")) {
        let world = World::without_redis();
        // A line for the top of a script: a script follows.
        let rest = if block.contains("\"$0\"") { "\n./rest" } else { "" };
        let (programs, noted, status) = play(&world, &format!("{block}{rest}"));
        assert_eq!(status, Some(0), "{block}\n{noted:?}");
        for program in programs {
            let noted = noted.iter().find(|line| line.starts_with(&format!("{program} ")));
            let noted = noted.unwrap_or_else(|| panic!("{program} has not run: {block}"));
            let key = noted.rsplit_once(" under ").expect("a note").1;
            assert!(!key.is_empty() && block.contains(key), "{noted}: {block}");
        }
        run += 1;
    }
    assert!(run >= 14, "{run} blocks");
}

/// What the tables write in place of other tools' lines works, and flock's lines do what dlock's do.
#[test]
fn the_tables_of_other_tools_are_right() {
    let page = include_str!("../../docs/recipes.md");
    let (_, tables) = page.split_once("## In place of other tools\n").expect("the tables");
    let tables = tables.split("\n## ").next().expect("the section").replace("\\|", "\u{1}");
    let mut run = 0;
    for row in tables.lines().filter(|line| line.starts_with('|')) {
        let cells = row.split('|').map(code).collect::<Vec<_>>();
        let [_, theirs, ours, _] = &cells[..] else { panic!("{row}") };
        for example in ours {
            let example = match example.as_str() {
                // It runs nothing.
                line if line.starts_with("dlock status ") => continue,
                line if line.starts_with("dlock ") => line.to_owned(),
                options if options.starts_with("-k ") => format!("dlock run {options} -- CMD"),
                options if options.starts_with('-') && options.contains(' ') => {
                    format!("dlock run -k l {options} -- CMD")
                }
                _ => continue,
            };
            let example = example.replace("sleep infinity", "CMD");
            let world = World::without_redis();
            let (programs, noted, status) = play(&world, &example);
            assert!(
                status == Some(0) && !noted.is_empty() && noted.len() == programs.len(),
                "{row}\n{noted:?}"
            );
            assert!(noted.iter().all(|line| !line.ends_with(" under ")), "{row}\n{noted:?}");
            run += 1;
            let Some(flock) = theirs.iter().find(|line| line.starts_with("flock ")) else { continue };
            let world = World::without_redis();
            let (_, flocks, status) = play(&world, flock);
            let same = |noted: &[String]| {
                let mut lines =
                    noted.iter().filter_map(|line| line.split(" under ").next()).collect::<Vec<_>>();
                lines.sort_unstable();
                lines.join("\n")
            };
            assert_eq!((status, same(&flocks)), (Some(0), same(&noted)), "{row}");
            if flock.contains(" -n ") {
                let job = "echo up >> log; until test -e go; do sleep 0.02; done";
                let holder = world.dlock(["run", "-k", "l", "--", "sh", "-c", job]);
                let holder = holder.under(&["flock", "lock"]).spawn();
                world.wait_for_log("up");
                let told = if flock.contains("-E 9") { [Some(9), Some(9)] } else { [Some(1), Some(75)] };
                assert_eq!([play(&world, flock).2, play(&world, &example).2], told, "{row}");
                world.write("go", "");
                holder.finish();
            }
        }
    }
    assert!(run >= 20, "{run} lines");
}

/// What stands between backticks.
fn code(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(|code| code.replace('\u{1}', "|")).collect()
}

/// Runs an example by a shell. dlock is found, and for every other program that it names a stand-in, which notes its name,
/// its words and the lock it runs under. Returns these programs, what was noted, and the status.
fn play(world: &World, example: &str) -> (Vec<String>, Vec<String>, Option<i32>) {
    let stand_in = "#!/bin/sh\necho \"${0##*/} $* under ${DLOCK_KEY-}\" >> log\n";
    let named = Regex::new(r"(?:\./|/usr/local/bin/|/etc/init\.d/)([a-z][a-z.-]*)").expect("a pattern");
    let mut programs = named.captures_iter(example).map(|found| found[1].to_owned()).collect::<Vec<_>>();
    for program in &programs {
        world.script(program, stand_in);
    }
    for (sign, bare) in
        [("ansible-playbook ", "ansible-playbook"), ("CMD", "CMD"), ("a | b", "a"), ("a | b", "b")]
    {
        if example.contains(sign) {
            world.script(&format!("bin/{bare}"), stand_in);
            programs.push(bare.to_owned());
        }
    }
    // There is no journal here.
    world.script("bin/systemd-cat", "#!/bin/sh\nshift 2\nexec \"$@\"\n");
    programs.sort_unstable();
    programs.dedup();
    world.write("log", "");
    let example = named.replace_all(example, "./$1").replace("/tmp/l ", "lock ");
    world.script("example", &format!("#!/bin/sh\n{example}\n"));
    let bin = Path::new(BINARY).parent().expect("a directory").display();
    let mut shell = world.command("./example");
    shell.env("PATH", format!("{}:{bin}:/usr/bin:/bin", world.path("bin").display()));
    shell.env("DLOCK_STORE", world.url()).env("USER", "somebody").stdin(Stdio::null());
    let output = shell.output().expect("sh");
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    (programs, world.log(), output.status.code())
}

/// How a runner starts a step, and whom it signals to cancel it.
struct Runner {
    shell: &'static [&'static str],
    signals: &'static [Signal],
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
            Runner { shell: &["bash"], signals: &[Signal::KILL], whole_group: true },
        ),
        // It starts a script, and signals that: with INT, which a shell that waits for a command puts off, and then with
        // TERM; last with KILL.
        (
            github.clone(),
            Runner { shell: &["bash", "-e"], signals: &[Signal::INT, Signal::TERM], whole_group: false },
        ),
        (github, Runner { shell: &["bash", "-e"], signals: &[Signal::KILL], whole_group: false }),
        (jenkins, Runner { shell: &["sh", "-xe"], signals: &[Signal::TERM], whole_group: false }),
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
        for signal in runner.signals {
            match runner.whole_group {
                true => kill_process_group(pid, *signal).expect("it runs"),
                false => kill_process(pid, *signal).expect("it is not reaped yet"),
            }
        }
        wait_until(&format!("no deployment: {line}"), || !proc::alive(deployment));
        world.wait_for_state("deploy-production", "free");
        drop(shell.wait());
    }
}

/// A command line of the page, as a machine of its own would run it: with these programs at hand, under these paths.
fn on_a_machine(world: &World, command: &str) -> Command {
    let bin = Path::new(BINARY).parent().expect("a directory").display().to_string();
    let command = command.replace("/usr/bin/dlock", BINARY).replace("/usr/local/bin/", "./");
    let mut shell = world.command("sh");
    shell.args(["-c", &command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.env("PATH", format!("{}:{bin}:/usr/bin:/bin", world.path("").display()));
    shell.env("DLOCK_STORE", world.url());
    shell
}

/// The command of the line of a crontab with this key in it.
fn crontab_command(key: &str) -> &'static str {
    let mut lines = blocks("crontab").into_iter().flat_map(str::lines);
    let line = lines.find(|line| line.contains(&format!("-k {key} "))).expect("a line");
    line.splitn(6, char::is_whitespace).nth(5).expect("a command").trim()
}

/// The value of an option of a recipe, in hours.
fn hours(command: &str, option: &str) -> Option<i64> {
    let mut words = command.split_whitespace();
    words.find(|word| *word == option)?;
    words.next()?.strip_suffix('h')?.parse().ok()
}

/// A machine that comes hours late finds the report of every recipe done. The next night runs it, also when the run before
/// was granted the lock at the last moment that its `-w` allows, and that day had 23 hours.
#[test]
fn a_late_second_machine_does_not_run_it_again_and_the_next_night_does() {
    let unit = blocks("ini").into_iter().find(|unit| unit.contains("-k nightly-report ")).expect("a unit");
    let unit = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let image = blocks("dockerfile").into_iter().next().expect("an image");
    let words = |start: &str| image.lines().find_map(|line| line.strip_prefix(start)).map(list);
    let [entry, arguments] = ["ENTRYPOINT ", "CMD "].map(|start| words(start).expect("words"));
    let recipes = [
        crontab_command("nightly-report").to_owned(),
        crontab_command("spread-report").replace("-i 0-59", "-i 0-0"),
        unit.to_owned(),
        format!("{entry} {arguments}"),
        cron_job(),
    ];
    for recipe in recipes {
        let mut world = World::without_redis();
        let clock = world.path("clock");
        let step = |hour: i64| {
            let file = std::fs::File::options().write(true).create(true).truncate(false).open(&clock);
            file.expect("a clock").write_all(&(hour * 3_600_000_000).to_ne_bytes()).expect("a step");
        };
        step(0);
        let environment =
            vec![("LD_PRELOAD", steered_clock().into()), ("STEERED_STEPS", clock.clone().into())];
        let server = Redis::start_within(&world.path(""), &[], environment);
        world.use_store(server.url());
        world.script("report", "#!/bin/sh\necho report >> log\n");
        let night = || status_of(on_a_machine(&world, &recipe));
        assert_eq!(night(), Some(0), "{recipe}");
        step(2);
        assert_eq!((night(), world.log().len()), (Some(0), 1), "two hours later: {recipe}");
        step(23 - hours(&recipe, "-w").unwrap_or(0));
        assert_eq!((night(), world.log().len()), (Some(0), 2), "the next night: {recipe}");
    }
}

/// A list of words as they stand in a manifest, as a command line.
fn list(text: &str) -> String {
    let words = text.trim().trim_start_matches('[').trim_end_matches(']').split(", ");
    words.map(|word| word.trim_matches('"')).collect::<Vec<_>>().join(" ")
}

/// What the container of the CronJob runs.
fn cron_job() -> String {
    let manifest =
        blocks("yaml").into_iter().find(|block| block.contains("kind: CronJob")).expect("a manifest");
    let words = |name: &str| manifest.lines().find_map(|line| line.trim().strip_prefix(name)).map(list);
    ["command:", "args:"].map(|name| words(name).expect("words")).join(" ")
}

#[track_caller]
fn status_of(mut command: Command) -> Option<i32> {
    command.status().expect("a shell").code()
}

#[test]
fn what_is_due_is_caught_up_with_once() {
    let world = World::with_redis(&[]);
    let tick = || status_of(on_a_machine(&world, crontab_command("weekly-cleanup")));
    world.script("cleanup", "#!/bin/sh\necho failed >> log\nexit 3\n");
    assert_eq!(tick(), Some(3));
    world.script("cleanup", "#!/bin/sh\necho cleaned >> log\n");
    assert_eq!([tick(), tick(), tick()], [Some(0); 3]);
    assert_eq!(world.log(), ["failed", "cleaned"]);
}

#[test]
fn who_comes_at_a_random_moment_runs_it_once() {
    let world = World::with_redis(&[]);
    world.script("report", "#!/bin/sh\necho report >> log\n");
    let soon = crontab_command("spread-report").replace("-i 0-59", "-i 0-1");
    let machines: Vec<Child> =
        (0..3).map(|_| on_a_machine(&world, &soon).spawn().expect("a shell")).collect();
    for mut machine in machines {
        assert_eq!(machine.wait().expect("a child").code(), Some(0));
    }
    assert_eq!(world.log(), ["report"]);
}

/// Who ran the report tells how it ended, who found it done says nothing, and who could not run it says that it failed.
#[test]
fn a_monitor_hears_of_each_report_once() {
    let mut world = World::with_redis(&[]);
    let script =
        blocks("sh").into_iter().find(|block| block.contains("# ping-report URL")).expect("a script");
    world.script("ping-report", &script.replace("/usr/local/bin/", "./").replace("-w 4h", "-w 1s"));
    world.script("curl", "#!/bin/sh\nfor last; do :; done\necho \"ping $last\" >> log\n");
    let tick = |world: &World| status_of(on_a_machine(world, "./ping-report https://monitor/1"));
    world.script("report", "#!/bin/sh\nexit 3\n");
    assert_eq!(tick(&world), Some(3));
    world.script("report", "#!/bin/sh\n");
    assert_eq!([tick(&world), tick(&world)], [Some(0); 2]);
    world.use_store("redis://127.0.0.1:1".into());
    assert_eq!(tick(&world), Some(69));
    let expected = ["3", "0", "fail"].map(|end| format!("ping https://monitor/1/{end}"));
    assert_eq!(world.log(), expected);
}

#[test]
fn a_freeze_stops_deployments_until_it_is_over() {
    let world = World::with_redis(&[]);
    let of = |word: &str| blocks("sh").into_iter().find(|block| block.starts_with(word)).expect("a block");
    assert_eq!(status_of(on_a_machine(&world, of("dlock pause "))), Some(0));
    for key in ["deploy-web", "deploy-api"] {
        let why = "dlock: .* is busy: paused by .* \\(freeze until Monday\\), .*\n";
        world.run(key, &[], "echo deployed >> log").stderr_like(why).status(75).run();
    }
    assert_eq!(status_of(on_a_machine(&world, of("dlock resume "))), Some(0));
    world.run("deploy-web", &[], "echo deployed >> log").run();
    assert_eq!(world.log(), ["deployed"]);
}

#[test]
fn a_newer_commit_replaces_the_preview_of_an_older_one() {
    let world = World::with_redis(&[]);
    let step = blocks("sh").into_iter().find(|block| block.contains("--replace")).expect("a block");
    world.script(
        "deploy-preview",
        "#!/bin/sh\ntrap 'echo cleared up >> log; exit' TERM\necho $COMMIT >> log\n\
         until [ -e go ]; do sleep 0.02; done\n",
    );
    let deploy = |commit: &str| {
        let mut step = on_a_machine(&world, step);
        step.env("COMMIT", commit).env("CI_MERGE_REQUEST_IID", "42").spawn().expect("a shell")
    };
    let mut old = deploy("old");
    world.wait_for_log("old");
    let mut new = deploy("new");
    assert_eq!(old.wait().expect("a child").code(), Some(79));
    world.wait_for_log("new");
    world.write("go", "");
    assert_eq!(new.wait().expect("a child").code(), Some(0));
    assert_eq!(world.log(), ["old", "cleared up", "new"]);
}

/// The line of the unit, on two machines: when the dlock of the one is killed, its server is stopped and the other takes over.
#[test]
fn a_leader_that_is_killed_has_a_successor() {
    let world = World::with_redis(&[]);
    let unit = blocks("ini").into_iter().find(|unit| unit.contains("-k leader ")).expect("a unit");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    world.script("server", "#!/bin/sh\necho $NAME >> log\nexec sleep 300\n");
    let start = |name: &str| {
        let mut machine = on_a_machine(&world, &format!("exec {line}"));
        machine.env("NAME", name).spawn().expect("a shell")
    };
    let mut leader = start("leader");
    world.wait_for_log("leader");
    let mut standby = start("standby");
    world.wait_for_waiters("leader", 1);
    leader.kill().expect("it runs");
    world.wait_for_log("standby");
    leader.wait().expect("a child");
    standby.kill().expect("it runs");
    standby.wait().expect("a child");
    world.wait_for_state("leader", "free");
    assert_eq!(world.log(), ["leader", "standby"]);
}

/// The container's command, in two clusters with one store: the job runs in one of them, and both Jobs have succeeded.
#[test]
fn a_cron_job_in_two_clusters_runs_in_one() {
    let world = World::with_redis(&[]);
    let command = cron_job();
    world.script("report", "#!/bin/sh\necho report >> log\n");
    let clusters: Vec<Child> =
        (0..2).map(|_| on_a_machine(&world, &command).spawn().expect("a shell")).collect();
    for mut cluster in clusters {
        assert_eq!(cluster.wait().expect("a child").code(), Some(0));
    }
    assert_eq!(world.log(), ["report"]);
}

/// The programs of the page in other languages: they write under the lock, say what the lock says, keep nothing, and change
/// nothing when a newer holder has written or an operator took the lock away.
#[test]
fn programs_in_other_languages_hold_a_lock() {
    for (language, interpreter, name) in
        [("python", "/usr/bin/python3", "import.py"), ("javascript", "node", "import.js")]
    {
        let program = blocks(language).into_iter().find(|block| block.contains(name)).expect("a program");
        let world = World::with_redis(&[]);
        world.write(name, program);
        let run = || on_a_machine(&world, &format!("exec {interpreter} {name} 2> messages")).status();
        let run = || run().expect("a shell").code();
        let sql = |words: &str| {
            let output = world.command("sqlite3").args(["import.db", words]).output().expect("sqlite3");
            String::from_utf8(output.stdout).expect("text").trim().to_owned()
        };
        sql("CREATE TABLE total (rows, fence); INSERT INTO total VALUES (0, 0)");
        world.script("fetch", "#!/bin/sh\ndlock status import --json | grep -q '\"held\"' && echo 7\n");
        assert_eq!(run(), Some(0), "{name}: {}", world.read("messages"));
        assert_eq!(sql("SELECT rows, fence FROM total"), format!("7|{}", world.fence("import")), "{name}");
        assert_eq!(world.state("import"), "free", "{name}");

        let holder = world.run("import", &[], "touch up; until test -e go; do sleep 0.02; done").spawn();
        wait_until("it is held", || world.path("up").exists());
        assert_eq!(run(), Some(75), "{name}");
        assert!(world.read("messages").contains("dlock: import in "), "{}", world.read("messages"));
        world.write("go", "");
        holder.finish();

        world.script("fetch", "#!/bin/sh\ndlock release import --force --now -y 2> /dev/null; echo 8\n");
        assert_eq!(run(), Some(79), "{name}");

        world.script("fetch", "#!/bin/sh\necho 9\n");
        sql("UPDATE total SET fence = 1e18");
        assert_eq!(run(), Some(1), "{name}");
        assert!(world.read("messages").contains("a newer holder has written"), "{}", world.read("messages"));
        assert_eq!((sql("SELECT rows FROM total"), world.state("import")), ("7".into(), "free".into()));
    }
}

/// redis-py's lock under the name on the page and dlock's exclude each other.
#[test]
fn the_lock_of_redis_py_and_dlocks_exclude_each_other() {
    let program = blocks("python").into_iter().find(|block| block.contains(".lock(")).expect("a program");
    let world = World::with_redis(&[]);
    let load = "import os, time\ndef load():\n    open('log', 'a').write('theirs\\n')\n    \
                while not os.path.exists('go'):\n        time.sleep(0.02)\n    open('log', 'a').write('end\\n')\n";
    world
        .write("load.py", &format!("{load}{}", program.replace("redis://redis.internal:6379", &world.url())));
    let start =
        || on_a_machine(&world, "exec /usr/bin/python3 load.py 2> messages").spawn().expect("a shell");
    let mut theirs = start();
    world.wait_for_log("theirs");
    let busy = world.run("import", &[], "echo ours >> log").status(75).any_stderr().run().stderr;
    assert!(busy.contains("import"), "{busy}");
    assert_eq!(world.status("import")["holders"][0]["foreign"], true);
    let waiter = world.run("import", &["-w"], "echo ours >> log; until test -e on; do sleep 0.02; done");
    let waiter = waiter.any_stderr().spawn();
    world.wait_for_waiters("import", 1);
    world.write("go", "");
    assert!(theirs.wait().expect("a child").success(), "{}", world.read("messages"));
    world.wait_for_log("ours");
    // It asks, as it does ten times a second, and is not granted it.
    let mut theirs = start();
    let asked = || world.redis().ask::<String>(&["INFO", "commandstats"]).matches("cmdstat_set:").count();
    wait_until("redis-py has asked", || asked() > 0);
    assert_eq!(world.log(), ["theirs", "end", "ours"]);
    world.write("on", "");
    waiter.finish();
    assert!(theirs.wait().expect("a child").success(), "{}", world.read("messages"));
    assert_eq!(world.log(), ["theirs", "end", "ours", "theirs", "end"]);
}

/// Events in the journal, in a syslog and in a chat.
#[test]
fn what_happens_is_told_elsewhere() {
    let world = World::with_redis(&[]);
    world.script("logger", "#!/bin/sh\nwhile read -r line; do echo \"$* $line\" >> syslog; done\n");
    world.script("curl", "#!/bin/sh\nfor last; do :; done\necho \"$last $9\" >> chat\n");
    let scripts = blocks("sh").into_iter().filter(|block| block.starts_with("#!/bin/sh\n"));
    let scripts: Vec<&str> = scripts.filter(|block| block.contains("dlock watch")).collect();
    let [syslog, chat] = scripts[..] else { panic!("two scripts: {scripts:#?}") };
    world.script("to-syslog", syslog);
    world.script("tell-chat", chat);
    let unit = blocks("ini").into_iter().find(|unit| unit.contains("dlock watch")).expect("a unit");
    let unit = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let unit = format!("exec {unit} > journal");
    let commands = ["exec ./to-syslog", "exec ./tell-chat https://chat/1", unit.as_str()];
    let watching = commands.map(|command| on_a_machine(&world, command).spawn().expect("a shell"));
    wait_until("all have told of a failure", || {
        world.run("ok", &[], "true").run();
        world.run("report", &["--label", "a \"report\""], "exit 3").status(3).run();
        ["syslog", "journal", "chat"].iter().all(|file| world.read(file).contains("report"))
    });
    let line = |file: &str, part: &str| {
        let text = world.read(file);
        text.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {text}")).to_owned()
    };
    assert!(line("syslog", "exit 3").starts_with("-t dlock "));
    let event: Value = serde_json::from_str(&line("journal", "\"released\"")).expect("JSON");
    assert!(event["key"].is_string(), "{event}");
    let told = line("chat", "report");
    let message = told.strip_prefix("https://chat/1 ").unwrap_or_else(|| panic!("{told}"));
    let message: Value = serde_json::from_str(message).expect("JSON");
    let text = message["text"].as_str().expect("a text");
    assert!(text.starts_with("report: released, ") && text.ends_with(", a \"report\""), "{text}");
    assert!(!world.read("chat").contains("\"ok: "), "{}", world.read("chat"));
    for mut watch in watching {
        watch.kill().expect("it runs");
        drop(watch.wait());
    }
}
