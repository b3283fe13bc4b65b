//! man/ and completions/ must be what src/cli.rs says. Both are generated and committed, so that a
//! package needs no build step for them. `DLOCK_REGENERATE=1 cargo test generated` writes them
//! anew.

use clap::Command;
use clap_mangen::Man;
use dlock::cli::{Cli, Shell};
use dlock::commands::completions::script;
use std::collections::BTreeMap;
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn man_is_fresh() -> Outcome {
    fresh("man", &pages()?)
}

fn pages() -> Result<BTreeMap<String, String>, Box<dyn std::error::Error>> {
    let mut cli = Cli::command();
    cli.build();
    let mut pages = BTreeMap::from([("dlock.1".into(), page(&cli, "dlock")?)]);
    for command in cli.get_subcommands() {
        let name = format!("dlock-{}", command.get_name());
        pages.insert(format!("{name}.1"), page(command, &name)?);
    }
    pages.insert("dlock.toml.5".into(), settings_page());
    Ok(pages)
}

/// The page of the configuration file, made of the settings and comments of the packaged file.
fn settings_page() -> String {
    let mut page = format!(
        ".TH DLOCK.TOML 5 \"\" \"dlock {}\" dlock\n.SH NAME\ndlock.toml \\- settings of dlock\n",
        env!("CARGO_PKG_VERSION")
    );
    let name = "dlock.toml";
    let file = format!("{}\n", include_str!("../../packaging/dlock.toml"));
    // The first paragraph explains the file itself, as the section DESCRIPTION does.
    let blocks = file.split("\n\n").skip(1).map(|block| block.lines().collect::<Vec<_>>());
    let mut settings = String::new();
    for block in blocks {
        let (comment, keys): (Vec<&str>, Vec<&str>) = block.iter().partition(|line| line.starts_with("# "));
        let comment: Vec<&str> = comment.iter().filter_map(|line| line.strip_prefix("# ")).collect();
        let keys: Vec<&str> = keys.iter().filter_map(|line| line.strip_prefix('#')).collect();
        settings.push_str(if keys.is_empty() { ".PP\n" } else { ".TP\n" });
        for (number, key) in keys.iter().enumerate() {
            settings.push_str(if number == 0 { "" } else { ".TQ\n" });
            settings.push_str(&escaped(&[key]));
        }
        settings.push_str(&escaped(&comment));
    }
    section(&mut page, "SYNOPSIS", vec![Part::Literal(vec!["/etc/dlock.toml", "~/.config/dlock.toml"])]);
    section(&mut page, "DESCRIPTION", parted(&further(name, "DESCRIPTION")).1);
    page.push_str(&format!(".SH \"SETTINGS\"\n{settings}"));
    section(&mut page, "FILES", items(&further(name, "FILES")));
    section(&mut page, "EXAMPLES", parted(&further(name, "EXAMPLES")).0);
    section(&mut page, "SEE ALSO", vec![Part::Prose(vec!["dlock(1), dlock-run(1), dlock-doctor(1)"])]);
    page
}

/// Lines that `man` does not break fit into 80 columns, and so does the help on a terminal.
#[test]
fn generated_pages_fit_80_columns() -> Outcome {
    let mut wide = Vec::new();
    for (name, page) in pages()? {
        let mut literal = false;
        for line in page.lines() {
            literal = (literal || line == ".nf") && line != ".fi";
            let shown = line.replace("\\-", "-").replace("\\e", "\\").replace("\\&", "");
            if literal && shown.chars().count() > ROOM {
                wide.push(format!("{name}: {shown}"));
            }
        }
    }
    for command in Cli::command().get_subcommands().chain([&Cli::command()]) {
        let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let lines = after.lines().filter(|line| line.chars().count() > 80);
        wide.extend(lines.map(|line| format!("{} --help: {line}", command.get_name())));
    }
    assert!(wide.is_empty(), "{wide:#?}");
    Ok(())
}

/// Only text that can be typed is literal.
#[test]
fn generated_prose_is_prose() {
    let lines = ["  # One,", "  # or two:", "  dlock a", "", "Prose that", "goes on.", "", "  dlock b"];
    let (examples, notes) = parted(&lines);
    let expected = (
        [
            Part::Prose(vec!["One,", "or two:"]),
            Part::Literal(vec!["dlock a"]),
            Part::Literal(vec!["dlock b"]),
        ],
        [Part::Prose(vec!["Prose that", "goes on."])],
    );
    assert_eq!((examples.as_slice(), notes.as_slice()), (expected.0.as_slice(), expected.1.as_slice()));
    let lines = ["  Its own. Else:", "   64  no sense, or", "       none", "  124  stopped", "  Never ran."];
    let expected = [
        Part::Prose(vec!["Its own. Else:"]),
        Part::Item("64", vec!["no sense, or", "none"]),
        Part::Item("124", vec!["stopped"]),
        Part::Prose(vec!["Never ran."]),
    ];
    assert_eq!(items(&lines), expected);
}

#[test]
fn completions_are_fresh() -> Outcome {
    let files = [("dlock.bash", Shell::Bash), ("_dlock", Shell::Zsh), ("dlock.fish", Shell::Fish)];
    let scripts = files.into_iter().map(|(name, shell)| Ok((name.into(), script(shell)?)));
    fresh("completions", &scripts.collect::<Result<_, dlock::error::Error>>()?)
}

/// A script offers no option that its command refuses (`release` has --timeout, `run` has not).
#[test]
fn completions_offer_valid_options_only() -> Outcome {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let script = script(shell)?;
        let run = match shell {
            Shell::Bash => {
                script.split("dlock__subcmd__run)").last().and_then(|text| text.split(";;").next())
            }
            Shell::Zsh => script.split("(run)").nth(1).and_then(|text| text.split(";;").next()),
            Shell::Fish => None,
        };
        let run = run.map(str::to_owned).unwrap_or_else(|| {
            script.lines().filter(|line| line.contains("using_subcommand run")).collect::<Vec<_>>().join("\n")
        });
        assert!(run.contains("max-run"), "{run}");
        assert!(!run.contains("--timeout") && !run.contains("-l timeout"), "{run}");
    }
    Ok(())
}

/// Compares a directory with the files that it should contain, or writes them.
fn fresh(directory: &str, files: &BTreeMap<String, String>) -> Outcome {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let regenerate = std::env::var_os("DLOCK_REGENERATE").is_some_and(|value| value == "1");
    if regenerate {
        std::fs::create_dir_all(&directory)?;
    }
    let mut stale = Vec::new();
    for (name, text) in files {
        let path = directory.join(name);
        if std::fs::read_to_string(&path).ok().as_ref() == Some(text) {
            continue;
        }
        if regenerate {
            std::fs::write(&path, text)?;
        } else {
            stale.push(path.display().to_string());
        }
    }
    for entry in std::fs::read_dir(&directory)? {
        let path = entry?.path();
        let known =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| files.contains_key(name));
        if !known {
            stale.push(format!("{} (belongs to nothing)", path.display()));
        }
    }
    assert!(stale.is_empty(), "run DLOCK_REGENERATE=1 cargo test generated; stale: {stale:#?}");
    Ok(())
}

/// The columns, of 80, that `man` leaves for a line that it may not break.
const ROOM: usize = 80 - 7;

/// One page: clap_mangen's sections, and the examples and statuses of the long help as separate
/// sections.
fn page(command: &Command, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    let plain = |bytes: Vec<u8>| String::from_utf8(bytes);
    // The page has the help of options that -h leaves out.
    let whole = command.clone().mut_args(|arg| arg.hide_short_help(false));
    let man = Man::new(whole.display_name(name.to_owned()))
        .title(name.to_uppercase())
        .date("")
        .source(concat!("dlock ", env!("CARGO_PKG_VERSION")))
        .manual("dlock");
    let mut roff = Vec::new();
    man.render_title(&mut roff)?;
    man.render_name_section(&mut roff)?;
    let mut page = plain(std::mem::take(&mut roff))?;
    let usage = command.clone().render_usage().to_string();
    let usage: Vec<_> = usage.lines().map(|line| line.trim_start_matches("Usage:").trim()).collect();
    section(&mut page, "SYNOPSIS", vec![Part::Literal(usage)]);
    man.render_description_section(&mut roff)?;
    man.render_options_section(&mut roff)?;
    page.push_str(&plain(roff)?);
    if command.has_subcommands() {
        let about = |command: &Command| command.get_about().unwrap_or_default().to_string();
        let commands: Vec<_> = command
            .get_subcommands()
            .map(|command| (format!("dlock-{}(1)", command.get_name()), about(command)))
            .collect();
        let parts = commands.iter().map(|(name, about)| Part::Item(name, vec![about])).collect();
        section(&mut page, "COMMANDS", parts);
    }
    let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let (examples, status) = after.split_once("EXIT STATUS\n").unwrap_or((&after, ""));
    let (examples, stores) = examples.split_once("STORES\n").unwrap_or((examples, ""));
    let lines = examples.lines().filter(|line| *line != "Examples:").collect::<Vec<_>>();
    let (examples, mut notes) = parted(&lines);
    let [statuses, environment, files, signals, limits] =
        ["EXIT STATUS", "ENVIRONMENT", "FILES", "SIGNALS", "NOTES"].map(|title| items(&further(name, title)));
    notes.extend(limits);
    section(&mut page, "STORES", items(&stores.lines().collect::<Vec<_>>()));
    section(&mut page, "EXIT STATUS", [statuses, items(&status.lines().collect::<Vec<_>>())].concat());
    let elsewhere = Part::Prose(vec!["Variables and files are explained in dlock(1)."]);
    section(&mut page, "ENVIRONMENT", if environment.is_empty() { vec![elsewhere] } else { environment });
    section(&mut page, "FILES", files);
    section(&mut page, "SIGNALS", signals);
    section(&mut page, "NOTES", notes);
    section(&mut page, "EXAMPLES", examples);
    let others =
        if name == "dlock" { "dlock.toml(5), flock(1)" } else { "dlock(1), dlock.toml(5), flock(1)" };
    section(&mut page, "SEE ALSO", vec![Part::Prose(vec![others])]);
    Ok(page)
}

/// Text that a page has and `--help` has not: the lines under `title` in src/cli/man.txt.
fn further(name: &str, title: &str) -> Vec<&'static str> {
    let head = format!("{name} {title}");
    let mut sections =
        include_str!("../../src/cli/man.txt").split('@').filter_map(|text| text.split_once('\n'));
    sections.find(|(found, _)| *found == head).map(|(_, text)| text.lines().collect()).unwrap_or_default()
}

/// Every variable that dlock reads or sets is explained in a page.
#[test]
fn every_variable_is_in_a_page() -> Outcome {
    let pages = pages()?;
    let explained = format!("{}{}", pages["dlock.1"], pages["dlock-run.1"]);
    let name = regex_lite::Regex::new("\"(DLOCK_[A-Z_]+)\"")?;
    let mut seen = 0;
    for (path, text) in crate::walls::sources() {
        let is_for_tests = |name: &str| {
            ["DLOCK_REGENERATE", "DLOCK_SOAK"].contains(&name) || name.starts_with("DLOCK_FLEET")
        };
        for found in name.captures_iter(&text).filter(|found| !is_for_tests(&found[1])) {
            seen += 1;
            assert!(explained.contains(&found[1]), "{}: {}", path.display(), &found[1]);
        }
    }
    assert!(seen > 10, "{seen}");
    Ok(())
}

/// A part of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part<'a> {
    /// Lines that `man` joins, and breaks to its width.
    Prose(Vec<&'a str>),
    /// Lines that are printed as they are.
    Literal(Vec<&'a str>),
    /// A term, and its explanation.
    Item(&'a str, Vec<&'a str>),
}

/// Parses the examples, which the help indents: comments become prose, commands are literal. The
/// second part of the result is the prose after them.
fn parted<'a>(lines: &[&'a str]) -> (Vec<Part<'a>>, Vec<Part<'a>>) {
    let (mut examples, mut notes) = (Vec::new(), Vec::new());
    for block in lines.split(|line| line.is_empty()).filter(|block| !block.is_empty()) {
        let typed: Vec<_> = block.iter().filter_map(|line| line.strip_prefix("  ")).collect();
        if typed.is_empty() {
            notes.push(Part::Prose(block.to_vec()));
            continue;
        }
        for run in typed.chunk_by(|one, next| one.starts_with("# ") == next.starts_with("# ")) {
            let comment: Vec<_> = run.iter().filter_map(|line| line.strip_prefix("# ")).collect();
            examples.push(if comment.is_empty() {
                Part::Literal(run.to_vec())
            } else {
                Part::Prose(comment)
            });
        }
    }
    (examples, notes)
}

/// Parses names or right-aligned statuses, each with its meaning, which may take several lines, and
/// the prose around them.
fn items<'a>(lines: &[&'a str]) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    for line in lines.iter().filter(|line| !line.is_empty()) {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim_start();
        match (text.split_once("  "), parts.last_mut()) {
            (Some((name, meaning)), _) => parts.push(Part::Item(name, vec![meaning])),
            (_, Some(Part::Item(_, meaning))) if indent > "  ".len() => meaning.push(text),
            (_, Some(Part::Prose(prose))) => prose.push(text),
            _ => parts.push(Part::Prose(vec![text])),
        }
    }
    parts
}

fn section(page: &mut String, title: &str, parts: Vec<Part<'_>>) {
    if parts.is_empty() {
        return;
    }
    page.push_str(&format!(".SH \"{title}\"\n"));
    for (number, part) in parts.iter().enumerate() {
        let paragraph = if number == 0 { "" } else { ".PP\n" };
        match part {
            Part::Prose(lines) => page.push_str(&format!("{paragraph}{}", escaped(lines))),
            Part::Literal(lines) => page.push_str(&format!("{paragraph}.nf\n{}.fi\n", escaped(lines))),
            Part::Item(name, lines) => {
                page.push_str(&format!(".TP\n{}{}", escaped(&[*name]), escaped(lines)))
            }
        }
    }
}

/// Lines of text as roff.
fn escaped(lines: &[impl AsRef<str>]) -> String {
    let escaped = |line: &str| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        format!("{guard}{line}\n")
    };
    lines.iter().map(|line| escaped(line.as_ref())).collect()
}
