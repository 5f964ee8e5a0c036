//! From layers to the configuration, or to all problems.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use service::settings::check::Shown;
use service::settings::setting::CONFIG;
use service::settings::{Check, Environment, Given};

use super::channels::{self, ChannelSettings, FeedSettings};
use super::relays::Relay;
use super::{Config, TABLE, values};

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
    let mut shown = TABLE.shown(&layers);
    shown.retain(|shown| shown.name != CONFIG);
    let loaded = TABLE.resolve(layers, problems, warnings, complete);
    let config = loaded.map(|loaded| Config {
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
    let mut keys = given.sections.iter().flat_map(|s| s.keys.0.values());
    let mut texts = given.texts.iter();
    texts.any(|text| url::Url::parse(text).is_ok_and(|url| url.password().is_some()))
        || keys.any(has_password)
}

/// Adds the channels, and checks the settings together.
fn complete(config: &mut Config, check: &mut Check<'_>) {
    let layers = check.layers;
    let feeds = &config.feeds;
    if feeds.poll().min > feeds.poll().max {
        let [min, max] = ["min_poll_interval", "max_poll_interval"].map(|name| layers.origin(name));
        check.problem(format!(
            "the shortest interval between polls ({min}) is longer than the longest one ({max})"
        ));
    }
    match (&config.certificate.cert, &config.certificate.key) {
        (Some(_), None) => check.wrong_setting("cert", "its private key is missing: give --key"),
        (None, Some(_)) => check.wrong_setting("key", "its certificate is missing: give --cert"),
        _ => {}
    }
    let (ack, fall_back) = (config.flows.ack_delay, config.flows.fall_back);
    if fall_back <= ack {
        check.problem(format!(
            "--fall-back-ms {} must be longer than --ack-delay-ms {}: receivers may hold \
             acknowledgements back for that long",
            fall_back.as_millis(),
            ack.as_millis()
        ));
    }
    config.channels = all_channels(config, check);
    check.warnings.extend(doubts(config));
}

/// Returns the channel of the flags, those of `--channel-spec`, and those of the file.
fn all_channels(config: &Config, check: &mut Check<'_>) -> Vec<ChannelSettings> {
    let given = &config.given;
    let feed = |address| FeedSettings {
        address,
        polls: Default::default(),
    };
    let first = ChannelSettings {
        name: given.channel.clone(),
        feeds: given.feed.clone().map(feed).into_iter().collect(),
        groups: given.group.clone(),
        rate_bps: config.flows.rate_bps,
        private: given.private,
        keep: config.keep,
    };
    let mut all = Vec::new();
    if !first.feeds.is_empty() || check.layers.given("channel").is_some() {
        all.push(first.clone());
    } else if first.private {
        check.warnings.push(format!(
            "{} is for the first channel, and there is none (--feed, --channel)",
            check.layers.origin("private")
        ));
    }
    let sections = check.layers.sections("channels");
    let of_file = sections
        .iter()
        .filter(|_| sections.len() == given.channels.len());
    let origins = given.channel_spec.iter().map(|_| None);
    let origins = origins.chain(of_file.map(|section| Some(&section.origin)));
    let tables = given.channel_spec.iter().chain(&given.channels);
    // Without a first channel the groups begin with the first of these.
    for (table, origin) in tables.zip(origins.chain(std::iter::repeat(None))) {
        match table.channel(all.len(), &first) {
            Ok(channel) => all.push(channel),
            Err(what) => match origin {
                Some(origin) => check.wrong(origin, what),
                None => check.problem(what),
            },
        }
    }
    if let Err(what) = channels::check(&all) {
        check.problem(what);
    }
    all
}

/// Returns warnings about valid settings that are probably not meant.
fn doubts(config: &Config) -> Vec<String> {
    let Config {
        channels, flows, ..
    } = config;
    let groups = channels.iter().map(|channel| &channel.groups);
    let no_multicast = !channels.is_empty() && groups.clone().all(|g| g.all().is_empty());
    let mut doubts: Vec<String> = groups.flat_map(|groups| groups.doubts(flows.asm)).collect();
    if no_multicast && (flows.asm || flows.sources().is_given()) {
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
    doubts.extend(flows.relays().iter().filter_map(Relay::doubt));
    if !flows.relays().is_empty() && no_multicast {
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
