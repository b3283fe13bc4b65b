//! The end of a command's help: its examples, and its exit statuses. `run`, `doctor` and
//! `completions` do not use it, because their statuses differ too much.

use std::collections::BTreeMap;

/// The exit statuses that most commands have in common.
const USUAL: [(u8, &str); 4] = [
    (64, "the command line makes no sense"),
    (69, "the store cannot be reached, or refused"),
    (77, "authentication or permission refused by the store"),
    (78, "a configuration file, variable or URL is invalid"),
];

/// What `--export` prints without the lock.
pub const EXPORT: &str = "
  With --export, a dlock that ends with status N and without the lock prints
  'exit N', which ends the shell that evaluates it. A dlock that is missing or
  killed prints nothing: then '|| exit' ends the script. 'local lock=$(...)' and
  'export lock=$(...)' hide the status, and so the script would go on.";

/// The text and a table of the exit statuses by number: the command's own, and the usual ones that
/// it does not describe itself.
pub fn after(text: &str, own: &[(u8, &str)]) -> String {
    let statuses: BTreeMap<_, _> = USUAL.iter().chain(own).copied().collect();
    let lines = statuses.iter().map(|(status, when)| format!("\n  {status:>3}  {when}"));
    format!("{text}\n\nEXIT STATUS{}", lines.collect::<String>())
}
