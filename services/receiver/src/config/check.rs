//! `config check`: webhooks and commands.

use serde_json::{Value, json};
use service::values::shown_duration;

use super::Loaded;
use super::values::shown_url;

/// Heading of webhooks and commands.
const HEADING: &str =
    "\nWebhooks and commands, by the names that status, metrics and dead letters have:\n\n";

/// Returns the webhooks and commands, for people and for programs: without its address' path or
/// its text, which may hold secrets.
pub fn hooks(loaded: &Loaded) -> (String, Value) {
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
    let (lines, hooks): (Vec<String>, Vec<Value>) = webhooks.chain(commands).unzip();
    let heading = if lines.is_empty() { "" } else { HEADING };
    (
        format!("{heading}{}", lines.concat()),
        json!({"hooks": hooks}),
    )
}
