//! The recipes for jobs that run at a certain time, on several machines.

use super::{blocks, on_a_machine, status_of};
use crate::support::masters::steered_clock;
use crate::support::redis::Redis;
use crate::support::wait::wait_until;
use crate::support::world::World;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

/// The command of the crontab line with this key.
fn crontab_command(key: &str) -> &'static str {
    let mut lines = blocks("crontab").into_iter().flat_map(str::lines);
    let line = lines.find(|line| line.contains(&format!("-k {key} "))).expect("a line");
    line.splitn(6, char::is_whitespace).nth(5).expect("a command").trim()
}

/// The value of an option, in hours.
fn hours(command: &str, option: &str) -> Option<i64> {
    let mut words = command.split_whitespace();
    words.find(|word| *word == option)?;
    words.next()?.strip_suffix('h')?.parse().ok()
}

/// A machine that starts hours late finds the report done. The next night runs it, even if the run
/// before was granted the lock at the last moment that its `-w` allows, and the day had 23 hours.
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
        let (world, _server) = steered_world();
        let night = || status_of(on_a_machine(&world, &recipe));
        assert_eq!(night(), Some(0), "{recipe}");
        set_hour(&world, 2);
        assert_eq!((night(), world.log().len()), (Some(0), 1), "two hours later: {recipe}");
        set_hour(&world, 23 - hours(&recipe, "-w").unwrap_or(0));
        assert_eq!((night(), world.log().len()), (Some(0), 2), "the next night: {recipe}");
    }
}

/// A world with a server whose clock [`set_hour`] sets, and with a report.
fn steered_world() -> (World, Redis) {
    let mut world = World::without_redis();
    set_hour(&world, 0);
    let environment =
        vec![("LD_PRELOAD", steered_clock().into()), ("STEERED_STEPS", world.path("clock").into())];
    let server = Redis::start_within(&world.path(""), &[], environment);
    world.use_store(server.url());
    world.script("report", "#!/bin/sh\necho report >> log\n");
    (world, server)
}

fn set_hour(world: &World, hour: i64) {
    let file = std::fs::File::options().write(true).create(true).truncate(false).open(world.path("clock"));
    file.expect("a clock").write_all(&(hour * 3_600_000_000).to_ne_bytes()).expect("a step");
}

/// The README's lines, as printed: the check at 16:00 runs the report, and the night runs it all the
/// same, once.
#[test]
fn the_check_of_the_readme_does_not_count() {
    let readme = include_str!("../../../README.md");
    let block = |language: &str| {
        let (_, rest) = readme.split_once(&format!("```{language}\n")).expect("a block");
        rest.split_once("```").expect("its end").0
    };
    let night = block("crontab").splitn(6, char::is_whitespace).nth(5).expect("a command").trim();
    assert!(night.contains(" --max-run "), "{night}");
    let (world, _server) = steered_world();
    let play = |lines: &str| status_of(on_a_machine(&world, lines));
    for (hour, lines, runs) in [
        (3, night, 1),
        (16, block("sh"), 2),
        (27, night, 3),
        // Another machine, two hours later.
        (29, night, 3),
    ] {
        set_hour(&world, hour);
        assert_eq!((play(lines), world.log().len()), (Some(0), runs), "{hour}: {lines}");
    }
    assert!(block("sh").starts_with("dlock doctor\n"));
}

/// The line for each period runs its job once.
#[test]
fn there_is_a_line_for_each_period() {
    let world = World::with_redis(&[]);
    for (key, period) in [("poll", "minute"), ("sync", "hour"), ("backup", "day"), ("check-archive", "week")]
    {
        let line = crontab_command(key);
        assert!(line.contains(&format!(" --once-per {period} ")), "{line}");
        world.script(key, &format!("#!/bin/sh\necho {key} >> log\n"));
        assert_eq!([0, 1].map(|_| status_of(on_a_machine(&world, line))), [Some(0); 2]);
        assert_eq!(world.lines(key), 1);
    }
}

/// What cron mails of each of so many machines: what the line prints.
fn mails(world: &World, line: &str, machines: usize) -> Vec<String> {
    let start = |_| {
        let mut machine = on_a_machine(world, line);
        machine.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell")
    };
    let machines = (0..machines).map(start).collect::<Vec<_>>();
    let printed = machines.into_iter().map(|machine| machine.wait_with_output().expect("a child"));
    let texts =
        printed.map(|output| String::from_utf8([output.stdout, output.stderr].concat()).expect("text"));
    texts.filter(|text| !text.is_empty()).collect()
}

#[test]
fn the_table_of_mails_is_right() {
    let line = crontab_command("nightly-report");
    let night = |report: &str, line: &str| {
        let world = World::with_redis(&[]);
        world.script("report", &format!("#!/bin/sh\n{report}\n"));
        mails(&world, line, 3)
    };
    let nothing: [&str; 0] = [];
    assert_eq!(night("", line), nothing);
    assert_eq!(night("echo done", line), ["done\n"]);
    assert_eq!(night("echo broken; exit 3", line), ["broken\n"; 3]);
    let hangs = night("exec sleep 1000", &line.replace("--max-run 3h", "--max-run 1s"));
    assert_eq!(hangs.len(), 3, "{hangs:?}");
    let mut world = World::without_redis();
    world.use_store("redis://127.0.0.1:1".into());
    let away = mails(&world, &line.replace("-w 4h", "-w 1s"), 3);
    assert_eq!(away.len(), 3, "{away:?}");
    let one_line = |text: &String| text.starts_with("dlock: ") && text.lines().count() == 1;
    assert!(hangs.iter().chain(&away).all(one_line), "{hangs:?} {away:?}");
}

/// The script in cron.daily is quiet, and no error for run-parts, where another machine runs it or has
/// run it.
#[test]
fn a_script_in_cron_daily_is_quiet() {
    let world = World::with_redis(&[]);
    let script =
        blocks("sh").into_iter().find(|block| block.contains("# /etc/cron.daily/")).expect("a script");
    world.script("report", "#!/bin/sh\necho report >> log\nuntil [ -e go ]; do sleep 0.1; done\n");
    let line = script.lines().last().expect("a line");
    let mut first = on_a_machine(&world, line).spawn().expect("a shell");
    world.wait_for_log("report");
    let again = || (mails(&world, line, 1).len(), status_of(on_a_machine(&world, line)));
    assert_eq!(again(), (0, Some(0)));
    world.write("go", "");
    assert!(first.wait().expect("a child").success());
    assert_eq!(again(), (0, Some(0)));
    assert_eq!(world.log(), ["report"]);
}

/// A list of words of a manifest, as a command line.
fn list(text: &str) -> String {
    let words = text.trim().trim_start_matches('[').trim_end_matches(']').split(", ");
    words.map(|word| word.trim_matches('"')).collect::<Vec<_>>().join(" ")
}

/// The command of the CronJob's container.
fn cron_job() -> String {
    let manifest =
        blocks("yaml").into_iter().find(|block| block.contains("kind: CronJob")).expect("a manifest");
    let words = |name: &str| manifest.lines().find_map(|line| line.trim().strip_prefix(name)).map(list);
    ["command:", "args:"].map(|name| words(name).expect("words")).join(" ")
}

#[test]
fn what_comes_after_the_report_waits_for_it() {
    let world = World::without_redis();
    for job in ["report", "mailing"] {
        world.script(job, &format!("#!/bin/sh\necho {job} >> log\n"));
    }
    let mailing = on_a_machine(&world, crontab_command("mailing")).spawn();
    assert_eq!(status_of(on_a_machine(&world, crontab_command("nightly-report"))), Some(0));
    assert_eq!(mailing.expect("a shell").wait().expect("a child").code(), Some(0));
    assert_eq!(world.log(), ["report", "mailing"]);
}

#[test]
fn a_missed_job_is_made_up_for_once() {
    let world = World::with_redis(&[]);
    let tick = || status_of(on_a_machine(&world, crontab_command("weekly-cleanup")));
    world.script("cleanup", "#!/bin/sh\necho failed >> log\nexit 3\n");
    assert_eq!(tick(), Some(3));
    world.script("cleanup", "#!/bin/sh\necho cleaned >> log\n");
    assert_eq!([tick(), tick(), tick()], [Some(0); 3]);
    assert_eq!(world.log(), ["failed", "cleaned"]);
}

#[test]
fn machines_that_start_at_random_moments_run_it_once() {
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

/// The run that made the report pings its status, a run that finds it done pings nothing, and a run
/// that could not start pings a failure.
#[test]
fn a_monitor_is_pinged_once_for_each_report() {
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

/// The container's command in two clusters with one store: the job runs in one cluster, and both
/// Jobs succeed.
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

/// Each shard succeeds once, although one fails at first and one machine dies with a shard.
#[test]
fn each_part_of_a_job_is_done_once() {
    let script = blocks("sh").into_iter().find(|block| block.contains("import.$shard")).expect("a script");
    for machines in [5, 2] {
        let world = World::with_redis(&[]);
        world.script(
            "import",
            "#!/bin/sh\nif [ -n \"$DOOMED\" ]; then echo $2 > stuck; exec sleep 300; fi\n\
             if [ $2 = 3 ] && mkdir tried; then exit 1; fi\necho $2 >> log\n",
        );
        world.script("import-all", script);
        let start = |doomed: &str| {
            let mut machine = on_a_machine(&world, "exec ./import-all");
            machine.env("DOOMED", doomed).process_group(0).spawn().expect("a shell")
        };
        let mut doomed = start("yes");
        wait_until("it has a shard", || world.path("stuck").exists());
        let others: Vec<Child> = (1..machines).map(|_| start("")).collect();
        wait_until("the others have done the rest", || world.log().len() >= 6);
        let group = Pid::from_raw(i32::try_from(doomed.id()).expect("a process id")).expect("a process id");
        kill_process_group(group, Signal::KILL).expect("it runs");
        doomed.wait().expect("a child");
        for mut other in others {
            assert_eq!(other.wait().expect("a child").code(), Some(0));
        }
        let mut done = world.log();
        done.sort();
        assert_eq!(done, ["0", "1", "2", "3", "4", "5", "6", "7"], "{machines} machines");
    }
}
