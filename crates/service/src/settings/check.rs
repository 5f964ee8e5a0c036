//! `config check`: the problems of the settings, or the settings with their origins.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::Loaded;
use super::layer::{Given, Layers, Origin};
use super::setting::{Form, Setting, Table};
use crate::peer_text::plain;

/// A setting as shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Name.
    pub name: String,
    /// Value without its secrets; empty where it is not set and has no default.
    pub value: String,
    /// Origin; `None` for the default.
    pub origin: Option<String>,
}

impl Table {
    /// Returns the answer of `config check` for people.
    #[must_use]
    pub fn check_text<S>(&self, loaded: &Loaded<S>) -> String {
        text(&self.shown(&loaded.layers), "", &loaded.warnings)
    }

    /// Returns the answer of `config check` for programs.
    #[must_use]
    pub fn check_json<S>(&self, loaded: &Loaded<S>) -> Json {
        as_json(&self.shown(&loaded.layers), &loaded.warnings)
    }

    /// Returns every setting with its value and origin.
    #[must_use]
    pub fn shown(&self, layers: &Layers) -> Vec<Shown> {
        let settings = self.settings().into_iter().filter(Setting::in_variable);
        let all = settings.map(|setting| {
            let given = layers.given(&setting.name);
            Shown {
                value: match given {
                    Some(given) => self.value(&setting, given),
                    // A strict table shows no default in words.
                    None if self.strict && setting.form() == Form::Switch => String::new(),
                    None if self.strict => setting.default(),
                    None => Some(setting.default())
                        .filter(|text| !text.is_empty())
                        .unwrap_or_else(|| setting.help().1),
                },
                origin: given.map(|given| given.origin.to_string()),
                name: setting.name,
            }
        });
        all.collect()
    }

    fn value(&self, setting: &Setting, given: &Given) -> String {
        let tables = given
            .sections
            .iter()
            .filter_map(|section| match section.origin {
                Origin::File { .. } => None,
                _ => section.keys.0.values().next()?.texts.first(),
            });
        let texts = given
            .texts
            .iter()
            .chain(tables)
            .map(|text| match setting.is_secret() {
                true => (self.hidden)(&setting.name, text),
                false => plain(text),
            });
        let texts: Vec<String> = texts.collect();
        match setting.form() {
            Form::Tables if texts.is_empty() => format!("{} of them", given.sections.len()),
            Form::List => texts.join(","),
            _ => texts.join(" "),
        }
    }
}

/// Returns the settings for people, with `more` between them and the warnings.
#[must_use]
pub fn text(all: &[Shown], more: &str, warnings: &[String]) -> String {
    let mut out = String::from("The settings are fine.\n\n");
    let width = all.iter().map(|shown| shown.name.len()).max().unwrap_or(0);
    // Writing to a string does not fail.
    for Shown {
        name,
        value,
        origin,
    } in all
    {
        let value = if value.is_empty() { "-" } else { value };
        let origin = origin.as_deref().unwrap_or("default");
        let _ = writeln!(out, "  {name:<width$}  {value}   ({origin})");
    }
    out.push_str(more);
    for warning in warnings {
        let _ = writeln!(out, "\nWarning: {warning}");
    }
    out
}

/// Returns the settings for programs.
#[must_use]
pub fn as_json(all: &[Shown], warnings: &[String]) -> Json {
    let all = all.iter().map(|shown| {
        let origin = shown.origin.as_deref().unwrap_or("default");
        json!({"setting": shown.name, "value": shown.value, "from": origin})
    });
    let all: Vec<Json> = all.collect();
    json!({"ok": true, "settings": all, "warnings": warnings})
}

/// Returns the problems for programs.
#[must_use]
pub fn problems_as_json(problems: &[String]) -> Json {
    json!({"ok": false, "problems": problems})
}
