//! `config check`: the settings with their origins.

use serde_json::{Value as Json, json};

use super::Loaded;
use super::layer::{Given, Layers};
use super::setting::{Setting, Table};
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

impl Shown {
    /// Returns the origin in words.
    pub fn place(&self) -> &str {
        self.origin.as_deref().unwrap_or("default")
    }
}

impl Table {
    /// Returns the answer of `config check` for people, with `more` between the settings and the
    /// warnings.
    pub fn check_text<S>(&self, loaded: &Loaded<S>, more: &str) -> String {
        let all = self.shown(&loaded.layers);
        let width = all.iter().map(|shown| shown.name.len()).max().unwrap_or(0);
        let settings = all.iter().map(|shown| {
            let value = match shown.value.as_str() {
                "" => "-",
                value => value,
            };
            format!("  {:<width$}  {value}   ({})\n", shown.name, shown.place())
        });
        let settings: String = settings.collect();
        let warnings = loaded.warnings.iter();
        let warnings: String = warnings
            .map(|warning| format!("\nWarning: {warning}\n"))
            .collect();
        format!("The settings are fine.\n\n{settings}{more}{warnings}")
    }

    /// Returns the answer of `config check` for programs, with the members of `more`.
    pub fn check_json<S>(&self, loaded: &Loaded<S>, more: Json) -> Json {
        let all = self.shown(&loaded.layers).into_iter().map(
            |shown| json!({"setting": shown.name, "value": shown.value, "from": shown.place()}),
        );
        let all: Vec<Json> = all.collect();
        let mut json = json!({"ok": true, "settings": all, "warnings": loaded.warnings});
        if let (Some(members), Json::Object(more)) = (json.as_object_mut(), more) {
            members.extend(more);
        }
        json
    }

    /// Returns every setting with its value, or its default, perhaps in words, and its origin.
    pub fn shown(&self, layers: &Layers) -> Vec<Shown> {
        let settings = self.settings().into_iter().filter(Setting::in_variable);
        let all = settings.map(|setting| {
            let given = layers.given(&setting.name);
            let default = || match setting.default() {
                text if text.is_empty() => setting.help().1,
                text => text,
            };
            Shown {
                value: given.map_or_else(default, |given| self.value(&setting, given)),
                origin: given.map(|given| given.origin.to_string()),
                name: setting.name,
            }
        });
        all.collect()
    }

    fn value(&self, setting: &Setting, given: &Given) -> String {
        let texts = given.texts.iter().map(|text| match setting.is_secret() {
            true => (self.hidden)(&setting.name, text),
            false => plain(text),
        });
        match setting.tables {
            Some(_) => format!("{} of them", given.sections.len()),
            None => texts.collect::<Vec<_>>().join(","),
        }
    }
}
