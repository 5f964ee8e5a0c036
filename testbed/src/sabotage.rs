//! Breaks one promise at a time and demands that the scenario which claims it notices.

use anyhow::{Result, bail};

use crate::scenario::{
    Sabotage, a_cut_receiver_falls_back_and_returns, crashes_lose_nothing_and_repeat_nothing,
    flapping_backs_off, loss_is_repaired,
};

/// What belongs to a broken promise.
struct Claim {
    /// The scenario's name.
    name: &'static str,
    /// The scenario that must fail.
    scenario: fn(Option<Sabotage>) -> Result<()>,
    /// Texts of which one must be in the reason; a failure for another reason proves nothing.
    reasons: &'static [&'static str],
}

fn claim_of(sabotage: Sabotage) -> Claim {
    match sabotage {
        // While a return is held back, a receiver gets every update by both paths.
        Sabotage::DedupeOff => Claim {
            name: "g: flapping",
            scenario: flapping_backs_off,
            reasons: &["delivered twice"],
        },
        Sabotage::FallbackOff => Claim {
            name: "b: cut and restored",
            scenario: a_cut_receiver_falls_back_and_returns,
            reasons: &["the fall-back of r1"],
        },
        // Without repairs a hole stays, or everybody leaves the flow because of it.
        Sabotage::RepairOff => Claim {
            name: "c: 10 % loss",
            scenario: loss_is_repaired,
            reasons: &["delivered to", "none was repaired", "left the flow"],
        },
        Sabotage::CursorFirst => Claim {
            name: "e: crashes",
            scenario: crashes_lose_nothing_and_repeat_nothing,
            reasons: &["lost are numbers"],
        },
    }
}

/// Runs every scenario that a switch belongs to, first unbroken, then broken, and reports line by line.
///
/// # Errors
/// When an unbroken scenario fails, or a broken one passes.
pub fn run(report: impl Fn(&str)) -> Result<()> {
    let mut proven: Vec<&str> = Vec::new();
    let mut unnoticed = Vec::new();
    for sabotage in Sabotage::ALL {
        let Claim {
            name,
            scenario,
            reasons,
        } = claim_of(sabotage);
        if !proven.contains(&name) {
            report(&format!("scenario {name}, nothing broken …"));
            if let Err(error) = scenario(None) {
                bail!("scenario {name} fails by itself, which proves nothing:\n{error:#}");
            }
            report("  passes, as it must");
            proven.push(name);
        }
        report(&format!("scenario {name}, {} …", sabotage.switch()));
        match scenario(Some(sabotage)) {
            Ok(()) => {
                report(
                    "  PASSES: the scenario does not notice (or the services were built without their feature `sabotage`)",
                );
                unnoticed.push(sabotage.switch());
            }
            Err(error) => {
                let text = format!("{error:#}");
                let reason = text.lines().next().unwrap_or_default();
                if reasons.iter().any(|one| reason.contains(one)) {
                    report(&format!("  fails, as it must: {reason}"));
                } else {
                    report(&format!("  fails for ANOTHER REASON: {text}"));
                    unnoticed.push(sabotage.switch());
                }
            }
        }
    }
    if !unnoticed.is_empty() {
        bail!("not noticed: {}", unnoticed.join(", "));
    }
    Ok(())
}
