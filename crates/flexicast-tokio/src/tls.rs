//! Certificates: the source's own, and what a receiver believes.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use boring::ssl::{SslContextBuilder, SslFiletype, SslMethod, SslVerifyMode};
use boring::x509::X509StoreContextRef;
use x509_parser::extensions::GeneralName;

use crate::Error;
use crate::config::{quic_client, quic_server};

/// quiche's settings for a source that shows this certificate. Reads both files.
///
/// # Errors
/// One of them cannot be used, or they do not belong together.
pub(crate) fn source(cert: &Path, key: &Path) -> Result<quiche::Config, Error> {
    let pem = |path: &Path, what: &'static str| {
        let path = path.to_owned();
        move |error: boring::error::ErrorStack| Error::Pem {
            path,
            what,
            error: error.to_string(),
        }
    };
    let mut builder = SslContextBuilder::new(SslMethod::tls()).map_err(|_| Error::Tls)?;
    builder
        .set_certificate_chain_file(cert)
        .map_err(pem(cert, "certificate"))?;
    builder
        .set_private_key_file(key, SslFiletype::PEM)
        .map_err(pem(key, "private key"))?;
    builder
        .check_private_key()
        .map_err(pem(key, "private key"))?;
    quic_server(builder)
}

/// The TLS library's objection to a source's certificate.
#[derive(Debug, Clone, Default)]
pub(crate) struct CertificateObjection(Arc<Mutex<Option<String>>>);

impl CertificateObjection {
    fn note(&self, text: String) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.get_or_insert(text);
    }

    /// The first one.
    pub(crate) fn text(&self) -> Option<String> {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.clone()
    }
}

/// quiche's settings for a receiver that believes the authorities in a file, or those that the
/// system trusts. The name is checked by quiche.
///
/// # Errors
/// The file cannot be used.
pub(crate) fn trusting(
    authorities: Option<&Path>,
) -> Result<(quiche::Config, CertificateObjection), Error> {
    let mut builder = SslContextBuilder::new(SslMethod::tls()).map_err(|_| Error::Tls)?;
    match authorities {
        Some(path) => builder.set_ca_file(path).map_err(|error| Error::Pem {
            path: path.to_owned(),
            what: "certificate authorities",
            error: error.to_string(),
        })?,
        None => builder.set_default_verify_paths().map_err(|_| Error::Tls)?,
    }
    let complaint = CertificateObjection::default();
    let noted = complaint.clone();
    let look = move |good: bool, context: &mut X509StoreContextRef| {
        if let (false, Err(error)) = (good, context.verify_result()) {
            noted.note(error.error_string().to_owned());
        }
        good
    };
    builder.set_verify_callback(SslVerifyMode::PEER, look);
    Ok((quic_client(builder)?, complaint))
}

/// quiche's settings for a receiver that looks at the certificate itself, or not at all.
pub(crate) fn unverified() -> Result<quiche::Config, Error> {
    let builder = SslContextBuilder::new(SslMethod::tls()).map_err(|_| Error::Tls)?;
    quic_client(builder)
}

/// Whether a certificate is for this address. Names are checked by the TLS library, addresses are
/// not.
pub(crate) fn is_for_address(certificate: &[u8], address: IpAddr) -> bool {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else {
        return false;
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return false;
    };
    let octets = match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let is = |name: &GeneralName<'_>| matches!(name, GeneralName::IPAddress(ip) if *ip == octets);
    names.value.general_names.iter().any(is)
}

/// quiche's settings for a source with a certificate of its own making.
#[cfg(test)]
pub(crate) fn source_with_some_certificate() -> quiche::Config {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("c"), folder.path().join("k"));
    let pair = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
    std::fs::write(&cert, params.self_signed(&pair).unwrap().pem()).unwrap();
    std::fs::write(&key, pair.serialize_pem()).unwrap();
    source(&cert, &key).unwrap()
}
