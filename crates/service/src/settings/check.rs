//! `config check`: what is wrong with the settings, or what they are and who says so.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::layer::{Layers, Value};
use super::table::{Form, Setting, Table};

/// A setting as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Its name.
    pub name: &'static str,
    /// What may be shown of its value; empty where it is not set and has no default.
    pub value: String,
    /// Who says so; `None` for the default.
    pub origin: Option<String>,
}

impl Table {
    /// Every setting with what it is and who says so.
    #[must_use]
    pub fn shown(&self, layers: &Layers) -> Vec<Shown> {
        let all = self.settings.iter().map(|setting| {
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
        Value::Texts(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| (setting.shown)(text)).collect();
            texts.join(separator)
        }
        Value::Sections(sections) => format!("{} of them", sections.len()),
    }
}

/// The settings for people; `more` is said between them and the warnings.
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

/// The same for programs.
#[must_use]
pub fn as_json(all: &[Shown], warnings: &[String]) -> Json {
    let all = all.iter().map(|shown| {
        let origin = shown.origin.as_deref().unwrap_or("default");
        json!({"setting": shown.name, "value": shown.value, "from": origin})
    });
    let all: Vec<Json> = all.collect();
    json!({"ok": true, "settings": all, "warnings": warnings})
}

/// What is wrong, for programs.
#[must_use]
pub fn problems_as_json(problems: &[String]) -> Json {
    json!({"ok": false, "problems": problems})
}
