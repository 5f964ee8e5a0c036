//! `config check`: the settings and their origins.

use serde_json::Value;
use service::settings::check;

use super::{Loaded, TABLE};

/// The settings for people.
#[must_use]
pub fn text(loaded: &Loaded) -> String {
    check::text(&TABLE.shown(&loaded.layers), "", &loaded.warnings)
}

/// The same for programs.
#[must_use]
pub fn as_json(loaded: &Loaded) -> Value {
    check::as_json(&TABLE.shown(&loaded.layers), &loaded.warnings)
}
