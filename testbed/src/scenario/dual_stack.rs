//! One flow over IPv4 and IPv6 at once.

use anyhow::{Context, Result, ensure};

use super::cut::{RARE_HEARTBEATS, cut_and_restore};
use super::{Fault, PATIENCE, Plan, SSM_GROUP, SSM_GROUP6, Stage};
use crate::lab::Families;
use crate::until::Talker;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// Fewer packets in common would show nothing.
const ENOUGH: usize = 20;
/// Packets sent during the recording, even if counted once per group.
const RECORDED: u64 = 3 * ENOUGH as u64;

/// i: one flow has an IPv4 and an IPv6 group. A receiver that speaks only IPv4, one that speaks
/// only IPv6 and one that speaks both are members of it; the packets are the same on both groups,
/// and what happens to one family's receiver is of no effect on the other's.
///
/// # Errors
/// When one of these does not hold.
pub fn dual_stack(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("dual-stack", fault)
        .with_seat("r1", |seat| seat.families = Some(Families::V4))
        .with_seat("r2", |seat| seat.families = Some(Families::V6));
    plan.families = Families::Dual;
    plan.source_args = RARE_HEARTBEATS.to_vec();
    Stage::play(plan, |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let status = stage.source_status_now()?;
        for (name, v6) in [("r1", false), ("r2", true)] {
            let receiver = status.receivers.iter().find(|one| one.name == name);
            let addr = receiver
                .with_context(|| format!("{name} is not there"))?
                .addr;
            ensure!(
                addr.ip().to_canonical().is_ipv6() == v6,
                "{name} came from {addr}"
            );
        }
        let members = status.flow.map_or(0, |flow| flow.members);
        ensure!(members == 3, "the flow has {members} members, not 3");
        one_number_space(stage)?;
        cut_and_restore(stage, "r2", &["r1", "r3"])
    })
}

/// Records the flow's packets on both groups, in the nodes that have only one family, and compares:
/// a packet with another number, or encrypted on its own, would differ.
fn one_number_space(stage: &mut Stage) -> Result<()> {
    let mut v4 = record(stage, "r1", SSM_GROUP)?;
    let mut v6 = record(stage, "r2", SSM_GROUP6)?;
    v4.joined()?;
    v6.joined()?;
    let packets = |stage: &Stage| -> Result<u64> {
        let status = stage.source_status_now()?;
        Ok(status.flow.context("the source has no flow")?.packets)
    };
    let before = packets(stage)?;
    stage.set_rate(15.0)?;
    stage.wait("packets of the flow", PATIENCE, |stage| {
        Ok((packets(stage)? >= before + RECORDED).then_some(()))
    })?;
    stage.set_rate(0.0)?;
    stage.settle()?;
    v4.close();
    v6.close();
    // One line for each packet, in order.
    let (v4, v6) = (v4.finish()?, v6.finish()?);
    let common = |list: &[String], other: &[String]| -> Vec<String> {
        // The two did not begin and end at the same moment.
        let first = list.iter().position(|one| other.contains(one));
        let last = list.iter().rposition(|one| other.contains(one));
        first
            .zip(last)
            .and_then(|(first, last)| list.get(first..=last))
            .unwrap_or_default()
            .to_vec()
    };
    let (both4, both6) = (common(&v4, &v6), common(&v6, &v4));
    ensure!(
        both4.len() >= ENOUGH,
        "of {} packets by IPv4 and {} by IPv6 only {} were on both groups",
        v4.len(),
        v6.len(),
        both4.len()
    );
    ensure!(
        both4 == both6,
        "the packets by IPv4 and by IPv6 are not the same: of {} and {}, these are on one side \
         only: {:?}",
        both4.len(),
        both6.len(),
        both4
            .iter()
            .filter(|one| !both6.contains(one))
            .chain(both6.iter().filter(|one| !both4.contains(one)))
            .collect::<Vec<_>>()
    );
    Ok(())
}

/// Records until asked to end.
fn record(stage: &Stage, name: &str, group: &str) -> Result<Talker> {
    let node = stage.seat(name)?.node();
    let source = stage.source_node();
    let source = if node.families().v4() {
        source.address().to_string()
    } else {
        source.address6().to_string()
    };
    let mut command = node.command(&stage.bins().probe)?;
    command
        .args(["record", "--group", group, "--source", &source])
        .args(["--interface", &node.ip().to_string()])
        .args(["--until-closed", "--for-ms", "600000"]);
    Talker::start(command)
}
