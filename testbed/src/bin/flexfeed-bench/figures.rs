//! The figures of a run: printed one per line as they come, and written to `target/bench.json`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

#[derive(Serialize)]
struct Figure {
    value: f64,
    unit: &'static str,
}

/// Collects the figures that were asked for.
pub struct Figures {
    prefix: String,
    taken: BTreeMap<String, Figure>,
}

impl Figures {
    /// Takes figures whose names begin with `prefix`.
    pub fn new(prefix: String) -> Self {
        Figures {
            prefix,
            taken: BTreeMap::new(),
        }
    }

    /// Whether any of these names is asked for.
    pub fn wants(&self, names: &[impl AsRef<str>]) -> bool {
        names
            .iter()
            .any(|name| name.as_ref().starts_with(&self.prefix))
    }

    /// Prints and keeps a figure, if it is asked for.
    pub fn take(&mut self, name: &str, value: f64, unit: &'static str) {
        if name.starts_with(&self.prefix) {
            let value = (value * 100.0).round() / 100.0;
            println!("{name} {value:.2} {unit}");
            self.taken.insert(name.to_owned(), Figure { value, unit });
        }
    }

    /// Writes `bench.json` into the target folder that this program was built into.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self) -> Result<()> {
        let path = target()?.join("bench.json");
        let mut text = serde_json::to_string_pretty(&self.taken)?;
        text.push('\n');
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }
}

/// Returns the target folder that this program was built into.
///
/// # Errors
/// When the system does not know where this program is.
pub fn target() -> Result<PathBuf> {
    let program = std::env::current_exe().context("asking where this program is")?;
    Ok(program.ancestors().nth(2).unwrap_or(&program).to_owned())
}

/// The middle one of some values, or the mean of the two in the middle; 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (None, _) => 0.0,
        (Some(value), 1) => *value,
        (Some(value), _) => (value + values[middle - 1]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn only_requested_figures_are_measured() {
        let mut figures = Figures::new("gen_a".into());
        figures.take("gen_a_n1", 1.234, "ratio");
        figures.take("gen_b", 1.0, "ratio");
        assert_eq!(
            serde_json::to_string(&figures.taken).unwrap(),
            r#"{"gen_a_n1":{"value":1.23,"unit":"ratio"}}"#
        );
    }
}
