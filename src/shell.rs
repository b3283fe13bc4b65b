//! Quotes a text as one word of a shell command line, for code that is evaluated and for commands
//! in messages, which people paste. Works for sh, bash, dash, ksh and zsh.

use std::borrow::Cow;

/// The text in single quotes, in which only the single quote itself is special.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The text, quoted only if needed.
pub fn word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:,+@%^".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.into() } else { quoted(text).into() }
}

/// A command line within a sentence, in quotes that it does not have itself.
pub fn cited(line: &str) -> String {
    let quote = if line.contains('\'') { '`' } else { '\'' };
    format!("{quote}{line}{quote}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_one_word() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $(x) `y` \"z\" \\"), "'it'\\''s $(x) `y` \"z\" \\'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn quotes_do_not_nest() {
        assert_eq!(cited(&format!("dlock status {}", word("a"))), "'dlock status a'");
        assert_eq!(cited(&format!("dlock status {}", word("a*"))), "`dlock status 'a*'`");
    }

    #[test]
    fn plain_words_stay_unquoted() {
        for (text, expected) in
            [("db:é-1", "db:é-1"), ("$(x)", "'$(x)'"), ("a b", "'a b'"), ("~", "'~'"), ("", "''")]
        {
            assert_eq!(word(text), expected);
        }
    }
}
