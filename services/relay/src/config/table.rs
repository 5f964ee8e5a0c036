//! Every setting, named once.

use service::logging::LogSettings;
use service::settings::{Form, Place, Setting, Table};

/// All settings, in the order of the help.
pub const TABLE: Table = Table {
    prefix: "FLEXFEED_RELAY_",
    settings: SETTINGS,
    other_variables: &[],
};

const SETTINGS: &[Setting] = &[
    Setting {
        name: "config",
        flag: "config",
        value: "FILE",
        form: Form::Path,
        place: Place::NotInFile,
        help: "A TOML file with settings",
        ..Setting::PLAIN
    },
    Setting {
        name: "listen",
        flag: "listen",
        value: "ADDRESS:PORT",
        form: Form::List,
        default: ":2268",
        help: "Where gateways reach the relay; can be repeated. :PORT means all addresses, \
               IPv4 and IPv6. Gateways of other makes know port 2268 only",
        ..Setting::PLAIN
    },
    Setting {
        name: "native_interface",
        flag: "native-interface",
        value: "INTERFACE",
        default: "by the routing table",
        help: "The interface where the multicast is, by name or by one of its addresses",
        ..Setting::PLAIN
    },
    Setting {
        name: "udp_ports",
        flag: "udp-ports",
        value: "PORT",
        form: Form::List,
        default: "4434",
        help: "Receives multicast to these UDP ports by ordinary sockets and makes its IP \
               headers again; needs no rights; can be repeated",
        ..Setting::PLAIN
    },
    Setting {
        name: "capture",
        flag: "capture",
        form: Form::Switch,
        default: "false",
        help: "Receives multicast to any port as it is on the interface, instead; needs \
               CAP_NET_RAW; packets of a source with --multicast-ttl 0 are not seen",
        ..Setting::PLAIN
    },
    Setting {
        name: "advertise",
        flag: "advertise",
        value: "IP",
        form: Form::List,
        default: "the address that a Discovery was sent to",
        help: "The address to tell gateways that look for a relay by an anycast address; one \
               for IPv4 and one for IPv6",
        ..Setting::PLAIN
    },
    Setting {
        name: "max_gateways",
        flag: "max-gateways",
        value: "NUMBER",
        form: Form::Number,
        default: "10000",
        help: "Gateways at once; others are told to look for another relay",
        ..Setting::PLAIN
    },
    Setting {
        name: "max_groups_per_gateway",
        flag: "max-groups-per-gateway",
        value: "NUMBER",
        form: Form::Number,
        default: "64",
        help: "Sources and groups that one gateway may want at once",
        ..Setting::PLAIN
    },
    Setting {
        name: "max_groups",
        flag: "max-groups",
        value: "NUMBER",
        form: Form::Number,
        default: "4096",
        help: "Sources and groups that all gateways together may want at once",
        ..Setting::PLAIN
    },
    Setting {
        name: "requests_per_second_per_address",
        flag: "requests-per-second-per-address",
        value: "NUMBER",
        form: Form::Number,
        default: "1000",
        help: "Discoveries and Requests of one address (IPv6: of one /64) that are answered \
               each second; all gateways behind a NAT have one address, and each that is \
               served may ask four times a second beside this",
        ..Setting::PLAIN
    },
    Setting {
        name: "allow",
        flag: "allow",
        value: "PREFIX",
        form: Form::List,
        default: "everybody",
        help: "Serves only gateways with these addresses; can be repeated",
        ..Setting::PLAIN
    },
    Setting {
        name: "deny",
        flag: "deny",
        value: "PREFIX",
        form: Form::List,
        help: "Serves no gateways with these addresses, whatever --allow says; can be \
               repeated",
        ..Setting::PLAIN
    },
    Setting {
        name: "query_interval",
        flag: "query-interval",
        value: "TIME",
        form: Form::Number,
        default: "125s",
        help: "How often gateways repeat what they want (in seconds, or with ms, s, m or h); \
               who does not for twice as long is forgotten",
        ..Setting::PLAIN
    },
    Setting {
        name: "gateway_address_in_query",
        flag: "gateway-address-in-query",
        value: "WHEN",
        default: "off",
        help: "Whether a gateway is told the address that it comes from: off, always, or \
               until-unanswered: not those who leave such a Query unanswered, as the gateway \
               of Linux does",
        ..Setting::PLAIN
    },
    Setting {
        name: "mtu",
        flag: "mtu",
        value: "BYTES",
        form: Form::Number,
        default: "1500",
        help: "The largest packet towards gateways, IP header included, until the network \
               says that a way takes less; never fragmented",
        ..Setting::PLAIN
    },
    Setting {
        name: "drain_time",
        flag: "drain-time",
        value: "TIME",
        form: Form::Number,
        default: "2s",
        help: "How long gateways are still served after SIGTERM, while nobody new is taken",
        ..Setting::PLAIN
    },
    Setting {
        name: "http",
        flag: "http",
        value: "ADDRESS:PORT",
        default: "127.0.0.1:8091",
        help: "Where to answer HTTP: status, health, metrics; off for nowhere",
        ..Setting::PLAIN
    },
    LogSettings::FORMAT,
    LogSettings::LEVEL,
];
