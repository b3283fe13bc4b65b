//! Measures text in terminal columns, and makes it fit. A CJK character or an emoji takes two
//! columns, a combining accent none. The text has been escaped, so it has no control characters.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// How wide a line may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// This many columns of a terminal.
    Columns(usize),
    /// No limit: a pipe, a file or a log.
    Endless,
}

impl Width {
    pub fn of_stdout() -> Self {
        match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
            Ok(size) if size.ws_col > 0 => Self::Columns(size.ws_col.into()),
            _ => Self::Endless,
        }
    }
}

/// The columns that a text takes. Terminals disagree about an emoji made of several characters;
/// this is the larger count, so that nothing wraps by surprise.
pub fn width(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    let one_by_one = text.chars().map(|c| c.width().unwrap_or(0)).sum();
    text.width().max(one_by_one)
}

/// This many spaces. (A width in a format string panics from 65,536 on.)
pub fn spaces(count: usize) -> String {
    " ".repeat(count)
}

/// The text, padded with spaces to this width.
pub fn padded(text: &str, to: usize) -> String {
    format!("{text}{}", spaces(to.saturating_sub(width(text))))
}

/// The longest start of the text that takes at most `room` columns, and the rest.
pub fn split(text: &str, room: usize) -> (&str, &str) {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        // A combining character may widen the one before it.
        if used > room || !text.is_ascii() && width(&text[..at + c.len_utf8()]) > room {
            return text.split_at(at);
        }
    }
    (text, "")
}

/// The text in pieces of at most `room` columns, broken at spaces if possible; at least one piece.
pub fn broken(text: &str, room: usize) -> Vec<String> {
    let room = room.max(2);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(word) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => {
                let mut rest = word;
                loop {
                    let (piece, more) = split(rest, room);
                    lines.push(piece.into());
                    if more.is_empty() || piece.is_empty() {
                        break;
                    }
                    rest = more;
                }
            }
        }
    }
    lines
}

/// The text, cut to `room` columns.
pub fn fitted(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.into();
    }
    let (kept, _) = split(text, room.saturating_sub(1));
    if room == 0 { String::new() } else { format!("{kept}…") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_counts_columns() {
        for (text, columns) in
            [("abc", 3), ("häuser", 6), ("夜间报告", 8), ("🚀 go", 5), ("e\u{301}", 1), ("", 0)]
        {
            assert_eq!(width(text), columns, "{text}");
            assert_eq!(width(&padded(text, 20)), 20, "{text}");
        }
        assert_eq!(width(&padded("x", 70_000)), 70_000);
    }

    #[test]
    fn no_line_is_wider_than_its_room() {
        for text in
            ["nightly report of everything", "夜间报告 for the 🚀🚀🚀", "äöü", "❤\u{fe0f}❤\u{fe0f}❤\u{fe0f}"]
        {
            for room in 2..30 {
                let lines = broken(text, room);
                assert!(lines.iter().all(|line| width(line) <= room), "{room}: {lines:?}");
                assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""));
                assert!(width(&fitted(text, room)) <= room, "{room}: {text}");
            }
        }
    }

    #[test]
    fn fitted_text_is_cut_with_a_mark() {
        assert_eq!(fitted("häuser", 6), "häuser");
        assert_eq!(fitted("häuser", 4), "häu…");
        assert_eq!(fitted("夜间报告", 6), "夜间…");
        assert_eq!(fitted("abc", 0), "");
    }
}
