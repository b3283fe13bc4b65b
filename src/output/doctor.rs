//! The output of `dlock doctor`: first the verdict on the whole store, then a paragraph for the
//! settings and one for each node, with a line for each check: its verdict, what was found, what to
//! do. On a terminal long lines are broken at words; in a pipe they are not.

use super::columns::{Width, broken, padded, spaces};
use super::{Coloured, escaped};
use serde::Serialize;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The server, if there may be several; `None` for the settings or the whole store.
    pub node: Option<String>,
    /// What was checked, in a word or two.
    pub check: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// What to do; `None` if nothing.
    pub advice: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Locks work, but there is a case in which they may not.
    Warn,
    /// Locks do not work, or do not hold.
    Bad,
}

impl Verdict {
    /// The word and its colour.
    const fn shown(self) -> (&'static str, &'static str) {
        match self {
            Self::Ok => ("ok", "\x1b[32m"),
            Self::Warn => ("warn", "\x1b[33m"),
            Self::Bad => ("bad", "\x1b[31m"),
        }
    }
}

/// The verdict on the whole store: the number of faults and warnings, and what that means; and which
/// locks there are meant.
fn summary(findings: &[Finding], place: &str, width: Width, coloured: Coloured) -> String {
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (faults, warnings) = (count(Verdict::Bad), count(Verdict::Warn));
    let some = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        _ => Some(format!("{count} {what}s")),
    };
    let counts: Vec<String> =
        [some(faults, "fault"), some(warnings, "warning")].into_iter().flatten().collect();
    let (verdict, counts, meaning) = match (faults, warnings) {
        (0, 0) => (Verdict::Ok, "ok".into(), "this store is fit to hold locks"),
        (0, _) => (Verdict::Warn, counts.join(", "), "locks work, but read the lines that begin with warn"),
        _ => (
            Verdict::Bad,
            counts.join(", "),
            "this store is not fit to hold locks; read the lines that begin with bad",
        ),
    };
    let whole = format!("{counts}: {meaning}; {}", escaped(place));
    let lines = match width {
        Width::Endless => vec![whole],
        Width::Columns(columns) => broken(&whole, columns.max(20)),
    };
    lines.join("\n").replacen(&counts, &coloured.paint(&counts, Some(verdict.shown().1)), 1) + "\n"
}

/// The findings as text. Those of one node follow its name. `place` names the prefix and the identity
/// of the store.
pub fn text(findings: &[Finding], place: &str, width: Width, coloured: Coloured) -> String {
    let checks = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let indent = "warn".len() + 2 + checks + 2;
    let mut text = summary(findings, place, width, coloured);
    text.push('\n');
    let mut node = None;
    for finding in findings {
        if finding.node.is_some() && finding.node.as_ref() != node {
            let name = escaped(finding.node.as_deref().unwrap_or_default()).into_owned();
            text.push_str(&format!("\n{name}\n"));
            node = finding.node.as_ref();
        }
        let (word, colour) = finding.verdict.shown();
        text.push_str(&coloured.paint(word, Some(colour)));
        text.push_str(&spaces("warn".len() + 2 - word.len()));
        text.push_str(&padded(finding.check, checks + 2));
        let mut sentence = escaped(&finding.found).into_owned();
        if let Some(advice) = &finding.advice {
            sentence.push_str("; ");
            sentence.push_str(&escaped(advice));
        }
        match width {
            Width::Endless => text.push_str(&sentence),
            Width::Columns(columns) => {
                let room = columns.saturating_sub(indent).max(20);
                text.push_str(&broken(&sentence, room).join(&format!("\n{}", spaces(indent))));
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_fit_a_terminal_and_are_whole_in_a_pipe() {
        let finding = |node: Option<&str>, verdict, found: &str, advice: Option<&str>| Finding {
            node: node.map(Into::into),
            check: "persistence",
            verdict,
            found: found.into(),
            advice: advice.map(Into::into),
        };
        let findings = [
            finding(None, Verdict::Ok, "fine", None),
            finding(Some("h:1"), Verdict::Warn, &"many words ".repeat(12), Some("do\u{1b}this")),
            finding(Some("h:1"), Verdict::Bad, "x", Some("y")),
        ];
        let text_at = |width, coloured| text(&findings, "prefix p:", width, coloured);
        let narrow = text_at(Width::Columns(60), Coloured::No);
        println!("{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        let whole = text_at(Width::Endless, Coloured::No);
        assert_eq!(whole.lines().count(), 7, "{whole}");
        assert!(whole.contains("do\\x1bthis") && whole.contains("fine\n\nh:1\nwarn"), "{whole}");
        let painted = text_at(Width::Endless, Coloured::Yes);
        assert_eq!(painted.matches("\x1b[0m").count(), 4);
    }

    #[test]
    fn verdict_comes_first() {
        let first = |verdicts: &[Verdict]| {
            let finding = |verdict: &Verdict| Finding {
                node: None,
                check: "c",
                verdict: *verdict,
                found: "f".into(),
                advice: None,
            };
            let findings: Vec<_> = verdicts.iter().map(finding).collect();
            let text = text(&findings, "", Width::Endless, Coloured::No);
            text.split(':').next().map(str::to_owned).unwrap_or_default()
        };
        let (ok, warn, bad) = (Verdict::Ok, Verdict::Warn, Verdict::Bad);
        assert_eq!(first(&[ok, ok]), "ok");
        assert_eq!(first(&[ok, warn]), "1 warning");
        assert_eq!(first(&[warn, ok, warn]), "2 warnings");
        assert_eq!(first(&[warn, bad, warn]), "1 fault, 2 warnings");
        assert_eq!(first(&[bad, bad]), "2 faults");
    }
}
