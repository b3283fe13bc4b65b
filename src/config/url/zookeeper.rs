//! The URLs of ZooKeeper.

use super::parameters::{self, Wire};
use super::split::{authority, decode};
use super::{ALLOWED, Host, Location, PATH, Shape, Tls, Url, joined, url};
use percent_encoding::utf8_percent_encode;

pub fn parse(scheme: &str, rest: &str) -> Result<Option<Url>, String> {
    let (wire, port) = match scheme {
        "zookeeper" | "zk" => (Wire::Plain, 2181),
        "zookeepers" => (Wire::Tls, 2281),
        _ => return Ok(None),
    };
    let parts = authority(rest)?;
    let servers = parts.hosts(port)?;
    let chroot = decode(parts.path)?;
    let chroot = chroot.strip_suffix('/').unwrap_or(&chroot).to_owned();
    if chroot.split('/').skip(1).any(|step| matches!(step, "" | "." | "..")) {
        return Err(format!(
            "the text after the servers must be the path of a node, such as /ops/locks; {ALLOWED}"
        ));
    }
    let tls = parameters::tls(parts.parameters(), wire)?;
    Ok(Some(url(Location::ZooKeeper { servers, chroot, tls }, parts)))
}

pub fn shape<'a>(servers: &'a [Host], chroot: &str, tls: Option<&'a Tls>) -> Shape<'a> {
    let rest = format!("://{}{}", joined(servers), utf8_percent_encode(chroot, PATH));
    Shape { scheme: "zookeeper", tls_scheme: Some("zookeepers"), hosts: servers, tls, rest }
}
