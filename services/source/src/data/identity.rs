//! The source's certificate and keys: made at the first start, and kept from then on.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData,
};
use ring::digest::{Context, SHA256};
use tracing::{info, warn};
use x509_parser::pem::Pem;
use zeroize::Zeroizing;

use super::{DataFolder, PRIVATE, PUBLIC, check_private, random, read};

/// File of the certificate that is made in the data folder.
pub const CERT: &str = "cert.pem";
const KEY: &str = "key.pem";
const RESET_KEY: &str = "reset.key";

/// Files of certificate and key, and their ownership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// PEM file of the certificate, followed by its chain if it has one.
    pub cert: PathBuf,
    /// PEM file of the certificate's private key.
    pub key: PathBuf,
    /// Whether the files belong to the operator, and were not made here.
    is_own: bool,
}

/// Identity of the source towards its receivers.
#[derive(Debug)]
pub struct Identity {
    /// Certificate and key.
    pub files: Files,
    /// SHA-256 of the certificate's SubjectPublicKeyInfo (RFC 5280 section 4.1.2.7), by which
    /// receivers recognise the source.
    pub pin: [u8; 32],
    /// Kept across restarts, so that receivers notice one from the first packet (RFC 9000 section
    /// 10.3).
    pub reset_key: [u8; 32],
}

impl Identity {
    /// Reads certificate and keys, and makes missing ones in the folder. A new certificate is for
    /// `host`, localhost and 127.0.0.1. An `own` one is used unchanged.
    ///
    /// # Errors
    /// A file is damaged or cannot be read or written; the text names it and a remedy.
    pub fn load_or_make(
        folder: &DataFolder,
        host: &str,
        own: Option<(PathBuf, PathBuf)>,
    ) -> Result<Self> {
        let files = match own {
            Some((cert, key)) => Files {
                cert,
                key,
                is_own: true,
            },
            None => {
                make_missing(folder, host)?;
                files_in(folder)
            }
        };
        Ok(Self {
            pin: files.check()?,
            files,
            reset_key: secret(
                folder,
                RESET_KEY,
                "receivers then need some seconds longer to notice a restart",
            )?,
        })
    }
}

impl Files {
    /// Checks that certificate and key are usable and match; returns the pin.
    ///
    /// # Errors
    /// The certificate and key are unusable; the text contains the cause and a remedy.
    pub fn check(&self) -> Result<[u8; 32]> {
        let cert = self.need(&self.cert)?;
        let damaged = |why: &dyn std::fmt::Display| {
            anyhow!(
                "{} is not a usable PEM certificate ({why}): put a good one there{}",
                self.cert.display(),
                self.or(", or remove it to have one made")
            )
        };
        let pem = first_pem(&cert).map_err(|why| damaged(&why))?;
        if pem.label != "CERTIFICATE" {
            return Err(damaged(&format_args!("it begins with a {:?}", pem.label)));
        }
        let parsed = pem.parse_x509().map_err(|error| damaged(&error))?;
        self.check_key(parsed.public_key().raw)?;
        if !parsed.validity().is_valid() {
            warn!(
                "{} is valid from {} to {}, which is not now: receivers with an enrolment link \
                 ignore that, others will refuse it",
                self.cert.display(),
                parsed.validity().not_before,
                parsed.validity().not_after
            );
        }
        flexicast_tokio::spki_pin(&pem.contents).ok_or_else(|| damaged(&"its key cannot be read"))
    }

    /// Returns the end of the certificate's validity in Unix seconds; `None` if it cannot be read.
    pub fn end(&self) -> Option<i64> {
        let cert = read(&self.cert).ok()??;
        let pem = first_pem(&cert).ok()?;
        let parsed = pem.parse_x509().ok()?;
        Some(parsed.validity().not_after.timestamp())
    }

    /// Returns a fingerprint of certificate and key, to notice changes; `None` if they cannot be
    /// read.
    pub fn fingerprint(&self) -> Option<[u8; 32]> {
        let mut both = Context::new(&SHA256);
        for path in [&self.cert, &self.key] {
            let content = read(path).ok()??;
            both.update(&content.len().to_le_bytes());
            both.update(&content);
        }
        both.finish().as_ref().try_into().ok()
    }

    /// Returns another remedy for files in the folder.
    fn or(&self, remedy: &'static str) -> &'static str {
        if self.is_own { "" } else { remedy }
    }

    fn need(&self, path: &Path) -> Result<Vec<u8>> {
        match read(path)? {
            Some(content) => Ok(content),
            None => bail!(
                "there is no {}: put it there, or check --cert and --key",
                path.display()
            ),
        }
    }

    /// Checks that the private key is valid and matches the certificate.
    fn check_key(&self, spki: &[u8]) -> Result<()> {
        check_private(&self.key);
        let key = self.need(&self.key)?;
        // In other forms than PKCS #8 the TLS library reads it, and reports defects.
        if let Some(key) = self.key_pair(&key)?
            && key.subject_public_key_info() != spki
        {
            bail!(
                "{} is not the key of {}: put the right one there{}",
                self.key.display(),
                self.cert.display(),
                self.or(
                    ", or remove both to have a new pair made (enrolment links given out before \
                     then stop working)"
                )
            );
        }
        Ok(())
    }

    /// Reads a private key; `None` if it is in one of the older forms.
    fn key_pair(&self, pem: &[u8]) -> Result<Option<KeyPair>> {
        let damaged = |why: &dyn std::fmt::Display| {
            anyhow!(
                "{} is not a usable PEM private key ({why}): put a good one there{}",
                self.key.display(),
                self.or(
                    ", or remove it and its certificate to have a new pair made (enrolment links \
                     given out before then stop working)"
                )
            )
        };
        let pem_block = first_pem(pem).map_err(|why| damaged(&why))?;
        match pem_block.label.as_str() {
            "PRIVATE KEY" => {}
            "EC PRIVATE KEY" | "RSA PRIVATE KEY" => return Ok(None),
            "ENCRYPTED PRIVATE KEY" => {
                return Err(damaged(
                    &"it is encrypted with a passphrase, which is not supported",
                ));
            }
            other => return Err(damaged(&format_args!("it begins with a {other:?}"))),
        }
        let text = std::str::from_utf8(pem).map_err(|_| damaged(&"it is not text"))?;
        KeyPair::from_pem(text)
            .map(Some)
            .map_err(|error| damaged(&error))
    }
}

/// Makes a missing certificate and key in the folder.
fn make_missing(folder: &DataFolder, host: &str) -> Result<()> {
    let (cert, key) = (folder.read(CERT)?, folder.read(KEY)?);
    match (cert, &key) {
        (Some(_), Some(_)) => {}
        (Some(_), None) => bail!(
            "there is {} but no {KEY}: put the key back, or remove the certificate to \
             have a new pair made (enrolment links given out before then stop working)",
            folder.file(CERT).display()
        ),
        // An interrupted first start leaves a key alone.
        (None, _) => {
            make(folder, key.as_deref(), host)?;
            info!(
                "made the certificate {} for {host}",
                folder.file(CERT).display()
            );
        }
    }
    Ok(())
}

/// Makes a certificate, and first a key unless there is one.
fn make(folder: &DataFolder, key: Option<&[u8]>, host: &str) -> Result<()> {
    let key = match key {
        Some(key) => files_in(folder).key_pair(key)?.ok_or_else(|| {
            anyhow!(
                "there is {} without a certificate, and it is in a form that none can be made \
                 from: put its certificate there as {CERT}, or remove it",
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
    // Receivers trust the pin. An expiry would only be a day on which everything stops, so there is
    // none (RFC 5280 section 4.1.2.5); the start precedes any clock that is merely wrong.
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
    let cert = params
        .self_signed(&key)
        .context("cannot make a certificate")?
        .pem()
        .into_bytes();
    folder.write(CERT, &cert, PUBLIC)
}

/// Returns the files in the folder.
fn files_in(folder: &DataFolder) -> Files {
    Files {
        cert: folder.file(CERT),
        key: folder.file(KEY),
        is_own: false,
    }
}

fn first_pem(bytes: &[u8]) -> Result<Pem, String> {
    match Pem::iter_from_buffer(bytes).next() {
        Some(Ok(pem)) => Ok(pem),
        Some(Err(error)) => Err(error.to_string()),
        None if bytes.is_empty() => Err("it is empty".to_owned()),
        None => Err("there is no -----BEGIN line in it".to_owned()),
    }
}

/// Returns the 32 random bytes of a file, which is made if it is missing. `consequence` is what
/// follows if it is made again.
fn secret(folder: &DataFolder, name: &str, consequence: &str) -> Result<[u8; 32]> {
    let Some(stored) = folder.read(name)?.map(Zeroizing::new) else {
        let key = random()?;
        folder.write(name, &key, PRIVATE)?;
        return Ok(key);
    };
    check_private(&folder.file(name));
    stored.as_slice().try_into().map_err(|_| {
        anyhow!(
            "{} is {} bytes long instead of 32: restore it, or remove it to have a new one made \
             ({consequence})",
            folder.file(name).display(),
            stored.len()
        )
    })
}
