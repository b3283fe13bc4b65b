//! Splits a store URL into the parts that all schemes share: user and password, hosts, path,
//! parameters; and decodes percent-escapes. `url` decides what each scheme allows.

use super::{ALLOWED, Host, Secret};
use percent_encoding::percent_decode_str;
use std::net::Ipv6Addr;
use std::path::{Component, Path, PathBuf};

/// The part of a URL after `scheme:`, split; hosts, path and query are not decoded yet.
pub struct Parts<'a> {
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub hosts: &'a str,
    pub path: &'a str,
    pub query: Option<&'a str>,
    /// Whether an error must not repeat a part of the URL: there is an `@`, and the end of the
    /// password may be the very mistake.
    may_be_secret: bool,
}

/// Splits `//user:password@hosts/path?query`.
pub fn authority(rest: &str) -> Result<Parts<'_>, String> {
    let Some(rest) = rest.strip_prefix("//") else {
        return Err(format!("// is missing after the scheme; {ALLOWED}"));
    };
    let may_be_secret = rest.contains('@');
    let encode = if may_be_secret { " (in a password write / ? # @ as %2F %3F %23 %40)" } else { "" };
    if rest.contains('#') {
        return Err(format!("a store URL has no # part{encode}; {ALLOWED}"));
    }
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if path.contains('@') || query.is_some_and(|query| query.contains('@')) {
        return Err(format!("there is an @ after the host{encode}; {ALLOWED}"));
    }
    let (user, hosts) =
        authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
    let user = user.map(|user| user.split_once(':').map_or((user, None), |(name, word)| (name, Some(word))));
    let (username, password) = match user {
        None => (None, None),
        Some(("", None)) => return Err(format!("the user name before the @ is missing; {ALLOWED}")),
        Some((_, Some(""))) => return Err(format!("the password in the URL is empty; {ALLOWED}")),
        Some((name, word)) => {
            let name = if name.is_empty() { None } else { Some(decode(name)?) };
            (name, word.map(decode).transpose()?.map(Secret::new))
        }
    };
    Ok(Parts { username, password, hosts, path, query, may_be_secret })
}

impl Parts<'_> {
    /// The hosts, separated by commas.
    pub fn hosts(&self, port: u16) -> Result<Vec<Host>, String> {
        self.hosts.split(',').map(|at| self.host(at, port)).collect()
    }

    /// `HOST`, `HOST:PORT` or `[IPV6]:PORT`.
    pub fn host(&self, at: &str, port: u16) -> Result<Host, String> {
        let (name, after) = match at.strip_prefix('[').map(|inner| inner.split_once(']')) {
            None if at.matches(':').count() < 2 => at.split_at(at.find(':').unwrap_or(at.len())),
            Some(Some((address, after))) if address.parse::<Ipv6Addr>().is_ok() => (address, after),
            Some(Some((address, _))) if address.contains('%') => {
                return Err("an IPv6 address with a zone (%) is not supported; write one without".into());
            }
            _ => return Err(format!("write an IPv6 address in brackets: [::1] or [::1]:PORT; {ALLOWED}")),
        };
        if name.is_empty() {
            return Err(format!("the host is missing; {ALLOWED}"));
        }
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte)) {
            let shown = self.shown(name);
            return Err(format!("a host has letters, digits, - and .; this one{shown} does not; {ALLOWED}"));
        }
        let given = if after.is_empty() { Some(port) } else { after.strip_prefix(':').and_then(number) };
        let port = given.filter(|port| *port > 0).ok_or_else(|| {
            let shown = self.shown(after.trim_start_matches(':'));
            format!("the port{shown} is not a number from 1 to 65535; {ALLOWED}")
        })?;
        Ok(Host { name: name.to_ascii_lowercase(), port })
    }

    /// The socket on this machine that a URL names in place of hosts. `scheme` is for the error.
    pub fn socket(&self, scheme: &str) -> Result<PathBuf, String> {
        if !self.hosts.is_empty() {
            return Err(format!(
                "a socket has no host: write {scheme}+unix:///SOCKET with three slashes; {ALLOWED}"
            ));
        }
        absolute(self.path)
    }

    /// What follows `db=`, the only parameter of a URL with a socket.
    pub fn database_of_socket(&self) -> Result<Option<&str>, String> {
        match self.parameters().collect::<Vec<_>>()[..] {
            [] => Ok(None),
            [("db", text)] if !text.is_empty() => Ok(Some(text)),
            _ => Err(format!("the only parameter here is db=, once and not empty; {ALLOWED}")),
        }
    }

    /// The path without the slash before it.
    pub fn after_slash(&self) -> &str {
        self.path.strip_prefix('/').unwrap_or_default()
    }

    /// The database number in a part of the path; 0 if it is empty.
    pub fn database(&self, text: &str) -> Result<u16, String> {
        let db = if text.is_empty() { Some(0) } else { number(text) };
        db.ok_or_else(|| {
            format!("the database{} is not a number from 0 to 65535; {ALLOWED}", self.shown(text))
        })
    }

    /// The parameters, not decoded.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.query.into_iter().flat_map(|query| query.split('&'));
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    /// A part of the URL for an error message, or nothing if it may be secret.
    pub fn shown(&self, what: &str) -> String {
        if self.may_be_secret { String::new() } else { format!(" '{what}'") }
    }
}

/// Decodes an absolute path, and drops `//`, `/./` and a slash at the end, which do not change it.
pub fn absolute(text: &str) -> Result<PathBuf, String> {
    let decoded = decode(text)?;
    if !decoded.starts_with('/') {
        return Err(format!("the path must be absolute; {ALLOWED}"));
    }
    Ok(Path::new(&decoded).components().filter(|part| *part != Component::CurDir).collect())
}

/// Decodes %XX. The result must be UTF-8 without control characters: nothing needs these, and a
/// line break would break a message.
pub fn decode(text: &str) -> Result<String, String> {
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices('%') {
        let digits = bytes.get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
        if !digits {
            return Err("a % in a store URL is followed by two hex digits (% itself is %25)".into());
        }
    }
    match percent_decode_str(text).decode_utf8() {
        Ok(decoded) if !decoded.chars().any(char::is_control) => Ok(decoded.into_owned()),
        _ => Err("a store URL must decode to UTF-8 without control characters".into()),
    }
}

/// Parses a number of decimal digits only (`u16::from_str` accepts a `+`).
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
