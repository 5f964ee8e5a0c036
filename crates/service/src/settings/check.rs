//! `config check`: the settings with their origins.

use serde_json::{Value as Json, json};

use super::Loaded;
pub use super::layer::DEFAULT;
use super::layer::Layers;
use super::setting::{Setting, Table};
use crate::peer_text::plain;

/// A setting as shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Name.
    pub name: String,
    /// Value without its secrets; empty where it is not set and has no default.
    pub value: String,
    /// Origin in words; [`DEFAULT`] if it is not given.
    pub origin: String,
}

impl Table<'_> {
    /// Returns the answer of `config check` for people, with `more` between the settings and the
    /// warnings.
    pub fn check_text<S>(&self, loaded: &Loaded<S>, more: &str) -> String {
        let all = self.shown(&loaded.layers);
        let width = all.iter().map(|shown| shown.name.len()).max().unwrap_or(0);
        let mut text = "The settings are fine.\n\n".to_owned();
        for shown in &all {
            let (name, value, origin) = (&shown.name, &shown.value, &shown.origin);
            let value = if value.is_empty() { "-" } else { value };
            text.push_str(&format!("  {name:<width$}  {value}   ({origin})\n"));
        }
        text.push_str(more);
        for warning in &loaded.warnings {
            text.push_str(&format!("\nWarning: {warning}\n"));
        }
        text
    }

    /// Returns the answer of `config check` for programs, with the members of `more`,
    /// which is an object or null.
    pub fn check_json<S>(&self, loaded: &Loaded<S>, mut more: Json) -> Json {
        let entry = |s: Shown| json!({"setting": s.name, "value": s.value, "from": s.origin});
        let all = self.shown(&loaded.layers).into_iter().map(entry);
        more["ok"] = true.into();
        more["settings"] = all.collect();
        more["warnings"] = loaded.warnings.clone().into();
        more
    }

    /// Returns every setting with its value, or its default, perhaps in words, and its origin.
    pub fn shown(&self, layers: &Layers) -> Vec<Shown> {
        let settings = self.settings().into_iter().filter(Setting::in_variable);
        let all = settings.map(|setting| {
            let shown = |text: &String| match setting.is_secret() {
                true => (self.hidden)(&setting.name, text),
                false => plain(text),
            };
            let is_tables = setting.tables.is_some();
            let value = match (layers.given(&setting.name), setting.default()) {
                (Some(given), _) if is_tables => format!("{} of them", given.texts.len()),
                (Some(given), _) => given.texts.iter().map(shown).collect::<Vec<_>>().join(","),
                (None, default) if default.is_empty() => setting.help().1,
                (None, default) => default,
            };
            Shown {
                value,
                origin: layers.origin(&setting.name),
                name: setting.name,
            }
        });
        all.collect()
    }
}
