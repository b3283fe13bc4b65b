//! Says why a certificate is not trusted, and what to do.

use super::Files;
use crate::store::net::failure::plain;
use rustls::CertificateError;
use rustls::pki_types::UnixTime;

/// The keys that dlock takes, of a server and of the authority that signed its certificate.
pub(super) const KEYS: &str = "RSA of 2048 bits or more, ECDSA P-256 or P-384, and Ed25519";
/// Most names of a certificate that a message shows.
const NAMES_SHOWN: usize = 5;

/// Why a certificate is not trusted, and what to do.
pub(super) fn distrust(flaw: &CertificateError, files: &Files) -> String {
    use CertificateError as Flaw;
    match flaw {
        // A bad signature is that of an authority of the right name with another key: usually it was
        // created again.
        Flaw::UnknownIssuer | Flaw::BadSignature => match &files.ca {
            Some(ca) => format!(
                "no authority in {} issued its certificate, but another one, perhaps of the same name; ca= must name the one that did",
                ca.display()
            ),
            None => "no authority that this machine trusts issued its certificate; name the one that did with \
                     ?ca=FILE"
                .into(),
        },
        Flaw::ExpiredContext { not_after, .. } => {
            format!("its certificate expired at {}; it must be renewed", date(*not_after))
        }
        Flaw::NotValidYetContext { not_before, time } => format!(
            "its certificate is not valid before {}, and by this machine's clock it is {}",
            date(*not_before),
            date(*time)
        ),
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
        Flaw::InvalidPurposeContext { .. } => {
            "its certificate is not one for servers (extendedKeyUsage)".into()
        }
        // webpki's error, for which rustls has none of its own.
        Flaw::Other(flaw) if flaw.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is that of an authority (CA:TRUE), as most self-signed ones are; a server needs its own (CA:FALSE)"
                .into()
        }
        Flaw::Other(flaw) if flaw.to_string().contains("UnsupportedCertVersion") => {
            "its certificate is X.509 version 1, as 'openssl x509 -req' makes one without -extfile; it must be version 3, with subjectAltName"
                .into()
        }
        Flaw::UnsupportedSignatureAlgorithmContext { .. }
        | Flaw::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            format!("the signature of its certificate is of no kind that dlock takes; it takes {KEYS}")
        }
        flaw => format!("its certificate is not good: {}", plain(&flaw.to_string())),
    }
}

/// `DnsName("a.example")` and `IpAddress(127.0.0.1)` without their wrapping, for a message.
fn bare(name: &str) -> String {
    let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    plain(inside.trim_matches('"'))
}

fn date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "another age".into(), |time| time.to_string())
}
