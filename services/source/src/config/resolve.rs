//! From all places to one configuration, or to a list of everything that is wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ArgMatches;

use super::channels::{self, ChannelSettings, ChannelTable};
use super::environment::Environment;
use super::file::{self, Content};
use super::settings::{self, Setting, Settings};
use super::{Config, Console, Intervals, Keep, OwnCertificate, Relay, command_line, values};

/// With fewer updates kept, even receivers that are away for moments may miss some.
const FEW_KEPT: u64 = 100;

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Nowhere.
    Default,
    /// In a configuration file.
    File {
        /// Which.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// As it is written there; empty for none in particular.
        key: String,
    },
    /// In this environment variable.
    Variable(String),
    /// By this flag, without its dashes.
    Flag(&'static str),
}

impl Place {
    /// The higher, the stronger.
    fn rank(&self) -> u8 {
        match self {
            Place::Default => 0,
            Place::File { .. } => 1,
            Place::Variable(_) => 2,
            Place::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Default => f.write_str("default"),
            Place::File { path, line, key } if key.is_empty() => {
                write!(f, "{}, line {line}", path.display())
            }
            Place::File { path, line, key } => {
                let key = key.escape_debug();
                write!(f, "{}, line {line}, {key}", path.display())
            }
            Place::Variable(name) => f.write_str(name),
            Place::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// A value as it is given, and where.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub text: String,
    pub place: Place,
}

/// Settings of one place, by name.
pub(super) type Layer = BTreeMap<&'static str, Given>;

/// Something that cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    /// `None` where it is of several places.
    place: Option<Place>,
    why: String,
}

impl Mistake {
    pub(super) fn at(place: Place, why: String) -> Self {
        Self {
            place: Some(place),
            why,
        }
    }

    fn of_several(why: String) -> Self {
        Self { place: None, why }
    }

    /// Returns its line in a file; 0 for elsewhere.
    pub(super) fn line(&self) -> usize {
        match self.place {
            Some(Place::File { line, .. }) => line,
            _ => 0,
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place}: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

/// A setting as it is in the end.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its key in a configuration file.
    pub key: String,
    /// As it was written; nothing for one that is not given and has no default, stars for a secret.
    pub value: String,
    /// Origin of the value.
    pub place: Place,
}

/// Everything that is known of the settings.
#[derive(Debug)]
pub struct Resolved {
    /// The configuration, or everything that is wrong with it.
    pub config: Result<Config, Vec<String>>,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// Every setting.
    pub shown: Vec<Shown>,
}

/// Brings together what the command line, the environment and the configuration file say.
pub fn resolve(matches: &ArgMatches, environment: &Environment) -> Resolved {
    let mut mistakes = Vec::new();
    let path = command_line::config(matches).or_else(|| environment.config());
    let mut warnings = environment.unknown();
    let content = match &path {
        Some(path) => read_file(path, &mut mistakes, &mut warnings),
        None => Content::default(),
    };
    let layers = [
        defaults(),
        content.settings,
        environment.layer(&mut mistakes),
        command_line::layer(matches),
    ];
    let mut settings = Settings::default();
    let mut winners = Layer::new();
    for layer in layers {
        for (name, given) in layer {
            let Some(setting) = Setting::named(name) else {
                continue;
            };
            // What a stronger place overrides is still looked at: it is a mistake all the same.
            match (setting.take)(&mut settings, &given.text) {
                Ok(()) => {
                    winners.insert(name, given);
                }
                Err(why) => mistakes.push(Mistake::at(given.place, why)),
            }
        }
    }
    let shown = settings::ALL.iter().map(|setting| show(setting, &winners));
    let shown = shown.collect();
    let assembly = Assembly {
        settings,
        winners,
        mistakes,
        warnings,
    };
    Resolved {
        config: assembly.config(content.channels),
        file: path,
        shown,
    }
}

fn defaults() -> Layer {
    let with_default = settings::ALL.iter().filter(|s| !s.default.is_empty());
    let given = |setting: &Setting| Given {
        text: setting.default.to_owned(),
        place: Place::Default,
    };
    with_default.map(|s| (s.name, given(s))).collect()
}

fn show(setting: &Setting, winners: &Layer) -> Shown {
    let (value, place) = match winners.get(setting.name) {
        Some(given) if setting.secret => ("***".to_owned(), given.place.clone()),
        Some(given) => (given.text.clone(), given.place.clone()),
        None => (String::new(), Place::Default),
    };
    Shown {
        key: setting.key(),
        value,
        place,
    }
}

fn read_file(path: &Path, mistakes: &mut Vec<Mistake>, warnings: &mut Vec<String>) -> Content {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        let mode = file.metadata()?.permissions().mode();
        file.take(file::MAX_FILE + 1).read_to_string(&mut text)?;
        Ok(mode)
    });
    let mode = match read {
        Ok(mode) if text.len() as u64 <= file::MAX_FILE => mode,
        Ok(_) => {
            let why = format!("it is longer than {} bytes", file::MAX_FILE);
            mistakes.push(Mistake::of_several(format!("{}: {why}", path.display())));
            return Content::default();
        }
        Err(error) => {
            let path = path.display();
            mistakes.push(Mistake::of_several(format!(
                "the configuration file {path} cannot be read: {error}"
            )));
            return Content::default();
        }
    };
    let content = file::read(path, &text, mistakes);
    let has_password = content
        .settings
        .values()
        .any(|given| values::has_password(&given.text))
        || content
            .channels
            .iter()
            .flat_map(|channel| &channel.feeds)
            .any(|feed| values::has_password(&feed.address.secret));
    if has_password && mode & 0o044 != 0 {
        warnings.push(format!(
            "{0} holds a password and other users may read it; to end that: chmod 600 {0}",
            path.display()
        ));
    }
    content
}

/// A configuration in the making.
struct Assembly {
    settings: Settings,
    winners: Layer,
    mistakes: Vec<Mistake>,
    warnings: Vec<String>,
}

impl Assembly {
    fn config(mut self, tables: Vec<ChannelTable>) -> Result<Config, Vec<String>> {
        let channels = self.channels(tables);
        let poll = self.poll();
        let certificate = self.certificate();
        self.check(&channels);
        let all = (channels, poll, certificate);
        match self.finish(all) {
            Ok(config) => Ok(config),
            Err(mut mistakes) => {
                // As they are found when the file is read from the top, then the rest.
                mistakes.sort_by_key(|mistake| mistake.line().wrapping_sub(1));
                Err(mistakes.iter().map(ToString::to_string).collect())
            }
        }
    }

    fn place(&self, name: &str) -> Place {
        self.winners
            .get(name)
            .map_or(Place::Default, |given| given.place.clone())
    }

    fn wrong(&mut self, text: String) {
        self.mistakes.push(Mistake::of_several(text));
    }

    /// The channel of the flags, those of `--channel-spec`, and those of the file.
    fn channels(&mut self, tables: Vec<ChannelTable>) -> Vec<ChannelSettings> {
        let s = self.settings.clone();
        let (Some(name), Some(groups), Some(rate_bps)) = (s.channel, s.group, s.rate) else {
            // A mistake in them has been noted.
            return Vec::new();
        };
        let first = ChannelSettings {
            name,
            feeds: s.feed.into_iter().map(|address| address.into()).collect(),
            groups,
            rate_bps,
            private: s.private == Some(true),
            keep: self.keep(),
        };
        let mut all = Vec::new();
        if !first.feeds.is_empty() || self.place("channel") != Place::Default {
            all.push(first.clone());
        } else if first.private {
            self.warnings.push(format!(
                "{} is for the first channel, and there is none (--feed, --channel)",
                self.place("private")
            ));
        }
        let specs = s.channel_spec.unwrap_or_default();
        for spec in specs.split_whitespace() {
            // Without a first channel the groups begin with the first of these.
            match channels::further(spec, all.len(), &first) {
                Ok(channel) => all.push(channel),
                Err(why) => {
                    let place = self.place("channel-spec");
                    self.mistakes.push(Mistake::at(place, why));
                }
            }
        }
        for table in tables {
            let place = table.place.clone().unwrap_or(Place::Default);
            match table.settle(all.len(), &first) {
                Ok(channel) => all.push(channel),
                Err(why) => self.mistakes.push(Mistake::at(place, why)),
            }
        }
        if let Err(why) = channels::check(&all) {
            self.wrong(why);
        }
        all
    }

    fn keep(&self) -> Keep {
        Keep {
            count: self.settings.retention.filter(|&count| count > 0),
            age: self.settings.retention_age,
        }
    }

    /// A fixed interval and its bounds exclude each other; what is given in the stronger place
    /// holds.
    fn poll(&mut self) -> Intervals {
        let s = &self.settings;
        let fixed = s.poll_interval;
        let (min, max) = (
            s.min_poll_interval.unwrap_or_default(),
            s.max_poll_interval.unwrap_or_default(),
        );
        let rank = |name| self.place(name).rank();
        let bounds = rank("min-poll-interval").max(rank("max-poll-interval"));
        match fixed {
            Some(fixed) if rank("poll-interval") > bounds => {
                return Intervals {
                    min: fixed,
                    max: fixed,
                };
            }
            Some(_) if rank("poll-interval") == bounds => {
                let text = format!(
                    "{} polls at fixed times: leave it out, or the shortest and the longest \
                     interval (--min-poll-interval, --max-poll-interval)",
                    self.place("poll-interval")
                );
                self.wrong(text);
            }
            _ => {}
        }
        if min > max {
            let text = format!(
                "the shortest interval between polls ({}) is longer than the longest one ({})",
                self.place("min-poll-interval"),
                self.place("max-poll-interval")
            );
            self.wrong(text);
        }
        Intervals { min, max }
    }

    fn certificate(&mut self) -> Option<OwnCertificate> {
        match (self.settings.cert.clone(), self.settings.key.clone()) {
            (Some(cert), Some(key)) => Some(OwnCertificate { cert, key }),
            (None, None) => None,
            (Some(_), None) => {
                let cert = self.place("cert");
                self.wrong(format!("{cert}: its private key is missing: give --key"));
                None
            }
            (None, Some(_)) => {
                let key = self.place("key");
                self.wrong(format!("{key}: its certificate is missing: give --cert"));
                None
            }
        }
    }

    /// Checks settings against each other.
    fn check(&mut self, channels: &[ChannelSettings]) {
        let s = self.settings.clone();
        if let (Some(ack), Some(fall_back)) = (s.ack_delay_ms, s.fall_back_ms)
            && fall_back <= ack
        {
            self.wrong(format!(
                "--fall-back-ms {fall_back} must be longer than --ack-delay-ms {ack}: receivers \
                 may hold acknowledgements back for that long"
            ));
        }
        let asm = s.asm == Some(true);
        for channel in channels {
            self.warnings.extend(channel.groups.doubts(asm));
        }
        let multicast = channels.iter().any(|c| !c.groups.all().is_empty());
        let flow_source = s.flow_source.unwrap_or_default();
        if !channels.is_empty() && !multicast && (asm || flow_source.is_given()) {
            self.warnings.push(
                "--asm and --flow-source have no effect without multicast (--group is empty)"
                    .into(),
            );
        }
        for (what, keep) in std::iter::once(("--retention".to_owned(), self.keep())).chain(
            channels
                .iter()
                .map(|c| (format!("channel {:?}", c.name), c.keep)),
        ) {
            if let Some(count @ 1..FEW_KEPT) = keep.count
                && (what.starts_with('-') || keep != self.keep())
            {
                self.warnings.push(format!(
                    "{what} {count}: receivers that are away for no more than so many updates \
                     miss some"
                ));
            }
        }
        let relays = s.relay.as_deref().unwrap_or_default();
        self.warnings.extend(relays.iter().filter_map(Relay::doubt));
        if !relays.is_empty() && !channels.is_empty() && !multicast {
            self.warnings.push(
                "--relay has no effect without multicast (--group is empty): relays get flows by \
                 multicast"
                    .into(),
            );
        }
        if let Some(listen) = s.listen {
            let doubt = values::reachability(s.public_address.as_ref(), listen);
            self.warnings.extend(doubt);
        }
    }

    fn finish(
        self,
        (channels, poll, certificate): (Vec<ChannelSettings>, Intervals, Option<OwnCertificate>),
    ) -> Result<Config, Vec<Mistake>> {
        let Self {
            settings: s,
            mistakes,
            warnings,
            ..
        } = self;
        let keep = Keep {
            count: s.retention.filter(|&count| count > 0),
            age: s.retention_age,
        };
        let console = s.console.flatten().map(|listen| Console {
            listen,
            public_url: s.console_public_url,
            trusted_proxies: s.console_trusted_proxy.unwrap_or_default(),
        });
        let complete = || {
            Some(Config {
                channels,
                first_groups: s.group?,
                allow_private_feed: s.allow_private_feed == Some(true),
                poll,
                contact: s.contact,
                data: s.data?,
                database_url: s.database_url,
                listen: s.listen?,
                public_address: s.public_address,
                flow_sources: s.flow_source.unwrap_or_default(),
                asm: s.asm == Some(true),
                multicast_ttl: u32::try_from(s.multicast_ttl?).ok()?,
                relays: s.relay.unwrap_or_default(),
                replicate: s.no_replicate != Some(true),
                keep,
                http: s.http?,
                console,
                rate_bps: s.rate?,
                unicast_rate_bps: s.unicast_rate?,
                certificate,
                next_pin: s.next_pin,
                ack_delay: Duration::from_millis(s.ack_delay_ms?),
                fall_back: Duration::from_millis(s.fall_back_ms?),
                heartbeat: Duration::from_millis(s.heartbeat_ms?),
                drain_time: s.drain_time?,
                holder_name: s.holder_name.unwrap_or_else(values::host_name),
                qlog: s.qlog,
                log_format: s.log_format?,
                log_level: s.log_level,
                warnings,
            })
        };
        match complete() {
            Some(config) if mistakes.is_empty() => Ok(config),
            _ if !mistakes.is_empty() => Err(mistakes),
            // Everything that has to be there has a default, as the tests make sure.
            _ => Err(vec![Mistake::of_several("a setting has no default".into())]),
        }
    }
}
