//! How does a text stand in a line for a shell? As one word, whatever is in it: in code that is evaluated, and in the
//! commands that messages propose, which people paste. Good for sh, bash, dash, ksh and zsh.

use std::borrow::Cow;

/// The text between quotes: nothing is special between single ones but the single quote.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The text as it is where that is one word, else between quotes.
pub fn word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:,+@%^".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.into() } else { quoted(text).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_word() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $(x) `y` \"z\" \\"), "'it'\\''s $(x) `y` \"z\" \\'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn only_what_needs_quotes_has_them() {
        for (text, expected) in
            [("db:é-1", "db:é-1"), ("$(x)", "'$(x)'"), ("a b", "'a b'"), ("~", "'~'"), ("", "''")]
        {
            assert_eq!(word(text), expected);
        }
    }
}
