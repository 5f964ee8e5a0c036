//! AMT as an outsider sees it (RFC 7450): scripted gateways, attacks on relays, and an independent
//! relay and gateway.

mod attack;
mod awake;
mod flood;
mod forge;
mod gateways;
mod outsider;
mod peer;

use std::net::{IpAddr, SocketAddr};

use amt::report::{Record, RecordKind, write_report};
use serde::{Deserialize, Serialize};

pub use attack::{AttackReport, attack};
pub use flood::{Flood, FloodReport, Wave, flood};
pub use forge::{ForgeReport, forge};
pub use gateways::{GatewaysPlan, GatewaysReport, Leave, SeenGateway, play};
pub use peer::Peer;

/// A join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinPlan {
    /// The only source, or any.
    pub source: Option<IpAddr>,
    /// The group and the port.
    pub group: SocketAddr,
}

impl JoinPlan {
    /// The IP packet with the report that joins it or leaves it.
    fn report(&self, join: bool) -> Vec<u8> {
        let (kind, sources) = match (self.source, join) {
            (Some(source), true) => (RecordKind::Allow, vec![source]),
            (Some(source), false) => (RecordKind::Block, vec![source]),
            (None, true) => (RecordKind::ToEx, Vec::new()),
            (None, false) => (RecordKind::ToIn, Vec::new()),
        };
        self.packet(kind, sources)
    }

    /// The IP packet with the report that answers a query.
    fn state(&self) -> Vec<u8> {
        match self.source {
            Some(source) => self.packet(RecordKind::IsIn, vec![source]),
            None => self.packet(RecordKind::IsEx, Vec::new()),
        }
    }

    fn packet(&self, kind: RecordKind, sources: Vec<IpAddr>) -> Vec<u8> {
        let group = self.group.ip();
        let record = Record {
            kind,
            group,
            sources,
        };
        let mut packet = Vec::new();
        write_report(group.is_ipv6(), &[record], 1200, |report| {
            packet = report.to_vec();
        });
        packet
    }
}
