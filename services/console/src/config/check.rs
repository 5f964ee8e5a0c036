//! `config check`: what is wrong with the settings, or what they are and who says so.

use std::fmt::Write;

use serde_json::{Value, json};

use super::resolve::{Loaded, Shown, all_shown};
use super::table::{PREFIX, SETTINGS, Setting};
use service::nearest::nearest;
use service::peer_text::plain;

/// Those variables of the environment that look like settings and are none: typing errors.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with(PREFIX) && !known.contains(name))
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
        .map(|shown| {
            let origin = shown.origin.as_deref().unwrap_or("default");
            json!({"setting": shown.name, "value": shown.value, "from": origin})
        })
        .collect();
    json!({"ok": true, "settings": all, "warnings": loaded.warnings})
}

/// What is wrong, for programs.
#[must_use]
pub fn problems_as_json(problems: &[String]) -> Value {
    json!({"ok": false, "problems": problems})
}
