//! `config check`: what is wrong with the settings, or what they are and who says so.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Loaded;
use super::nearest::nearest;
use super::resolve::origins;
use super::table::SETTINGS;
use crate::peer_text::plain;

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

/// The settings for people.
#[must_use]
pub fn text(loaded: &Loaded) -> String {
    let mut out = String::from("The settings are fine.\n\n");
    let given = origins(&loaded.layers);
    let width = given.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    // Writing to a string does not fail.
    for (name, origin, value) in &given {
        let _ = writeln!(out, "  {name:<width$}  {value}   ({origin})");
    }
    let _ = writeln!(
        out,
        "\nEverything else has its default; 'flexfeed-receiver --help' names them."
    );
    for warning in &loaded.warnings {
        let _ = writeln!(out, "Warning: {warning}");
    }
    out
}

/// The same for programs.
#[must_use]
pub fn as_json(loaded: &Loaded) -> Value {
    let given = origins(&loaded.layers).into_iter();
    let given: Vec<Value> = given
        .map(|(name, origin, value)| json!({"setting": name, "value": value, "from": origin}))
        .collect();
    json!({"ok": true, "settings": given, "warnings": loaded.warnings})
}

/// What is wrong, for programs.
#[must_use]
pub fn problems_as_json(problems: &[String]) -> Value {
    json!({"ok": false, "problems": problems})
}
