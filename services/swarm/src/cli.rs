//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::Parser;
use service::cli::variables;
use service::link::Link;
use service::values::{time, times};

const ABOUT: &str = "\
Connects thousands of light receivers to a source from one process, to find out how many a machine
carries. They are real receivers (QUIC, decryption, acknowledgements, repairs) without files.";

const MORE: &str = "\
Examples:
  1,000 receivers for a minute, and then a summary:
    flexfeed-swarm 'flexfeed://TOKEN@source.example:4433?pin=sha256:PIN&ch=lore' --duration 1m

  Without multicast, with one receiver a second that leaves and comes back, until Ctrl-C:
    flexfeed-swarm LINK --receivers 500 --no-multicast --churn 1/s

  With 1 % of the flow's packets lost before each receiver, for a program:
    flexfeed-swarm LINK --loss 1 --duration 30s --json

The link needs a token for as many receivers: flexfeed-source token create --label swarm. Each run
enrols new receivers, unless --seed repeats that of an earlier run, which prints it. Every option is
also a variable: FLEXFEED_SWARM_RECEIVERS and so on.

Exit codes:
  0  every receiver got every update, once, in order, with the same bytes
  1  one did not, or was not served, or the swarm cannot run
  2  invalid command line";

/// Options of the command line.
#[derive(Clone, Debug, Parser)]
#[command(name = "flexfeed-swarm", version, about = ABOUT, after_help = MORE)]
#[command(mut_args = variables("FLEXFEED_SWARM_", &[]))]
pub struct Options {
    /// Enrolment link of the source
    #[arg(value_name = "LINK", hide_env_values = true)]
    #[arg(value_parser = |text: &str| Link::parse(text).map(|(link, _)| link))]
    pub link: Link,

    /// Number of receivers
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub receivers: u32,

    /// Receivers started per second
    #[arg(long, value_name = "RATE", default_value = "100/s", value_parser = rate)]
    pub ramp: f64,

    /// Time between the last connection and the measurement, in which receivers find their rungs
    #[arg(long, value_name = "TIME", default_value = "5s")]
    #[arg(value_parser = times("1ms", "36500d", true))]
    pub warm_up: Duration,

    /// Time of the measurement [default: until SIGINT or SIGTERM]
    #[arg(long, value_name = "TIME", value_parser = times("1ms", "36500d", true))]
    pub duration: Option<Duration>,

    /// Receivers that leave, and come back a second later, per second
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub churn: Option<f64>,

    /// Receivers that crash without a word to the source, and come back a second later, per second
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub crashes: Option<f64>,

    /// Updates before the present that each receiver fetches first
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub history: u64,

    /// Percentage of multicast packets lost at random before each receiver
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = percent)]
    pub loss: f64,

    /// Seed of the receivers' ids and credentials, of losses and of churn: the same one is the same
    /// receivers. It is a secret as long as they are enrolled [default: random]
    #[arg(long, value_name = "N", hide_env_values = true)]
    pub seed: Option<u64>,

    /// Address of the interface to join multicast groups on [default: by the routing table]
    #[arg(long, value_name = "IP")]
    pub interface: Option<IpAddr>,

    /// Do without multicast
    #[arg(long)]
    pub no_multicast: bool,

    /// Do without replication, where multicast does not arrive
    #[arg(long)]
    pub no_replicate: bool,

    /// Answer /healthz, /readyz and /metrics at this address, such as 127.0.0.1:8093
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<SocketAddr>,

    /// Print the summary as JSON, and no progress
    #[arg(long)]
    pub json: bool,

    /// Log level: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub log_level: String,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').trim().parse().ok();
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "is no percentage from 0 to 100".to_owned())
}

/// Parses a number of events per second.
fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = time(&format!("1{}", unit.trim()), false).map(|time| time.as_secs_f64());
    let number = number.trim().parse::<f64>().ok();
    let rate = number.zip(seconds).map(|(number, s)| number / s);
    rate.filter(|rate| *rate > 0.0 && rate.is_finite())
        .ok_or_else(|| "is no rate, such as 100/s or 30/min".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LINK: &str = "flexfeed://t@h?ch=lore";

    fn parse(line: &str) -> Result<Options, String> {
        let words = ["flexfeed-swarm", LINK].into_iter();
        Options::try_parse_from(words.chain(line.split_whitespace()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn rates_and_percentages_are_read() {
        for (text, each) in [("100/s", 100.0), ("7", 7.0), ("30/min", 0.5), ("2/ms", 2e3)] {
            assert_eq!(rate(text), Ok(each), "{text}");
        }
        for text in ["", "x/s", "0/s", "-1/s", "1/", "1/fortnight", "1/0", "inf"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert_eq!(percent("1.5 %"), Ok(1.5));
        assert!(percent("101").is_err() && percent("x").is_err());
    }

    #[test]
    fn options_have_defaults_and_bounds() {
        let options = parse("").unwrap();
        assert_eq!((options.receivers, options.ramp), (1000, 100.0));
        assert_eq!((options.duration, options.churn), (None, None));
        assert_eq!(options.crashes, None);
        assert_eq!(options.link.channels, ["lore"]);
        let options = parse("--duration 90 --churn 1/s --crashes 6/min --loss 1").unwrap();
        assert_eq!(options.crashes, Some(0.1));
        assert_eq!(options.duration, Some(Duration::from_secs(90)));
        assert_eq!((options.churn, options.loss), (Some(1.0), 1.0));
        for wrong in [
            "--receivers 0",
            "--receivers 20001",
            "--ramp 0",
            "--duration 0",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Kubernetes sets FLEXFEED_SWARM_PORT=udp://… for a Service called flexfeed-swarm.
    #[test]
    fn every_option_has_a_variable_and_none_is_called_like_those_of_kubernetes() {
        let command = <Options as clap::CommandFactory>::command();
        for argument in command.get_arguments() {
            let name = argument.get_env().unwrap().to_str().unwrap();
            let ours = name.strip_prefix("FLEXFEED_SWARM_").unwrap();
            assert!(!ours.starts_with("PORT") && !ours.starts_with("SERVICE_"));
        }
    }
}
