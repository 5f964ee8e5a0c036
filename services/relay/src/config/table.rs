//! Every setting, named once.

/// How a setting is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// A file; in a TOML file, a relative one counts from that file's folder.
    Path,
    /// A whole number, or a text for one with a unit.
    Number,
    /// True or false; the flag alone means true.
    Switch,
    /// Several: separated by commas, the flag repeated, or a list in the TOML file.
    List,
}

/// One setting. Its key in the TOML file is its name, its flag the same with hyphens, its variable
/// the same in capitals after `FLEXFEED_RELAY_`.
#[derive(Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Its flag, without the two hyphens in front.
    pub flag: &'static str,
    /// What stands for its value in texts.
    pub value: &'static str,
    /// How it is written.
    pub form: Form,
    /// What it is without being given, as shown.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
    /// Acceptable values, for tests.
    #[cfg(test)]
    pub examples: [&'static str; 3],
}

/// What all variables begin with.
pub const PREFIX: &str = "FLEXFEED_RELAY_";

impl Setting {
    /// The environment variable.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_ascii_uppercase())
    }

    /// Whether it can stand in the file; one is about the file.
    #[must_use]
    pub fn in_file(&self) -> bool {
        self.name != "config"
    }
}

macro_rules! settings {
    ($($name:literal $flag:literal $value:literal $form:ident $default:literal $help:literal
       [$one:literal, $two:literal, $three:literal];)*) => {
        &[$(Setting {
            name: $name,
            flag: $flag,
            value: $value,
            form: Form::$form,
            default: $default,
            help: $help,
            #[cfg(test)]
            examples: [$one, $two, $three],
        }),*]
    };
}

/// All settings, in the order of the help.
pub const SETTINGS: &[Setting] = settings![
    "config" "config" "FILE" Path ""
        "A TOML file with settings"
        ["", "", ""];
    "listen" "listen" "ADDRESS:PORT" List ":2268"
        "Where gateways reach the relay; can be repeated. :PORT means all addresses, IPv4 and IPv6. Gateways of other makes know port 2268 only"
        ["127.0.0.1:2268", "[::1]:2268", "127.0.0.1:3000,[::1]:3000"];
    "native_interface" "native-interface" "INTERFACE" Text "by the routing table"
        "The interface where the multicast is, by name or by one of its addresses"
        ["eth0", "192.0.2.1", "2001:db8::1"];
    "udp_ports" "udp-ports" "PORT" List "4434"
        "Receives multicast to these UDP ports by ordinary sockets and makes its IP headers again; needs no rights; can be repeated"
        ["4434", "5000,5001", "1234"];
    "capture" "capture" "" Switch "false"
        "Receives multicast to any port as it is on the interface, instead; needs CAP_NET_RAW; packets of a source with --multicast-ttl 0 are not seen"
        ["true", "false", "true"];
    "advertise" "advertise" "IP" List "the address that a Discovery was sent to"
        "The address to tell gateways that look for a relay by an anycast address; one for IPv4 and one for IPv6"
        ["192.0.2.1", "2001:db8::1", "192.0.2.1,2001:db8::1"];
    "max_gateways" "max-gateways" "NUMBER" Number "10000"
        "Gateways at once; others are told to look for another relay"
        ["1", "20", "300"];
    "max_groups_per_gateway" "max-groups-per-gateway" "NUMBER" Number "64"
        "Sources and groups that one gateway may want at once"
        ["1", "20", "300"];
    "max_groups" "max-groups" "NUMBER" Number "4096"
        "Sources and groups that all gateways together may want at once"
        ["1", "20", "300"];
    "requests_per_second_per_address" "requests-per-second-per-address" "NUMBER" Number "1000"
        "Discoveries and Requests of one address (IPv6: of one /64) that are answered each second; all gateways behind a NAT have one address, and each that is served may ask four times a second beside this"
        ["1", "20", "300"];
    "allow" "allow" "PREFIX" List "everybody"
        "Serves only gateways with these addresses; can be repeated"
        ["192.0.2.0/24", "2001:db8::/32", "192.0.2.1,10.0.0.0/8"];
    "deny" "deny" "PREFIX" List ""
        "Serves no gateways with these addresses, whatever --allow says; can be repeated"
        ["192.0.2.0/24", "2001:db8::/32", "192.0.2.1,10.0.0.0/8"];
    "query_interval" "query-interval" "TIME" Number "125s"
        "How often gateways repeat what they want (in seconds, or with ms, s, m or h); who does not for twice as long is forgotten"
        ["5", "90s", "2m"];
    "gateway_address_in_query" "gateway-address-in-query" "WHEN" Text "off"
        "Whether a gateway is told the address that it comes from: off, always, or until-unanswered: not those who leave such a Query unanswered, as the gateway of Linux does"
        ["off", "always", "until-unanswered"];
    "mtu" "mtu" "BYTES" Number "1500"
        "The largest packet towards gateways, IP header included, until the network says that a way takes less; never fragmented"
        ["1280", "1400", "9000"];
    "drain_time" "drain-time" "TIME" Number "2s"
        "How long gateways are still served after SIGTERM, while nobody new is taken"
        ["1s", "5s", "10m"];
    "http" "http" "ADDRESS:PORT" Text "127.0.0.1:8091"
        "Where to answer HTTP: status, health, metrics; off for nowhere"
        ["127.0.0.1:1", "[::1]:2", "off"];
    "log_format" "log-format" "FORM" Text "text"
        "Form of the log, which goes to standard error: text or json"
        ["text", "json", "text"];
    "log_level" "log-level" "LEVEL" Text "info"
        "What to log: error, warn, info, debug, trace, or filters as in RUST_LOG, which counts where this is not given"
        ["a", "b", "c"];
];
