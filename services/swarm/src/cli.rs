//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use service::link::{Link, LinkError};
use service::values;

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
pub struct Options {
    /// Enrolment link of the source
    #[arg(value_name = "LINK", value_parser = link, env = "FLEXFEED_SWARM_LINK", hide_env_values = true)]
    pub link: Link,

    /// Number of receivers
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=20_000),
        env = "FLEXFEED_SWARM_RECEIVERS"
    )]
    pub receivers: u32,

    /// Receivers started per second
    #[arg(
        long,
        value_name = "RATE",
        default_value = "100/s",
        env = "FLEXFEED_SWARM_RAMP"
    )]
    pub ramp: Rate,

    /// Time between the last connection and the measurement, in which receivers find their rungs
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5s",
        value_parser = values::duration_or_seconds,
        env = "FLEXFEED_SWARM_WARM_UP"
    )]
    pub warm_up: Duration,

    /// Time of the measurement [default: until SIGINT or SIGTERM]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = values::duration_or_seconds,
        env = "FLEXFEED_SWARM_DURATION"
    )]
    pub duration: Option<Duration>,

    /// Receivers that leave, and come back a second later, per second
    #[arg(long, value_name = "RATE", env = "FLEXFEED_SWARM_CHURN")]
    pub churn: Option<Rate>,

    /// Receivers that crash without a word to the source, and come back a second later, per second
    #[arg(long, value_name = "RATE", env = "FLEXFEED_SWARM_CRASHES")]
    pub crashes: Option<Rate>,

    /// Updates before the present that each receiver fetches first
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        env = "FLEXFEED_SWARM_HISTORY"
    )]
    pub history: u64,

    /// Percentage of multicast packets lost at random before each receiver
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "0",
        value_parser = percent,
        env = "FLEXFEED_SWARM_LOSS"
    )]
    pub loss: f64,

    /// Seed of the receivers' ids and credentials, of losses and of churn: the same one is the same
    /// receivers. It is a secret as long as they are enrolled [default: random]
    #[arg(
        long,
        value_name = "N",
        env = "FLEXFEED_SWARM_SEED",
        hide_env_values = true
    )]
    pub seed: Option<u64>,

    /// Address of the interface to join multicast groups on [default: by the routing table]
    #[arg(long, value_name = "IP", env = "FLEXFEED_SWARM_INTERFACE")]
    pub interface: Option<IpAddr>,

    /// Do without multicast
    #[arg(long, env = "FLEXFEED_SWARM_NO_MULTICAST")]
    pub no_multicast: bool,

    /// Do without replication, where multicast does not arrive
    #[arg(long, env = "FLEXFEED_SWARM_NO_REPLICATE")]
    pub no_replicate: bool,

    /// Answer /healthz, /readyz and /metrics at this address, such as 127.0.0.1:8093
    #[arg(long, value_name = "ADDRESS:PORT", env = "FLEXFEED_SWARM_HTTP")]
    pub http: Option<SocketAddr>,

    /// Print the summary as JSON, and no progress
    #[arg(long, env = "FLEXFEED_SWARM_JSON")]
    pub json: bool,

    /// Log level: error, warn, info, debug or trace
    #[arg(
        long,
        value_name = "LEVEL",
        default_value = "warn",
        env = "FLEXFEED_SWARM_LOG_LEVEL"
    )]
    pub log_level: String,
}

fn link(text: &str) -> Result<Link, LinkError> {
    Link::parse(text).map(|(link, _)| link)
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    number
        .parse()
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "is no percentage from 0 to 100".to_owned())
}

/// Number of events per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

/// Text that is no rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no rate, such as 100/s or 30/min")]
pub struct BadRate;

impl FromStr for Rate {
    type Err = BadRate;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = values::time(&format!("1{}", unit.trim()), None).ok_or(BadRate)?;
        let number: f64 = number.trim().parse().map_err(|_| BadRate)?;
        let rate = number / seconds.as_secs_f64();
        (rate > 0.0 && rate.is_finite())
            .then_some(Rate(rate))
            .ok_or(BadRate)
    }
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
        for (text, rate) in [("100/s", 100.0), ("7", 7.0), ("30/min", 0.5), ("2/ms", 2e3)] {
            assert_eq!(text.parse(), Ok(Rate(rate)), "{text}");
        }
        for text in ["", "x/s", "0/s", "-1/s", "1/", "1/week", "1/0", "inf"] {
            assert_eq!(text.parse::<Rate>(), Err(BadRate), "{text}");
        }
        assert_eq!(percent("1.5 %"), Ok(1.5));
        assert!(percent("101").is_err() && percent("x").is_err());
    }

    #[test]
    fn options_have_defaults_and_bounds() {
        let options = parse("").unwrap();
        assert_eq!((options.receivers, options.ramp), (1000, Rate(100.0)));
        assert_eq!((options.duration, options.churn), (None, None));
        assert_eq!(options.crashes, None);
        assert_eq!(options.link.channels, ["lore"]);
        let options = parse("--duration 90 --churn 1/s --crashes 6/min --loss 1").unwrap();
        assert_eq!(options.crashes, Some(Rate(0.1)));
        assert_eq!(options.duration, Some(Duration::from_secs(90)));
        assert_eq!((options.churn, options.loss), (Some(Rate(1.0)), 1.0));
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
