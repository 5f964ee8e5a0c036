//! Checks of `deploy/` against the programs: metrics exist, alerts have runbooks, and the rules
//! fire when they should.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use flexfeed_openmetrics::promtool;

/// Placeholder host of runbook links, which an operator replaces; such a host cannot exist.
const RUNBOOKS: &str = "https://flexfeed.example/docs/operations.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all words of `text` that can be names of flexfeed's metrics.
fn metrics(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| {
            ["source_", "receiver_", "relay_", "gateway_", "console_"]
                .iter()
                .any(|of| {
                    word.strip_prefix("flexfeed_")
                        .is_some_and(|w| w.starts_with(of))
                })
        })
        .map(str::to_owned)
        .collect()
}

/// Returns the programs' metrics as docs/metrics.md lists them; the programs' own tests compare
/// that list with the exported metrics.
fn known() -> BTreeSet<String> {
    let listed = read("docs/metrics.md");
    let rows = listed
        .lines()
        .filter(|line| line.starts_with("| `flexfeed_"));
    let mut known = BTreeSet::new();
    for row in rows {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`'));
        let (name, kind) = (cells.nth(1).unwrap(), cells.next().unwrap());
        known.insert(name.to_owned());
        if kind == "histogram" {
            for part in ["bucket", "count", "sum"] {
                known.insert(format!("{name}_{part}"));
            }
        }
    }
    assert!(known.len() > 50, "the list of metrics is not found");
    known
}

#[test]
fn every_metric_of_rules_and_dashboard_exists() {
    let known = known();
    for path in [
        "deploy/prometheus/flexfeed.rules.yml",
        "deploy/prometheus/flexfeed.test.yml",
        "deploy/grafana/flexfeed.json",
    ] {
        let used = metrics(&read(path));
        assert!(used.len() > 10, "{path}: no metrics found");
        let unknown: Vec<&String> = used.difference(&known).collect();
        assert!(unknown.is_empty(), "{path}: no program has {unknown:?}");
    }
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let rules = read("deploy/prometheus/flexfeed.rules.yml");
    let operations = read("docs/operations.md");
    let (_, runbooks) = operations
        .split_once("\n## Runbooks\n")
        .expect("no runbooks");
    let runbooks = runbooks.split("\n## ").next().unwrap();
    let described: BTreeSet<&str> = runbooks
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    let of = |key: &str| -> Vec<String> {
        let found = rules.lines().map(str::trim);
        let found = found.filter_map(|line| line.trim_start_matches("- ").strip_prefix(key));
        found.map(|value| value.trim().to_owned()).collect()
    };
    let (alerts, links) = (of("alert:"), of("runbook_url:"));
    assert_eq!(alerts.len(), links.len());
    for (alert, link) in alerts.iter().zip(links) {
        let anchor = alert.to_lowercase();
        assert_eq!(link, format!("{RUNBOOKS}#{anchor}"), "{alert}");
    }
    let alerts: BTreeSet<&str> = alerts.iter().map(String::as_str).collect();
    assert_eq!(alerts, described);
}

#[test]
fn the_dashboard_is_complete() {
    let board: serde_json::Value =
        serde_json::from_str(&read("deploy/grafana/flexfeed.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|p| p["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        assert!(
            !panel["description"].as_str().unwrap().is_empty(),
            "{title}"
        );
        assert!(!panel["targets"].as_array().unwrap().is_empty(), "{title}");
    }
}

#[test]
fn alerts_fire_when_they_should() {
    for arguments in [
        &["check", "config", "prometheus.yml"][..],
        &["test", "rules", "flexfeed.test.yml"],
    ] {
        let run = promtool::run(arguments, &root().join("deploy/prometheus"), "");
        if let Some((good, text)) = run.unwrap() {
            assert!(good, "{arguments:?}: {text}");
        }
    }
}
