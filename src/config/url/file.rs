//! The URLs of directories.

use super::split::absolute;
use super::{ALLOWED, Location, Shape, Url};
use std::path::Path;

pub fn parse(scheme: &str, rest: &str) -> Result<Option<Url>, String> {
    if scheme != "file" {
        return Ok(None);
    }
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
    let place = Location::File { dir: absolute(path)? };
    Ok(Some(Url { text: String::new(), place, username: None, password: None, sentinel: None }))
}

pub fn shape(dir: &Path) -> Shape<'_> {
    Shape { scheme: "file", tls_scheme: None, hosts: &[], tls: None, rest: format!(":{}", dir.display()) }
}
