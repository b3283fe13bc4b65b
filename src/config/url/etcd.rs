//! The URLs of etcd.

use super::parameters::{self, Wire};
use super::split::{authority, decode};
use super::{ALLOWED, Host, Location, PATH, Shape, Tls, Url, joined, url};
use percent_encoding::utf8_percent_encode;

/// Default port of a member.
const PORT: u16 = 2379;
/// Default prefix of dlock's keys.
const PREFIX: &str = "dlock";

pub fn parse(scheme: &str, rest: &str) -> Result<Option<Url>, String> {
    let wire = match scheme {
        "etcd" => Wire::Plain,
        "etcds" => Wire::Tls,
        _ => return Ok(None),
    };
    let parts = authority(rest)?;
    let members = parts.hosts(PORT)?;
    let prefix = match decode(parts.path.trim_matches('/'))? {
        prefix if prefix.is_empty() => PREFIX.into(),
        prefix if prefix.split('/').all(|part| !part.is_empty()) => prefix,
        _ => return Err(format!("there are two slashes together in the prefix of the keys; {ALLOWED}")),
    };
    let tls = parameters::tls(parts.parameters(), wire)?;
    Ok(Some(url(Location::Etcd { members, prefix, tls }, parts)))
}

pub fn shape<'a>(members: &'a [Host], prefix: &str, tls: Option<&'a Tls>) -> Shape<'a> {
    let mut rest = format!("://{}", joined(members));
    if prefix != PREFIX {
        rest.push('/');
        rest.extend(utf8_percent_encode(prefix, PATH));
    }
    Shape { scheme: "etcd", tls_scheme: Some("etcds"), hosts: members, tls, rest }
}
