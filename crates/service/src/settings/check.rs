//! `config check`: the problems of the settings, or the settings with their origins.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::Loaded;
use super::layer::{Layers, Value};
use super::table::{Form, Setting, Table};

/// A setting as shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Name.
    pub name: &'static str,
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
        let settings = self.settings.iter().filter(|setting| setting.in_variable());
        let all = settings.map(|setting| {
            let given = layers.given(setting.name);
            let value = given.map(|given| value(setting, &given.value));
            Shown {
                name: setting.name,
                value: value.unwrap_or_else(|| setting.default.to_owned()),
                origin: given.map(|given| given.origin.to_string()),
            }
        });
        all.collect()
    }
}

fn value(setting: &Setting, value: &Value) -> String {
    let separator = match setting.form {
        Form::List => ",",
        _ => " ",
    };
    match value {
        Value::Texts(_) if setting.secret => (setting.shown)(""),
        Value::Texts(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| (setting.shown)(text)).collect();
            texts.join(separator)
        }
        Value::Sections(sections) => format!("{} of them", sections.len()),
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
