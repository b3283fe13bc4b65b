//! The README and the pages in docs are correct: dlock understands every `dlock` line in their
//! examples, the first command works without a server, links lead somewhere, and the tests that a
//! page names exist.

use crate::support::dlock::BINARY;
use crate::support::world::World;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

#[test]
fn every_example_is_understood() {
    let world = World::without_redis();
    let examples = examples(&documents());
    assert!(examples.iter().any(|(_, line)| line.starts_with("dlock run ")), "{examples:?}");
    // Only dlock is in PATH. The jobs are not found, which dlock reports after it has parsed the
    // line.
    fs::create_dir(world.path("bin")).expect("a directory");
    symlink(BINARY, world.path("bin/dlock")).expect("a link");
    world.write("token", "00000000000000000000000000000000");
    // The file and the process that these lines name are missing here; `hold_recipes` runs these lines.
    let is_elsewhere = |line: &str| line.contains("$pid") || line.contains("reboot-token");
    for (place, line) in examples.into_iter().filter(|(_, line)| !is_elsewhere(line)) {
        let mut shell = world.command("/bin/sh");
        shell.args(["-c", &line]).env_clear().env("PATH", world.path("bin")).env("HOME", world.path(""));
        // The name is invalid, so --wait does not wait for it.
        shell.env("DLOCK_STORE", "redis://no..such..name").env("GITHUB_ENV", world.path("github_env"));
        let output = shell.output().expect("sh");
        let said = String::from_utf8_lossy(&output.stderr);
        let status = output.status.code();
        assert!(!matches!(status, Some(64 | 78 | 70)), "{place}: {line}\n{status:?} {said}");
    }
}

#[test]
fn there_is_an_example_of_every_command() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/use.md"));
    let page = page.expect("how it is used");
    let example = page.split("```").nth(1).expect("a block");
    let help = dlock::cli::Cli::command().render_help().to_string();
    for command in dlock::cli::Cli::command().get_subcommands() {
        let line = format!("dlock {}", command.get_name());
        assert!(example.contains(&line), "no example of {line}");
        assert!(help.contains(&format!("\n  {} ", command.get_name())), "{line} is in no group of the help");
    }
}

/// A scheduled run that waits and exits 75 did not happen: no recipe makes a success of it.
#[test]
fn no_recipe_hides_a_missed_run() {
    let mut lines = 0;
    for (name, text) in documents() {
        assert!(!text.contains("SuccessExitStatus"), "{name}");
        for line in text.lines().map(|line| line.replace(['"', ',', '[', ']'], " ")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if ["run", "--once-per", "-w"].iter().all(|word| words.contains(word)) {
                lines += 1;
                assert!(!words.windows(2).any(|pair| pair == ["-E", "0"]), "{name}: {line}");
            }
        }
    }
    assert!(lines >= 10, "{lines} lines");
}

/// The first lines of a page can be pasted: the page names the store before them, cron finds dlock,
/// and sends no mail.
#[test]
fn crontab_lines_can_be_pasted() {
    let help = dlock::cli::Cli::command().get_after_long_help().map(ToString::to_string);
    let mut documents = documents();
    documents.push(("dlock --help".into(), help.expect("examples")));
    let mut lines = 0;
    for (name, text) in documents {
        let mut named = false;
        for line in text.lines() {
            named |= line.starts_with("store = ");
            let Some(command) = crontab_command(line) else { continue };
            lines += 1;
            assert!(command.contains("/usr/bin/dlock "), "{name}: {line}");
            assert!(command.contains(" -q "), "{name}: {line}");
            assert!(!command.replace("\\%", "").contains('%'), "{name}: cron ends a command at %: {line}");
            assert!(named || name == "dlock --help", "{name}: which store? {line}");
        }
    }
    assert!(lines >= 5, "{lines} lines");
}

/// Invariants that a comment names are defined in docs/protocol.md, and links lead to files and
/// headings that exist.
#[test]
fn invariants_and_links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let protocol = fs::read_to_string(root.join("docs/protocol.md")).expect("a specification");
    let cited = regex_lite::Regex::new(r"\bI[0-9]+\b").expect("a pattern");
    for (path, text) in crate::walls::sources() {
        for found in cited.find_iter(&text) {
            let heading = format!("### {} ", found.as_str());
            assert!(protocol.contains(&heading), "{} names {}", path.display(), found.as_str());
        }
    }
    let link = regex_lite::Regex::new(r"\]\(([^)]+)\)").expect("a pattern");
    let mut pages = documents();
    let contributing = root.join("CONTRIBUTING.md");
    pages.push((
        contributing.display().to_string(),
        fs::read_to_string(&contributing).expect("how to contribute"),
    ));
    for (name, text) in &pages {
        for found in link.captures_iter(text) {
            let target = &found[1];
            // The releases are a page of the repository's web site.
            if target.starts_with("http") || target == "../../releases" {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => Path::new(name).to_owned(),
                file => Path::new(name).parent().expect("a directory").join(file),
            };
            assert!(path.exists(), "{name}: {target}");
            if !heading.is_empty() {
                let page = fs::read_to_string(&path).expect("a page");
                let headings = page.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(headings.into_iter().any(|known| known == heading), "{name}: {target}");
            }
        }
    }
}

/// Files that CONTRIBUTING.md names by their whole path exist.
#[test]
fn files_that_contributing_names_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("CONTRIBUTING.md")).expect("how to contribute");
    let path =
        regex_lite::Regex::new(r"\b(?:src|tests|docs|benches|packaging)/[\w./-]*\w").expect("a pattern");
    let missing: Vec<&str> =
        path.find_iter(&text).map(|found| found.as_str()).filter(|path| !root.join(path).exists()).collect();
    assert!(missing.iter().all(|path| path.contains("COMMAND")), "{missing:?}");
    assert!(path.find_iter(&text).count() > 20);
}

/// Tests that a page names as `file::name` exist.
#[test]
fn tests_that_pages_name_are_there() {
    let files = crate::walls::read_below("tests");
    let named = regex_lite::Regex::new("`([a-z0-9_]+)::([a-z0-9_]+)`").expect("a pattern");
    let mut found = 0;
    for (page, text) in documents() {
        for name in named.captures_iter(&text) {
            let file = format!("{}.rs", &name[1]);
            let text = files.iter().find(|(path, _)| path.ends_with(&file)).map(|(_, text)| text);
            let is_there = text.is_some_and(|text| is_test(text, &name[2]));
            assert!(is_there, "{page}: {} is no test", &name[0]);
            found += 1;
        }
    }
    assert!(found > 0);
}

/// Each command of the track record runs a test, and only tests that it names. Those of proof.md run
/// a test.
#[test]
fn commands_of_the_track_record_run_what_they_name() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page = fs::read_to_string(docs.join("track-record.md")).expect("the page");
    let proof = fs::read_to_string(docs.join("proof.md")).expect("the page");
    let command = regex_lite::Regex::new(r"`\./test (--stores )?([^`]*)`").expect("a pattern");
    let filter =
        regex_lite::Regex::new(r"`\./test (--soak )?(?:--stores )?([a-z][^` ]*)`").expect("a pattern");
    let commands = command.captures_iter(&page).collect::<Vec<_>>();
    assert!(commands.len() > 40, "{} commands", commands.len());
    let names = commands.iter().map(|command| command[2].to_owned()).collect::<Vec<_>>();
    let here = tests_here();
    let written = tests_by_source("tests", &names);
    let units = tests_by_source("src", &names);
    for command in &commands {
        let (line, name) = (&command[0], &command[2]);
        let named = |test: &&String| test.contains(name);
        // This binary may lack the tests of databases, so their sources are searched.
        let run = if command.get(1).is_some() {
            written.iter().find(named)
        } else {
            here.iter().chain(&units).find(named)
        };
        assert!(run.is_some(), "{line} runs nothing");
        for test in here.iter().chain(&written).chain(&units).filter(named) {
            let whole = format!("::{test}::").contains(&format!("::{name}::"));
            assert!(whole, "{line} runs {test}, too");
        }
    }
    let named = filter.captures_iter(&proof).collect::<Vec<_>>();
    assert!(named.len() > 6, "{} commands", named.len());
    let modules = ["src", "tests"].map(crate::walls::read_below).concat();
    let modules = modules.iter().map(|(path, _)| path.with_extension("").display().to_string());
    let modules = modules.map(|path| format!("{}::", path.replace('/', "::"))).collect::<Vec<_>>();
    for command in named {
        let is_module = modules.iter().any(|module| module.contains(&command[2]));
        let is_test = here.iter().any(|test| test.contains(&command[2]));
        assert!(is_module || is_test, "{} runs nothing", &command[0]);
    }
}

/// The tests that this binary would run.
fn tests_here() -> Vec<String> {
    let list = |more: &[&str]| {
        let this = std::env::current_exe().expect("this binary");
        let output = std::process::Command::new(this).arg("--list").args(more).output().expect("a list");
        String::from_utf8(output.stdout).expect("names")
    };
    let ignored = list(&["--ignored"]);
    let all = list(&[]);
    let run = all.lines().filter(|line| !ignored.lines().any(|other| other == *line));
    run.filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The tests in the sources of a folder whose names contain one of `names`, as `file::function`, or
/// as `file::*::function` if the function runs on several stores.
fn tests_by_source(folder: &str, names: &[String]) -> Vec<String> {
    let wanted = |function: &str| {
        let ends = names.iter().filter_map(|name| name.rsplit("::").next());
        ends.into_iter().any(|end| function.contains(end))
    };
    let function = regex_lite::Regex::new(r"(?m)^( *)fn ([a-z0-9_]+)\(").expect("a pattern");
    let mut tests = Vec::new();
    for (path, text) in crate::walls::read_below(folder) {
        let file = path.with_extension("").display().to_string().replace('/', "::");
        let functions = function.captures_iter(&text).filter(|found| wanted(&found[2]));
        for found in functions.filter(|found| is_test(&text, &found[2])) {
            let alone = text.contains(&format!("#[test]\nfn {}(", &found[2]));
            tests.push(format!("{file}::{}{}", if alone { "" } else { "*::" }, &found[2]));
        }
    }
    tests
}

/// Whether a file has a test of that name: a function with `#[test]`, or one that a macro runs on
/// several stores.
fn is_test(file: &str, name: &str) -> bool {
    let lines = file.lines().map(str::trim_start).collect::<Vec<_>>();
    let function = format!("fn {name}(");
    let marked = |at: usize| {
        let above = lines[..at].iter().rev();
        above
            .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
            .any(|line| *line == "#[test]")
    };
    let places = (0..lines.len()).filter(|at| lines[*at].starts_with(&function)).collect::<Vec<_>>();
    if places.is_empty() || places.iter().any(|at| marked(*at)) {
        return !places.is_empty();
    }
    // The lists of `on_every_store!` and similar macros: names and their attributes.
    let calls = file.split("\non_").skip(1).filter_map(|call| call.split_once("!(")?.1.split_once(");"));
    let lists = calls.map(|(list, _)| list.split(|c: char| !c.is_alphanumeric() && c != '_'));
    lists.into_iter().any(|mut words| words.any(|word| word == name))
}

#[test]
fn a_function_alone_is_no_test() {
    let file = "on_every_store!(everywhere, #[ignore = \"long\"] at_night);\nfn everywhere(b: Backend) {\n    helper();\n}\n\
        fn at_night(b: Backend) {}\n// Why.\n#[test]\n#[ignore = \"slow\"]\nfn alone() {}\nfn helper() {}\n";
    assert!(["everywhere", "at_night", "alone"].iter().all(|name| is_test(&format!("\n{file}"), name)));
    assert!(["helper", "everything", "store"].iter().all(|name| !is_test(&format!("\n{file}"), name)));
}

/// A heading in the form that links use.
fn anchor(heading: &str) -> String {
    let kept = |c: char| c.is_alphanumeric() || c == '-' || c == ' ' || c == '_';
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| kept(*c))
        .collect::<String>()
        .replace(' ', "-")
}

/// The first command of the README with `file:` runs a job.
#[test]
fn the_first_command_runs_a_job_without_a_server() {
    let world = World::without_redis();
    let readme =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("a README");
    let line = readme
        .lines()
        .find(|line| line.contains("dlock run") && line.contains("file:"))
        .expect("one with file:");
    let run = &line[line.find("dlock run").expect("found above")..];
    let mut shell = world.command("/bin/sh");
    let bin = Path::new(BINARY).parent().expect("a directory").display().to_string();
    shell.args(["-c", run]).env("PATH", format!("{bin}:/usr/bin:/bin"));
    let output = shell.output().expect("sh");
    assert!(output.status.success(), "{run}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.is_empty(), "there is something to see: {run}");
}

/// A shell understands the examples in the help texts, which are in the man pages as well.
#[test]
fn every_example_in_the_help_is_understood() {
    let world = World::without_redis();
    fs::create_dir(world.path("bin")).expect("a directory");
    symlink(BINARY, world.path("bin/dlock")).expect("a link");
    // A key that the patterns of the examples match.
    world.run("deploy-web", &[], "true").run();
    // `wait --done` would wait for it.
    world.run("export", &[], "true").run();
    for command in dlock::cli::Cli::command().get_subcommands() {
        let name = command.get_name();
        let help = world.dlock([name, "--help"]).any_stdout().run().stdout;
        let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{name}: no examples"));
        let examples = examples.lines().take_while(|line| line.is_empty() || line.starts_with("  "));
        let examples =
            examples.map(|line| format!("{}\n", line.trim_start_matches("  "))).collect::<String>();
        for example in examples.split("\n\n").filter(|example| example.contains("dlock ")) {
            // --watch needs a terminal, $pid a process; both have other tests.
            let is_run =
                |line: &&str| !line.contains("--watch") && !line.contains("pid=") && !line.contains("$pid");
            let example = example.lines().filter(is_run).collect::<Vec<_>>();
            world.write("token", "00000000000000000000000000000000");
            let mut shell = world.command("/bin/sh");
            // Other programs are not found, which dlock reports after it has parsed the line.
            // Without a store `watch` ends.
            let store = if name == "watch" { "redis://127.0.0.1:1".to_owned() } else { world.url() };
            shell.args(["-c", &example.join("\n")]).env("PATH", world.path("bin")).env("DLOCK_STORE", store);
            // A pipe that is closed at once.
            let output = shell.stdin(Stdio::piped()).output().expect("sh");
            let said = String::from_utf8_lossy(&output.stderr);
            let refused =
                [": usage", "error:", "is not valid", "--help"].iter().any(|word| said.contains(word));
            let wrong = matches!(output.status.code(), Some(64 | 78 | 70)) || refused;
            assert!(!wrong, "{name}: {example:?}: {said}");
        }
    }
}

/// The lines of fenced blocks that begin with `dlock `, after a prompt or a crontab's time, each
/// with its place.
fn examples(documents: &[(String, String)]) -> Vec<(String, String)> {
    let mut examples = Vec::new();
    for (name, text) in documents {
        let (mut fenced, mut pending) = (false, String::new());
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
                continue;
            }
            if !fenced {
                continue;
            }
            pending.push_str(line.trim());
            if let Some(head) = pending.strip_suffix('\\') {
                pending = format!("{} ", head.trim_end());
                continue;
            }
            let line = std::mem::take(&mut pending);
            let command = line.strip_prefix("$ ").unwrap_or(&line);
            let command = crontab_command(command).unwrap_or(command);
            let command = command.strip_prefix("exec ").unwrap_or(command);
            let command = command.strip_prefix("/usr/bin/").unwrap_or(command);
            // A synopsis in brackets is not an example.
            if command.starts_with("dlock ") && !command.contains(['[', '…']) && !command.contains("...") {
                examples.push((format!("{name}:{}", number + 1), command.to_owned()));
            }
        }
    }
    examples
}

/// The command of a crontab line: the text after five fields of digits and stars, or after
/// `@daily`.
fn crontab_command(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(command) = rest.strip_prefix("@daily ") {
        return Some(command);
    }
    for _ in 0..5 {
        let (field, tail) = rest.split_once(char::is_whitespace)?;
        if field.is_empty() || !field.chars().all(|c| c.is_ascii_digit() || "*/,-".contains(c)) {
            return None;
        }
        rest = tail.trim_start();
    }
    Some(rest)
}

fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_dir(root.join("docs")).into_iter().flatten().flatten().map(|entry| entry.path());
    let markdown = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let beside = ["README.md", "docs/nights/README.md", "benches/README.md", "tests/spec/README.md"];
    let paths = beside.iter().map(|path| root.join(path)).chain(markdown);
    paths.map(|path| (path.display().to_string(), fs::read_to_string(&path).expect("a document"))).collect()
}
