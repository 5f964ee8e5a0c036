//! Findings, printed line by line.

use std::io::Write;

use serde_json::{Value, json};

use service::peer_text::plain;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No problem.
    Ok,
    /// Working, with a shortcoming.
    Warn,
    /// Obstacle.
    Fail,
    /// Not tested.
    Skipped,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "OK",
            Verdict::Warn => "WARN",
            Verdict::Fail => "FAIL",
            Verdict::Skipped => "SKIP",
        }
    }
}

/// All findings.
#[derive(Debug)]
pub struct Report {
    json: bool,
    checks: Vec<(String, Verdict, String, String)>,
}

impl Report {
    /// Returns an empty report.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self {
            json,
            checks: Vec::new(),
        }
    }

    /// Adds a finding with its advice, which may be empty, and prints it at once.
    pub fn add(&mut self, check: &str, verdict: Verdict, what: &str, advice: &str) {
        let (what, advice) = (plain(what), plain(advice));
        if !self.json {
            let mut out = std::io::stdout();
            // A closed pipe does not change the exit code.
            let _ = writeln!(out, "{:<4}  {check}: {what}", verdict.word());
            if !advice.is_empty() {
                let _ = writeln!(out, "      → {advice}");
            }
            let _ = out.flush();
        }
        self.checks.push((check.to_owned(), verdict, what, advice));
    }

    /// Whether a check has this verdict.
    #[must_use]
    pub fn has(&self, check: &str, verdict: Verdict) -> bool {
        self.checks
            .iter()
            .any(|(name, v, ..)| name == check && *v == verdict)
    }

    /// Prints the summary. Returns whether no check failed.
    pub fn finish(&self) -> bool {
        let count = |verdict| {
            self.checks
                .iter()
                .filter(|(_, v, ..)| *v == verdict)
                .count()
        };
        let (failed, warned) = (count(Verdict::Fail), count(Verdict::Warn));
        let mut out = std::io::stdout();
        let _ = if self.json {
            writeln!(out, "{:#}", self.as_json())
        } else if failed > 0 {
            writeln!(out, "\n{failed} failed, {warned} with a warning.")
        } else if warned > 0 {
            writeln!(out, "\nNo obstacle found; {warned} with a warning.")
        } else {
            writeln!(out, "\nNo obstacle found.")
        };
        failed == 0
    }

    /// Returns the findings as JSON.
    #[must_use]
    pub fn as_json(&self) -> Value {
        let checks: Vec<Value> = self
            .checks
            .iter()
            .map(|(check, verdict, what, advice)| {
                let mut value = json!({
                    "check": check,
                    "verdict": verdict.word().to_ascii_lowercase(),
                    "what": what,
                });
                if let (Value::Object(members), false) = (&mut value, advice.is_empty()) {
                    members.insert("advice".into(), json!(advice));
                }
                value
            })
            .collect();
        let ok = !self.checks.iter().any(|(_, v, ..)| *v == Verdict::Fail);
        json!({"ok": ok, "checks": checks})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_count_as_obstacles() {
        let mut report = Report::new(true);
        report.add("a", Verdict::Ok, "fine", "");
        report.add("b", Verdict::Warn, "slow\u{1b}", "do x");
        report.add("c", Verdict::Skipped, "", "");
        assert!(report.finish());
        assert!(report.has("b", Verdict::Warn) && !report.has("b", Verdict::Ok));
        report.add("d", Verdict::Fail, "gone", "do y");
        assert!(!report.finish());
        let json = report.as_json();
        assert_eq!(json["ok"], false);
        assert_eq!(
            json["checks"][1],
            json!({"check": "b", "verdict": "warn", "what": "slow ", "advice": "do x"})
        );
        assert_eq!(json["checks"][2].get("advice"), None);
    }
}
