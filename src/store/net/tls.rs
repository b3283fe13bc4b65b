//! How is a server spoken to over TLS, and when is it not trusted? Certificates are read here, the handshake is done here,
//! and what fails in it becomes one line that says which check failed and what to do. There is no way to switch a check
//! off, but that a database may be told not to check the host (sslmode=verify-ca). Sockets and deadlines are those of
//! `dial` and `streams`.
//!
//! Statuses: a server that cannot be trusted counts as one that cannot be reached (69), also for a holder, who keeps
//! trying until its deadline: whoever stands in the way must not be able to end a job sooner. A server that turns this
//! client's certificate down, or misses one, denies access (77). Files that cannot be used are configuration (78).
//!
//! Whether a certificate is still valid is the one thing that this machine's wall clock decides.

use super::failure::plain;
use crate::clock::Moment;
use crate::store::Error;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, Stream};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Certificates that were read longer ago are read again before the next connection, because they are renewed while
/// a job runs or waits.
const FRESH: Duration = Duration::from_secs(60);
/// How many of the names in a certificate are repeated.
const NAMES_SHOWN: usize = 5;

#[derive(Debug, Clone, Default)]
pub struct Files {
    /// Those to trust in place of the system's.
    pub ca: Option<PathBuf>,
    /// This client's own chain, and its private key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Whether the server's certificate may name any host.
    pub any_host: bool,
    /// Host names of which the certificate of a server that is known by an address may name one in place of the address: those
    /// by which the user named the servers that told the address.
    pub aliases: Vec<String>,
}

/// All that connections over TLS have in common. It has no state that a fork could split in two: sessions are not
/// resumed, so every connection begins with a whole handshake of its own.
#[derive(Clone)]
pub struct Tls {
    files: Files,
    config: Arc<ClientConfig>,
    read: Moment,
}

impl Tls {
    /// Reads the files. What is wrong with them is [`Error::Unfit`]; `shown` is how to name the store.
    pub fn read(files: Files, shown: &str) -> Result<Self, Error> {
        let read = Moment::now();
        let config = config(&files).map_err(|why| Error::Unfit(format!("{shown}: {why}")))?;
        Ok(Self { files, config: Arc::new(config), read })
    }

    /// The files as they are now; as they were if that is not possible now, which may be in the middle of an exchange.
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
    let broken = |error: rustls::Error| format!("TLS cannot be set up: {error}");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(broken)?
        .with_root_certificates(trusted.clone());
    let known = |aliases: &[String]| {
        let (roots, provider) = (Arc::new(trusted.clone()), Arc::new(ring::default_provider()));
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        let verifier = verifier.map_err(|error| format!("TLS cannot be set up: {error}"))?;
        let aliases = aliases.iter().filter_map(|alias| ServerName::try_from(alias.clone()).ok());
        Ok::<_, String>(Arc::new(ByAlias { verifier, aliases: aliases.collect() }))
    };
    let mut config = match &files.client {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates("cert", cert)?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
                pem::Error::NoItemsFound => format!(
                    "there is no private key in key={}; it is PEM, and without a passphrase",
                    key.display()
                ),
                error => unreadable("key", key, &error),
            })?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    format!("key={} is not the key of cert={}", key.display(), cert.display())
                }
                _ => format!(
                    "key={} and cert={} cannot be used; keys are RSA, ECDSA (P-256, P-384) or Ed25519",
                    key.display(),
                    cert.display()
                ),
            })?
        }
    };
    if files.any_host {
        config.dangerous().set_certificate_verifier(Arc::new(AnyHost(trusted)));
    } else if !files.aliases.is_empty() {
        config.dangerous().set_certificate_verifier(known(&files.aliases)?);
    }
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Checks that one of these authorities issued a server's certificate, and not for which host.
#[derive(Debug)]
struct AnyHost(RootCertStore);

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(certificate)?;
        let algorithms = ring::default_provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.0, chain, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = ring::default_provider().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = ring::default_provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Checks a server's certificate as usual. Where only the address by which the server is known is not in it, one of the aliases
/// may be.
#[derive(Debug)]
struct ByAlias {
    verifier: Arc<WebPkiServerVerifier>,
    aliases: Vec<ServerName<'static>>,
}

impl ServerCertVerifier for ByAlias {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let verify = |name| self.verifier.verify_server_cert(certificate, chain, name, ocsp, now);
        match (verify(name), name) {
            (
                Err(rustls::Error::InvalidCertificate(
                    flaw @ (NotValidForName | NotValidForNameContext { .. }),
                )),
                ServerName::IpAddress(_),
            ) => {
                let verified = self.aliases.iter().find_map(|alias| verify(alias).ok());
                verified.ok_or(rustls::Error::InvalidCertificate(flaw))
            }
            (verified, _) => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

fn named_roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca", path)? {
        roots
            .add(certificate)
            .map_err(|_| format!("a certificate in ca={} cannot be understood", path.display()))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let set =
            ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter(|name| std::env::var_os(name).is_some());
        let set = set.map(|name| format!(", look at {name}")).collect::<String>();
        return Err(format!(
            "this machine has no certificates of authorities to trust; install them (ca-certificates){set}, or name a \
             file with ?ca=FILE"
        ));
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
        pem::Error::NoItemsFound => format!("there is no certificate in {name}={path}; it is PEM"),
        // The parser's own words repeat a line of the file, which may be a key's.
        _ => format!("{name}={path} is not valid PEM"),
    }
}

/// The TLS side of one connection. It belongs to the process that made it.
pub struct Session {
    connection: Box<ClientConnection>,
    files: Files,
}

impl Session {
    /// Shakes hands over a stream that ends by itself when the time is up.
    pub fn begin(store: &str, tls: &Tls, host: &str, raw: &mut (impl Read + Write)) -> Result<Self, Error> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Error::Unfit(format!("{store}: a certificate cannot name such a host")))?;
        let connection = ClientConnection::new(tls.current(), name)
            .map_err(|error| Error::Unfit(format!("{store}: TLS cannot be set up: {error}")))?;
        let mut session = Self { connection: Box::new(connection), files: tls.files.clone() };
        while session.connection.is_handshaking() {
            if let Err(error) = session.connection.complete_io(raw) {
                let error = session.last_words(raw).unwrap_or(error);
                return Err(session.explain(store, &error).unwrap_or_else(|| silent(store, &error)));
            }
        }
        Ok(session)
    }

    /// The stream of what is said, over the stream of what is sent.
    pub fn over<'a, T: Read + Write>(&'a mut self, raw: &'a mut T) -> Stream<'a, ClientConnection, T> {
        Stream::new(&mut self.connection, raw)
    }

    /// Says that nothing more will come (close_notify), as far as that can be sent.
    pub fn close(&mut self, raw: &mut impl Write) {
        self.connection.send_close_notify();
        while self.connection.wants_write() {
            if self.connection.write_tls(raw).is_err() {
                return;
            }
        }
    }

    /// Whether something was decrypted that nobody has read.
    pub fn has_more(&mut self) -> io::Result<bool> {
        let state = self.connection.process_new_packets().map_err(io::Error::other)?;
        Ok(state.plaintext_bytes_to_read() > 0 || state.peer_has_closed())
    }

    /// Reads once and says whether there is now something for the caller, be it the end. Not all that arrives is: a
    /// server may send tickets and new keys at any time.
    pub fn take_in(&mut self, raw: &mut impl Read) -> io::Result<bool> {
        Ok(self.connection.read_tls(raw)? == 0 || self.has_more()?)
    }

    /// After a write that failed: what the server said before it hung up, which is why it did.
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

    /// What an error means that comes from TLS; none if it does not.
    pub fn explain(&self, store: &str, error: &io::Error) -> Option<Error> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(match error {
            rustls::Error::InvalidCertificate(flaw) => {
                Error::Misnamed(format!("cannot trust {store}: {}", distrust(flaw, &self.files)))
            }
            rustls::Error::AlertReceived(alert) => self.alerted(store, *alert),
            rustls::Error::InvalidMessage(_) if self.connection.is_handshaking() => speaks_no_tls(store),
            rustls::Error::PeerIncompatible(_) => Error::Misnamed(format!(
                "cannot reach {store}: the server and dlock have no way of TLS in common (1.2 and 1.3): {error}"
            )),
            _ => Error::Unreachable(format!("cannot reach {store}: TLS failed: {error}")),
        })
    }

    fn alerted(&self, store: &str, alert: AlertDescription) -> Error {
        use AlertDescription as Alert;
        // Once the version is agreed on, what is left to fail is who this client is: so TLS 1.2 says it.
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
            (Alert::ProtocolVersion, _) => Error::Misnamed(format!(
                "cannot reach {store}: the server allows neither TLS 1.2 nor 1.3, and dlock nothing older"
            )),
            (alert, _) => Error::Unreachable(format!(
                "cannot reach {store}: the server broke off TLS (alert {alert:?}); its log says why"
            )),
        }
    }
}

/// What a client says first. Only the kind of the answer is of interest, so nobody is trusted.
pub fn hello() -> io::Result<Vec<u8>> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let anybody = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let mut connection = ClientConnection::new(Arc::new(config), anybody).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes)?;
    Ok(bytes)
}

/// The error for a server without TLS.
pub fn speaks_no_tls(store: &str) -> Error {
    Error::Misnamed(format!(
        "cannot reach {store}: what answers there does not speak TLS; without TLS {}",
        if store.starts_with("redis") { "the URL begins with redis" } else { "the URL says sslmode=disable" }
    ))
}

/// A handshake that ended without a word of TLS.
fn silent(store: &str, error: &io::Error) -> Error {
    let what = match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "no answer to the TLS handshake in time",
        _ => "the server closed the connection during the TLS handshake",
    };
    Error::Unreachable(format!("cannot reach {store}: {what}"))
}

/// Why a certificate is not trusted, and what to do.
fn distrust(flaw: &CertificateError, files: &Files) -> String {
    use CertificateError as Flaw;
    match flaw {
        Flaw::UnknownIssuer => match &files.ca {
            Some(ca) => format!(
                "no authority in {} issued its certificate; ca= names the authority that did",
                ca.display()
            ),
            None => "no authority that this machine trusts issued its certificate; name the one that did with \
                     ?ca=FILE"
                .into(),
        },
        // An authority of the right name whose key is another one: most often it was made anew.
        Flaw::BadSignature => match &files.ca {
            Some(ca) => format!(
                "its certificate was not issued by the authority in {}, but by another one of that name; ca= must name the \
                 one that issued it, which may have been made anew",
                ca.display()
            ),
            None => "its certificate was not issued by the authority of that name that this machine trusts; name the one \
                     that did with ?ca=FILE"
                .into(),
        },
        Flaw::ExpiredContext { not_after, .. } => {
            format!("its certificate expired at {}; it must be renewed", date(*not_after))
        }
        Flaw::Expired => "its certificate expired; it must be renewed".into(),
        Flaw::NotValidYetContext { not_before, time } => format!(
            "its certificate is not valid before {}, and by this machine's clock it is {}",
            date(*not_before),
            date(*time)
        ),
        Flaw::NotValidYet => "its certificate is not valid yet; is this machine's clock right?".into(),
        Flaw::NotValidForNameContext { expected, presented } if presented.is_empty() => format!(
            "its certificate names no host at all, so not {} either; it must have subjectAltName",
            expected.to_str()
        ),
        Flaw::NotValidForNameContext { expected, presented } => {
            let names: Vec<_> = presented.iter().take(NAMES_SHOWN).map(|name| bare(name)).collect();
            let more = if presented.len() > NAMES_SHOWN { ", …" } else { "" };
            format!(
                "its certificate is for {}{more} and not for {}; name the server as its certificate does",
                names.join(", "),
                expected.to_str()
            )
        }
        Flaw::NotValidForName => "its certificate is for another host".into(),
        Flaw::InvalidPurpose | Flaw::InvalidPurposeContext { .. } => {
            "its certificate is not one for servers (extendedKeyUsage)".into()
        }
        // webpki's word, for which rustls has none of its own.
        Flaw::Other(flaw) if flaw.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is an authority's own, as most self-signed ones are (CA:TRUE); a server needs one that \
             is issued to it (CA:FALSE)"
                .into()
        }
        flaw => format!("its certificate is not good: {}", plain(&flaw.to_string())),
    }
}

/// `DnsName("a.example")` and `IpAddress(127.0.0.1)` without their wrapping, and without what could bend a terminal.
fn bare(name: &str) -> String {
    let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    plain(inside.trim_matches('"'))
}

fn date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "another age".into(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A job may hold its lock longer than a certificate lives.
    #[test]
    fn files_that_were_renewed_are_read_again() -> Result<(), Box<dyn std::error::Error>> {
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
