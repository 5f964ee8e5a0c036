//! Scripted gateways that join, count their data, and leave.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use amt::Message;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::JoinPlan;
use super::awake::RunTime;
use super::outsider::Outsider;
use crate::until::StopCondition;
use crate::waiting::pause;

/// Way of leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Leave {
    /// Silently.
    Vanish,
    /// A report that leaves the group.
    Update,
    /// A Teardown of the tunnel.
    Teardown,
}

/// Time for packets in flight after a gateway has left.
const ON_THE_WAY: Duration = Duration::from_secs(1);
/// Minimum time that the other gateways run after one has left: it shows which of them still get
/// data.
const AFTER_LEAVING: Duration = Duration::from_secs(2);
/// Bound on the extension of the run for that.
const PATIENCE: Duration = Duration::from_secs(60);

/// Script of the gateways.
#[derive(Debug, Clone)]
pub struct GatewaysPlan {
    /// Address of the relay.
    pub relay: SocketAddr,
    /// The address to send from; the kernel's choice if none is given.
    pub from: Option<IpAddr>,
    /// Number; each has a port of its own.
    pub count: u32,
    /// Join of each.
    pub wanted: JoinPlan,
    /// When all of it ends; where the first leaves before the others, not before it has been gone
    /// for a while.
    pub until: StopCondition,
    /// Data messages per gateway after which it ends early.
    pub enough: Option<u64>,
    /// Time after its first data message at which the first gateway leaves, if before the others.
    /// Listens to the end.
    pub first_leaves_after: Option<Duration>,
    /// Way in which the first leaves, and the others at the end.
    pub leave: Leave,
    /// The time between two Requests of a gateway: as if each query had asked for that.
    pub again: Duration,
}

/// Observations of the gateways.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GatewaysReport {
    /// One by one.
    pub gateways: Vec<SeenGateway>,
}

/// Observations of one gateway.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SeenGateway {
    /// Its own address.
    pub local: SocketAddr,
    /// Its address as seen by the relay, if reported.
    pub seen_as: Option<SocketAddr>,
    /// Membership Queries that came.
    pub queries: u64,
    /// Those of them with the L flag: no new gateways accepted.
    pub limited: u64,
    /// Data messages with what was asked for.
    pub data: u64,
    /// Different numbers in them.
    pub distinct: u64,
    /// The last of these.
    pub last: Option<u32>,
    /// Data messages with fragments of packets.
    pub fragments: u64,
    /// Data messages with something else, or damaged.
    pub wrong: u64,
    /// Data messages that came more than a second after it had left.
    pub after_leaving: u64,
}

struct Member {
    outsider: Outsider,
    requests: u32,
    next_request: Instant,
    served: Option<Instant>,
    /// Listening time since it left.
    left: Option<RunTime>,
    after_leaving: u64,
}

/// Lets gateways do what is planned.
///
/// # Errors
/// When a socket cannot be opened.
pub fn play(plan: &GatewaysPlan) -> Result<GatewaysReport> {
    let begun = Instant::now();
    let mut members = (0..plan.count)
        .map(|_| {
            Ok(Member {
                outsider: Outsider::open(plan.relay, plan.from, plan.wanted)?,
                requests: 0,
                next_request: begun,
                served: None,
                left: None,
                after_leaving: 0,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut over_since: Option<Instant> = None;
    loop {
        // Packets received before the end are read before it counts.
        let now = Instant::now();
        if over_since.is_none() && plan.until.is_over() {
            over_since = Some(now);
        }
        let over = over_since.is_some_and(|since| {
            gone_for_long(plan, &members) || now.duration_since(since) >= PATIENCE
        });
        for member in &mut members {
            member.turn(plan, now);
        }
        if let Some(after) = plan.first_leaves_after
            && let Some(first) = members.first_mut()
            && first.served.is_some_and(|served| now >= served + after)
        {
            first.leave(plan, now);
        }
        let enough = |enough| members.iter().all(|member| member.has(enough));
        if over || plan.enough.is_some_and(enough) {
            break;
        }
        pause(Duration::from_millis(2));
    }
    let end = Instant::now();
    for member in &mut members {
        member.leave(plan, end);
    }
    let gateways = members.iter().map(Member::seen).collect::<Result<_>>()?;
    Ok(GatewaysReport { gateways })
}

/// Whether the first has been gone for a while, where it leaves before the others.
fn gone_for_long(plan: &GatewaysPlan, members: &[Member]) -> bool {
    let (Some(_), Some(first)) = (plan.first_leaves_after, members.first()) else {
        return true;
    };
    let gone = first.left.map_or(Duration::ZERO, RunTime::time);
    gone >= AFTER_LEAVING
}

impl Member {
    fn turn(&mut self, plan: &GatewaysPlan, now: Instant) {
        let before = self.outsider.arrived.data;
        let queried = self.outsider.read();
        if self.served.is_none() && self.has(1) {
            self.served = Some(now);
        }
        if let Some(left) = &mut self.left {
            // Packets read now arrived at any time since the previous turn.
            if left.time() > ON_THE_WAY {
                self.after_leaving += self.outsider.arrived.data - before;
            }
            left.turn(now);
            return;
        }
        if queried
            && let Some(answer) = self.outsider.answer
            && !answer.limited
        {
            let packet = plan.wanted.state();
            self.outsider.update(answer.mac, answer.nonce, &packet);
        }
        if now >= self.next_request {
            self.requests += 1;
            self.outsider.request(self.requests);
            // Sooner while there is no answer.
            let soon = Duration::from_millis(250);
            let wait = self.outsider.answer.map_or(soon, |_| plan.again);
            self.next_request = now + wait;
        }
    }

    /// Whether so many data messages came, of whole packets or of fragments.
    fn has(&self, count: u64) -> bool {
        self.outsider.arrived.data + self.outsider.arrived.fragments >= count
    }

    fn leave(&mut self, plan: &GatewaysPlan, now: Instant) {
        if self.left.is_some() {
            return;
        }
        self.left = Some(RunTime::since(now));
        let Some(answer) = self.outsider.answer else {
            return;
        };
        match plan.leave {
            Leave::Vanish => {}
            Leave::Update => {
                let packet = plan.wanted.report(false);
                self.outsider.update(answer.mac, answer.nonce, &packet);
            }
            Leave::Teardown => {
                let local = self.outsider.local().ok();
                if let Some(gateway) = answer.seen_as.or(local) {
                    self.outsider.send(Message::Teardown {
                        mac: answer.mac,
                        nonce: answer.nonce,
                        gateway,
                    });
                }
            }
        }
    }

    fn seen(&self) -> Result<SeenGateway> {
        let arrived = &self.outsider.arrived;
        Ok(SeenGateway {
            local: self.outsider.local()?,
            seen_as: self.outsider.answer.and_then(|answer| answer.seen_as),
            queries: arrived.queries,
            limited: arrived.limited,
            data: arrived.data,
            distinct: u64::try_from(arrived.numbers.len()).context("numbers")?,
            last: arrived.numbers.last().copied(),
            fragments: arrived.fragments,
            wrong: arrived.wrong,
            after_leaving: self.after_leaving,
        })
    }
}
