//! The feed files, with validators (RFC 9110 sections 8.8 and 13).

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use axum::body::{Body, Bytes};
use axum::extract::{Path as Segment, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    LAST_MODIFIED,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use ring::digest;
use tokio::io::AsyncReadExt;

use super::Site;

/// How much of a file is read at once.
const CHUNK: usize = 64 << 10;

/// What is known of files by their identity on disk, so that an unchanged one is not read for each
/// question whether it changed.
#[derive(Debug, Default)]
pub(super) struct Validators(Mutex<HashMap<PathBuf, Known>>);

/// A version of a file.
#[derive(Debug)]
struct Known {
    identity: Identity,
    etag: String,
    /// Never read: while it is open, no other version can get its inode. A new version is a new
    /// file, and two that are made soon after each other may have the same time and length.
    _open: File,
}

/// What changes when a file is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    length: u64,
    modified: SystemTime,
}

/// A file that is open, with what it is known by.
struct Version {
    file: File,
    length: u64,
    modified: SystemTime,
    etag: String,
}

impl Validators {
    /// Opens a file. Blocks for the disk.
    fn open(&self, path: &Path) -> io::Result<Version> {
        let mut file = File::open(path)?;
        let meta = file.metadata()?;
        let identity = Identity {
            device: meta.dev(),
            inode: meta.ino(),
            length: meta.len(),
            modified: meta.modified()?,
        };
        let known = {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = known.get(path).filter(|known| known.identity == identity);
            known.map(|known| known.etag.clone())
        };
        let etag = match known {
            Some(etag) => etag,
            None => {
                let etag = hash(&mut file)?;
                file.rewind()?;
                let one = Known {
                    identity,
                    etag: etag.clone(),
                    _open: file.try_clone()?,
                };
                let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                known.insert(path.to_owned(), one);
                etag
            }
        };
        Ok(Version {
            file,
            length: identity.length,
            modified: identity.modified,
            etag,
        })
    }
}

/// A strong validator: the beginning of the content's SHA-256.
fn hash(file: &mut File) -> io::Result<String> {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; CHUNK];
    loop {
        let n = file.read(&mut buffer)?;
        match buffer.get(..n) {
            Some(read) if n > 0 => context.update(read),
            _ => break,
        }
    }
    let digest = context.finish();
    let half = digest.as_ref().get(..16).unwrap_or_default();
    Ok(format!("\"{}\"", HEXLOWER.encode(half)))
}

pub(super) async fn feed(
    State(site): State<Arc<Site>>,
    Segment(name): Segment<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let kind = name.rsplit_once('.').and_then(|(channel, kind)| {
        site.tape(channel)?;
        match kind {
            "atom" => Some("application/atom+xml; charset=utf-8"),
            "json" if site.json => Some("application/feed+json; charset=utf-8"),
            _ => None,
        }
    });
    // Only names of channels come this far: they name files.
    let Some(kind) = kind else {
        return (StatusCode::NOT_FOUND, "there is no such feed: see /\n").into_response();
    };
    let path = site.data.join(&name);
    let opened = {
        let site = Arc::clone(&site);
        tokio::task::spawn_blocking(move || site.validators.open(&path)).await
    };
    let version = match opened.map_err(io::Error::other).and_then(|opened| opened) {
        Ok(version) => version,
        Err(error) => {
            let code = match error.kind() {
                io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            return (code, format!("{name} cannot be read: {error}\n")).into_response();
        }
    };
    let modified = Timestamp::try_from(version.modified).unwrap_or(Timestamp::UNIX_EPOCH);
    let fresh = is_known(&headers, &version.etag, modified);
    let mut response = match method {
        _ if fresh => StatusCode::NOT_MODIFIED.into_response(),
        Method::HEAD => StatusCode::OK.into_response(),
        _ => content(version.file, version.length).into_response(),
    };
    let headers = response.headers_mut();
    let mut put = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    put(ETAG, &version.etag);
    put(CACHE_CONTROL, "no-cache");
    if let Ok(date) = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&modified) {
        put(LAST_MODIFIED, &date);
    }
    if !fresh {
        put(CONTENT_TYPE, kind);
        put(CONTENT_LENGTH, &version.length.to_string());
    }
    response
}

/// Whether the client has this version. Where it says by `If-None-Match` what it has, a date does
/// not count (RFC 9110 section 13.2.2).
fn is_known(headers: &HeaderMap, etag: &str, modified: Timestamp) -> bool {
    if headers.contains_key(IF_NONE_MATCH) {
        let lists = headers.get_all(IF_NONE_MATCH).iter();
        let mut tags = lists
            .filter_map(|list| list.to_str().ok())
            .flat_map(|list| list.split(','))
            .map(str::trim);
        return tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag);
    }
    let since = headers.get(IF_MODIFIED_SINCE);
    let since = since.and_then(|date| date.to_str().ok());
    since
        .and_then(|date| rfc2822::parse(date).ok())
        .is_some_and(|since| modified.as_second() <= since.timestamp().as_second())
}

/// The content, a piece at a time: the file is of one version, whatever replaces it meanwhile.
fn content(file: File, length: u64) -> Body {
    let file = tokio::fs::File::from_std(file).take(length);
    Body::from_stream(futures_util::stream::try_unfold(file, |mut file| async {
        let mut piece = vec![0; CHUNK];
        let n = file.read(&mut piece).await?;
        piece.truncate(n);
        io::Result::Ok((n > 0).then(|| (Bytes::from(piece), file)))
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    /// Also one that was made this very moment is read once only: busy channels have no others.
    #[test]
    fn a_version_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lore.atom");
        let replace = |content: &str| {
            let new = folder.path().join("new");
            fs::write(&new, content).unwrap();
            fs::rename(&new, &path).unwrap();
        };
        let validators = Validators::default();
        replace("one");
        let first = validators.open(&path).unwrap();
        // Were it read again, this would be another one.
        let known = |etag: &str| {
            let mut known = validators.0.lock().unwrap();
            known.get_mut(&path).unwrap().etag = etag.to_owned();
        };
        known("\"known\"");
        assert_eq!(validators.open(&path).unwrap().etag, "\"known\"");
        // However soon they follow each other, and however much alike they are.
        for n in 0..50 {
            replace(&format!("{:03}", n % 7));
            let mut version = validators.open(&path).unwrap();
            let etag = hash(&mut version.file).unwrap();
            assert_eq!(version.etag, etag);
            assert_ne!(etag, first.etag);
        }
    }
}
