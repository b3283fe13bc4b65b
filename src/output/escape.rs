//! Escapes text from others before it is shown.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes what a terminal would act on, and what would change the order or look of the text around
/// it: control characters, line and paragraph separators, invisible and direction-changing
/// characters. Also `##`, which begins commands to CI runners anywhere in a line (`##[add-mask]`,
/// `##vso[`, `##teamcity[`).
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(acts) && !text.contains("##") {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '#' if safe.ends_with('#') => safe.push_str("\\u{23}"),
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            '\0'..='\u{7f}' if acts(c) => {
                let _infallible = write!(safe, "\\x{:02x}", u32::from(c));
            }
            _ if acts(c) => {
                let _infallible = write!(safe, "\\u{{{:x}}}", u32::from(c));
            }
            _ => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// Escapes the beginnings of lines that may begin with text that others chose, such as a key. The
/// first character of a line is escaped if it is punctuation that seldom begins a key: to systemd
/// `<3>` is a priority there. `::` is escaped also after spaces, where a CI runner takes it for a
/// command.
pub fn safe_lines(text: &str) -> String {
    let safe = |line: &str| {
        let rest = line.trim_start();
        let acts = match rest.chars().next() {
            Some(c) if rest == line => c.is_ascii_punctuation() && !"/._{@-('\"\\".contains(c),
            _ => rest.starts_with("::"),
        };
        let (space, rest) = line.split_at(line.len() - rest.len());
        match rest.chars().next().filter(|_| acts) {
            Some(c) => format!("{space}\\x{:02x}{}", u32::from(c), &rest[1..]),
            None => line.to_owned(),
        }
    };
    text.split_inclusive('\n').map(safe).collect()
}

/// Whether a character does more than appear.
pub(super) fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{70f}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_begins_with_a_command_to_a_ci_runner() {
        for (text, shown) in [
            ("::add-mask::x", r"\x3a:add-mask::x"),
            ("  ::x\nk", "  \\x3a:x\nk"),
            ("<0>x\n", "\\x3c0>x\n"),
            ("##[add-mask]x", r"\x23\u{23}[add-mask]x"),
            ("k ##vso[x] ###", r"k #\u{23}vso[x] #\u{23}#"),
            ("/var/x ::x", "/var/x ::x"),
            ("  --x #1 <y", "  --x #1 <y"),
            ("ä\n\n\u{1b}[1mk", "ä\n\n\\x1b[1mk"),
        ] {
            let lines = text.split_inclusive('\n').map(|line| match line.strip_suffix('\n') {
                Some(line) => escaped(line).into_owned() + "\n",
                None => escaped(line).into_owned(),
            });
            assert_eq!(safe_lines(&lines.collect::<String>()), shown);
        }
    }
}
