//! Are man/ and completions/ what src/cli.rs says? Both are generated and committed, so that a package needs no
//! build step for them. `DLOCK_REGENERATE=1 cargo test generated` writes them anew.

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use dlock::cli::{Cli, Shell};
use dlock::commands::completions::script;
use std::collections::BTreeMap;
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn man_is_fresh() -> Outcome {
    let mut cli = Cli::command();
    cli.build();
    let mut pages = BTreeMap::from([("dlock.1".into(), page(&cli, "dlock")?)]);
    for command in cli.get_subcommands() {
        let name = format!("dlock-{}", command.get_name());
        pages.insert(format!("{name}.1"), page(command, &name)?);
    }
    fresh("man", &pages)
}

#[test]
fn completions_are_fresh() -> Outcome {
    let files = [("dlock.bash", Shell::Bash), ("_dlock", Shell::Zsh), ("dlock.fish", Shell::Fish)];
    let scripts = files.into_iter().map(|(name, shell)| Ok((name.into(), script(shell)?)));
    fresh("completions", &scripts.collect::<Result<_, dlock::error::Error>>()?)
}

/// Compares a directory with what it should hold, or makes it so.
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

/// One page: clap_mangen's sections, and the examples and statuses of the long help as sections of their own.
fn page(command: &Command, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    let plain = |bytes: Vec<u8>| String::from_utf8(bytes);
    let man = Man::new(command.clone().display_name(name.to_owned()))
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
    section(&mut page, "SYNOPSIS", &usage);
    man.render_description_section(&mut roff)?;
    man.render_options_section(&mut roff)?;
    page.push_str(&plain(roff)?);
    if command.has_subcommands() {
        let commands = command.get_subcommands();
        let lines: Vec<_> = commands
            .map(|command| {
                format!("dlock-{}(1)  {}", command.get_name(), command.get_about().unwrap_or_default())
            })
            .collect();
        section(&mut page, "COMMANDS", &lines);
    }
    let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let mut body: Vec<&str> = Vec::new();
    let mut title = "NOTES";
    for line in after.lines().chain(["NOTES"]) {
        match line {
            "Examples:" | "EXIT STATUS" | "NOTES" => {
                section(&mut page, title, &body);
                body.clear();
                title = if line == "Examples:" { "EXAMPLES" } else { line };
            }
            _ => body.push(line),
        }
    }
    let others = if name == "dlock" { "flock(1), redis-server(1)" } else { "dlock(1), flock(1)" };
    section(&mut page, "SEE ALSO", &[others]);
    Ok(page)
}

/// A section whose lines stay as they are.
fn section(page: &mut String, title: &str, lines: &[impl AsRef<str>]) {
    let text = lines.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("\n");
    let text = text.trim_matches('\n');
    if text.is_empty() {
        return;
    }
    page.push_str(&format!(".SH \"{title}\"\n.nf\n"));
    for line in text.lines() {
        let line = line.strip_prefix("  ").unwrap_or(line).replace('\\', "\\e").replace('-', "\\-");
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        page.push_str(&format!("{guard}{line}\n"));
    }
    page.push_str(".fi\n");
}
