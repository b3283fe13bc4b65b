//! A certificate authority of the test's own, and good and faulty certificates that it issues.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use std::fs;
use std::path::Path;

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its private key, as PEM.
pub struct Certificate {
    pub pem: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = named(&[], name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = new_key();
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Writes the authority's own certificate.
    pub fn write(&self, path: &Path) {
        fs::write(path, &self.pem).expect("a file");
    }

    /// A good certificate for these hosts.
    pub fn issue(&self, hosts: &[&str]) -> Certificate {
        self.issue_with(hosts, |_| {})
    }

    /// A certificate for these hosts, altered by `change`.
    pub fn issue_with(&self, hosts: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let mut params = named(hosts, "server");
        change(&mut params);
        let key = new_key();
        let pem = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Certificate { pem, key: key.serialize_pem() }
    }
}

impl Certificate {
    /// A self-signed certificate. `is_ca` as `openssl req -x509` sets it, or not.
    pub fn self_signed(hosts: &[&str], is_ca: IsCa) -> Self {
        let mut params = named(hosts, "server");
        params.is_ca = is_ca;
        let key = new_key();
        Self { pem: params.self_signed(&key).expect("a certificate").pem(), key: key.serialize_pem() }
    }

    /// Writes `NAME.pem` and `NAME.key`.
    pub fn write(&self, directory: &Path, name: &str) {
        fs::write(directory.join(format!("{name}.pem")), &self.pem).expect("a file");
        fs::write(directory.join(format!("{name}.key")), &self.key).expect("a file");
    }
}

/// Expired years ago.
pub fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2019, 1, 1);
    params.not_after = date_time_ymd(2020, 1, 1);
}

/// Not valid for decades.
pub fn early(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2090, 1, 1);
    params.not_after = date_time_ymd(2091, 1, 1);
}

/// For clients, and not for servers.
pub fn for_clients(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
}

/// For servers, and not for clients.
#[cfg(feature = "etcd")]
pub fn for_servers(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
}

/// With no name (CN).
#[cfg(feature = "etcd")]
pub fn nameless(params: &mut CertificateParams) {
    params.distinguished_name = rcgen::DistinguishedName::new();
}

fn named(hosts: &[&str], name: &str) -> CertificateParams {
    let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(hosts).expect("names of hosts");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("a key")
}
