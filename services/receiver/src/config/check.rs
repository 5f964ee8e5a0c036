//! `config check`: what the settings are and who says so.

use std::time::Duration;

use serde_json::{Value, json};
use service::peer_text::plain;
use service::settings::check::{self, Shown};
use service::values::shown_duration;

use super::hooks::tables;
use super::values::shown_url;
use super::{Loaded, TABLE};

/// A webhook or command as it is shown: without its address' path or its text, which may hold
/// secrets.
struct Hook<'a> {
    kind: &'static str,
    name: &'a str,
    /// URL of a webhook, and whether it signs.
    address: Option<(String, bool)>,
    channels: &'a [String],
    concurrency: usize,
    timeout: Duration,
    attempts: u32,
    max_age: Option<Duration>,
    origin: String,
}

fn hooks(loaded: &Loaded) -> Vec<Hook<'_>> {
    // Without problems, each table became one.
    let origins = |name, main| {
        let tables = tables(&loaded.layers, name, main).into_iter();
        tables.map(|table| table.origin.to_string())
    };
    let settings = &loaded.settings;
    let webhooks = settings.webhooks.iter().zip(origins("webhook", "url"));
    let webhooks = webhooks.map(|(hook, origin)| Hook {
        kind: "webhook",
        name: &hook.name,
        address: Some((shown_url(&hook.url), hook.secret.is_some())),
        channels: &hook.channels,
        concurrency: 1,
        timeout: hook.timeout,
        attempts: hook.attempts,
        max_age: Some(hook.max_age),
        origin,
    });
    let commands = settings.exec.iter().zip(origins("exec", "command"));
    let commands = commands.map(|(hook, origin)| Hook {
        kind: "exec",
        name: &hook.name,
        address: None,
        channels: &hook.channels,
        concurrency: hook.concurrency,
        timeout: hook.timeout,
        attempts: hook.attempts,
        max_age: None,
        origin,
    });
    webhooks.chain(commands).collect()
}

impl Hook<'_> {
    fn line(&self) -> String {
        let mut parts = Vec::new();
        if let Some((address, signs)) = &self.address {
            parts.push(address.clone());
            parts.push(if *signs { "signed" } else { "not signed" }.to_owned());
        }
        parts.push(match self.channels {
            [] => "all channels".to_owned(),
            some => format!("only {}", some.join(" ")),
        });
        if self.address.is_none() {
            parts.push(format!("{} at a time", self.concurrency));
        }
        parts.push(format!("timeout {}", shown_duration(self.timeout)));
        parts.push(format!("attempts {}", self.attempts));
        if let Some(age) = self.max_age {
            parts.push(format!("max age {}", shown_duration(age)));
        }
        parts.join(", ")
    }

    fn json(&self) -> Value {
        let mut value = json!({
            "kind": self.kind, "name": self.name, "channels": self.channels,
            "timeout": shown_duration(self.timeout),
            "attempts": self.attempts, "concurrency": self.concurrency, "from": self.origin,
        });
        if let (Some((address, signs)), Some(value)) = (&self.address, value.as_object_mut()) {
            value.insert("url".to_owned(), address.as_str().into());
            value.insert("signed".to_owned(), (*signs).into());
            value.insert(
                "max_age".to_owned(),
                self.max_age.map(shown_duration).into(),
            );
        }
        value
    }
}

/// Every setting with what it is and who says so.
fn shown(loaded: &Loaded) -> Vec<Shown> {
    let mut all = TABLE.shown(&loaded.layers);
    for shown in &mut all {
        // What the machine is called is no default that a table could have.
        if shown.name == "name" && shown.origin.is_none() {
            shown.value = plain(&loaded.settings.name);
        }
    }
    all
}

/// The settings for people.
#[must_use]
pub fn text(loaded: &Loaded) -> String {
    let hooks = hooks(loaded);
    let mut more = String::new();
    if !hooks.is_empty() {
        more.push_str(
            "\nWebhooks and commands, by the names that status, metrics and dead letters have:\n\n",
        );
    }
    for hook in &hooks {
        let (kind, name, origin) = (hook.kind, hook.name, &hook.origin);
        more.push_str(&format!("  {kind} {name}: {}   ({origin})\n", hook.line()));
    }
    check::text(&shown(loaded), &more, &loaded.warnings)
}

/// The same for programs.
#[must_use]
pub fn as_json(loaded: &Loaded) -> Value {
    let mut json = check::as_json(&shown(loaded), &loaded.warnings);
    let hooks: Vec<Value> = hooks(loaded).iter().map(Hook::json).collect();
    if let Some(members) = json.as_object_mut() {
        members.insert("hooks".to_owned(), hooks.into());
    }
    json
}
