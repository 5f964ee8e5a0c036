//! Breaks one promise at a time and demands that the scenario which claims it notices.

use anyhow::{Result, bail, ensure};

use crate::binaries::Binaries;
use crate::scenario::{
    Sabotage, a_cut_receiver_falls_back_and_returns, a_deaf_relay_is_left,
    a_draining_relay_costs_nothing, a_narrow_path, a_restored_backup_is_noticed,
    all_families_and_any_source, an_hour_of_a_busy_archive, away_for_thousands_of_updates,
    crashes_lose_nothing_and_repeat_nothing, dual_stack, flapping_backs_off, ipv6_only,
    links_fail_in_turn, loss_is_repaired, nat_rebinding, older_receivers_are_served,
    relay_beside_the_source, relays_fail_in_turn, relays_fail_to_copies,
    the_console_tells_the_truth, three_behind_one_address, translations_change,
    tunnels_end_and_are_limited, who_forges_and_floods_gets_nothing, works_with_others,
};
use crate::tunnel::Peer;

/// A scenario, a promise that it claims to watch, and what it must say when that is broken.
struct Claim {
    /// The promise to break.
    sabotage: Sabotage,
    /// The scenario's name.
    name: &'static str,
    /// The scenario that must fail.
    scenario: fn(Option<Sabotage>) -> Result<()>,
    /// Texts of which one must be in the reason; a failure for another reason proves nothing.
    reasons: &'static [&'static str],
}

/// Every promise at least once; every scenario of a network of another kind at least once.
const CLAIMS: [Claim; 29] = [
    // While a return is held back, a receiver gets every update by both paths.
    Claim {
        sabotage: Sabotage::DedupeOff,
        name: "g: flapping",
        scenario: flapping_backs_off,
        reasons: &["delivered twice"],
    },
    Claim {
        sabotage: Sabotage::CursorFirst,
        name: "e: crashes",
        scenario: crashes_lose_nothing_and_repeat_nothing,
        reasons: &["lost are numbers"],
    },
    // Without repairs a hole stays, or everybody leaves the flow because of it.
    Claim {
        sabotage: Sabotage::RepairOff,
        name: "c: 10 % loss",
        scenario: loss_is_repaired,
        reasons: &["delivered to", "none was repaired", "left the flow"],
    },
    Claim {
        sabotage: Sabotage::FallbackOff,
        name: "b: cut and restored",
        scenario: a_cut_receiver_falls_back_and_returns,
        reasons: &["the fall-back of r1"],
    },
    Claim {
        sabotage: Sabotage::RepairOff,
        name: "h: IPv6 only",
        scenario: ipv6_only,
        reasons: &["delivered to", "none was repaired", "left the flow"],
    },
    Claim {
        sabotage: Sabotage::FallbackOff,
        name: "i: dual stack",
        scenario: dual_stack,
        reasons: &["the fall-back of r2"],
    },
    // What was sent as copies to where nobody is any more comes again by unicast, and again by copies.
    Claim {
        sabotage: Sabotage::DedupeOff,
        name: "j: NAT rebinding",
        scenario: nat_rebinding,
        reasons: &["delivered twice"],
    },
    Claim {
        sabotage: Sabotage::FallbackOff,
        name: "k: links fail in turn",
        scenario: links_fail_in_turn,
        reasons: &["extra delay", "did not fall back", "has confirmed message"],
    },
    Claim {
        sabotage: Sabotage::GapsUntold,
        name: "l: away",
        scenario: away_for_thousands_of_updates,
        reasons: &["should report the gap"],
    },
    // Who returns late asks for what follows its old number, and never hears of what has the numbers before it.
    Claim {
        sabotage: Sabotage::RenewalOff,
        name: "m: restored from a backup",
        scenario: a_restored_backup_is_noticed,
        reasons: &["should have been"],
    },
    // What passed through the feed between two polls is nowhere but in the archive.
    Claim {
        sabotage: Sabotage::GapFillOff,
        name: "n: an hour of a busy archive",
        scenario: an_hour_of_a_busy_archive,
        reasons: &["lost are numbers"],
    },
    // All three have one address outside: only one of them has a tunnel.
    Claim {
        sabotage: Sabotage::NatByAddress,
        name: "o: three behind one address",
        scenario: three_behind_one_address,
        reasons: &["on amt", "tunnels at relay"],
    },
    // Its tunnel may come to be at the second relay after all, in the end; the flow does not come by it.
    Claim {
        sabotage: Sabotage::RelayFailoverOff,
        name: "p: relays fail in turn",
        scenario: relays_fail_in_turn,
        reasons: &["tunnels at relay 2", "on amt"],
    },
    Claim {
        sabotage: Sabotage::FallbackOff,
        name: "p: relays fail in turn",
        scenario: relays_fail_in_turn,
        reasons: &["on unicast", "on amt", "tunnels at relay", "delivered to"],
    },
    Claim {
        sabotage: Sabotage::FallbackOff,
        name: "p2: relays fail to copies",
        scenario: relays_fail_to_copies,
        reasons: &["on replicated", "on amt", "delivered to"],
    },
    Claim {
        sabotage: Sabotage::RelayFailoverOff,
        name: "x: a deaf relay",
        scenario: a_deaf_relay_is_left,
        reasons: &["tunnels at relay", "on amt"],
    },
    Claim {
        sabotage: Sabotage::RelayFailoverOff,
        name: "y: a draining relay",
        scenario: a_draining_relay_costs_nothing,
        reasons: &["tunnels at relay", "on amt", "moves were"],
    },
    Claim {
        sabotage: Sabotage::NatByAddress,
        name: "q: all families",
        scenario: all_families_and_any_source,
        reasons: &["not everything came", "passed on"],
    },
    Claim {
        sabotage: Sabotage::ExpiryOff,
        name: "r: ends and limits",
        scenario: tunnels_end_and_are_limited,
        reasons: &["the end of all tunnels"],
    },
    Claim {
        sabotage: Sabotage::CapacityOff,
        name: "r: ends and limits",
        scenario: tunnels_end_and_are_limited,
        reasons: &["took another gateway"],
    },
    Claim {
        sabotage: Sabotage::MacCheckOff,
        name: "s: attacks",
        scenario: who_forges_and_floods_gets_nothing,
        reasons: &["datagrams came by", "ended the honest"],
    },
    Claim {
        sabotage: Sabotage::RelayCheckOff,
        name: "s: attacks",
        scenario: who_forges_and_floods_gets_nothing,
        reasons: &["somebody forged its flow"],
    },
    Claim {
        sabotage: Sabotage::TeardownUnchecked,
        name: "s: attacks",
        scenario: who_forges_and_floods_gets_nothing,
        reasons: &["ended the honest"],
    },
    Claim {
        sabotage: Sabotage::FragmentOuter,
        name: "t: a narrow path",
        scenario: a_narrow_path,
        reasons: &["fragments of outer packets"],
    },
    Claim {
        sabotage: Sabotage::RebindUnnoticed,
        name: "u: translations change",
        scenario: translations_change,
        reasons: &["tunnels at relay 1", "on amt"],
    },
    Claim {
        sabotage: Sabotage::NonceOther,
        name: "v: programs of others",
        scenario: |sabotage| {
            ensure!(works_with_others(sabotage)?, "{}", Peer::remedy());
            Ok(())
        },
        reasons: &["our relay and their gateway"],
    },
    // This build is its own earlier version here: what the sabotage breaks is only in the one that is started as the newer.
    Claim {
        sabotage: Sabotage::VersionOther,
        name: "up1: older receivers",
        scenario: |sabotage| older_receivers_are_served(&Binaries::find()?.folder()?, sabotage),
        reasons: &["multicast"],
    },
    Claim {
        sabotage: Sabotage::ConsoleBlind,
        name: "z: the console",
        scenario: |sabotage| the_console_tells_the_truth(sabotage).map(|_| ()),
        reasons: &["the page does not show it"],
    },
    Claim {
        sabotage: Sabotage::FlowLeaves,
        name: "w: relay beside the source",
        scenario: relay_beside_the_source,
        reasons: &["left the source's node"],
    },
];

/// Runs the scenario of every claim, first unbroken, then broken, and reports line by line.
///
/// `only` are letters of scenarios to do that with; all if there are none.
///
/// # Errors
/// When an unbroken scenario fails, or a broken one passes, or a letter belongs to no claim.
pub fn run(only: &[String], report: impl Fn(&str)) -> Result<()> {
    let letter = |claim: &Claim| claim.name.split(':').next().unwrap_or_default();
    for wanted in only {
        if !CLAIMS.iter().any(|claim| letter(claim) == wanted) {
            let all: Vec<&str> = CLAIMS.iter().map(letter).collect();
            bail!(
                "there is no claim of a scenario {wanted:?}; there are {}",
                all.join(", ")
            );
        }
    }
    let mut proven: Vec<&str> = Vec::new();
    let mut unnoticed = Vec::new();
    let chosen = |claim: &Claim| only.is_empty() || only.iter().any(|one| one == letter(claim));
    for claim in CLAIMS.into_iter().filter(chosen) {
        let Claim {
            sabotage,
            name,
            scenario,
            reasons,
        } = claim;
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
                unnoticed.push(format!("{} in {name}", sabotage.switch()));
            }
            Err(error) => {
                let text = format!("{error:#}");
                let reason = text.lines().next().unwrap_or_default();
                if reasons.iter().any(|one| reason.contains(one)) {
                    report(&format!("  fails, as it must: {reason}"));
                } else {
                    report(&format!("  fails for ANOTHER REASON: {text}"));
                    unnoticed.push(format!("{} in {name}", sabotage.switch()));
                }
            }
        }
    }
    if !unnoticed.is_empty() {
        bail!("not noticed: {}", unnoticed.join(", "));
    }
    Ok(())
}
