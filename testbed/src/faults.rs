//! Breaks one promise at a time and demands that the scenario which claims it notices.

use anyhow::{Result, bail, ensure};

use crate::binaries::Binaries;
use crate::scenario::{
    Fault, a_cut_receiver_falls_back_and_returns, a_deaf_relay_is_left,
    a_draining_relay_costs_nothing, a_flow_and_tcp_share_a_link, a_killed_shard_is_replaced,
    a_live_channel_delivers_nothing_late, a_member_forges_and_nobody_believes_it, a_narrow_path,
    a_restored_backup_is_noticed, a_slow_receiver_holds_up_only_itself,
    a_thousand_receivers_get_every_update, addresses_change, all_families_and_any_source,
    an_hour_of_a_busy_archive, an_overloaded_source_blames_no_member,
    away_for_thousands_of_updates, crashes_lose_nothing_and_repeat_nothing, dual_stack,
    either_leg_is_lost, either_relay_is_lost, flapping_backs_off,
    forged_and_flooding_requests_get_nothing, forgeries_of_authenticated_packets_have_no_effect,
    half_of_the_members_lose_multicast, ipv6_only, links_fail_in_turn, loss_is_rebuilt,
    loss_is_repaired, messages_reach_all_who_are_there, nat_rebinding, older_receivers_are_served,
    one_narrow_path_decides_the_packet_size, published_entries_survive_the_source,
    receivers_come_and_go, relay_beside_the_source, relays_fail_in_turn, relays_fail_to_copies,
    the_console_shows_the_real_rungs, three_behind_one_address, translations_change,
    tunnels_end_and_are_limited, works_with_others,
};
use crate::tunnel::Peer;

/// A scenario, a promise that it claims to watch, and what it must say when that is broken.
struct Claim {
    /// The promise to break.
    fault: Fault,
    /// The scenario's name.
    name: &'static str,
    /// The scenario that must fail.
    scenario: fn(Option<Fault>) -> Result<()>,
    /// Texts of which one must be in the reason; a failure for another reason proves nothing.
    reasons: &'static [&'static str],
}

/// Every promise at least once; every scenario of a network of another kind at least once.
const CLAIMS: [Claim; 51] = [
    // While a return is held back, a receiver gets every update by both paths.
    Claim {
        fault: Fault::DedupeOff,
        name: "g: flapping",
        scenario: flapping_backs_off,
        reasons: &["delivered twice"],
    },
    // A forged update of the next number is delivered in the place of the true one.
    Claim {
        fault: Fault::LineageOff,
        name: "fo: a member forges",
        scenario: a_member_forges_and_nobody_believes_it,
        reasons: &["forged updates accepted"],
    },
    // A receiver that lost the end of an update takes a forged one.
    Claim {
        fault: Fault::ChunkCheckOff,
        name: "fo: a member forges",
        scenario: a_member_forges_and_nobody_believes_it,
        reasons: &["forged updates accepted"],
    },
    // Members acknowledge packets that the source never sent.
    Claim {
        fault: Fault::PacketCheckOff,
        name: "fo2: forged signatures",
        scenario: |fault| forgeries_of_authenticated_packets_have_no_effect("signature", fault),
        reasons: &["moves were"],
    },
    Claim {
        fault: Fault::PacketCheckOff,
        name: "fo3: forged tags",
        scenario: |fault| forgeries_of_authenticated_packets_have_no_effect("auto", fault),
        reasons: &["moves were"],
    },
    Claim {
        fault: Fault::CursorFirst,
        name: "e: crashes",
        scenario: crashes_lose_nothing_and_repeat_nothing,
        reasons: &["lost are numbers"],
    },
    // Without repairs a hole stays, or everybody leaves the flow because of it.
    Claim {
        fault: Fault::RepairOff,
        name: "c: 10 % loss",
        scenario: loss_is_repaired,
        reasons: &["delivered to", "none was repaired", "left the flow"],
    },
    // What was rebuilt is not known to have been lost.
    Claim {
        fault: Fault::RebuiltProves,
        name: "c4: rebuilt losses",
        scenario: loss_is_rebuilt,
        reasons: &["rebuilt packets, and the source heard of"],
    },
    Claim {
        fault: Fault::FallbackOff,
        name: "b: cut and restored",
        scenario: a_cut_receiver_falls_back_and_returns,
        reasons: &["the fall-back of r1"],
    },
    // The flow goes on at the pace of the slow line.
    Claim {
        fault: Fault::EvictionOff,
        name: "c2: a slow receiver",
        scenario: a_slow_receiver_holds_up_only_itself,
        reasons: &["was not evicted", "held the flow up", "delivered to r2"],
    },
    // Packets grow beyond what the lines take, again and again.
    Claim {
        fault: Fault::SizesUnconfirmed,
        name: "mt: a narrow path",
        scenario: one_narrow_path_decides_the_packet_size,
        reasons: &["bytes, as all members take them"],
    },
    Claim {
        fault: Fault::AddressesUntold,
        name: "j2: roaming",
        scenario: addresses_change,
        reasons: &["all receivers at the source's new address"],
    },
    Claim {
        fault: Fault::AddressesForgotten,
        name: "j2: roaming",
        scenario: addresses_change,
        reasons: &["r1 at the source's new address after its restart"],
    },
    // What is sent without regard to losses is mostly lost, and repaired on the same link.
    Claim {
        fault: Fault::LossIgnored,
        name: "c3: a link shared with TCP",
        scenario: a_flow_and_tcp_share_a_link,
        reasons: &["the link is not shared", "the link is not used"],
    },
    Claim {
        fault: Fault::RepairOff,
        name: "h: IPv6 only",
        scenario: ipv6_only,
        reasons: &["delivered to", "none was repaired", "left the flow"],
    },
    Claim {
        fault: Fault::FallbackOff,
        name: "i: dual stack",
        scenario: dual_stack,
        reasons: &["the fall-back of r2"],
    },
    // Replicated packets to a dead address are repeated by unicast, and as replicated packets
    // again.
    Claim {
        fault: Fault::DedupeOff,
        name: "j: NAT rebinding",
        scenario: nat_rebinding,
        reasons: &["delivered twice"],
    },
    Claim {
        fault: Fault::FallbackOff,
        name: "k: links fail in turn",
        scenario: links_fail_in_turn,
        reasons: &["extra delay", "did not fall back", "has confirmed message"],
    },
    Claim {
        fault: Fault::GapsUntold,
        name: "l: away",
        scenario: away_for_thousands_of_updates,
        reasons: &["should report the gap"],
    },
    // A receiver that returns late asks for updates after its old number, and misses those below
    // it.
    Claim {
        fault: Fault::RenewalOff,
        name: "m: restored from a backup",
        scenario: a_restored_backup_is_noticed,
        reasons: &["should have been"],
    },
    // Entries that passed through the feed between two polls are in the archive only.
    Claim {
        fault: Fault::GapFillOff,
        name: "n: an hour of a busy archive",
        scenario: an_hour_of_a_busy_archive,
        reasons: &["lost are numbers"],
    },
    // All three have one address outside: only one of them has a tunnel.
    Claim {
        fault: Fault::NatByAddress,
        name: "o: three behind one address",
        scenario: three_behind_one_address,
        reasons: &["on amt", "tunnels at relay"],
    },
    // Its tunnel may come to be at the second relay after all, in the end; the flow does not come
    // by it.
    Claim {
        fault: Fault::RelayFailoverOff,
        name: "p: relays fail in turn",
        scenario: relays_fail_in_turn,
        reasons: &["tunnels at relay 2", "on amt"],
    },
    Claim {
        fault: Fault::FallbackOff,
        name: "p: relays fail in turn",
        scenario: relays_fail_in_turn,
        reasons: &["on unicast", "on amt", "tunnels at relay", "delivered to"],
    },
    Claim {
        fault: Fault::FallbackOff,
        name: "p2: relays fail to copies",
        scenario: relays_fail_to_copies,
        reasons: &["on replicated", "on amt", "delivered to"],
    },
    Claim {
        fault: Fault::RelayFailoverOff,
        name: "x: a deaf relay",
        scenario: a_deaf_relay_is_left,
        reasons: &["tunnels at relay", "on amt"],
    },
    Claim {
        fault: Fault::RelayFailoverOff,
        name: "y: a draining relay",
        scenario: a_draining_relay_costs_nothing,
        reasons: &["tunnels at relay", "on amt", "moves were"],
    },
    Claim {
        fault: Fault::NatByAddress,
        name: "q: all families",
        scenario: all_families_and_any_source,
        reasons: &["not everything came", "passed on"],
    },
    Claim {
        fault: Fault::ExpiryOff,
        name: "r: ends and limits",
        scenario: tunnels_end_and_are_limited,
        reasons: &["the end of all tunnels"],
    },
    Claim {
        fault: Fault::CapacityOff,
        name: "r: ends and limits",
        scenario: tunnels_end_and_are_limited,
        reasons: &["took another gateway"],
    },
    Claim {
        fault: Fault::MacCheckOff,
        name: "s: attacks",
        scenario: forged_and_flooding_requests_get_nothing,
        reasons: &["datagrams came by", "ended the honest"],
    },
    Claim {
        fault: Fault::RelayCheckOff,
        name: "s: attacks",
        scenario: forged_and_flooding_requests_get_nothing,
        reasons: &["an attacker forged its flow"],
    },
    Claim {
        fault: Fault::TeardownUnchecked,
        name: "s: attacks",
        scenario: forged_and_flooding_requests_get_nothing,
        reasons: &["ended the honest"],
    },
    Claim {
        fault: Fault::FragmentOuter,
        name: "t: a narrow path",
        scenario: a_narrow_path,
        reasons: &["fragments of outer packets"],
    },
    Claim {
        fault: Fault::RebindUnnoticed,
        name: "u: translations change",
        scenario: translations_change,
        reasons: &["tunnels at relay 1", "on amt"],
    },
    Claim {
        fault: Fault::NonceOther,
        name: "v: programs of others",
        scenario: |fault| {
            ensure!(works_with_others(fault)?, "{}", Peer::remedy());
            Ok(())
        },
        reasons: &["our relay and their gateway"],
    },
    // This build is its own earlier version here: the fault is only in the one that is started as
    // the newer.
    Claim {
        fault: Fault::VersionOther,
        name: "up1: older receivers",
        scenario: |fault| older_receivers_are_served(&Binaries::find()?.folder()?, fault),
        reasons: &["multicast"],
    },
    Claim {
        fault: Fault::ConsoleBlind,
        name: "z: the console",
        scenario: |fault| the_console_shows_the_real_rungs(fault).map(|_| ()),
        reasons: &["the page does not show it"],
    },
    Claim {
        fault: Fault::UpdateLost,
        name: "sw: a thousand receivers",
        scenario: a_thousand_receivers_get_every_update,
        reasons: &["updates left out without a word"],
    },
    // The connections of the dead shard stay open, and are not served.
    Claim {
        fault: Fault::ShardRestartOff,
        name: "sh: a killed shard",
        scenario: a_killed_shard_is_replaced,
        reasons: &["all to be served again"],
    },
    Claim {
        fault: Fault::UpdateLost,
        name: "sw2: receivers come and go",
        scenario: receivers_come_and_go,
        reasons: &["updates left out without a word"],
    },
    // Receivers ask for what is missing after three seconds, and get it then.
    Claim {
        fault: Fault::RepairOff,
        name: "sw2: receivers come and go",
        scenario: receivers_come_and_go,
        reasons: &["had to ask for what they lost"],
    },
    Claim {
        fault: Fault::FallbackOff,
        name: "sw3: half lose multicast",
        scenario: half_of_the_members_lose_multicast,
        reasons: &["the fall-back of one half"],
    },
    Claim {
        fault: Fault::LagGraceOff,
        name: "sw4: an overloaded source",
        scenario: an_overloaded_source_blames_no_member,
        reasons: &["blamed"],
    },
    Claim {
        fault: Fault::ExpiredDelivered,
        name: "li: a live channel",
        scenario: a_live_channel_delivers_nothing_late,
        reasons: &["delivered late"],
    },
    Claim {
        fault: Fault::PublicationsDeletedFirst,
        name: "pb: entries of publishers",
        scenario: published_entries_survive_the_source,
        reasons: &["updates of", "0 times", "the last entry"],
    },
    Claim {
        fault: Fault::LegsUnmerged,
        name: "ht: two legs",
        scenario: either_leg_is_lost,
        reasons: &["came by", "fell back"],
    },
    Claim {
        fault: Fault::LegsUnmerged,
        name: "ht2: two relays",
        scenario: either_relay_is_lost,
        reasons: &["came by", "fell back"],
    },
    Claim {
        fault: Fault::MessageCopiesOff,
        name: "ms: messages",
        scenario: messages_reach_all_who_are_there,
        reasons: &["r3 got 0 of"],
    },
    // Nothing publishes messages there but the forger.
    Claim {
        fault: Fault::MessageCheckOff,
        name: "fo: a forging member",
        scenario: a_member_forges_and_nobody_believes_it,
        reasons: &["forged messages"],
    },
    Claim {
        fault: Fault::FlowLeaves,
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
            fault,
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
        report(&format!("scenario {name}, {} …", fault.switch()));
        match scenario(Some(fault)) {
            Ok(()) => {
                report(
                    "  PASSES: the scenario does not notice (or the services were built without \
                     their feature `fault-injection`)",
                );
                unnoticed.push(format!("{} in {name}", fault.switch()));
            }
            Err(error) => {
                let text = format!("{error:#}");
                let reason = text.lines().next().unwrap_or_default();
                if reasons.iter().any(|one| reason.contains(one)) {
                    report(&format!("  fails, as it must: {reason}"));
                } else {
                    report(&format!("  fails for ANOTHER REASON: {text}"));
                    unnoticed.push(format!("{} in {name}", fault.switch()));
                }
            }
        }
    }
    if !unnoticed.is_empty() {
        bail!("not noticed: {}", unnoticed.join(", "));
    }
    Ok(())
}
