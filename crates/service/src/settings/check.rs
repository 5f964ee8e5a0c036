//! `config check`: the problems of the settings, or the settings with their origins.

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
    /// Returns the answer of `config check` for people, with `more` between the settings and the
    /// warnings.
    #[must_use]
    pub fn check_text<S>(&self, loaded: &Loaded<S>, more: &str) -> String {
        let all = self.shown(&loaded.layers);
        let mut out = String::from("The settings are fine.\n\n");
        let width = all.iter().map(|shown| shown.name.len()).max().unwrap_or(0);
        for Shown {
            name,
            value,
            origin,
        } in &all
        {
            let value = if value.is_empty() { "-" } else { value };
            let origin = origin.as_deref().unwrap_or("default");
            out.push_str(&format!("  {name:<width$}  {value}   ({origin})\n"));
        }
        out.push_str(more);
        let warnings = loaded.warnings.iter();
        out.extend(warnings.map(|warning| format!("\nWarning: {warning}\n")));
        out
    }

    /// Returns the answer of `config check` for programs, with the members of `more`.
    #[must_use]
    pub fn check_json<S>(&self, loaded: &Loaded<S>, more: Json) -> Json {
        let all = self.shown(&loaded.layers).into_iter().map(|shown| {
            let origin = shown.origin.as_deref().unwrap_or("default");
            json!({"setting": shown.name, "value": shown.value, "from": origin})
        });
        let all: Vec<Json> = all.collect();
        let mut json = json!({"ok": true, "settings": all, "warnings": loaded.warnings});
        if let (Some(members), Json::Object(more)) = (json.as_object_mut(), more) {
            members.extend(more);
        }
        json
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

/// Returns the problems for programs.
#[must_use]
pub fn problems_as_json(problems: &[String]) -> Json {
    json!({"ok": false, "problems": problems})
}
