//! From layers to the configuration, or to all problems.

use std::iter;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use clap::ArgMatches;
use service::settings::check::Shown;
use service::settings::setting::CONFIG;
use service::settings::{Check, Environment, Given, Layers};
use store::{AuthenticationType, FecSetting};
use url::Url;

use super::channels::{self, ChannelSettings, FeedArguments, FeedSettings};
use super::relays::Relay;
use super::values::Deadline;
use super::{Config, TABLE};
use crate::record::address_warning;

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
    let given = TABLE.gather(TABLE.line_layer(matches), environment);
    let file = given.layers.text(CONFIG);
    let file = file.map(|(_, path)| PathBuf::from(path));
    let mut shown = TABLE.shown(&given.layers);
    shown.retain(|shown| shown.name != CONFIG);
    let config = TABLE.resolve(given, complete).map(|loaded| Config {
        warnings: loaded.warnings,
        ..loaded.settings
    });
    Resolved {
        config: config.map_err(|problems| problems.0),
        file,
        shown,
    }
}

/// Returns a warning about a file with a password that other users may read.
fn exposed(layers: &Layers) -> Option<String> {
    let (_, path) = layers.text(CONFIG)?;
    // The file is the last layer.
    let mut settings = layers.0.last()?.0.values();
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    let exposed = mode & 0o044 != 0 && settings.any(has_password);
    let what = "holds a password and other users may read it; to end that: chmod 600";
    exposed.then(|| format!("{path} {what} {path}"))
}

fn has_password(given: &Given) -> bool {
    // The text of a table has the addresses of its feeds in quotation marks.
    let parts = given.texts.iter().flat_map(|text| text.split(['"', '\\']));
    let mut urls = parts.filter_map(|part| Url::parse(part.trim_start_matches("--url=")).ok());
    urls.any(|url| url.password().is_some())
}

/// Adds the channels, and checks the settings together.
fn complete(config: &mut Config, check: &mut Check) {
    let polls = config.feeds.poll();
    if polls.min > polls.max {
        let [min, max] = ["min_poll_interval", "max_poll_interval"].map(|n| check.layers.origin(n));
        check.problem(format!(
            "the shortest interval between polls ({min}) is longer than the longest one ({max})"
        ));
    }
    match (&config.cert, &config.key) {
        (Some(_), None) => check.wrong_setting("cert", "its private key is missing: give --key"),
        (None, Some(_)) => check.wrong_setting("key", "its certificate is missing: give --cert"),
        _ => {}
    }
    let (fall_back, ack_delay) = (config.flows.fall_back, config.flows.ack_delay);
    if fall_back <= ack_delay {
        let [one, other] = ["fall_back_ms", "ack_delay_ms"].map(|n| check.layers.origin(n));
        check.problem(format!(
            "--fall-back-ms ({fall_back:?}, {one}) must be longer than --ack-delay-ms \
             ({ack_delay:?}, {other}): receivers may hold acknowledgements back for that long"
        ));
    }
    config.channels = all_channels(config, check);
    if let Err(what) = channels::check(&config.channels) {
        check.problem(what);
    }
    doubt(config, check);
}

/// Returns the channel of the flags, those of `--channel-spec`, and those of the file.
fn all_channels(config: &Config, check: &mut Check) -> Vec<ChannelSettings> {
    let given = &config.given;
    let polls = FeedArguments::default();
    let feed = given.feed.clone();
    let feed = feed.map(|address| FeedSettings { address, polls });
    let first = ChannelSettings {
        name: given.channel.clone(),
        feeds: feed.into_iter().collect(),
        groups: given.group.clone(),
        rate_bps: config.flows.rate_bps,
        private: given.private,
        packet_authentication: AuthenticationType::default(),
        fec: FecSetting::default(),
        deadline: Deadline::default(),
        keep: config.keep,
    };
    let mut all = Vec::new();
    if !first.feeds.is_empty() || check.layers.given("channel").is_some() {
        all.push(first.clone());
    } else if first.private {
        let private = check.layers.origin("private");
        check.warn(format!(
            "{private} is for the first channel, and there is none (--feed, --channel)"
        ));
    }
    // Without a first channel the groups begin with the first of these.
    for table in given.channel_spec.iter().chain(&given.channels) {
        match table.channel(all.len(), &first) {
            Ok(channel) => all.push(channel),
            Err(what) => check.problem(what),
        }
    }
    all
}

/// Warns about valid settings that are probably not meant.
fn doubt(config: &Config, check: &mut Check) {
    let (channels, flows) = (&config.channels, &config.flows);
    let relays = flows.relays.as_deref().unwrap_or_default();
    let no_groups = |channel: &ChannelSettings| channel.groups.all().is_empty();
    let no_multicast = !channels.is_empty() && channels.iter().all(no_groups);
    if no_multicast && (flows.asm || flows.sources.is_some() || !relays.is_empty()) {
        check.warn("without multicast (--group ''), --asm, --flow-source and --relay do nothing");
    }
    let differs = |channel: &&ChannelSettings| channel.keep != config.keep;
    let own = channels.iter().filter(differs);
    let own = own.map(|channel| (format!("channel {:?}", channel.name), channel.keep));
    for (what, keep) in iter::once(("--retention".to_owned(), config.keep)).chain(own) {
        if let Some(count @ 1..FEW_KEPT) = keep.count {
            check.warn(format!(
                "{what} {count}: receivers that are away for no more than so many updates miss some"
            ));
        }
    }
    let address = address_warning(config.public_address.as_ref());
    if address.is_none() && config.listen.ip().is_loopback() {
        check.warn(format!(
            "--listen {} takes connections from this machine only",
            config.listen
        ));
    }
    let groups = channels
        .iter()
        .flat_map(|channel| channel.groups.doubts(flows.asm));
    let all = relays.iter().filter_map(Relay::doubt).chain(groups);
    let all = all.chain(address).chain(exposed(&check.layers));
    check.warnings.extend(all);
}
