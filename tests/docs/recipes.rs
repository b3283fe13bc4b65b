//! The recipes of docs/recipes.md, run as they are written. `oversell` tests the scripts of the
//! shop, `acquire` the script that takes a lock itself, and `observability` the alerts and the
//! dashboard.

mod deployments;
mod machines;
mod programs;
mod schedules;

use crate::support::dlock::BINARY;
use crate::support::wait::wait_until;
use crate::support::world::World;
use regex_lite::Regex;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// The fenced blocks of a language in docs/recipes.md.
fn blocks(language: &str) -> Vec<&'static str> {
    let text = include_str!("../../docs/recipes.md");
    let parts = text.split("\n```").skip(1).step_by(2);
    parts.filter_map(|part| part.strip_prefix(language)?.strip_prefix('\n')).collect()
}

/// dlock understands the commands that containers, Kubernetes and Ansible have as lists of words.
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
        // The second run finds the job done.
        world.dlock(arguments).args(["--", "true"]).any_stderr().run();
        lists += 1;
    }
    assert_eq!(lists, 3);
}

/// Each block of shell works as it is written, and its programs run under the lock that it names.
#[test]
fn shell_blocks_run_as_they_are_written() {
    let mut run = 0;
    for block in blocks("sh").into_iter().filter(|block| !block.starts_with("#!/bin/sh\n")) {
        let world = World::without_redis();
        // This line belongs at the top of a script, so a script follows.
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
    assert!(run >= 9, "{run} blocks");
}

/// The lines that replace those of other tools work, and flock's lines have the same effect as
/// dlock's.
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
                // It runs no job.
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
                let job = "echo up >> log; until test -e go; do sleep 0.1; done";
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

/// The texts between backticks.
fn code(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(|code| code.replace('\u{1}', "|")).collect()
}

/// Runs an example in a shell. dlock is in PATH, and a stand-in for every other program, which logs
/// its name, its arguments and the lock that it runs under. Returns these programs, the log, and
/// the status.
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

/// A command line of the page, as a separate machine would run it: with its programs in PATH.
fn on_a_machine(world: &World, command: &str) -> Command {
    let bin = Path::new(BINARY).parent().expect("a directory").display().to_string();
    let command = command.replace("/usr/bin/dlock", BINARY).replace("/usr/local/bin/", "./");
    let mut shell = world.command("sh");
    shell.args(["-c", &command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.env("PATH", format!("{}:{bin}:/usr/bin:/bin", world.path("").display()));
    shell.env("DLOCK_STORE", world.url());
    shell
}

#[track_caller]
fn status_of(mut command: Command) -> Option<i32> {
    command.status().expect("a shell").code()
}

/// `watch` sends events to the journal, to a syslog and to a chat.
#[test]
fn events_reach_the_journal_a_syslog_and_a_chat() {
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
