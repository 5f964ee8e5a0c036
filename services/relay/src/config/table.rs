//! Every setting, named once.

use service::logging::LogSettings;
use service::setting;
use service::settings::{Setting, Table};

/// All settings, in the order of the help.
pub const TABLE: Table = Table {
    prefix: "FLEXFEED_RELAY_",
    settings: SETTINGS,
    other_variables: &[],
    strict: false,
};

const SETTINGS: &[Setting] = &[
    Setting::CONFIG,
    setting!(
        "listen",
        "ADDRESS:PORT",
        "Address that gateways reach the relay at; can be repeated. :PORT means all addresses, \
         IPv4 and IPv6. Third-party gateways use port 2268"
    )
    .list()
    .default(":2268"),
    setting!(
        "native_interface",
        "INTERFACE",
        "Interface that receives native multicast, by name or by one of its addresses"
    )
    .default("by the routing table"),
    setting!(
        "udp_ports",
        "PORT",
        "Receive multicast to these UDP ports by ordinary sockets and rebuild its IP headers; \
         needs no privileges; can be repeated"
    )
    .list()
    .default("4434"),
    setting!(
        "capture",
        "",
        "Capture multicast to any port on the interface instead; needs CAP_NET_RAW; \
         packets of a source with --multicast-ttl 0 are not seen"
    )
    .switch(),
    setting!(
        "advertise",
        "IP",
        "Address to announce to gateways that look for a relay by an anycast address; one for \
         IPv4 and one for IPv6"
    )
    .list()
    .default("the address that a Discovery was sent to"),
    setting!(
        "max_gateways",
        "NUMBER",
        "Maximum number of gateways; others are redirected by the L flag to another relay"
    )
    .default("10000"),
    setting!(
        "max_groups_per_gateway",
        "NUMBER",
        "Maximum number of sources and groups of one gateway"
    )
    .default("64"),
    setting!(
        "max_groups",
        "NUMBER",
        "Maximum number of sources and groups of all gateways together"
    )
    .default("4096"),
    setting!(
        "requests_per_second_per_address",
        "NUMBER",
        "Discoveries and Requests of one address (IPv6: of one /64) that are answered each \
         second; all gateways behind a NAT have one address, and each that is served may ask \
         four times a second in addition"
    )
    .default("1000"),
    setting!(
        "allow",
        "PREFIX",
        "Serve only gateways with these addresses; can be repeated"
    )
    .list()
    .default("all addresses"),
    setting!(
        "deny",
        "PREFIX",
        "Serve no gateways with these addresses, whatever --allow says; can be repeated"
    )
    .list(),
    setting!(
        "query_interval",
        "TIME",
        "Time between two Membership Updates of a gateway (in seconds, or with ms, s, m or h); a \
         gateway silent for twice as long is dropped"
    )
    .default("125s"),
    setting!(
        "gateway_address_in_query",
        "WHEN",
        "Whether a Query contains the gateway's own address: off, always, or until-unanswered: not \
         to gateways that leave such a Query unanswered, as the Linux kernel's does"
    )
    .default("off"),
    setting!(
        "mtu",
        "BYTES",
        "Largest packet towards gateways, IP header included, until the network reports that a \
         path takes less; never fragmented"
    )
    .default("1500"),
    setting!(
        "drain_time",
        "TIME",
        "Time to serve gateways after SIGTERM, without accepting new ones"
    )
    .default("2s"),
    setting!(
        "http",
        "ADDRESS:PORT",
        "HTTP address of status, health and metrics; off for none"
    )
    .default("127.0.0.1:8091"),
    LogSettings::FORMAT,
    LogSettings::LEVEL,
];
