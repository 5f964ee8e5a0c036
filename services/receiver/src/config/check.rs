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
    let (layers, outputs) = (&loaded.layers, &loaded.settings.outputs);
    let webhooks = outputs.webhook.iter().zip(layers.each("webhook"));
    let webhooks = webhooks.map(|(hook, from)| {
        json!({
            "kind": "webhook", "name": hook.name(), "url": shown_url(&hook.url),
            "signed": hook.secret.is_some(), "channels": hook.channels,
            "timeout": shown_duration(hook.timeout), "attempts": hook.attempts,
            "max_age": shown_duration(hook.max_age), "concurrency": 1,
            "from": from.text,
        })
    });
    let commands = outputs.exec.iter().zip(layers.each("exec"));
    let commands = commands.map(|(hook, from)| {
        json!({
            "kind": "exec", "name": hook.name(), "channels": hook.channels,
            "timeout": shown_duration(hook.timeout), "attempts": hook.attempts,
            "concurrency": hook.concurrency, "from": from.text,
        })
    });
    let hooks: Vec<Value> = webhooks.chain(commands).collect();
    let lines: String = hooks.iter().map(line).collect();
    let heading = if lines.is_empty() { "" } else { HEADING };
    (format!("{heading}{lines}"), json!({"hooks": hooks}))
}

/// Returns a webhook or command for people.
fn line(hook: &Value) -> String {
    let [kind, name, from] = ["kind", "name", "from"].map(|key| text(&hook[key]));
    let members = hook.as_object().into_iter().flatten();
    let others = members.filter(|(key, _)| !["kind", "name", "from"].contains(&key.as_str()));
    let others = others.map(|(key, value)| format!("{key} {}", text(value)));
    let others = others.collect::<Vec<_>>().join(", ");
    format!("  {kind} {name}: {others}   ({from})\n")
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) if all.is_empty() => "all".to_owned(),
        Value::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}
