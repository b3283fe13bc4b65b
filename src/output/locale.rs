//! The characters that the terminal can show. The locale's name decides, because there may be no C
//! library to ask. This matters only for a terminal; a pipe gets the text unchanged. `columns`
//! measures width.

use std::ffi::OsString;

/// The characters to draw with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charset {
    Unicode,
    Ascii,
}

impl Charset {
    /// From the environment: the first of LC_ALL, LC_CTYPE and LANG that is not empty decides.
    pub fn of_environment() -> Self {
        Self::of(|name| std::env::var_os(name))
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable);
        let name = set.into_iter().find(|value| !value.is_empty()).unwrap_or_default();
        let name = name.to_string_lossy().to_ascii_lowercase();
        if name.contains("utf-8") || name.contains("utf8") { Self::Unicode } else { Self::Ascii }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_variable_set_decides() {
        for (set, expected) in [
            (&[][..], Charset::Ascii),
            (&[("LANG", "de_DE.UTF-8")], Charset::Unicode),
            (&[("LANG", "de_DE.UTF-8"), ("LC_ALL", "C")], Charset::Ascii),
            (&[("LANG", "C"), ("LC_CTYPE", "C.utf8"), ("LC_ALL", "")], Charset::Unicode),
            (&[("LANG", "de_DE.ISO-8859-1")], Charset::Ascii),
        ] {
            let variable =
                |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
            assert_eq!(Charset::of(variable), expected, "{set:?}");
        }
    }
}
