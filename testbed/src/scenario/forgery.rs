//! A member forges packets of the flow that it is a member of.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flexfeed_receiver::journal::{self, Found};

use super::checks::{check_moves, check_outputs};
use super::{CHANNEL, Fault, Plan, Seat, Stage};
use crate::forger;
use crate::lab::Multicast;
use crate::process::Service;
use crate::until::Talker;

const ALL: [&str; 3] = ["r1", "r2", "r3"];
/// Updates a second before and during the attack, and afterwards: not more in all than the 500 that
/// can be judged by the Atom files.
const RATE: f64 = 12.0;
const RATE_AFTER: f64 = 3.0;
/// Time without an attack, to compare the receivers' memory with.
const CALM: Duration = Duration::from_secs(4);
/// Duration of each kind of forgery, and of all together.
const EACH_MS: &str = "800";
const ALL_MS: &str = "1500";
/// Duration of each kind where packets are authenticated: forgeries then cost nothing but the work
/// to refuse them.
const EACH_AUTHENTICATED_MS: &str = "250";
/// Bound on a receiver's memory above that without an attack, in KiB.
const GROWTH_KIB: u64 = 8 * 1024;
/// Bound on what the source sends, in times of all updates to all receivers.
const EGRESS: u64 = 2;
/// Time for the members to be members again: a heartbeat, and much patience with a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// fo: a member that holds the flow's key sends 100 forged packets a second of each kind, alone and
/// together, on a segment that loses packets. The others get every update once and none of the
/// forger's, use no more memory, cost the source no more than twice what unicast would, and are
/// members again soon after it ends.
///
/// # Errors
/// One of these does not hold.
pub fn a_member_forges_and_nobody_believes_it(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("forgery", fault);
    plan.asm = true;
    plan.source_args = vec!["--max-loss", "60"];
    // Each update by itself, so that the loss of its end is noticed only at the next one.
    plan.poll_interval = 0.05;
    for seat in &mut plan.seats {
        seat.multicast = Multicast::Loss(20);
    }
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        stage.settle()?;
        stage.set_rate(RATE)?;
        let begin = Instant::now();
        let mut calm = 0;
        while begin.elapsed() < CALM {
            calm = calm.max(memory(stage)?);
            crate::waiting::pause(Duration::from_millis(200));
        }

        let first = stage.source_status_now()?.head + 1;
        let before = sent(stage)?;
        let mut forger = begin_attack(stage, EACH_MS)?;
        let mut most = 0;
        let mut kinds = Vec::new();
        loop {
            let line = forger.line().context("the forger")?;
            most = most.max(memory(stage)?);
            if line == "over" {
                break;
            }
            kinds.push(line);
        }
        let over = Instant::now();
        stage.set_rate(RATE_AFTER)?;
        check_sent(&kinds, None)?;
        check_journals(stage, None)?;
        stage.wait("all to be members again", BACK_WITHIN, |stage| {
            let there = |name: &&str| Ok(is_member(stage, name)?.then_some(()));
            let there: Result<Option<Vec<()>>> = ALL.iter().map(there).collect();
            Ok(there?.map(drop))
        })?;
        let back = over.elapsed();
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&ALL, head + 8)?;
        stage.set_rate(0.0)?;
        let total = stage.settle()?;
        let sent = sent(stage)? - before;
        forger.finish()?;

        check_journals(stage, Some(total))?;
        check_outputs(stage, &ALL)?;
        for name in ALL {
            let messages = stage.seat(name)?.channel_now()?.messages;
            ensure!(
                messages.taken == 0 && messages.forged > 0,
                "{name}: {} forged messages handed on, {} refused",
                messages.taken,
                messages.forged
            );
            let by_flow = stage.seat(name)?.deliveries()?;
            let by_flow = by_flow
                .iter()
                .filter(|one| one.seq > head && one.via != "unicast");
            ensure!(
                by_flow.count() >= 5,
                "{name}: back on the flow, which brings nothing"
            );
        }
        ensure!(
            most <= calm + GROWTH_KIB,
            "a receiver had {calm} KiB without the attack and {most} KiB with it"
        );
        let all = stored(stage, first)? * (ALL.len() as u64 + 1);
        ensure!(
            sent <= EGRESS * all,
            "{sent} bytes of updates were sent; all updates to all receivers are {all}"
        );
        println!(
            "forged_accepted 0 in {total} updates; memory {calm} to {most} KiB; {sent} bytes \
             sent, {all} by unicast; members again after {:.1} s\n{}",
            back.as_secs_f64(),
            kinds.join("\n")
        );
        Ok(())
    })
}

/// fo2, fo3: the same attack on a flow whose packets are authenticated as `packets` says, with
/// wrong signatures, wrong tags and replays besides. It has no effect: no member leaves the flow,
/// nothing is asked for again, every update comes once, and nearly all by the flow.
///
/// # Errors
/// One of these does not hold.
pub fn forgeries_of_authenticated_packets_have_no_effect(
    packets: &'static str,
    fault: Option<Fault>,
) -> Result<()> {
    let mut plan = Plan::new("proofs", fault);
    plan.asm = true;
    plan.channel_settings
        .push(("packet_authentication", packets));
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        stage.settle()?;
        stage.set_rate(RATE)?;
        let first = stage.source_status_now()?.head + 1;
        let mut forger = begin_attack(stage, EACH_AUTHENTICATED_MS)?;
        let mut kinds = Vec::new();
        loop {
            let line = forger.line().context("the forger")?;
            if line == "over" {
                break;
            }
            kinds.push(line);
        }
        check_sent(&kinds, Some(packets))?;
        stage.set_rate(0.0)?;
        let total = stage.settle()?;
        let status = stage.source_status_now()?;
        forger.finish()?;
        for name in ALL {
            check_moves(name, &status.moves_of(name), &[("multicast", &["joined"])])?;
            let found = stage.seat(name)?.channel_now()?;
            ensure!(
                found.mismatches + found.refetched == 0,
                "{name}: forged packets had an effect: {found:?}"
            );
            ensure!(
                found.forged > 0 || packets != "signature",
                "{name}: no forged packet came"
            );
            let deliveries = stage.seat(name)?.deliveries()?;
            let new = deliveries.iter().filter(|one| one.seq >= first);
            let (by_flow, by_unicast): (Vec<_>, Vec<_>) = new.partition(|one| one.via != "unicast");
            ensure!(
                by_flow.len() > 9 * by_unicast.len(),
                "{name}: {} updates came by unicast, {} by the flow",
                by_unicast.len(),
                by_flow.len()
            );
        }
        check_journals(stage, Some(total))?;
        check_outputs(stage, &ALL)?;
        println!("forged_accepted 0 in {total} updates\n{}", kinds.join("\n"));
        Ok(())
    })
}

/// Starts the forger on the switch, and waits until it could forge.
fn begin_attack(stage: &mut Stage, each_ms: &str) -> Result<Talker> {
    let node = stage.add_node("mallory")?;
    let link = stage.link_for(node.families())?;
    let mut command = node.command(&stage.bins().forger)?;
    command
        .args(["--interface", &node.address().to_string()])
        .args(["--each-ms", each_ms, "--all-ms", ALL_MS, "--until-closed"])
        .env("FLEXFEED_LINK", link);
    let mut forger = Talker::start(command)?;
    forger.joined().context("the forger")?;
    Ok(forger)
}

/// Checks that there were packets of each kind, on a flow that is authenticated like this.
fn check_sent(kinds: &[String], packets: Option<&str>) -> Result<()> {
    // Where all packets are signed there are no tags to replay.
    let is_possible =
        |line: &&String| packets != Some("signature") || !line.ends_with("packet of tags again");
    for line in kinds.iter().filter(is_possible) {
        let sent = line.split_once(' ').and_then(|(sent, _)| sent.parse().ok());
        let sent: u64 = sent.with_context(|| format!("what the forger said: {line:?}"))?;
        // Not every update can be changed so that it still is one.
        ensure!(sent > 0, "there was no forged packet: {line}");
    }
    ensure!(
        // And all together.
        kinds.len() == forger::kinds(packets.is_some()),
        "the forger forged {kinds:?}"
    );
    Ok(())
}

fn is_member(stage: &Stage, name: &str) -> Result<bool> {
    let channel = stage.seat(name)?.channel()?;
    Ok(channel.is_some_and(|channel| channel.rung == "multicast"))
}

/// Returns the memory of the largest receiver, in KiB.
fn memory(stage: &mut Stage) -> Result<u64> {
    let mut most = 0;
    for name in ALL {
        let service: &mut Service = stage.seat_mut(name)?.running()?;
        most = most.max(service.resident_kib()?);
    }
    Ok(most)
}

/// Checks that the receivers' journals are proved and have no update that the source did not sign,
/// and that they have this number of updates, if it is known.
fn check_journals(stage: &Stage, total: Option<u64>) -> Result<()> {
    let mut accepted = 0;
    let mut report = String::new();
    let mut all_proved = true;
    for name in ALL {
        let (output, is_proved) = verify(stage, stage.seat(name)?)?;
        let (verified, rest) = counts(&output)
            .with_context(|| format!("{name}: verify does not say what it found:\n{output}"))?;
        ensure!(
            rest > 0 || total.is_none_or(|total| verified == total),
            "{name}: its journal has {verified} of {total:?} updates"
        );
        accepted += rest;
        all_proved &= is_proved;
        report.push_str(&output);
    }
    ensure!(
        accepted == 0,
        "{accepted} forged updates accepted:\n{report}"
    );
    ensure!(all_proved, "a journal is not proved:\n{report}");
    Ok(())
}

/// Returns the findings about a receiver's journal, and whether it is proved.
fn verify(stage: &Stage, seat: &Seat) -> Result<(String, bool)> {
    let mut command = seat.node().command(&stage.bins().receiver)?;
    command.arg("verify").arg("--data").arg(seat.data());
    let output = command.output().context("starting flexfeed-receiver")?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((said, output.status.success()))
}

/// Returns the numbers of verified and of other updates, of all incarnations.
fn counts(output: &str) -> Option<(u64, u64)> {
    let mut sum = None;
    for line in output.lines().filter(|line| line.starts_with(CHANNEL)) {
        let (_, counts) = line.rsplit_once(": ")?;
        let mut numbers = counts.split(", ").map(|part| {
            let (number, _) = part.split_once(' ')?;
            number.parse::<u64>().ok()
        });
        let (verified, unsigned, failed) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let (before, rest) = sum.unwrap_or_default();
        sum = Some((before + verified, rest + unsigned + failed));
    }
    sum
}

/// Returns what the source has sent of updates, on the flow and on the receivers' own connections,
/// in bytes.
fn sent(stage: &Stage) -> Result<u64> {
    let metrics = stage.source_metrics()?;
    let mut bytes = 0.0;
    for name in [
        "flexfeed_source_flow_bytes_total",
        "flexfeed_source_unicast_bytes_total",
    ] {
        let of = |line: &&str| line.split([' ', '{']).next() == Some(name);
        let line = metrics
            .lines()
            .find(of)
            .with_context(|| format!("no {name}"))?;
        let value = line.rsplit(' ').next().unwrap_or_default();
        bytes += value.parse::<f64>().with_context(|| line.to_owned())?;
    }
    Ok(bytes as u64)
}

/// Returns the bytes of all updates from `first` on, as a receiver has them.
fn stored(stage: &Stage, first: u64) -> Result<u64> {
    let mut bytes = 0;
    for path in journal::list(&stage.seat(ALL[0])?.journal_folder())? {
        journal::scan(&path, |_, found| {
            if let Found::Record(record) = found
                && record.header.seq >= first
            {
                bytes += record.encoded.len() as u64;
            }
        })?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        let output =
            "lore, incarnation 5f, updates 1 to 9: 7 verified, 1 unsigned, 2 failed\n  x\n";
        assert_eq!(counts(output), Some((7, 3)));
        assert_eq!(counts("lore: no update\n"), None);
    }
}
