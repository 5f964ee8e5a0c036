//! Settings of the relay: from flags, the environment and a TOML file, in that order.
//!
//! The mechanism is common to all programs: see `service::settings`.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use amt::relay::{self, GatewayAddress, Prefix};
use clap::Args;
use service::listen::{HttpSettings, http};
use service::logging::LogSettings;
use service::settings::{Check, Table};
use service::values::{HostAddresses, host, listen, one_of, times, whole};

use crate::engine::Receive;

/// Values of `--gateway-address-in-query`.
const IN_QUERY: &[(&str, GatewayAddress)] = &[
    ("off", GatewayAddress::Off),
    ("until-unanswered", GatewayAddress::UntilUnanswered),
    ("always", GatewayAddress::Always),
];

/// All settings of a relay. The descriptions are the help.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// A TOML file with settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address that gateways reach the relay at; can be repeated. :PORT means all addresses, IPv4
    /// and IPv6. Third-party gateways use port 2268
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ":2268")]
    #[arg(value_delimiter = ',', value_parser = |text: &str| listen(text, 2268))]
    pub listen: Vec<SocketAddr>,
    /// Interface that receives native multicast, by name or by one of its addresses [default: by
    /// the routing table]
    #[arg(long, value_name = "INTERFACE", value_parser = interface)]
    pub native_interface: Option<String>,
    /// Receive multicast to these UDP ports by ordinary sockets and rebuild its IP headers; needs
    /// no privileges; can be repeated
    #[arg(long, value_name = "PORT", default_value = "4434")]
    #[arg(value_delimiter = ',', value_parser = whole::<u16>(1..=65_535))]
    pub udp_ports: Vec<u16>,
    /// Capture multicast to any port on the interface instead; needs CAP_NET_RAW; packets of a
    /// source with --multicast-ttl 0 are not seen
    #[arg(long)]
    pub capture: bool,
    /// Address to announce to gateways that look for a relay by an anycast address; one for IPv4
    /// and one for IPv6 [default: the address that a Discovery was sent to]
    #[arg(long, value_name = "LIST")]
    pub advertise: Option<HostAddresses>,
    /// Maximum number of gateways; others are redirected by the L flag to another relay
    #[arg(long, value_name = "NUMBER", default_value = "10000")]
    #[arg(value_parser = whole::<usize>(1..=1_000_000))]
    pub max_gateways: usize,
    /// Maximum number of sources and groups of one gateway
    #[arg(long, value_name = "NUMBER", default_value = "64")]
    #[arg(value_parser = whole::<usize>(1..=1_000_000))]
    pub max_groups_per_gateway: usize,
    /// Maximum number of sources and groups of all gateways together
    #[arg(long, value_name = "NUMBER", default_value = "4096")]
    #[arg(value_parser = whole::<usize>(1..=1_000_000))]
    pub max_groups: usize,
    /// Discoveries and Requests of one address (IPv6: of one /64) that are answered each second;
    /// all gateways behind a NAT have one address, and each that is served may ask four times a
    /// second in addition
    #[arg(long, value_name = "NUMBER", default_value = "1000")]
    #[arg(value_parser = whole::<u32>(1..=1_000_000))]
    pub requests_per_second_per_address: u32,
    /// Serve only gateways with these addresses; can be repeated [default: all addresses]
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    pub allow: Vec<Prefix>,
    /// Serve no gateways with these addresses, whatever --allow says; can be repeated
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    pub deny: Vec<Prefix>,
    /// Time between two Membership Updates of a gateway (in seconds, or with ms, s, m or h); a
    /// gateway silent for twice as long is dropped
    #[arg(long, value_name = "TIME", default_value = "125s")]
    // At most what a Query can express (RFC 3376, section 4.1.7).
    #[arg(value_parser = times("1s", "31744s", true))]
    pub query_interval: Duration,
    /// Whether a Query contains the gateway's own address: off, always, or until-unanswered: not to
    /// gateways that leave such a Query unanswered, as the Linux kernel's does
    #[arg(long, value_name = "WHEN", default_value = "off", value_parser = one_of(IN_QUERY))]
    pub gateway_address_in_query: GatewayAddress,
    /// Largest packet towards gateways, IP header included, until the network reports that a path
    /// takes less; never fragmented
    #[arg(long, value_name = "BYTES", default_value = "1500")]
    #[arg(value_parser = whole::<u16>(576..=65_535))]
    pub mtu: u16,
    /// Time to serve gateways after SIGTERM, without accepting new ones
    #[arg(long, value_name = "TIME", default_value = "2s")]
    #[arg(value_parser = times("1ms", "36500d", true))]
    pub drain_time: Duration,
    /// HTTP address of status, health and metrics; off for none
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8091")]
    #[arg(value_parser = http(8091))]
    pub http: std::option::Option<HttpSettings>,
    /// The log.
    #[command(flatten)]
    pub log: LogSettings,
}

/// The settings of all places.
pub const TABLE: Table = Table::of::<Settings>("FLEXFEED_RELAY_", &[]);

impl Settings {
    /// Returns the ports that multicast is received on, or that it is captured.
    pub fn receive(&self) -> Receive {
        let mut ports = self.udp_ports.clone();
        ports.sort_unstable();
        ports.dedup();
        match self.capture {
            true => Receive::Capture,
            false => Receive::Ports(ports),
        }
    }

    /// Returns the settings of the protocol.
    pub fn relay(&self) -> relay::Config {
        let default = relay::Config::default();
        let advertise = self.advertise.unwrap_or_default();
        relay::Config {
            max_gateways: self.max_gateways,
            max_groups_per_gateway: self.max_groups_per_gateway,
            max_joins: self.max_groups,
            requests_per_second: self.requests_per_second_per_address,
            query_interval: self.query_interval,
            // A host has to answer before the next Query.
            max_response: default.max_response.min(self.query_interval / 2),
            gateway_address: self.gateway_address_in_query,
            advertise_v4: advertise.v4,
            advertise_v6: advertise.v6,
            allow: self.allow.clone(),
            deny: self.deny.clone(),
            mtu: self.mtu,
            ..default
        }
    }
}

/// Checks settings that are valid one by one.
pub fn check(settings: &mut Settings, check: &mut Check) {
    if let Some(http) = &mut settings.http {
        http.explicit = check.layers.given("http").is_some();
    }
    if settings.capture {
        let what = "has no effect together with capture, which is of all ports";
        check.wrong_setting("udp_ports", what);
    }
}

/// Parses an interface's name or address, which only the running relay looks up.
fn interface(text: &str) -> Result<String, String> {
    let text = text.trim();
    // The longest name that Linux allows has 15 bytes.
    let is_name = text.len() <= 15 && !text.contains(['/', ' ', ':']);
    match host(text).is_ok() || (is_name && text.parse::<IpAddr>().is_err()) {
        true => Ok(text.to_owned()),
        false => Err("is neither an interface's name, such as eth0, nor an address of one".into()),
    }
}
