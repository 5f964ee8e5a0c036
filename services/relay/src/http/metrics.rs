//! The page `/metrics`, in the OpenMetrics text format; `docs/metrics.md` lists the metrics.

use std::fmt;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use service::metrics::{self, Unit};

use crate::engine::counters::{Count, Counters};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeLabels {
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// All metrics of the relay, copied from its counters for each request.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: metrics::Metrics,
    messages: Family<TypeLabels, Counter>,
    dropped: Family<ReasonLabels, Counter>,
    lost: Family<ReasonLabels, Counter>,
    plain: [Counter; PLAIN.len()],
    gateways: Gauge,
    joins: Gauge,
    joins_missing: Gauge,
}

/// Counter without labels: name, description, and field.
type Plain = (&'static str, &'static str, fn(&Counters) -> &Count);

const PLAIN: [Plain; 14] = [
    ("answers", "Messages sent to gateways", |c| &c.answers),
    (
        "answers_refused",
        "Messages to gateways that the kernel refused to send",
        |c| &c.answers_refused,
    ),
    (
        "native_packets",
        "Multicast packets wanted by a gateway",
        |c| &c.native_packets,
    ),
    (
        "native_bytes",
        "Bytes of multicast packets wanted by a gateway, with IP headers",
        |c| &c.native_bytes,
    ),
    (
        "unwanted_packets",
        "Multicast packets that arrived and that no gateway wants",
        |c| &c.unwanted,
    ),
    (
        "broken_packets",
        "Captured packets that are malformed",
        |c| &c.broken,
    ),
    (
        "messages_lost",
        "Messages of gateways lost in the kernel's queue; several that came as one train count as \
         one",
        |c| &c.lost.messages,
    ),
    (
        "sent_packets",
        "Packets sent to gateways, counted per gateway",
        |c| &c.sent_packets,
    ),
    (
        "sent_bytes",
        "Bytes of packets sent to gateways, with the inner IP headers but without those of the \
         tunnel",
        |c| &c.sent_bytes,
    ),
    (
        "fragmented_packets",
        "Inner packets fragmented to fit the path to a gateway",
        |c| &c.fragmented,
    ),
    (
        "icmp_messages",
        "ICMP messages to sources that a packet is too large",
        |c| &c.icmp,
    ),
    (
        "icmp_unsent",
        "ICMP messages not sent: rate limit, or missing privilege",
        |c| &c.icmp_unsent,
    ),
    (
        "path_mtu_changes",
        "Path MTU reductions reported by the network",
        |c| &c.narrowed,
    ),
    ("join_failures", "Failed joins of multicast groups", |c| {
        &c.join_failures
    }),
];

impl Default for Metrics {
    fn default() -> Self {
        let mut r = metrics::Metrics::new("flexfeed_relay").started();
        let lost = "Packets not delivered to a gateway, by reason; overrun: lost before they were \
            read, expired: TTL too small to leave their network; both are counted once for all \
            gateways";
        Self {
            messages: r.add("messages", "Messages of gateways, by type"),
            dropped: r.add(
                "messages_dropped",
                "Messages of gateways dropped, by reason",
            ),
            lost: r.add("lost_packets", lost),
            plain: PLAIN.map(|(name, help, _)| match name.strip_suffix("_bytes") {
                Some(name) => r.unit(name, help, Unit::Bytes),
                None => r.add(name, help),
            }),
            gateways: r.add("gateways", "Gateways served"),
            joins: r.add("joins", "Joined multicast groups, counted per source"),
            joins_missing: r.add(
                "joins_missing",
                "Multicast groups wanted by gateways that cannot be joined",
            ),
            registry: r,
        }
    }
}

impl Metrics {
    /// Returns all metrics as of now.
    ///
    /// # Errors
    /// Only if a string cannot be written to.
    pub(super) fn text(&self, counters: &Counters) -> Result<String, fmt::Error> {
        let messages = &counters.messages;
        for (r#type, count) in [
            ("discovery", &messages.discovery),
            ("request", &messages.request),
            ("update", &messages.update),
            ("teardown", &messages.teardown),
            ("other", &messages.other),
        ] {
            raise(&self.messages.get_or_create(&TypeLabels { r#type }), count);
        }
        let reasons = amt::relay::DropReason::REASONS;
        for (reason, count) in reasons.iter().zip(&counters.dropped) {
            raise(&self.dropped.get_or_create(&ReasonLabels { reason }), count);
        }
        let lost = &counters.lost;
        for (reason, count) in [
            ("overrun", &lost.overrun),
            ("too-large", &lost.too_large),
            ("refused", &lost.refused),
            ("expired", &lost.expired),
        ] {
            raise(&self.lost.get_or_create(&ReasonLabels { reason }), count);
        }
        for ((_, _, count), counter) in PLAIN.iter().zip(&self.plain) {
            raise(counter, count(counters));
        }
        self.gateways.set(counters.gateways.get());
        self.joins.set(counters.joins.get());
        self.joins_missing.set(counters.joins_missing.get());
        self.registry.text()
    }
}

fn raise(counter: &Counter, to: &Count) {
    metrics::raise(counter, to.get());
}
