//! Webhooks and commands.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use data_encoding::{BASE64, HEXLOWER};
use ring::digest::{SHA256, digest};
use service::settings::{Check, Origin, Problem};
use service::values::{times, whole};
use url::Url;

use super::{Outputs, values};

/// Prefix of a secret in the form of Standard Webhooks, followed by Base64.
const PREFIX: &str = "whsec_";

/// A secret that is shorter can be guessed, in bytes.
const MIN_SECRET: usize = 16;

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
        let wrong = |_| format!("what follows {PREFIX} is no Base64");
        let bytes = match text.strip_prefix(PREFIX) {
            Some(rest) => BASE64.decode(rest.as_bytes()).map_err(wrong)?,
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
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// A webhook, to which updates are posted: the keys of `[[webhook]]`, with their help.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Webhook {
    /// Destination of updates; http or https
    #[arg(long, hide_env_values = true, value_parser = values::webhook_url)]
    pub url: Url,
    /// Name in the status, in metrics and in the dead-letter file [default: from the URL]
    #[arg(long, value_parser = values::hook_name)]
    name: Option<String>,
    /// Secret that signs requests
    #[arg(long, hide_env_values = true, value_parser = Secret::parse)]
    pub secret: Option<Secret>,
    /// File with that secret
    #[arg(long)]
    secret_file: Option<PathBuf>,
    /// Only the updates of these channels [default: all]
    #[arg(long, value_delimiter = ',')]
    pub channels: Vec<String>,
    /// Time limit of one attempt
    #[arg(long, default_value = "10s", value_parser = times("1ms", "36500d", false))]
    pub timeout: Duration,
    /// Maximum number of attempts before the update goes to the dead-letter file
    #[arg(long, default_value = "20", value_parser = whole::<u32>(1..=u32::MAX.into()))]
    pub attempts: u32,
    /// Maximum age of an update before it goes there
    #[arg(long, default_value = "1d", value_parser = times("1ms", "36500d", false))]
    pub max_age: Duration,
}

/// A command that is run for updates: the keys of `[[exec]]`. The descriptions are the help.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Exec {
    /// Command for /bin/sh -c
    #[arg(long, hide_env_values = true, value_parser = command)]
    pub command: String,
    /// Name in the status, in metrics and in the dead-letter file [default: from the command]
    #[arg(long, value_parser = values::hook_name)]
    name: Option<String>,
    /// Only for the updates of these channels [default: all]
    #[arg(long, value_delimiter = ',')]
    pub channels: Vec<String>,
    /// Maximum number of concurrent runs; more than one can reorder updates
    #[arg(long, default_value = "1", value_parser = whole::<usize>(1..=256))]
    pub concurrency: usize,
    /// Time limit of one run, after which all of its processes are killed
    #[arg(long, default_value = "60s", value_parser = times("1ms", "36500d", false))]
    pub timeout: Duration,
    /// Maximum number of attempts before the update goes to the dead-letter file
    #[arg(long, default_value = "3", value_parser = whole::<u32>(1..=u32::MAX.into()))]
    pub attempts: u32,
}

impl Webhook {
    /// Returns its name in the status, in metrics, and of its files.
    pub fn name(&self) -> String {
        let host = self.url.host_str().unwrap_or("webhook");
        let host = host.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let name = self.name.clone();
        name.unwrap_or_else(|| derived(&host, self.url.as_str()))
    }
}

impl Exec {
    /// Returns its name, as a webhook's.
    pub fn name(&self) -> String {
        let name = self.name.clone();
        name.unwrap_or_else(|| derived("exec", &self.command))
    }
}

/// Returns a name that follows from what a hook does, so that it stays when other hooks come and
/// go.
fn derived(first: &str, what: &str) -> String {
    let hash = digest(&SHA256, what.as_bytes());
    let hash = HEXLOWER.encode(hash.as_ref().get(..4).unwrap_or_default());
    let first: String = first.chars().take(40).collect();
    format!("{first}-{hash}")
}

/// Gives webhooks their secrets, and checks all hooks; `channels` are those of the link.
pub(super) fn complete(outputs: &mut Outputs, channels: &[String], check: &mut Check) {
    for hook in &mut outputs.webhook {
        let own = hook.secret.take();
        hook.secret = own.or_else(|| outputs.webhook_secret.clone());
    }
    let mut names = BTreeSet::new();
    let layers = &check.layers;
    let mut check_hook = |origin: &Origin, name: String, own: &[String]| {
        let known = |channel: &&String| channels.is_empty() || channels.contains(channel);
        for unknown in own.iter().filter(|channel| !known(channel)) {
            let has = channels.join(", ");
            let what = format!("{name}: the link has no channel {unknown:?}, it has {has}");
            check.problems.push(Problem::at(origin, what));
        }
        if let Some(name) = names.replace(name) {
            let what = format!(
                "has the name {name} of another webhook or command, or is the same; give each a \
                 name of its own"
            );
            check.problems.push(Problem::at(origin, what));
        }
    };
    for (hook, origin) in outputs.webhook.iter().zip(layers.each("webhook")) {
        check_hook(origin, hook.name(), &hook.channels);
    }
    for (hook, origin) in outputs.exec.iter().zip(layers.each("exec")) {
        check_hook(origin, hook.name(), &hook.channels);
    }
}

fn command(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("is empty".to_owned()),
        _ if text.contains('\0') => Err("has a character that no command can have".to_owned()),
        _ => Ok(text.to_owned()),
    }
}
