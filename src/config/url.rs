//! What does a store URL mean? Plain values; no I/O, no default, no variable. What is refused is refused without
//! repeating it where it might hold a secret.

use percent_encoding::percent_decode_str;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Component, Path, PathBuf};

/// What a store URL may look like, for messages.
pub const ALLOWED: &str =
    "a store is redis://[USER:PASSWORD@]HOST[:PORT][/DB], redis+unix:///SOCKET[?db=N] or file:/DIR";

/// The port of a Redis server where the URL names none.
const PORT: u16 = 6379;

/// Where the locks are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// A Redis server over TCP.
    Tcp {
        /// A name, an IPv4 address, or an IPv6 address without brackets.
        host: String,
        /// Its port.
        port: u16,
        /// The database.
        db: u16,
    },
    /// A Redis server over a socket on this machine.
    Unix {
        /// The socket; absolute.
        path: PathBuf,
        /// The database.
        db: u16,
    },
    /// A directory on this machine.
    File {
        /// The directory; absolute.
        dir: PathBuf,
    },
}

/// The URL of the place, in one spelling and never with a secret: for messages and DLOCK_HELD.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, db } => {
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "redis://{open}{host}{close}:{port}")?;
                if *db != 0 { write!(f, "/{db}") } else { Ok(()) }
            }
            Self::Unix { path, db } => {
                write!(f, "redis+unix://{}", path.display())?;
                if *db != 0 { write!(f, "?db={db}") } else { Ok(()) }
            }
            Self::File { dir } => write!(f, "file:{}", dir.display()),
        }
    }
}

/// A text that no message shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself; for the store only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A URL taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// The place.
    pub place: Place,
    /// The user it names.
    pub username: Option<String>,
    /// The password in it.
    pub password: Option<Secret>,
}

/// Takes a URL apart. The error says what is allowed, and repeats of the URL only what cannot be a secret.
pub fn parse(text: &str) -> Result<Url, String> {
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("one store, one word: there is white space in it; {ALLOWED}"));
    }
    let Some((scheme, rest)) = text.split_once(':') else { return Err(bare(text)) };
    match scheme.to_ascii_lowercase().as_str() {
        "redis" => tcp(authority(rest)?),
        "redis+unix" => unix(authority(rest)?),
        "file" => file(rest),
        "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster"
        | "redis+quorum" | "rediss+quorum" | "rediss+unix" => {
            Err(format!("{}:// comes with a later version; {ALLOWED}", scheme.to_ascii_lowercase()))
        }
        "unix" | "redis-socket" => Err(format!("a socket is redis+unix:///SOCKET; {ALLOWED}")),
        _ if rest.starts_with("//")
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) =>
        {
            Err(format!("unknown scheme {scheme}://; {ALLOWED}"))
        }
        _ => Err(bare(text)),
    }
}

/// The error for what has no scheme.
fn bare(text: &str) -> String {
    if text.starts_with('/') {
        format!("a path alone is no store; a directory is file:{text}, a socket redis+unix://{text}")
    } else if text.contains(['@', '?', '#']) {
        format!("the scheme is missing; {ALLOWED}")
    } else {
        format!("the scheme is missing, did you mean redis://{text}? {ALLOWED}")
    }
}

/// The part of a redis URL after `scheme:`, split and not yet decoded.
struct Parts<'a> {
    username: Option<String>,
    password: Option<Secret>,
    host: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    /// Whether what is wrong may be shown.
    secret: bool,
}

/// Splits `//user:password@host/path?query`.
fn authority(rest: &str) -> Result<Parts<'_>, String> {
    let Some(rest) = rest.strip_prefix("//") else {
        return Err(format!("// is missing after the scheme; {ALLOWED}"));
    };
    let secret = rest.contains('@');
    let encode = if secret { " (in a password / ? # and @ are written %2F %3F %23 %40)" } else { "" };
    if rest.contains('#') {
        return Err(format!("a store URL has no # part{encode}; {ALLOWED}"));
    }
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if path.contains('@') {
        return Err(format!("there is an @ after the host{encode}; {ALLOWED}"));
    }
    let (user, host) =
        authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let user = user.map(|user| user.split_once(':').map_or((user, None), |(name, word)| (name, Some(word))));
    let (username, password) = match user {
        None => (None, None),
        Some(("", None)) => return Err(format!("nothing stands before the @; {ALLOWED}")),
        Some((_, Some(""))) => return Err(format!("the password in the URL is empty; {ALLOWED}")),
        Some((name, word)) => {
            let name = if name.is_empty() { None } else { Some(decode(name)?) };
            (name, word.map(decode).transpose()?.map(Secret::new))
        }
    };
    Ok(Parts { username, password, host, path, query, secret })
}

/// `redis://`.
fn tcp(parts: Parts<'_>) -> Result<Url, String> {
    if parts.query.is_some() {
        return Err(format!("a redis:// URL takes no ? part; {ALLOWED}"));
    }
    let at = parts.host;
    let shown = |what: &str| if parts.secret { String::new() } else { format!(" '{what}'") };
    if at.contains(',') {
        return Err(format!(
            "several hosts (sentinel, cluster, quorum) come with a later version; {ALLOWED}"
        ));
    }
    let (host, port) = if let Some(inner) = at.strip_prefix('[') {
        let Some((address, after)) = inner.split_once(']') else {
            return Err(format!("a ] is missing after the IPv6 address; {ALLOWED}"));
        };
        if address.parse::<Ipv6Addr>().is_err() {
            return Err(format!(
                "what stands in the brackets{} is no IPv6 address; {ALLOWED}",
                shown(address)
            ));
        }
        match after.strip_prefix(':') {
            Some(port) => (address, Some(port)),
            None if after.is_empty() => (address, None),
            None => return Err(format!("only :PORT may follow the ]; {ALLOWED}")),
        }
    } else {
        if at.matches(':').count() > 1 {
            return Err(format!("an IPv6 address stands in brackets, redis://[::1]:6379; {ALLOWED}"));
        }
        at.split_once(':').map_or((at, None), |(host, port)| (host, Some(port)))
    };
    if host.is_empty() {
        return Err(format!("the host is missing; {ALLOWED}"));
    }
    if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte)) {
        return Err(format!(
            "a host has letters, digits, - and .; this one{} does not; {ALLOWED}",
            shown(host)
        ));
    }
    let port = match port {
        None => PORT,
        Some(text) => match number(text) {
            Some(port) if port > 0 => port,
            _ => return Err(format!("the port{} is not a number from 1 to 65535; {ALLOWED}", shown(text))),
        },
    };
    let path = parts.path.strip_prefix('/').unwrap_or_default();
    let db = if path.is_empty() { Some(0) } else { number(path) };
    let Some(db) = db else {
        return Err(format!("the database{} is not a number from 0 to 65535; {ALLOWED}", shown(path)));
    };
    let place = Place::Tcp { host: host.to_ascii_lowercase(), port, db };
    Ok(Url { place, username: parts.username, password: parts.password })
}

/// `redis+unix://`.
fn unix(parts: Parts<'_>) -> Result<Url, String> {
    if !parts.host.is_empty() {
        return Err(format!(
            "a socket has no host: write redis+unix:///SOCKET with three slashes; {ALLOWED}"
        ));
    }
    let path = absolute(parts.path)?;
    if path == Path::new("/") {
        return Err(format!("the path of the socket is missing; {ALLOWED}"));
    }
    let mut db = 0;
    for pair in parts.query.into_iter().flat_map(|query| query.split('&')) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("db", text) => {
                db = number(text)
                    .ok_or_else(|| format!("db= is not followed by a number from 0 to 65535; {ALLOWED}"))?;
            }
            ("user" | "username" | "pass" | "password", _) => {
                return Err(
                    "user and password stand before the path: redis+unix://USER:PASSWORD@/SOCKET".into()
                );
            }
            _ => return Err(format!("after ? only db=N is known; {ALLOWED}")),
        }
    }
    Ok(Url { place: Place::Unix { path, db }, username: parts.username, password: parts.password })
}

/// `file:`.
fn file(rest: &str) -> Result<Url, String> {
    if rest.contains(['?', '#']) {
        return Err(format!(
            "a file: store takes no ? or # part (in a path they are %3F and %23); {ALLOWED}"
        ));
    }
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(after) if after.starts_with('/') => after,
        Some(_) => return Err(format!("a file: store has no host: write file:/DIR; {ALLOWED}")),
    };
    Ok(Url { place: Place::File { dir: absolute(path)? }, username: None, password: None })
}

/// Decodes an absolute path, and drops what does not change it (`//`, `/./`, a slash at the end).
fn absolute(text: &str) -> Result<PathBuf, String> {
    let decoded = decode(text)?;
    if !decoded.starts_with('/') {
        return Err(format!("the path must be absolute; {ALLOWED}"));
    }
    Ok(Path::new(&decoded).components().filter(|part| *part != Component::CurDir).collect())
}

/// Decodes %XX. What results must be UTF-8 and must not contain control characters: nothing here needs them, and a
/// line break would break a message.
fn decode(text: &str) -> Result<String, String> {
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

/// A number of decimal digits only (`u16::from_str` takes a `+`).
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, db: u16) -> Place {
        Place::Tcp { host: host.into(), port, db }
    }

    #[test]
    fn places() -> Result<(), String> {
        for (text, place, shown) in [
            ("redis://h", tcp("h", 6379, 0), "redis://h:6379"),
            ("redis://h/", tcp("h", 6379, 0), "redis://h:6379"),
            ("REDIS://H.example:1/15", tcp("h.example", 1, 15), "redis://h.example:1/15"),
            ("redis://[::1]", tcp("::1", 6379, 0), "redis://[::1]:6379"),
            ("redis://u:p@[::1]:7/2", tcp("::1", 7, 2), "redis://[::1]:7/2"),
            (
                "redis+unix:///run/r.sock",
                Place::Unix { path: "/run/r.sock".into(), db: 0 },
                "redis+unix:///run/r.sock",
            ),
            (
                "redis+unix:///a%20b?db=3",
                Place::Unix { path: "/a b".into(), db: 3 },
                "redis+unix:///a b?db=3",
            ),
            ("file:/var/lib/dlock/", Place::File { dir: "/var/lib/dlock".into() }, "file:/var/lib/dlock"),
            ("file:///tmp//x/./y", Place::File { dir: "/tmp/x/y".into() }, "file:/tmp/x/y"),
        ] {
            let url = parse(text)?;
            assert_eq!(url.place, place, "{text}");
            assert_eq!(url.place.to_string(), shown);
        }
        Ok(())
    }

    #[test]
    fn credentials() -> Result<(), String> {
        for (text, user, password) in [
            ("redis://h", None, None),
            ("redis://u@h", Some("u"), None),
            ("redis://:p@h", None, Some("p")),
            ("redis://u:p@h", Some("u"), Some("p")),
            ("redis://u:a%2Fb%40%3A@h", Some("u"), Some("a/b@:")),
            ("redis://u:a@b:c@h", Some("u"), Some("a@b:c")),
            ("redis+unix://u:p@/s", Some("u"), Some("p")),
        ] {
            let url = parse(text)?;
            assert_eq!(url.username.as_deref(), user, "{text}");
            assert_eq!(url.password.as_ref().map(Secret::expose), password, "{text}");
        }
        Ok(())
    }

    #[test]
    fn refusals_keep_the_secret() {
        for text in [
            "",
            "h",
            "h:6379",
            "127.0.0.1:6379",
            "/tmp/x",
            "redis",
            "redis:",
            "redis:h",
            "redis://",
            "redis:///0",
            "redis://:6379",
            "redis://h:",
            "redis://h:0",
            "redis://h:65536",
            "redis://h:+1",
            "redis://h:x",
            "redis://h/x",
            "redis://h/-1",
            "redis://h/65536",
            "redis://h/0/1",
            "redis://h?db=1",
            "redis://h#f",
            "redis://a,b",
            "redis://::1",
            "redis://::1:6379",
            "redis://[::1",
            "redis://[::1]x",
            "redis://[x]:1",
            "redis://[]:1",
            "redis://a b",
            " redis://a",
            "redis://a ",
            "redis://a redis://b",
            "redis://a\n",
            "redis://ü",
            "redis://h%41",
            "rediss://h",
            "redis+sentinel://a,b/m/0",
            "redis+cluster://a",
            "redis+quorum://a",
            "rediss+cluster://a",
            "http://h",
            "valkey://h",
            "unix:///s",
            "redis+unix://s",
            "redis+unix://",
            "redis+unix:///",
            "redis+unix:/s",
            "redis+unix:///s?db=x",
            "redis+unix:///s?x=1",
            "redis+unix:///s#x",
            "file:",
            "file:x",
            "file://h/x",
            "file:./x",
            "file:/x?y",
            "file:/x#y",
            "file:/%zz",
            "file:/%00",
            "file:/%ff",
            "file:/%",
            "file:/%4",
            "file:/%é",
            "redis://@h",
            "redis://:@h",
            "redis://u:@h",
            "redis://u:SECRET/x@h",
            "redis://u:12/SECRET@h",
            "redis://u:SECRET?x@h",
            "redis://u:SECRET#x@h",
            "redis://u:SECRET@h:x",
            "redis://u:SECRET@",
            "redis://u:SECRET@h/x",
            "redis://u:SECRET@h h",
            "redis://u:%SECRET@h",
            "redis+unix:///s?password=SECRET",
            "redis+unix:///s?pass=SECRET",
            "rediss://u:SECRET@h",
            "http://u:SECRET@h",
            "u:SECRET@h",
            "SECRET@h:6379",
            "redis:u:SECRET@h",
            "file://u:SECRET@h/x",
            "redis://u:SECRET@h?x=1",
            "redis://u:SECRET@[x",
            "redis://u:SECRET@[x]",
            "redis://u:SECRET@a,b",
        ] {
            match parse(text) {
                Ok(url) => assert!(text.is_empty(), "{text:?} gave {url:?}"),
                Err(said) => {
                    assert!(!said.contains("SECRET") && !said.contains('\n'), "{text:?}: {said}");
                }
            }
        }
    }

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", Secret::new("hush")), "Secret(…)");
    }
}
