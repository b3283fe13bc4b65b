//! The parameters after the `?` of a URL with hosts: the certificates for TLS, and the login for
//! sentinels.

use super::ALLOWED;
use super::foreign::{instead_of_parameter, is_harmless};
use super::split::decode;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What TLS trusts and presents. Every path is absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate, for a server that requires one.
    pub client: Option<ClientCertificate>,
    /// Whether the server's certificate may name any host.
    pub any_host: bool,
}

/// A client certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientCertificate {
    /// The certificate and its chain.
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// The login for sentinels in a URL. A URL cannot contain their password itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelLogin {
    /// The user; `None` for the default user.
    pub username: Option<String>,
    /// The file with the password; absolute.
    pub password_file: PathBuf,
}

/// Whether the store is reached over TLS.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Plain,
    Tls,
}

/// The TLS settings, `Some` if TLS is used.
pub fn tls<'p>(given: impl Iterator<Item = (&'p str, &'p str)>, wire: Wire) -> Result<Option<Tls>, String> {
    match read(given, wire)? {
        (tls, None) => Ok(tls),
        (_, Some(_)) => Err(format!("a login for sentinels is for redis+sentinel:// only; {ALLOWED}")),
    }
}

/// The same, and the login for sentinels.
pub fn read<'p>(
    given: impl Iterator<Item = (&'p str, &'p str)>,
    wire: Wire,
) -> Result<(Option<Tls>, Option<SentinelLogin>), String> {
    let mut known = BTreeMap::new();
    for (name, text) in given {
        match name {
            "ca" | "cert" | "key" if wire == Wire::Plain => {
                return Err(format!(
                    "{name}= is for TLS: the scheme must begin with rediss, or be etcds or zookeepers; a database needs sslmode=verify-full; {ALLOWED}"
                ));
            }
            "ca" | "cert" | "key" | "sentinel-username" | "sentinel-password-file" => {}
            "user" | "username" | "pass" | "password" | "sentinel-password" => {
                return Err(format!(
                    "there is no parameter {name}=: write user and password before the host, or better in DLOCK_USERNAME and DLOCK_PASSWORD_FILE (sentinel-password-file= for sentinels)"
                ));
            }
            _ if is_harmless(name, text) => continue,
            _ => {
                if let Some(instead) = instead_of_parameter(name) {
                    return Err(format!("there is no parameter {name}=: {instead}"));
                }
                let word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
                let shown = if word { name } else { "of that name" };
                return Err(format!("there is no parameter {shown}; {ALLOWED}"));
            }
        }
        if text.is_empty() {
            return Err(format!("{name}= is empty; give it a value or leave it out"));
        }
        if known.insert(name, text).is_some() {
            return Err(format!("{name}= is given twice"));
        }
    }
    let file = |name| {
        let Some(text) = known.get(name) else { return Ok(None) };
        match decode(text)? {
            path if path.starts_with('/') => Ok(Some(PathBuf::from(path))),
            _ => Err(format!("{name}= names a file by its absolute path")),
        }
    };
    let client = match (file("cert")?, file("key")?) {
        (Some(cert), Some(key)) => Some(ClientCertificate { cert, key }),
        (None, None) => None,
        (Some(_), None) => return Err("cert= needs key=, the file with its private key".into()),
        (None, Some(_)) => return Err("key= needs cert=, the file with its certificate".into()),
    };
    let ca = file("ca")?;
    let username = known.get("sentinel-username").map(|text| decode(text)).transpose()?;
    let login = match (username, file("sentinel-password-file")?) {
        (username, Some(password_file)) => Some(SentinelLogin { username, password_file }),
        (None, None) => None,
        (Some(_), None) => return Err("sentinel-username= needs sentinel-password-file=".into()),
    };
    Ok(((wire == Wire::Tls).then_some(Tls { ca, client, any_host: false }), login))
}
