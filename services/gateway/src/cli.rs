//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use amt::gateway::Subscription;
use amt_tokio::RelayName;
use clap::Parser;
use service::cli::variables;

const ABOUT: &str = "\
Receives multicast groups through an AMT relay (RFC 7450) where the network has no multicast, and
re-sends them to the same group and port on this machine, for programs that join groups as usual.";

const MORE: &str = "\
Examples:
  A group of one source, for the programs on this machine:
    flexfeed-gateway --relay relay.example --source 10.0.0.1 --group 232.1.1.1 --port 5000

  Two flows, one of them IPv6, for the whole network of eth1:
    flexfeed-gateway --relay relay.example --out-interface eth1 --ttl 1 \\
        --flow 10.0.0.1@232.1.1.1:5000 --flow '2001:db8::1@[ff3e::8000:1]:5000'

  A flow whose source publishes its relays in the DNS:
    flexfeed-gateway --dns --flow 192.0.2.10@232.1.1.1:5000

How local programs receive the packets:
  The packets come from the address of the out interface (127.0.0.1 on the loopback interface), not
  from the source: its address could be kept only by a program that may open raw sockets, which this
  one does not. So programs join the group from any source, or from that address, on that interface:
  in Python, IP_ADD_MEMBERSHIP with the group and 127.0.0.1.
  IPv6 groups leave by the loopback interface only if it has a route for them:
    ip -6 route add local ff00::/8 dev lo

Every option but --group, --source and --port is also a variable: FLEXFEED_GATEWAY_RELAY,
FLEXFEED_GATEWAY_FLOW and so on; several values are separated by commas. SIGTERM and Ctrl-C leave the groups and stop it.

Exit codes:
  0  stopped by a signal
  1  the flows cannot be received, or sent on this machine
  2  invalid command line";

/// Form of a flow.
const FLOW_FORM: &str = "write SOURCE@GROUP:PORT or GROUP:PORT, with IPv6 groups in brackets, as \
                         in 10.0.0.1@232.1.1.1:5000 or 2001:db8::1@[ff3e::8000:1]:5000";

/// Options of the command line.
// The help texts have addresses in brackets, which are no links.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(Clone, Debug, Parser)]
#[command(name = "flexfeed-gateway", version, about = ABOUT, after_help = MORE)]
#[command(mut_args = variables("FLEXFEED_GATEWAY_", &["group", "source", "port"]))]
pub struct Options {
    /// Relay: HOST, HOST:PORT, an address, [IPV6]:PORT, or `anycast` for any nearby relay. May be
    /// given several times; the first is preferred
    #[arg(long, value_name = "RELAY", value_delimiter = ',')]
    #[arg(required_unless_present = "dns")]
    pub relay: Vec<RelayName>,

    /// Also use the relays that the sources publish in the DNS (RFC 8777)
    #[arg(long)]
    pub dns: bool,

    /// Group to receive
    #[arg(long, value_name = "ADDRESS", requires = "port")]
    pub group: Option<IpAddr>,

    /// Source of the group: only its packets are received. Required for groups of 232.0.0.0/8 and
    /// ff3x::/32
    #[arg(long, value_name = "ADDRESS", requires = "group")]
    pub source: Option<IpAddr>,

    /// UDP port of the group
    #[arg(long, value_name = "PORT", requires = "group")]
    pub port: Option<u16>,

    /// Flow as SOURCE@GROUP:PORT or GROUP:PORT, instead of --group, --source and --port. May be
    /// given several times
    #[arg(long, value_name = "FLOW", value_delimiter = ',', value_parser = flow)]
    #[arg(required_unless_present = "group")]
    pub flow: Vec<Subscription>,

    /// Interface to send the packets on, by its name or by one of its addresses
    #[arg(long, value_name = "INTERFACE", default_value = "lo")]
    pub out_interface: String,

    /// TTL of the packets: 0 reaches the programs on this machine, 1 also the network of the
    /// interface, more also networks behind its routers
    #[arg(long, value_name = "TTL", default_value_t = 0)]
    pub ttl: u8,

    /// Preferred local UDP port towards relays, for relays that accept one port per address and for
    /// firewalls; applies to the first of several tunnels (--dns)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub local_port: Option<u16>,

    /// Keep local ports and tunnels in this file for the next start, which continues from the same
    /// ports or tears down the old tunnels
    #[arg(long, value_name = "FILE")]
    pub state_file: Option<PathBuf>,

    /// Log the status every SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub status: Option<u64>,

    /// Answer /healthz, /readyz and /metrics at this address, such as 127.0.0.1:8092
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<SocketAddr>,

    /// Log level: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
}

impl Options {
    /// Returns the flows to receive.
    pub fn flows(&self) -> Vec<Subscription> {
        let source = self.source;
        let single = self.group.zip(self.port).into_iter();
        let single = single.map(|(group, port)| Subscription {
            source,
            group,
            port,
        });
        single.chain(self.flow.iter().copied()).collect()
    }
}

/// Parses a flow as written in one argument.
fn flow(text: &str) -> Result<Subscription, String> {
    let (source, flow) = text
        .split_once('@')
        .map_or((None, text), |(s, f)| (Some(s), f));
    let source = source.map(|source| source.trim_matches(['[', ']']).parse());
    match (source.transpose(), flow.parse::<SocketAddr>()) {
        (Ok(source), Ok(flow)) => Ok(Subscription {
            source,
            group: flow.ip(),
            port: flow.port(),
        }),
        _ => Err(FLOW_FORM.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words = std::iter::once("flexfeed-gateway").chain(line.split_whitespace());
        Options::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn flows_are_read() {
        for (text, shown) in [
            ("10.0.0.1@232.1.1.1:5000", "(10.0.0.1, 232.1.1.1) port 5000"),
            ("239.1.1.1:5000", "(*, 239.1.1.1) port 5000"),
            (
                "2001:db8::1@[ff3e::8000:1]:5000",
                "(2001:db8::1, ff3e::8000:1) port 5000",
            ),
        ] {
            assert_eq!(flow(text).unwrap().to_string(), shown);
        }
        for text in ["232.1.1.1", "ff3e::1:5000", "10.0.0@232.1.1.1:5000"] {
            let error = parse(&format!("--dns --flow {text}")).unwrap_err();
            assert!(error.contains(text), "{error}");
            assert!(error.contains("write SOURCE@GROUP:PORT"), "{error}");
        }
    }

    /// Kubernetes sets FLEXFEED_GATEWAY_PORT=udp://… for a Service called flexfeed-gateway.
    #[test]
    fn no_variable_is_called_like_those_of_kubernetes() {
        let command = <Options as clap::CommandFactory>::command();
        let variables: Vec<_> = command
            .get_arguments()
            .filter_map(|a| a.get_env())
            .collect();
        assert!(variables.len() > 5, "{variables:?}");
        for name in variables {
            let name = name.to_str().unwrap();
            let ours = name.strip_prefix("FLEXFEED_GATEWAY_").unwrap();
            assert!(
                !ours.starts_with("PORT") && !ours.starts_with("SERVICE_"),
                "{name}"
            );
        }
    }

    #[test]
    fn single_and_listed_flows_add_up() {
        let line = "--relay a.example --relay [2001:db8::1]:7 --group 232.1.1.1 --source 10.0.0.1 \
            --port 5000 --flow 239.1.1.1:1,239.1.1.2:2";
        let options = parse(line).unwrap();
        assert_eq!(options.relay.len(), 2);
        let flows: Vec<_> = options.flows().iter().map(ToString::to_string).collect();
        assert_eq!(
            flows,
            [
                "(10.0.0.1, 232.1.1.1) port 5000",
                "(*, 239.1.1.1) port 1",
                "(*, 239.1.1.2) port 2"
            ]
        );
        assert_eq!((options.out_interface.as_str(), options.ttl), ("lo", 0));
    }

    #[test]
    fn missing_and_wrong_arguments_are_named() {
        for (line, what) in [
            ("--flow 239.1.1.1:1", "--relay"),
            ("--dns", "--flow"),
            ("--relay a.example", "--flow"),
            ("--relay a.example --group 239.1.1.1", "--port"),
            ("--relay a.example --flow 239.1.1.1:1 --ttl 256", "256"),
            ("--relay 1.2.3.400 --flow 239.1.1.1:1", "names no AMT relay"),
            ("--relay a.example --flow 239.1.1.1:1 --status 0", "status"),
            ("--relay a.example --flow 239.1.1.1:1 --local-port 0", "0"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(what), "{line}: {error}");
        }
    }

    #[test]
    fn help_names_the_source_address_of_packets() {
        let help = parse("--help").unwrap_err();
        assert!(
            help.contains("127.0.0.1 on the loopback interface"),
            "{help}"
        );
        assert!(help.contains("raw sockets"), "{help}");
    }
}
