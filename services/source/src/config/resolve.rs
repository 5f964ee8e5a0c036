//! From layers to the configuration, or to all problems.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ArgMatches;
use console::config::{prefix, public_url};
use service::logging::{LogFormat, LogSettings};
use service::settings::check::Shown;
use service::settings::table::CONFIG;
use service::settings::{Environment, Given, Problems, Taker, quoting};
use service::values::{listen, log_format, switch};

use super::channels::{self, ChannelSettings, FeedAddress};
use super::groups::{flow_sources, groups};
use super::relays::{Relay, relays};
use super::table::{CONSOLE, TABLE};
use super::{Config, Console, FeedDefaults, FlowDefaults, Intervals, Keep, OwnCertificate};
use super::{pins, values};

/// With fewer updates kept, even receivers that are away for moments may miss some.
const FEW_KEPT: u64 = 100;

/// Settings with their origins.
#[derive(Debug)]
pub struct Resolved {
    /// The configuration, or all problems.
    pub config: Result<Config, Vec<String>>,
    /// Configuration file.
    pub file: Option<PathBuf>,
    /// Every setting but the one that names the file.
    pub shown: Vec<Shown>,
}

/// Returns the settings of the command line, the environment and the file that either names.
pub fn resolve(matches: &ArgMatches, environment: &Environment) -> Resolved {
    let (layers, problems) = TABLE.gather(TABLE.line_layer(matches), environment);
    let file = layers.text(CONFIG).map(|(_, path)| PathBuf::from(path));
    let mut warnings = TABLE.warnings(environment);
    // The file is the last layer.
    let in_file = file.iter().zip(layers.0.get(2));
    warnings.extend(in_file.filter_map(|(path, layer)| exposed(path, layer.0.values())));
    let mut taker = Taker::new(&TABLE, &layers, problems);
    let config = config(&mut taker, warnings);
    let config = match taker.finish(config) {
        Ok(Some(config)) => Ok(config),
        // Tests make sure that every default is valid.
        Ok(None) => Err(vec!["a setting has no valid default".to_owned()]),
        Err(Problems(problems)) => Err(problems),
    };
    let mut shown = TABLE.shown(&layers);
    shown.retain(|shown| shown.name != CONFIG);
    Resolved {
        config,
        file,
        shown,
    }
}

/// Returns a warning about a file with a password that other users may read.
fn exposed<'g>(path: &Path, mut settings: impl Iterator<Item = &'g Given>) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    let exposed = mode & 0o044 != 0 && settings.any(has_password);
    exposed.then(|| {
        format!(
            "{0} holds a password and other users may read it; to end that: chmod 600 {0}",
            path.display()
        )
    })
}

fn has_password(given: &Given) -> bool {
    let mut keys = given.sections().iter().flat_map(|s| s.keys.values());
    let mut texts = given.texts().iter();
    texts.any(|text| url::Url::parse(text).is_ok_and(|url| url.password().is_some()))
        || keys.any(has_password)
}

fn path(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("write the path of a file or folder".into()),
        text => Ok(text.into()),
    }
}

fn whole(text: &str, least: u64, most: u64) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ if most == u64::MAX => Err("write a whole number".into()),
        _ => Err(format!("write a whole number from {least} to {most}")),
    }
}

fn ms(taker: &mut Taker<'_>, name: &str, least: u64, most: u64) -> Option<Duration> {
    let ms = taker.or_default(name, |text| whole(text, least, most))?;
    Some(Duration::from_millis(ms))
}

fn socket(taker: &mut Taker<'_>, name: &str, port: u16) -> Option<SocketAddr> {
    taker.or_default(name, quoting(|text| listen(text, port)))
}

/// Returns the configuration; `None` only where a default is invalid.
fn config(taker: &mut Taker<'_>, warnings: Vec<String>) -> Option<Config> {
    let count = taker.or_default("retention", |text| whole(text, 0, u64::MAX))?;
    let keep = Keep {
        count: Some(count).filter(|&count| count > 0),
        age: taker.unquoted("retention_age", values::age),
    };
    let flows = FlowDefaults {
        sources: taker
            .unquoted("flow_source", flow_sources)
            .unwrap_or_default(),
        asm: taker.is_on("asm"),
        ttl: u32::try_from(taker.or_default("multicast_ttl", |text| whole(text, 0, 255))?).ok()?,
        relays: taker.unquoted("amt_relay", relays).unwrap_or_default(),
        replicate: !taker.is_on("no_replicate"),
        rate_bps: taker.or_default("rate", values::rate)?,
        ack_delay: ms(taker, "ack_delay_ms", 1, 1000)?,
        fall_back: ms(taker, "fall_back_ms", 10, 60_000)?,
        heartbeat: ms(taker, "heartbeat_ms", 50, 60_000)?,
    };
    let first_groups = taker.or_default("group", groups)?;
    let first = ChannelSettings {
        name: taker.or_default("channel", values::channel)?,
        feeds: taker
            .unquoted("feed", FeedAddress::parse)
            .into_iter()
            .map(Into::into)
            .collect(),
        groups: first_groups.clone(),
        rate_bps: flows.rate_bps,
        private: taker.is_on("private"),
        keep,
    };
    let mut config = Config {
        first_groups,
        keep,
        flows,
        feeds: FeedDefaults {
            allow_private: taker.is_on("allow_private_feed"),
            poll: poll(taker)?,
            contact: taker.unquoted("contact", |text| {
                feed::fetch::check_contact(text).map(|()| text.to_owned())
            }),
        },
        data: taker.or_default("data", path)?,
        database_url: taker.unquoted("database_url", |text| {
            let checked = store::check_url(text).map_err(|error| error.to_string());
            checked.map(|()| text.to_owned())
        }),
        listen: socket(taker, "listen", 4433)?,
        public_address: taker.unquoted("public_address", values::public_address),
        http: socket(taker, "http", 8090)?,
        console: console(taker),
        unicast_rate_bps: taker.or_default("unicast_rate", values::rate)?,
        certificate: certificate(taker),
        next_pin: taker.unquoted("next_pin", pins::read),
        drain_time: taker.or_default("drain_time", values::drain_time)?,
        holder_name: taker
            .unquoted("holder_name", values::holder_name)
            .unwrap_or_else(values::host_name),
        qlog: taker.unquoted("qlog", path),
        log: LogSettings {
            format: taker
                .value("log_format", log_format)
                .unwrap_or(LogFormat::Text),
            level: taker.unquoted("log_level", values::log_level),
        },
        channels: Vec::new(),
        warnings,
    };
    config.channels = all_channels(taker, first, &mut config.warnings);
    let (ack, fall_back) = (config.flows.ack_delay, config.flows.fall_back);
    if fall_back <= ack {
        taker.problem(format!(
            "--fall-back-ms {} must be longer than --ack-delay-ms {}: receivers may hold \
             acknowledgements back for that long",
            fall_back.as_millis(),
            ack.as_millis()
        ));
    }
    let doubts = doubts(&config);
    config.warnings.extend(doubts);
    Some(config)
}

fn console(taker: &mut Taker<'_>) -> Option<Console> {
    // Wrong ones are problems even without a console.
    let public_url = taker.unquoted("console_public_url", |text| {
        public_url(text).map_err(|what| format!("it {what}"))
    });
    let trusted_proxies = taker.list("console_trusted_proxy", prefix);
    let at = taker.value("console", |text| match switch(text) {
        Ok(true) => listen(CONSOLE, 0).map(Some),
        Ok(false) => Ok(None),
        Err(_) => listen(text, 9470)
            .map(Some)
            .map_err(|what| format!("{what}, and neither true nor false")),
    });
    Some(Console {
        listen: at??,
        public_url,
        trusted_proxies: trusted_proxies.unwrap_or_default(),
    })
}

/// Returns the origin of a setting in words.
fn origin(taker: &Taker<'_>, name: &str) -> String {
    let given = taker.layers.given(name);
    given.map_or_else(|| "default".to_owned(), |given| given.origin.to_string())
}

/// Returns the times between polls. A fixed one and its bounds exclude each other: the stronger
/// layer decides.
fn poll(taker: &mut Taker<'_>) -> Option<Intervals> {
    const BOUNDS: [&str; 2] = ["min_poll_interval", "max_poll_interval"];
    let fixed = taker.unquoted("poll_interval", values::interval);
    let [min, max] = BOUNDS.map(|name| taker.or_default(name, values::interval));
    let (min, max) = (min?, max?);
    let stronger = |name| taker.layers.stronger(name);
    let bounds = BOUNDS.map(stronger).into_iter().min();
    match (fixed, Some(stronger("poll_interval")).cmp(&bounds)) {
        (Some(fixed), std::cmp::Ordering::Less) => {
            return Some(Intervals {
                min: fixed,
                max: fixed,
            });
        }
        (Some(_), std::cmp::Ordering::Equal) => {
            let text = format!(
                "{} polls at fixed times: leave it out, or the shortest and the longest interval \
                 (--min-poll-interval, --max-poll-interval)",
                origin(taker, "poll_interval")
            );
            taker.problem(text);
        }
        _ => {}
    }
    if min > max {
        let [min, max] = BOUNDS.map(|name| origin(taker, name));
        taker.problem(format!(
            "the shortest interval between polls ({min}) is longer than the longest one ({max})"
        ));
    }
    Some(Intervals { min, max })
}

fn certificate(taker: &mut Taker<'_>) -> Option<OwnCertificate> {
    let files = (taker.unquoted("cert", path), taker.unquoted("key", path));
    let (name, what) = match files {
        (Some(cert), Some(key)) => return Some(OwnCertificate { cert, key }),
        (None, None) => return None,
        (Some(_), None) => ("cert", "its private key is missing: give --key"),
        (None, Some(_)) => ("key", "its certificate is missing: give --cert"),
    };
    let text = format!("{}: {what}", origin(taker, name));
    taker.problem(text);
    None
}

/// Returns the channel of the flags, those of `--channel-spec`, and those of the file.
fn all_channels(
    taker: &mut Taker<'_>,
    first: ChannelSettings,
    warnings: &mut Vec<String>,
) -> Vec<ChannelSettings> {
    let layers = taker.layers;
    let mut all = Vec::new();
    if !first.feeds.is_empty() || layers.text("channel").is_some() {
        all.push(first.clone());
    } else if first.private {
        warnings.push(format!(
            "{} is for the first channel, and there is none (--feed, --channel)",
            origin(taker, "private")
        ));
    }
    if let Some(given) = layers.given("channel_spec") {
        let specs = given.texts().iter();
        for spec in specs.flat_map(|text| text.split_whitespace()) {
            // Without a first channel the groups begin with the first of these.
            let channel = channels::further(spec, all.len(), &first);
            all.extend(taker.take(&given.origin, channel));
        }
    }
    for section in layers.given("channels").map_or(&[][..], Given::sections) {
        all.extend(channels::of_table(taker, section, all.len(), &first));
    }
    if let Err(what) = channels::check(&all) {
        taker.problem(what);
    }
    all
}

/// Returns warnings about valid settings that are probably not meant.
fn doubts(config: &Config) -> Vec<String> {
    let Config {
        channels, flows, ..
    } = config;
    let groups = channels.iter().map(|channel| &channel.groups);
    let mut doubts: Vec<String> = groups
        .clone()
        .flat_map(|groups| groups.doubts(flows.asm))
        .collect();
    let no_multicast = !channels.is_empty() && groups.clone().all(|g| g.all().is_empty());
    if no_multicast && (flows.asm || flows.sources.is_given()) {
        doubts.push(
            "--asm and --flow-source have no effect without multicast (--group is empty)".into(),
        );
    }
    let own = channels
        .iter()
        .filter(|channel| channel.keep != config.keep);
    let own = own.map(|channel| (format!("channel {:?}", channel.name), channel.keep));
    for (what, keep) in std::iter::once(("--retention".to_owned(), config.keep)).chain(own) {
        if let Some(count @ 1..FEW_KEPT) = keep.count {
            doubts.push(format!(
                "{what} {count}: receivers that are away for no more than so many updates miss some"
            ));
        }
    }
    doubts.extend(flows.relays.iter().filter_map(Relay::doubt));
    if !flows.relays.is_empty() && no_multicast {
        doubts.push(
            "--relay has no effect without multicast (--group is empty): relays get flows by \
             multicast"
                .into(),
        );
    }
    doubts.extend(values::reachability(
        config.public_address.as_ref(),
        config.listen,
    ));
    doubts
}
