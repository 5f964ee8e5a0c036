//! The source's certificate and keys: made at the first start, used as they are ever after.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData,
};
use tracing::{info, warn};
use x509_parser::pem::Pem;

use super::{DataFolder, PRIVATE, PUBLIC, random};

const CERT: &str = "cert.pem";
const KEY: &str = "key.pem";
const RESET_KEY: &str = "reset.key";

/// Who the source is to its receivers.
#[derive(Debug)]
pub struct Identity {
    /// PEM file of the certificate, followed by its chain if it has one.
    pub cert: PathBuf,
    /// PEM file of the certificate's private key.
    pub key: PathBuf,
    /// The SHA-256 of the certificate's SubjectPublicKeyInfo (RFC 5280 section 4.1.2.7): what
    /// receivers recognise the source by.
    pub pin: [u8; 32],
    /// Kept across restarts, so that receivers learn of one from the first packet (RFC 9000
    /// section 10.3).
    pub reset_key: [u8; 32],
}

impl Identity {
    /// Reads certificate and keys from the folder, and makes what is missing. A new certificate is
    /// for `host`, localhost and 127.0.0.1.
    ///
    /// # Errors
    /// A file is damaged or cannot be read or written; the text says which and what to do.
    pub fn load_or_make(folder: &DataFolder, host: &str) -> Result<Self> {
        let pin = certificate(folder, host)?;
        Ok(Self {
            cert: folder.file(CERT),
            key: folder.file(KEY),
            pin,
            reset_key: reset_key(folder)?,
        })
    }
}

/// Makes sure that certificate and key are there and belong together; returns the pin.
fn certificate(folder: &DataFolder, host: &str) -> Result<[u8; 32]> {
    let (cert, key) = (folder.read(CERT)?, folder.read(KEY)?);
    let cert = match (cert, &key) {
        (Some(cert), Some(_)) => cert,
        (Some(_), None) => bail!(
            "there is {} but no {KEY} beside it: put the key back, or remove the certificate to \
             have a new pair made (enrolment links given out before then stop working)",
            folder.file(CERT).display()
        ),
        // A key alone is what a first start leaves that was interrupted in between.
        (None, _) => {
            let cert = make(folder, key.as_deref(), host)?;
            info!(
                "made the certificate {} for {host}",
                folder.file(CERT).display()
            );
            cert
        }
    };
    let path = folder.file(CERT);
    let damaged = |why: &dyn std::fmt::Display| {
        anyhow!(
            "{} is not a usable PEM certificate ({why}): put a good one there, or remove it to have \
             one made",
            path.display()
        )
    };
    let pem = first_pem(&cert).map_err(|why| damaged(&why))?;
    if pem.label != "CERTIFICATE" {
        return Err(damaged(&format_args!("it begins with a {:?}", pem.label)));
    }
    let parsed = pem.parse_x509().map_err(|error| damaged(&error))?;
    check_key(folder, parsed.public_key().raw)?;
    if !parsed.validity().is_valid() {
        warn!(
            "{} is valid from {} to {}, which is not now: receivers with an enrolment link do not \
             mind, others will refuse it",
            path.display(),
            parsed.validity().not_before,
            parsed.validity().not_after
        );
    }
    flexicast_tokio::spki_pin(&pem.contents).ok_or_else(|| damaged(&"its key cannot be read"))
}

/// Makes a certificate, and before it a key unless there is one.
fn make(folder: &DataFolder, key: Option<&[u8]>, host: &str) -> Result<Vec<u8>> {
    let key = match key {
        Some(key) => key_pair(folder, key)?.ok_or_else(|| {
            anyhow!(
                "there is {} without a certificate, and it is in a form that none can be made \
                 from: put its certificate beside it as {CERT}, or remove it",
                folder.file(KEY).display()
            )
        })?,
        None => {
            let key =
                KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context("cannot make a key")?;
            folder.write(KEY, key.serialize_pem().as_bytes(), PRIVATE)?;
            key
        }
    };
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    if !names.iter().any(|name| name == host) {
        names.insert(0, host.to_owned());
    }
    let mut params = CertificateParams::new(names)
        .with_context(|| format!("{host:?} cannot be in a certificate"))?;
    params
        .distinguished_name
        .push(DnType::CommonName, "flexfeed source");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Receivers go by the pin. An end would only be a day on which everything stops, so there is
    // none (RFC 5280 section 4.1.2.5); the beginning is before any clock that is merely wrong.
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
    let cert = params
        .self_signed(&key)
        .context("cannot make a certificate")?
        .pem()
        .into_bytes();
    folder.write(CERT, &cert, PUBLIC)?;
    Ok(cert)
}

/// Makes sure that the private key is one, and that of the certificate.
fn check_key(folder: &DataFolder, spki: &[u8]) -> Result<()> {
    folder.check_private(KEY);
    let key = folder.read(KEY)?.unwrap_or_default();
    // In other forms than PKCS #8 the TLS library reads it, and says what is wrong with it.
    if let Some(key) = key_pair(folder, &key)?
        && key.subject_public_key_info() != spki
    {
        bail!(
            "{} is not the key of {CERT} beside it: put the right one there, or remove both to \
             have a new pair made (enrolment links given out before then stop working)",
            folder.file(KEY).display()
        );
    }
    Ok(())
}

/// Reads a private key; `None` if it is in one of the older forms.
fn key_pair(folder: &DataFolder, pem: &[u8]) -> Result<Option<KeyPair>> {
    let damaged = |why: &dyn std::fmt::Display| {
        anyhow!(
            "{} is not a usable PEM private key ({why}): put a good one there, or remove it and \
             {CERT} to have a new pair made (enrolment links given out before then stop working)",
            folder.file(KEY).display()
        )
    };
    let pem_block = first_pem(pem).map_err(|why| damaged(&why))?;
    match pem_block.label.as_str() {
        "PRIVATE KEY" => {}
        "EC PRIVATE KEY" | "RSA PRIVATE KEY" => return Ok(None),
        "ENCRYPTED PRIVATE KEY" => {
            return Err(damaged(
                &"it has a passphrase, and there is nobody to type it",
            ));
        }
        other => return Err(damaged(&format_args!("it begins with a {other:?}"))),
    }
    let text = std::str::from_utf8(pem).map_err(|_| damaged(&"it is not text"))?;
    KeyPair::from_pem(text)
        .map(Some)
        .map_err(|error| damaged(&error))
}

fn first_pem(bytes: &[u8]) -> Result<Pem, String> {
    match Pem::iter_from_buffer(bytes).next() {
        Some(Ok(pem)) => Ok(pem),
        Some(Err(error)) => Err(error.to_string()),
        None if bytes.is_empty() => Err("it is empty".to_owned()),
        None => Err("there is no -----BEGIN line in it".to_owned()),
    }
}

fn reset_key(folder: &DataFolder) -> Result<[u8; 32]> {
    let Some(stored) = folder.read(RESET_KEY)? else {
        let key = random()?;
        folder.write(RESET_KEY, &key, PRIVATE)?;
        return Ok(key);
    };
    folder.check_private(RESET_KEY);
    stored.as_slice().try_into().map_err(|_| {
        anyhow!(
            "{} is {} bytes long instead of 32: restore it, or remove it to have a new one made \
             (receivers then need some seconds longer to notice a restart)",
            folder.file(RESET_KEY).display(),
            stored.len()
        )
    })
}
