//! TLS: reads certificates, does the handshake, and turns a failure into one line that says which
//! check failed and what to do. No check can be switched off, but a database URL may skip that of
//! the host (sslmode=verify-ca). Sockets and deadlines are in `dial` and `streams`.
//!
//! Exit statuses: a server that is not trusted counts as unreachable (69). A holder keeps retrying
//! until its deadline, because an attacker on the network must not be able to end a job sooner. A
//! server that refuses this client's certificate, or requires one, denies access (77). Unusable
//! files are an error of configuration (78).
//!
//! Only the validity of certificates depends on this machine's wall clock.

mod distrust;

use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::failure::unreachable;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, Stream};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Age after which certificates are read again before the next connection, because they are renewed
/// while a job runs or waits.
const FRESH: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Default)]
pub struct Files {
    /// Authorities to trust in place of the system's.
    pub ca: Option<PathBuf>,
    /// This client's certificate chain and its private key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Whether the server's certificate may name any host.
    pub any_host: bool,
    /// Other names that a server's certificate may have where the server is known by an address
    /// only: the host names by which the user named the servers that gave that address.
    pub aliases: Vec<String>,
}

/// The common part of TLS connections. It has no state that a fork could split: sessions are not
/// resumed, so every connection does a whole handshake.
#[derive(Clone)]
pub struct Tls {
    files: Files,
    config: Arc<ClientConfig>,
    read: Moment,
}

impl Tls {
    /// Reads the files. The error is [`Error::Unfit`]; `shown` is the store's name for messages.
    pub fn read(files: Files, shown: &str) -> Result<Self, Error> {
        let read = Moment::now();
        let config = config(&files).map_err(|why| Error::Unfit(format!("{shown}: {why}")))?;
        Ok(Self { files, config: Arc::new(config), read })
    }

    /// The configuration from the current files. If they cannot be read, perhaps because they are
    /// just being replaced, the last one stays.
    fn current(&self) -> Arc<ClientConfig> {
        let renewed = if self.read.after(FRESH).passed() { config(&self.files).ok() } else { None };
        renewed.map_or_else(|| Arc::clone(&self.config), Arc::new)
    }
}

fn config(files: &Files) -> Result<ClientConfig, String> {
    let trusted = match &files.ca {
        Some(path) => named_roots(path)?,
        None => system_roots()?,
    };
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier::new(trusted, Arc::clone(&provider), files)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &files.client {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates("cert", cert)?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
                pem::Error::NoItemsFound => format!(
                    "there is no private key in key={}; it must be PEM, without a passphrase",
                    key.display()
                ),
                error => unreadable("key", key, &error),
            })?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    format!("key={} is not the key of cert={}", key.display(), cert.display())
                }
                _ => format!(
                    "key={} and cert={} cannot be used; a key must be RSA, ECDSA (P-256, P-384) or Ed25519",
                    key.display(),
                    cert.display()
                ),
            })?
        }
    };
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Checks a server's certificate as rustls does, with two exceptions: it may name any host if the
/// user said so; and if only the server's address is missing in it, one of the aliases will do.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    trusted: Arc<RootCertStore>,
    any_host: bool,
    aliases: Vec<ServerName<'static>>,
}

impl Verifier {
    fn new(trusted: RootCertStore, provider: Arc<CryptoProvider>, files: &Files) -> Result<Self, String> {
        let trusted = Arc::new(trusted);
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::clone(&trusted), provider).build();
        let usual = usual.map_err(|error| format!("TLS cannot be set up: {error}"))?;
        let aliases = files.aliases.iter().filter_map(|alias| ServerName::try_from(alias.clone()).ok());
        Ok(Self { usual, trusted, any_host: files.any_host, aliases: aliases.collect() })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.any_host {
            let certificate = ParsedCertificate::try_from(certificate)?;
            let algorithms = ring::default_provider().signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, &self.trusted, chain, now, algorithms)?;
            return Ok(ServerCertVerified::assertion());
        }
        let verify = |name| self.usual.verify_server_cert(certificate, chain, name, ocsp, now);
        let verified = verify(name);
        let is_other_address = matches!(
            (&verified, name),
            (
                Err(rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })),
                ServerName::IpAddress(_)
            )
        );
        let mut aliases = self.aliases.iter().filter(|_| is_other_address);
        aliases.find_map(|alias| verify(alias).ok()).map_or(verified, Ok)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

fn named_roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca", path)? {
        roots
            .add(certificate)
            .map_err(|_| format!("a certificate in ca={} cannot be read", path.display()))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("this machine has no certificates of authorities to trust; install them (ca-certificates), look at SSL_CERT_FILE and SSL_CERT_DIR if they are set, or name a file with ?ca=FILE"
            .into());
    }
    Ok(roots)
}

fn certificates(name: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => Err(unreadable(name, path, &pem::Error::NoItemsFound)),
        Ok(found) => Ok(found),
        Err(error) => Err(unreadable(name, path, &error)),
    }
}

fn unreadable(name: &str, path: &Path, error: &pem::Error) -> String {
    let path = path.display();
    match error {
        pem::Error::Io(error) => {
            let why = match error.kind() {
                ErrorKind::NotFound => "it does not exist".into(),
                ErrorKind::PermissionDenied => "no permission".into(),
                _ => error.to_string(),
            };
            format!("cannot read {name}={path}: {why}")
        }
        pem::Error::NoItemsFound => format!("there is no certificate in {name}={path}; it must be PEM"),
        // The parser's own text repeats a line of the file, which may be of a key.
        _ => format!("{name}={path} is not valid PEM"),
    }
}

/// The TLS state of a connection. It belongs to the process that made it.
pub struct Session {
    connection: Box<ClientConnection>,
    files: Files,
}

impl Session {
    /// Does the handshake, over a stream that has a deadline.
    pub fn begin(store: &str, tls: &Tls, host: &str, raw: &mut (impl Read + Write)) -> Result<Self, Error> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Error::Unfit(format!("{store}: a certificate cannot be for such a host name")))?;
        let connection = ClientConnection::new(tls.current(), name)
            .map_err(|error| Error::Unfit(format!("{store}: TLS cannot be set up: {error}")))?;
        let mut session = Self { connection: Box::new(connection), files: tls.files.clone() };
        while session.connection.is_handshaking() {
            if let Err(error) = session.connection.complete_io(raw) {
                let error = session.last_words(raw).unwrap_or(error);
                let in_handshake =
                    || unreachable(store, &error).map(|why| format!("{why}, in the TLS handshake"));
                return Err(session.explain(store, &error).unwrap_or_else(in_handshake));
            }
        }
        Ok(session)
    }

    /// The plaintext stream over a raw one.
    pub fn over<'a, T: Read + Write>(&'a mut self, raw: &'a mut T) -> Stream<'a, ClientConnection, T> {
        Stream::new(&mut self.connection, raw)
    }

    /// Sends close_notify, as far as that is possible.
    pub fn close(&mut self, raw: &mut impl Write) {
        self.connection.send_close_notify();
        while self.connection.wants_write() {
            if self.connection.write_tls(raw).is_err() {
                return;
            }
        }
    }

    /// Whether there is decrypted data to read, or the end.
    pub fn has_more(&mut self) -> io::Result<bool> {
        let state = self.connection.process_new_packets().map_err(io::Error::other)?;
        Ok(state.plaintext_bytes_to_read() > 0 || state.peer_has_closed())
    }

    /// Reads once. Returns whether there is now data or the end to read: a server may also send
    /// tickets and new keys at any time.
    pub fn take_in(&mut self, raw: &mut impl Read) -> io::Result<bool> {
        Ok(self.connection.read_tls(raw)? == 0 || self.has_more()?)
    }

    /// After a failed write, finds the server's alert, which says why it closed the connection.
    pub fn last_words(&mut self, raw: &mut impl Read) -> Option<io::Error> {
        loop {
            if let Err(error) = self.connection.process_new_packets() {
                return Some(io::Error::other(error));
            }
            if self.connection.read_tls(raw).ok()? == 0 {
                return None;
            }
        }
    }

    /// Translates an error of TLS. None if it is not one.
    pub fn explain(&self, store: &str, error: &io::Error) -> Option<Error> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(match error {
            rustls::Error::InvalidCertificate(flaw) => {
                Error::Misnamed(format!("cannot trust {store}: {}", distrust::distrust(flaw, &self.files)))
            }
            rustls::Error::AlertReceived(alert) => self.alerted(store, *alert),
            rustls::Error::InvalidMessage(_) if self.connection.is_handshaking() => speaks_no_tls(store),
            rustls::Error::PeerIncompatible(_) => Error::Misnamed(format!(
                "cannot reach {store}: the server and dlock have no TLS version or cipher in common (dlock: 1.2 and 1.3): {error}"
            )),
            _ => Error::Unreachable(format!("cannot reach {store}: TLS failed: {error}")),
        })
    }

    fn alerted(&self, store: &str, alert: AlertDescription) -> Error {
        use AlertDescription as Alert;
        // Once the version is agreed on, only this client's identity is left to fail: TLS 1.2
        // reports it so.
        let agreed = self.connection.protocol_version().is_some();
        match (alert, &self.files.client) {
            (Alert::CertificateRequired, _) | (Alert::HandshakeFailure | Alert::BadCertificate, None)
                if agreed =>
            {
                Error::Denied(format!(
                    "{store} wants a client certificate; name one with ?cert=FILE&key=FILE"
                ))
            }
            (
                Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::DecryptError
                | Alert::HandshakeFailure,
                Some((cert, _)),
            ) if agreed => Error::Denied(format!(
                "{store} refused the client certificate {} ({}); the server's log says more",
                cert.display(),
                match alert {
                    Alert::UnknownCA => "its authority is not known there".into(),
                    Alert::CertificateExpired => "it has expired".into(),
                    alert => format!("alert {alert:?}"),
                }
            )),
            (Alert::HandshakeFailure, _) => Error::Misnamed(format!(
                "cannot reach {store}: the server and dlock have no cipher in common, or its key is of no kind that dlock takes; it takes {}",
                distrust::KEYS
            )),
            (Alert::ProtocolVersion, _) => Error::Misnamed(format!(
                "cannot reach {store}: the server allows neither TLS 1.2 nor 1.3, and dlock uses nothing older"
            )),
            (alert, _) => Error::Unreachable(format!(
                "cannot reach {store}: the server ended TLS (alert {alert:?}); its log says why"
            )),
        }
    }
}

/// A client's hello. Only the kind of the answer matters, so no authority is trusted.
pub fn hello() -> io::Result<Vec<u8>> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let any_name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let mut connection = ClientConnection::new(Arc::new(config), any_name).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes)?;
    Ok(bytes)
}

/// The error for a server without TLS.
pub fn speaks_no_tls(store: &str) -> Error {
    Error::Misnamed(format!(
        "cannot reach {store}: the server there does not speak TLS; without TLS {}",
        if store.starts_with("redis") { "the URL begins with redis" } else { "the URL says sslmode=disable" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A job may hold its lock longer than a certificate is valid.
    #[test]
    fn renewed_files_are_read_again() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let ca = directory.path().join("ca.pem");
        fs::write(&ca, rcgen::generate_simple_self_signed(["a".to_owned()])?.cert.pem())?;
        let young = Tls::read(Files { ca: Some(ca.clone()), ..Files::default() }, "s")?;
        let old = Tls { read: Moment::from_boot(Duration::ZERO), ..young.clone() };
        assert!(Arc::ptr_eq(&young.current(), &young.config));
        assert!(!Arc::ptr_eq(&old.current(), &old.config));
        fs::remove_file(&ca)?;
        assert!(Arc::ptr_eq(&old.current(), &old.config), "in the middle of an exchange the old ones serve");
        Ok(())
    }
}
