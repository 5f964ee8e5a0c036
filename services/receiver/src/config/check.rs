//! `config check`: the settings and their origins.

use serde_json::{Value, json};
use service::settings::check;
use service::values::shown_duration;

use super::values::shown_url;
use super::{Loaded, TABLE};

/// Returns the webhooks and commands, each as a line and for programs: without its address' path
/// or its text, which may hold secrets.
fn hooks(loaded: &Loaded) -> Vec<(String, Value)> {
    // Without problems, each table became one.
    let origins = |name| {
        let sections = loaded.layers.sections(name).iter();
        sections.map(|section| section.origin.to_string())
    };
    let only = |channels: &[String]| match channels {
        [] => "all channels".to_owned(),
        some => format!("only {}", some.join(" ")),
    };
    let outputs = &loaded.settings.outputs;
    let webhooks = outputs.webhook.iter().zip(origins("webhook"));
    let webhooks = webhooks.map(|(hook, from)| {
        let (name, url, channels) = (hook.name(), shown_url(&hook.url), &hook.channels);
        let (is_signed, attempts) = (hook.secret.is_some(), hook.attempts);
        let signed = if is_signed { "signed" } else { "not signed" };
        let [timeout, age] = [hook.timeout, hook.max_age].map(shown_duration);
        let only = only(channels);
        let line = format!(
            "  webhook {name}: {url}, {signed}, {only}, timeout {timeout}, attempts {attempts}, \
             max age {age}   ({from})\n"
        );
        let json = json!({
            "kind": "webhook", "name": name, "channels": channels, "timeout": timeout,
            "attempts": attempts, "concurrency": 1, "from": from, "url": url, "signed": is_signed,
            "max_age": age,
        });
        (line, json)
    });
    let commands = outputs.exec.iter().zip(origins("exec"));
    let commands = commands.map(|(hook, from)| {
        let (name, channels, attempts) = (hook.name(), &hook.channels, hook.attempts);
        let (concurrency, timeout) = (hook.concurrency, shown_duration(hook.timeout));
        let only = only(channels);
        let line = format!(
            "  exec {name}: {only}, {concurrency} at a time, timeout {timeout}, attempts \
             {attempts}   ({from})\n"
        );
        let json = json!({
            "kind": "exec", "name": name, "channels": channels, "timeout": timeout,
            "attempts": attempts, "concurrency": concurrency, "from": from,
        });
        (line, json)
    });
    webhooks.chain(commands).collect()
}

/// Returns the settings for people.
#[must_use]
pub fn text(loaded: &Loaded) -> String {
    let lines: Vec<String> = hooks(loaded).into_iter().map(|(line, _)| line).collect();
    let more = match lines.is_empty() {
        true => String::new(),
        false => format!(
            "\nWebhooks and commands, by the names that status, metrics and dead letters \
             have:\n\n{}",
            lines.concat()
        ),
    };
    check::text(&TABLE.shown(&loaded.layers), &more, &loaded.warnings)
}

/// Returns the same for programs.
#[must_use]
pub fn as_json(loaded: &Loaded) -> Value {
    let mut json = check::as_json(&TABLE.shown(&loaded.layers), &loaded.warnings);
    json["hooks"] = hooks(loaded).into_iter().map(|(_, json)| json).collect();
    json
}
