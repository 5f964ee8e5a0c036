//! The status as JSON has it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::View;
use crate::engine::counters::Counters;

/// How a relay is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of the program.
    pub version: String,
    /// Where gateways reach it.
    pub listen: Vec<String>,
    /// Since its start, in seconds.
    pub uptime_s: u64,
    /// It takes no new gateways, and is about to stop.
    pub draining: bool,
    /// Whom it serves.
    pub gateways: Gateways,
    /// What it has joined.
    pub groups: Groups,
    /// What passes.
    pub packets: Packets,
    /// Packets are to be captured, and cannot be: the interface is down or gone.
    #[serde(default)]
    pub not_capturing: bool,
    /// What did not get to gateways, by reason, and what of their messages did not get here.
    pub lost: BTreeMap<String, u64>,
    /// Messages of gateways by type.
    pub messages: BTreeMap<String, u64>,
    /// Messages of gateways that came to nothing, by reason.
    pub messages_dropped: BTreeMap<String, u64>,
}

/// Whom it serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gateways {
    /// How many.
    pub count: usize,
    /// How many there may be.
    pub max: usize,
    /// One by one, by address; the first thousand.
    pub list: Vec<Gateway>,
}

/// A gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gateway {
    /// Its address and port, as the relay sees them.
    pub address: String,
    /// The relay's address that it uses.
    pub relay: String,
    /// How long it has been served, in seconds.
    pub age_s: u64,
    /// How long ago it last said what it wants, in seconds.
    pub heard_s: u64,
    /// The largest packet on the way to it, in bytes.
    pub mtu: u16,
    /// What it wants.
    pub groups: Vec<GroupName>,
    /// Packets that were sent to it.
    pub packets: u64,
    /// Bytes of inner packets that were sent to it.
    pub bytes: u64,
    /// Packets a second, lately.
    pub packets_per_second: f64,
    /// Bits of inner packets a second, lately.
    pub bits_per_second: f64,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupName {
    /// Its address.
    pub group: String,
    /// The source; none for any.
    pub source: Option<String>,
}

/// What is joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// How many.
    pub count: usize,
    /// Those that gateways want and that cannot be joined.
    pub missing: u64,
    /// One by one; the first thousand.
    pub list: Vec<Group>,
}

/// A group that is joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Which.
    #[serde(flatten)]
    pub name: GroupName,
    /// For how many gateways.
    pub gateways: usize,
}

/// What passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Packets {
    /// From the native side, that a gateway wants.
    #[serde(rename = "in")]
    pub received: u64,
    /// A second, lately.
    pub in_per_second: f64,
    /// To gateways.
    #[serde(rename = "out")]
    pub sent: u64,
    /// A second, lately.
    pub out_per_second: f64,
    /// Bits of inner packets a second, lately.
    pub out_bits_per_second: f64,
    /// From the native side, that nobody wants.
    pub unwanted: u64,
    /// Inner packets that were fragmented.
    pub fragmented: u64,
}

/// A look at the engine, to be compared with another one.
#[derive(Debug)]
pub struct Now {
    pub(crate) view: View,
    received: u64,
    sent: u64,
    sent_bytes: u64,
    unwanted: u64,
    fragmented: u64,
    missing: u64,
    not_capturing: bool,
    lost: BTreeMap<String, u64>,
    messages: BTreeMap<String, u64>,
    dropped: BTreeMap<String, u64>,
}

impl Now {
    pub(crate) fn new(view: View, counters: &Counters) -> Self {
        let named = |list: &[(&str, u64)]| {
            let list = list.iter();
            list.map(|(name, count)| ((*name).to_owned(), *count))
                .collect()
        };
        let (lost, messages) = (&counters.lost, &counters.messages);
        let reasons = amt::relay::DropReason::REASONS
            .iter()
            .zip(&counters.dropped);
        Self {
            view,
            received: counters.native_packets.get(),
            sent: counters.sent_packets.get(),
            sent_bytes: counters.sent_bytes.get(),
            unwanted: counters.unwanted.get(),
            fragmented: counters.fragmented.get(),
            missing: u64::try_from(counters.joins_missing.get()).unwrap_or_default(),
            not_capturing: counters.not_capturing.get() > 0,
            lost: named(&[
                ("overrun", lost.overrun.get()),
                ("too-large", lost.too_large.get()),
                ("refused", lost.refused.get()),
                ("expired", lost.expired.get()),
                ("messages", lost.messages.get()),
            ]),
            messages: named(&[
                ("discovery", messages.discovery.get()),
                ("request", messages.request.get()),
                ("update", messages.update.get()),
                ("teardown", messages.teardown.get()),
                ("other", messages.other.get()),
            ]),
            dropped: reasons
                .map(|(name, count)| ((*name).to_owned(), count.get()))
                .collect(),
        }
    }
}

/// The status at `now`, with rates since `before`.
pub(crate) fn status(
    before: &Now,
    now: &Now,
    listen: &[String],
    uptime: Duration,
    leaving: bool,
) -> Status {
    let time = now.view.at.saturating_duration_since(before.view.at);
    let rate = |old: u64, new: u64| {
        let rate = new.saturating_sub(old) as f64 / time.as_secs_f64().max(1e-3);
        (rate * 10.0).round() / 10.0
    };
    let known: BTreeMap<SocketAddr, (u64, u64)> = before
        .view
        .shown_gateways
        .iter()
        .map(|gateway| (gateway.gateway, (gateway.packets, gateway.bytes)))
        .collect();
    let gateways = now.view.shown_gateways.iter().map(|gateway| {
        // One whose tunnel is new began with nothing.
        let (packets, bytes) = known
            .get(&gateway.gateway)
            .filter(|(packets, _)| *packets <= gateway.packets)
            .copied()
            .unwrap_or_default();
        let groups = gateway.groups.iter().flat_map(|(group, sources)| {
            let any = sources.is_empty().then_some(None);
            let sources = sources.iter().map(|source| Some(source.to_string()));
            sources.chain(any).map(|source| GroupName {
                group: group.to_string(),
                source,
            })
        });
        Gateway {
            address: gateway.gateway.to_string(),
            relay: gateway.local.to_string(),
            age_s: gateway.age.as_secs(),
            heard_s: gateway.heard.as_secs(),
            mtu: gateway.mtu,
            groups: groups.collect(),
            packets: gateway.packets,
            bytes: gateway.bytes,
            packets_per_second: rate(packets, gateway.packets),
            bits_per_second: rate(bytes * 8, gateway.bytes * 8),
        }
    });
    let groups = now.view.shown_groups.iter().map(|group| Group {
        name: GroupName {
            group: group.group.to_string(),
            source: group.source.map(|source| source.to_string()),
        },
        gateways: group.gateways,
    });
    let (count, max) = now.view.gateways;
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        listen: listen.to_vec(),
        uptime_s: uptime.as_secs(),
        draining: leaving || now.view.draining,
        gateways: Gateways {
            count,
            max,
            list: gateways.collect(),
        },
        groups: Groups {
            count: now.view.groups,
            missing: now.missing,
            list: groups.collect(),
        },
        packets: Packets {
            received: now.received,
            in_per_second: rate(before.received, now.received),
            sent: now.sent,
            out_per_second: rate(before.sent, now.sent),
            out_bits_per_second: rate(before.sent_bytes * 8, now.sent_bytes * 8),
            unwanted: now.unwanted,
            fragmented: now.fragmented,
        },
        not_capturing: now.not_capturing,
        lost: now.lost.clone(),
        messages: now.messages.clone(),
        messages_dropped: now.dropped.clone(),
    }
}
