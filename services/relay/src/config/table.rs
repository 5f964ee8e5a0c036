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
        "Where gateways reach the relay; can be repeated. :PORT means all addresses, IPv4 and \
         IPv6. Gateways of other makes know port 2268 only"
    )
    .list()
    .default(":2268"),
    setting!(
        "native_interface",
        "INTERFACE",
        "The interface where the multicast is, by name or by one of its addresses"
    )
    .default("by the routing table"),
    setting!(
        "udp_ports",
        "PORT",
        "Receives multicast to these UDP ports by ordinary sockets and makes its IP headers \
         again; needs no rights; can be repeated"
    )
    .list()
    .default("4434"),
    setting!(
        "capture",
        "",
        "Receives multicast to any port as it is on the interface, instead; needs CAP_NET_RAW; \
         packets of a source with --multicast-ttl 0 are not seen"
    )
    .switch(),
    setting!(
        "advertise",
        "IP",
        "The address to tell gateways that look for a relay by an anycast address; one for IPv4 \
         and one for IPv6"
    )
    .list()
    .default("the address that a Discovery was sent to"),
    setting!(
        "max_gateways",
        "NUMBER",
        "Gateways at once; others are told to look for another relay"
    )
    .default("10000"),
    setting!(
        "max_groups_per_gateway",
        "NUMBER",
        "Sources and groups that one gateway may want at once"
    )
    .default("64"),
    setting!(
        "max_groups",
        "NUMBER",
        "Sources and groups that all gateways together may want at once"
    )
    .default("4096"),
    setting!(
        "requests_per_second_per_address",
        "NUMBER",
        "Discoveries and Requests of one address (IPv6: of one /64) that are answered each \
         second; all gateways behind a NAT have one address, and each that is served may ask \
         four times a second beside this"
    )
    .default("1000"),
    setting!(
        "allow",
        "PREFIX",
        "Serves only gateways with these addresses; can be repeated"
    )
    .list()
    .default("everybody"),
    setting!(
        "deny",
        "PREFIX",
        "Serves no gateways with these addresses, whatever --allow says; can be repeated"
    )
    .list(),
    setting!(
        "query_interval",
        "TIME",
        "How often gateways repeat what they want (in seconds, or with ms, s, m or h); who does \
         not for twice as long is forgotten"
    )
    .default("125s"),
    setting!(
        "gateway_address_in_query",
        "WHEN",
        "Whether a gateway is told the address that it comes from: off, always, or \
         until-unanswered: not those who leave such a Query unanswered, as the gateway of Linux \
         does"
    )
    .default("off"),
    setting!(
        "mtu",
        "BYTES",
        "The largest packet towards gateways, IP header included, until the network says that a \
         way takes less; never fragmented"
    )
    .default("1500"),
    setting!(
        "drain_time",
        "TIME",
        "How long gateways are still served after SIGTERM, while nobody new is taken"
    )
    .default("2s"),
    setting!(
        "http",
        "ADDRESS:PORT",
        "Where to answer HTTP: status, health, metrics; off for nowhere"
    )
    .default("127.0.0.1:8091"),
    LogSettings::FORMAT,
    LogSettings::LEVEL,
];
