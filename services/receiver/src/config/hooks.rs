//! Webhooks and commands.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::{BASE64, HEXLOWER};
use ring::digest::{SHA256, digest};
use service::settings::{Given, Layers, Origin, Section, Taker, Value, quoting};
use service::values::{count, duration};
use url::Url;

use super::values;
use crate::durable::FileError;

/// Prefix of a secret in the form of Standard Webhooks, followed by Base64.
const PREFIX: &str = "whsec_";

/// A secret that is shorter can be guessed, in bytes.
const MIN_SECRET: usize = 16;

/// A file with a secret is a line.
const MAX_SECRET_FILE: u64 = 4096;

/// The most webhooks, and the most commands.
const MAX_HOOKS: usize = 64;

/// The most commands of one kind at a time.
const MAX_CONCURRENCY: u32 = 256;

/// Secret that webhooks are signed with. Neither `Debug` nor any message shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// A secret as it is written: `whsec_` and Base64, or any other text, whose bytes it is then.
    ///
    /// # Errors
    /// If it is too short or no Base64.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let bytes = match text.strip_prefix(PREFIX) {
            Some(rest) => BASE64
                .decode(rest.as_bytes())
                .map_err(|_| format!("what follows {PREFIX} is no Base64"))?,
            None => text.as_bytes().to_vec(),
        };
        if bytes.len() < MIN_SECRET {
            return Err(format!(
                "a secret of less than {MIN_SECRET} bytes can be guessed; \
                 'openssl rand -base64 32' makes a good one"
            ));
        }
        Ok(Secret(bytes.into()))
    }

    /// The key of the HMAC.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// A webhook, to which updates are posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// In the status, in metrics, and of its files; no other webhook or command has it. One that
    /// nobody chose follows from the URL.
    pub name: String,
    /// Destination.
    pub url: Url,
    /// Secret for signatures.
    pub secret: Option<Secret>,
    /// Only updates of these; of all if empty.
    pub channels: Vec<String>,
    /// For one attempt.
    pub timeout: Duration,
    /// Bound on attempts for an update.
    pub attempts: u32,
    /// For how long it is tried.
    pub max_age: Duration,
}

/// A command that is run for updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    /// As a webhook's. A default follows from the command.
    pub name: String,
    /// For `/bin/sh -c`.
    pub command: String,
    /// Only updates of these; of all if empty.
    pub channels: Vec<String>,
    /// Number of runs at a time.
    pub concurrency: usize,
    /// For one run.
    pub timeout: Duration,
    /// Bound on attempts for an update.
    pub attempts: u32,
}

/// Reads the webhooks and commands; `channels` are those of the link.
pub(super) fn read(taker: &mut Taker<'_>, channels: &[String]) -> (Vec<Webhook>, Vec<Exec>) {
    let layers = taker.layers;
    let secret = secret_for_all(layers, taker);
    let webhooks: Vec<Webhook> = tables(layers, "webhook", "url")
        .iter()
        .filter_map(|table| webhook(table, taker, channels, secret.as_ref()))
        .collect();
    let commands: Vec<Exec> = tables(layers, "exec", "command")
        .iter()
        .filter_map(|table| exec(table, taker, channels))
        .collect();
    for (what, number) in [("webhooks", webhooks.len()), ("commands", commands.len())] {
        if number > MAX_HOOKS {
            taker.problem(format!("there are more than {MAX_HOOKS} {what}"));
        }
    }
    let mut names = BTreeSet::new();
    let hooks = webhooks.iter().map(|hook| &hook.name);
    for name in hooks.chain(commands.iter().map(|exec| &exec.name)) {
        if !names.insert(name) {
            taker.problem(format!(
                "two webhooks or commands have the name {name}, or are the same; give each a name \
                 of its own"
            ));
        }
    }
    (webhooks, commands)
}

/// Returns the values of a setting, each as a table: flags and variables give only its main key.
pub(super) fn tables(layers: &Layers, name: &str, main: &'static str) -> Vec<Section> {
    let Some(given) = layers.given(name) else {
        return Vec::new();
    };
    let texts = given.texts().iter().filter(|text| !text.trim().is_empty());
    let from_texts = texts.map(|text| {
        let (origin, value) = (given.origin.clone(), Value::Texts(vec![text.clone()]));
        Section {
            origin: origin.clone(),
            keys: [(main, Given { origin, value })].into(),
        }
    });
    given.sections().iter().cloned().chain(from_texts).collect()
}

fn webhook(
    table: &Section,
    taker: &mut Taker<'_>,
    channels: &[String],
    secret: Option<&Secret>,
) -> Option<Webhook> {
    let own = match (table.text("secret"), table.text("secret_file")) {
        (Some(_), Some((origin, _))) => {
            taker.wrong(origin, "the webhook has a secret already");
            None
        }
        (Some((origin, text)), None) => taker.take(origin, Secret::parse(&text)),
        (None, Some((origin, file))) => secret_file(origin, &file, taker),
        (None, None) => secret.cloned(),
    };
    taker.require(table, "url");
    // Quoted without what may be a secret in it.
    let url = taker.key(table, "url", |text| {
        values::webhook_url(text).map_err(|what| format!("{} {what}", values::shown_address(text)))
    })?;
    let host = url
        .host_str()
        .unwrap_or("webhook")
        .replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    Some(Webhook {
        name: name(table, taker, &host, url.as_str())?,
        secret: own,
        channels: only(table, taker, channels),
        timeout: value(table, taker, "timeout", duration, Duration::from_secs(10)),
        attempts: value(table, taker, "attempts", number, 20),
        max_age: value(
            table,
            taker,
            "max_age",
            duration,
            Duration::from_secs(86_400),
        ),
        url,
    })
}

fn exec(table: &Section, taker: &mut Taker<'_>, channels: &[String]) -> Option<Exec> {
    taker.require(table, "command");
    // Not quoted: it may hold a password.
    let command = taker.key(table, "command", |text| match text.trim() {
        "" => Err("is empty".to_owned()),
        _ if text.contains('\0') => Err("has a character that no command can have".to_owned()),
        _ => Ok(text.to_owned()),
    })?;
    let few = |text: &str| match number(text)? {
        n if n <= MAX_CONCURRENCY => Ok(n as usize),
        _ => Err(format!("is more than {MAX_CONCURRENCY}")),
    };
    Some(Exec {
        name: name(table, taker, "exec", &command)?,
        channels: only(table, taker, channels),
        concurrency: value(table, taker, "concurrency", few, 1),
        timeout: value(table, taker, "timeout", duration, Duration::from_secs(60)),
        attempts: value(table, taker, "attempts", number, 3),
        command,
    })
}

fn number(text: &str) -> Result<u32, String> {
    count(text, u32::MAX)
}

fn value<T>(
    table: &Section,
    taker: &mut Taker<'_>,
    key: &str,
    parse: impl Fn(&str) -> Result<T, String>,
    default: T,
) -> T {
    taker.key(table, key, quoting(parse)).unwrap_or(default)
}

/// The name that was given, or one that follows from what the hook does, so that it stays when
/// other hooks come and go.
fn name(table: &Section, taker: &mut Taker<'_>, first: &str, what: &str) -> Option<String> {
    if table.keys.contains_key("name") {
        return taker.key(table, "name", quoting(values::hook_name));
    }
    let hash = digest(&SHA256, what.as_bytes());
    let hash = HEXLOWER.encode(hash.as_ref().get(..4).unwrap_or_default());
    let first: String = first.chars().take(40).collect();
    Some(format!("{first}-{hash}"))
}

fn only(table: &Section, taker: &mut Taker<'_>, known: &[String]) -> Vec<String> {
    let Some((origin, names)) = table.text("channels") else {
        return Vec::new();
    };
    let names = names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    if names.is_empty() {
        taker.wrong(origin, "is empty; without it, all channels are meant");
    }
    for name in &names {
        if !known.is_empty() && !known.contains(name) {
            let known = known.join(", ");
            let what = format!("the link has no channel {name:?}, it has {known}");
            taker.wrong(origin, &what);
        }
    }
    names
}

/// The secret of webhooks that have none of their own.
fn secret_for_all(layers: &Layers, taker: &mut Taker<'_>) -> Option<Secret> {
    let layer = layers.with_any(&["webhook_secret", "webhook_secret_file"])?;
    match (
        layer.text("webhook_secret"),
        layer.text("webhook_secret_file"),
    ) {
        (Some((one, _)), Some((other, _))) => {
            taker.problem(format!(
                "both {one} and {other} give a secret; leave one out"
            ));
            None
        }
        (Some((origin, text)), None) => taker.take(origin, Secret::parse(text)),
        (None, Some((_, file))) if file.trim().is_empty() => None,
        (None, Some((origin, file))) => secret_file(origin, file, taker),
        (None, None) => None,
    }
}

fn secret_file(origin: &Origin, file: &str, taker: &mut Taker<'_>) -> Option<Secret> {
    let path = Path::new(file);
    let mut text = String::new();
    let read = File::open(path)
        .and_then(|file| file.take(MAX_SECRET_FILE).read_to_string(&mut text))
        .map_err(FileError::of("read the secret in", path));
    match read {
        Ok(_) => taker.take(origin, Secret::parse(&text)),
        Err(error) => {
            taker.wrong(origin, &error.to_string());
            None
        }
    }
}
