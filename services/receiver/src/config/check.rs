//! `config check`: what is wrong with the settings, or what they are and who says so.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::Loaded;
use super::hooks::tables;
use super::resolve::{Shown, all_shown};
use super::table::SETTINGS;
use super::values::{shown_duration, shown_url};
use service::nearest::nearest;
use service::peer_text::plain;

/// Those variables of the environment that look like settings and are none: a typing error, or a
/// setting that this build does not have.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    const PREFIX: &str = "FLEXFEED_";
    /// Those that are no settings.
    const OTHERS: &[&str] = &[
        #[cfg(feature = "sabotage")]
        "FLEXFEED_SABOTAGE",
    ];
    let known: Vec<String> = SETTINGS
        .iter()
        .map(super::table::Setting::variable)
        .collect();
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with(PREFIX) && !OTHERS.contains(&name.as_str()))
        .filter(|name| !known.contains(name))
        .map(|name| {
            // Without what they all begin with, which says nothing of what was meant.
            let own = |name: &str| name.get(PREFIX.len()..).unwrap_or_default().to_owned();
            let others: Vec<String> = known.iter().map(|name| own(name)).collect();
            let meant = nearest(&own(&name), others.iter().map(String::as_str));
            match meant {
                Some(meant) => format!("{} (is {PREFIX}{meant} meant?)", plain(&name)),
                None => plain(&name),
            }
        })
        .collect();
    unknown.sort();
    unknown.into_iter()
}

/// A webhook or command as it is shown: without its address' path or its text, which may hold
/// secrets.
struct Hook<'a> {
    kind: &'static str,
    name: &'a str,
    /// Where a webhook posts to, and whether it signs.
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
            "kind": self.kind, "name": self.name, "channels": self.channels, "timeout": shown_duration(self.timeout),
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

/// The settings for people.
#[must_use]
pub fn text(loaded: &Loaded) -> String {
    let mut out = String::from("The settings are fine.\n\n");
    let all = all_shown(loaded);
    let width = all.iter().map(|shown| shown.name.len()).max().unwrap_or(0);
    // Writing to a string does not fail.
    for Shown {
        name,
        value,
        origin,
    } in &all
    {
        let value = if value.is_empty() { "-" } else { value };
        let origin = origin.as_deref().unwrap_or("default");
        let _ = writeln!(out, "  {name:<width$}  {value}   ({origin})");
    }
    let hooks = hooks(loaded);
    if !hooks.is_empty() {
        out.push_str(
            "\nWebhooks and commands, by the names that status, metrics and dead letters have:\n\n",
        );
    }
    for hook in &hooks {
        let _ = writeln!(
            out,
            "  {} {}: {}   ({})",
            hook.kind,
            hook.name,
            hook.line(),
            hook.origin
        );
    }
    for warning in &loaded.warnings {
        let _ = writeln!(out, "\nWarning: {warning}");
    }
    out
}

/// The same for programs.
#[must_use]
pub fn as_json(loaded: &Loaded) -> Value {
    let all = all_shown(loaded).into_iter();
    let all: Vec<Value> = all
        .map(
            |Shown {
                 name,
                 value,
                 origin,
             }| {
                let origin = origin.as_deref().unwrap_or("default");
                json!({"setting": name, "value": value, "from": origin})
            },
        )
        .collect();
    let hooks: Vec<Value> = hooks(loaded).iter().map(Hook::json).collect();
    json!({"ok": true, "settings": all, "hooks": hooks, "warnings": loaded.warnings})
}

/// What is wrong, for programs.
#[must_use]
pub fn problems_as_json(problems: &[String]) -> Value {
    json!({"ok": false, "problems": problems})
}
