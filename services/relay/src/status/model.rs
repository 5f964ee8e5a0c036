//! The status in its JSON form.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::View;
use crate::engine::counters::Counters;

/// Status of a relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Addresses that gateways reach.
    pub listen: Vec<String>,
    /// Time since the start, in seconds.
    pub uptime_s: u64,
    /// Whether new gateways are refused because the relay is about to stop.
    pub draining: bool,
    /// Gateways served.
    pub gateways: Gateways,
    /// Groups joined.
    pub groups: Groups,
    /// Packets forwarded.
    pub packets: Packets,
    /// Whether packets cannot be captured although they should be, because the interface is down or
    /// gone.
    #[serde(default)]
    pub not_capturing: bool,
    /// Packets that did not reach gateways, and messages of gateways that did not reach the relay,
    /// by reason.
    pub lost: BTreeMap<String, u64>,
    /// Messages of gateways by type.
    pub messages: BTreeMap<String, u64>,
    /// Messages of gateways that were dropped, by reason.
    pub messages_dropped: BTreeMap<String, u64>,
}

/// Gateways served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gateways {
    /// Number of gateways.
    pub count: usize,
    /// Largest number of gateways.
    pub max: usize,
    /// Gateways, by address; the first thousand.
    pub list: Vec<Gateway>,
}

/// Gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gateway {
    /// Address and port, as the relay sees them.
    pub address: String,
    /// Address of the relay that the gateway uses.
    pub relay: String,
    /// Age of its tunnel, in seconds.
    pub age_s: u64,
    /// Time since its last Membership Update, in seconds.
    pub heard_s: u64,
    /// Path MTU, in bytes.
    pub mtu: u16,
    /// Groups that the gateway wants.
    pub groups: Vec<GroupName>,
    /// Packets sent to the gateway.
    pub packets: u64,
    /// Bytes of inner packets sent to the gateway.
    pub bytes: u64,
    /// Recent packets per second.
    pub packets_per_second: f64,
    /// Recent bits of inner packets per second.
    pub bits_per_second: f64,
}

/// Name of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupName {
    /// Address of the group.
    pub group: String,
    /// Source; none for any.
    pub source: Option<String>,
}

/// Groups joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that gateways want and that cannot be joined.
    pub missing: u64,
    /// Groups; the first thousand.
    pub list: Vec<Group>,
}

/// Group that is joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Name of the group.
    #[serde(flatten)]
    pub name: GroupName,
    /// Number of gateways that the group is for.
    pub gateways: usize,
}

/// Packets forwarded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Packets {
    /// Packets from the native side that a gateway wants.
    #[serde(rename = "in")]
    pub received: u64,
    /// Recent packets in per second.
    pub in_per_second: f64,
    /// Packets to gateways.
    #[serde(rename = "out")]
    pub sent: u64,
    /// Recent packets out per second.
    pub out_per_second: f64,
    /// Recent bits of inner packets out per second.
    pub out_bits_per_second: f64,
    /// Packets from the native side that no gateway wants.
    pub unwanted: u64,
    /// Inner packets that were fragmented.
    pub fragmented: u64,
}

/// View of the engine, to be compared with another one.
#[derive(Debug)]
pub struct EngineSnapshot {
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

impl EngineSnapshot {
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

/// Returns the status at `now`, with rates since `before`.
pub(crate) fn status(
    before: &EngineSnapshot,
    now: &EngineSnapshot,
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
        // A new tunnel started from zero.
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
