//! Lists the keys that can complete the word at the cursor. The completion scripts call this on
//! every press of TAB, so it prints nothing but keys and ends in time, whatever the store does. If
//! it cannot find out, it prints none.

use super::context::{Context, IDENTITY_KEY};
use crate::cli::complete::{CommandLine, Partial, Question, Shell};
use crate::clock::Moment;
use crate::config::url::Location;
use crate::config::{Environment, Settings, VARIABLES};
use crate::error::Error;
use crate::exit::Exit;
use crate::output::{self, Printer, escaped};
use crate::store::Which;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time for the store. With the start of the process this stays under 300 ms, which feels
/// immediate.
const STORE_WITHIN: Duration = Duration::from_millis(250);

/// Prints the keys, one a line. Returns [`Exit::No`] if no key fits here, so that the script
/// completes something else.
pub fn complete(question: &Question) -> Result<Exit, Error> {
    let deadline = Moment::now().after(STORE_WITHIN);
    let line = CommandLine::read(&question.line);
    let partial = match (question.shell, line.key.clone()) {
        (Shell::Bash, None) => return Ok(Exit::No),
        (Shell::Bash, Some(partial)) => Some(partial),
        (Shell::Other, _) => None,
    };
    let (found, keys) = mpsc::channel();
    // When the time is over this thread is left behind. It does not keep the process from ending.
    let asking = thread::Builder::new().spawn(move || found.send(keys_of(&line, deadline)));
    let keys =
        asking.ok().and_then(|_| keys.recv_timeout(deadline.left()).ok().flatten()).unwrap_or_default();
    let lines = keys.iter().filter_map(|key| match &partial {
        Some(partial) => for_bash(key, partial, &question.word),
        None => Some(key.clone()),
    });
    output::print(&lines.map(|line| line + "\n").collect::<String>())?;
    Ok(Exit::Ok)
}

/// The keys that were used recently in the store that the command line names.
fn keys_of(line: &CommandLine, deadline: Moment) -> Option<Vec<String>> {
    if line.expands {
        return None;
    }
    let mut environment = Environment::of_process();
    for (name, value) in &line.variables {
        if let Some(name) = VARIABLES.iter().find(|known| *known == name) {
            environment.variables.insert(name, value.clone());
        }
    }
    let mut settings = Settings::resolve(&line.common, &environment).ok()?;
    settings.connect_timeout = settings.connect_timeout.min(deadline.left());
    settings.op_timeout = settings.op_timeout.min(deadline.left());
    if let Location::File { dir } = &settings.store.place
        && !dir.is_dir()
    {
        // Opening the store would make the directory.
        return None;
    }
    let context = Context::with(settings.clone(), Printer::new(&settings));
    let mut store = context.open().ok()?;
    let names = store.find(&context.settings.prefix, Which::Recent).ok()?.names;
    let mut keys: Vec<String> = names.iter().map(|name| name.key().to_owned()).collect();
    // A key that is escaped on the screen could not be typed back from it.
    keys.retain(|key| escaped(key) == *key && *key != IDENTITY_KEY);
    Some(keys)
}

/// The text that bash puts in place of `word`, if the key begins with what is typed.
fn for_bash(key: &str, partial: &Partial, word: &str) -> Option<String> {
    key.strip_prefix(partial.text.as_str())?;
    // Bash breaks words at : and =, and replaces only what follows the last one.
    let typed = format!("{}{}", partial.lead, partial.text);
    let word = word.trim_start_matches(['"', '\'', ':', '=']);
    let kept = if word.is_empty() {
        typed.rfind([':', '=']).map_or(0, |at| at + 1)
    } else {
        typed.strip_suffix(&word.replace('\\', "")).map_or(0, str::len)
    };
    let whole = format!("{}{key}", partial.lead);
    let rest = whole.get(kept..)?;
    Some(match partial.quote_is_open {
        true => rest.to_owned(),
        false => rest.chars().fold(String::new(), |mut text, c| {
            if c.is_ascii() && !c.is_ascii_alphanumeric() && !"-_./:=,+@%^".contains(c) {
                text.push('\\');
            }
            text.push(c);
            text
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bash_gets_the_rest_of_its_own_word() {
        for (line, word, expected) in [
            ("dlock status d", "d", Some("db:the\\ big\\ one")),
            ("dlock status db:t", "t", Some("the\\ big\\ one")),
            ("dlock status db:", "", Some("the\\ big\\ one")),
            ("dlock status db:", ":", Some("the\\ big\\ one")),
            ("dlock status ", "", Some("db:the\\ big\\ one")),
            ("dlock status db:the\\ b", "the\\ b", Some("the\\ big\\ one")),
            ("dlock status 'db:the b", "'db:the b", Some("db:the big one")),
            ("dlock run -kdb", "-kdb", Some("-kdb:the\\ big\\ one")),
            ("dlock run --key=d", "d", Some("db:the\\ big\\ one")),
            ("dlock run --key=", "", Some("db:the\\ big\\ one")),
            ("dlock run --key=", "=", Some("db:the\\ big\\ one")),
            ("dlock status x", "x", None),
        ] {
            let partial = CommandLine::read(line).key;
            let answer = partial.and_then(|partial| for_bash("db:the big one", &partial, word));
            assert_eq!(answer.as_deref(), expected, "{line}");
        }
    }
}
