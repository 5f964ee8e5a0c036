//! From layers to settings.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use flexicast_tokio::receiver::{Relays, Verify};

use super::layer::{Layer, Layers, Origin, Value, shown};
use super::table::{SETTINGS, find};
use super::values::{self, LogFormat};
use super::{HttpSettings, JournalSettings, Problems, Settings, file, hooks};
use crate::durable::FileError;
use crate::link::Link;
use service::peer_text::plain;

/// A link file is a line; more than this is another file.
const MAX_LINK_FILE: u64 = 64 << 10;

/// All authorities of the web are less, in bytes.
const MAX_CA_FILE: u64 = 4 << 20;

/// Where HTTP is answered if nobody says anything.
const HTTP: ([u8; 4], u16) = ([127, 0, 0, 1], 8080);

/// The name of a machine that does not tell its own.
const NAMELESS: &str = "receiver";

/// Said where no link is given.
pub const NO_LINK: &str = "\
A receiver needs an enrolment link; the operator of the source has it. It looks like this:

  flexfeed://TOKEN@host:4433?pin=sha256:PIN&ch=lore

Give it in one of these ways:

  flexfeed-receiver 'LINK'                   in single quotes, because it has an & in it
  flexfeed-receiver --link-file FILE         keeps it out of the list of processes
  FLEXFEED_LINK or FLEXFEED_LINK_FILE        the same as environment variables, for containers
  link_file = \"FILE\"                         in the file of --config FILE

If the source is yours: 'flexfeed-source token create' prints one. See 'flexfeed-receiver --help'
for everything else.";

/// Settings, and what is worth saying about them.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// What is not wrong but perhaps not meant.
    pub warnings: Vec<String>,
    /// Who said what.
    pub layers: Layers,
}

/// Collects what is wrong.
#[derive(Debug, Default)]
pub struct Taker {
    problems: Vec<String>,
}

impl Taker {
    pub(super) fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    pub(super) fn wrong(&mut self, origin: &Origin, what: &str) {
        self.problem(format!("{origin}: {what}"));
    }

    /// The value, or the note of what is wrong with it.
    pub(super) fn take<T>(&mut self, origin: &Origin, value: Result<T, String>) -> Option<T> {
        value.map_err(|what| self.wrong(origin, &what)).ok()
    }

    /// The same, quoting the text.
    pub(super) fn parse<T>(
        &mut self,
        origin: &Origin,
        text: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let quoted = |what| format!("{:?} {what}", plain(text));
        self.take(origin, parse(text).map_err(quoted))
    }
}

/// Joins what the command line says with the environment and the TOML file that either names.
/// `variable` looks the environment up, `names` are all of its variables.
///
/// # Errors
/// Everything that is wrong.
pub fn load<T: Into<OsString>>(
    line: Layer,
    variable: impl Fn(&str) -> Option<T>,
    names: impl Iterator<Item = String>,
) -> Result<Loaded, Problems> {
    load_or(line, variable, names, |_| None).map(|(loaded, _)| loaded)
}

/// The same; where no link is given, `link_of` may know one for the data folder. Returns whether
/// that was so.
///
/// # Errors
/// Everything that is wrong.
pub fn load_or<T: Into<OsString>>(
    line: Layer,
    variable: impl Fn(&str) -> Option<T>,
    names: impl Iterator<Item = String>,
    link_of: impl Fn(&Path) -> Option<String>,
) -> Result<(Loaded, bool), Problems> {
    let names = names.filter(|name| {
        let value: OsString = variable(name).map(Into::into).unwrap_or_default();
        !service::environment::is_of_others(name, &value.to_string_lossy())
    });
    let names: Vec<String> = names.collect();
    let (mut layers, mut taker) = gather(line, variable);
    let mut made_up = false;
    if layers.with_any(&["link", "link_file"]).is_none()
        && let Some(link) = link_of(&data(&layers))
        && let Some(setting) = find("link")
    {
        made_up = true;
        let mut layer = Layer::default();
        let origin = Origin::Line("the data folder's status".into());
        layer.put(setting, origin, Value::Texts(vec![link]));
        layers.0.push(layer);
    }
    let mut warnings: Vec<String> = super::check::unknown_variables(names.into_iter())
        .map(|name| {
            format!("the environment variable {name} is no setting of this program and is ignored")
        })
        .collect();
    let settings = resolve(&layers, &mut taker, &mut warnings);
    match settings {
        Some(settings) if taker.problems.is_empty() => Ok((
            Loaded {
                settings,
                warnings,
                layers,
            },
            made_up,
        )),
        _ => Err(Problems(taker.problems)),
    }
}

/// Only the data folder, for commands that look at one.
///
/// # Errors
/// If the settings that could name it cannot be read.
pub fn data_folder<T: Into<OsString>>(
    line: Layer,
    variable: impl Fn(&str) -> Option<T>,
) -> Result<PathBuf, Problems> {
    let (layers, taker) = gather(line, variable);
    if taker.problems.is_empty() {
        Ok(data(&layers))
    } else {
        Err(Problems(taker.problems))
    }
}

/// Only where a running receiver answers HTTP, for commands that ask one; `None` for nowhere.
///
/// # Errors
/// If the settings that could name it cannot be read.
pub fn http_address<T: Into<OsString>>(
    line: Layer,
    variable: impl Fn(&str) -> Option<T>,
) -> Result<Option<SocketAddr>, Problems> {
    let (layers, mut taker) = gather(line, variable);
    let http = http(&layers, &mut taker).map(|http| http.addr);
    if taker.problems.is_empty() {
        Ok(http)
    } else {
        Err(Problems(taker.problems))
    }
}

/// The layers, the strongest first.
fn gather<T: Into<OsString>>(line: Layer, variable: impl Fn(&str) -> Option<T>) -> (Layers, Taker) {
    let (environment, problems) = Layer::of_environment(variable);
    let mut taker = Taker { problems };
    let mut layers = Layers(vec![line, environment]);
    if let Some((_, path)) = layers.text("config").filter(|(_, path)| !path.is_empty()) {
        let (layer, problems) = file::read(Path::new(path));
        taker.problems.extend(problems);
        layers.0.push(layer);
    }
    (layers, taker)
}

fn data(layers: &Layers) -> PathBuf {
    path(layers, "data").unwrap_or_else(|| "./flexfeed-receiver".into())
}

/// A text that is there; an empty one takes back what a weaker layer says.
fn text<'l>(layers: &'l Layers, name: &str) -> Option<(&'l Origin, &'l str)> {
    layers
        .text(name)
        .filter(|(_, text)| !text.trim().is_empty())
}

fn path(layers: &Layers, name: &str) -> Option<PathBuf> {
    text(layers, name).map(|(_, text)| text.into())
}

fn value<T>(
    layers: &Layers,
    taker: &mut Taker,
    name: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Option<T> {
    let (origin, text) = text(layers, name)?;
    taker.parse(origin, text, parse)
}

fn http(layers: &Layers, taker: &mut Taker) -> Option<HttpSettings> {
    match value(layers, taker, "http", values::http) {
        Some(addr) => addr.map(|addr| HttpSettings {
            addr,
            explicit: true,
        }),
        None => Some(HttpSettings {
            addr: HTTP.into(),
            explicit: false,
        }),
    }
}

fn resolve(layers: &Layers, taker: &mut Taker, warnings: &mut Vec<String>) -> Option<Settings> {
    let link = link(layers, taker, warnings);
    let channels = link.as_ref().map_or(&[][..], |link| &link.channels);
    let (webhooks, exec) = hooks::read(layers, taker, channels);
    let mut on = |name| value(layers, taker, name, values::switch).unwrap_or(false);
    let (no_json, no_multicast, no_replicate) =
        (on("no_json"), on("no_multicast"), on("no_replicate"));
    let (no_amt, no_amt_dns) = (on("no_amt"), on("no_amt_dns"));
    let insecure = on("insecure");
    let http = http(layers, taker);
    let name = value(layers, taker, "name", values::name);
    let interface = value(layers, taker, "interface", values::interface);
    let relays = value(layers, taker, "amt_relay", values::relays);
    let log_format = value(layers, taker, "log_format", values::log_format);
    let updates = value(layers, taker, "journal_updates", |text| {
        values::count(text).and_then(|n| at_least(n, 16))
    });
    let bytes = value(layers, taker, "journal_bytes", |text| {
        values::size(text).and_then(|n| at_least(n, 64 << 10))
    });
    let link = link?;
    Some(Settings {
        verify: verify(layers, &link, insecure, taker, warnings),
        data: data(layers),
        name: name.unwrap_or_else(machine_name),
        http,
        json: !no_json,
        webhooks,
        exec,
        delivery_log: path(layers, "delivery_log"),
        interface,
        multicast: !no_multicast,
        replicate: !no_replicate,
        amt: (!no_amt).then(|| Relays {
            dns: !no_amt_dns,
            ..relays.unwrap_or_default()
        }),
        qlog: path(layers, "qlog"),
        log_format: log_format.unwrap_or(LogFormat::Text),
        log_level: text(layers, "log_level").map(|(_, text)| text.to_owned()),
        journal: JournalSettings {
            updates: updates.unwrap_or(10_000) as usize,
            bytes: bytes.unwrap_or(64 << 20),
        },
        link,
    })
}

/// A bound that leaves room to work in.
fn at_least<T: PartialOrd + std::fmt::Display>(number: T, least: T) -> Result<T, String> {
    if number < least {
        return Err(format!("is less than {least}"));
    }
    Ok(number)
}

/// How the source is verified. What is weaker than the link says has to be asked for, and is told.
fn verify(
    layers: &Layers,
    link: &Link,
    insecure: bool,
    taker: &mut Taker,
    warnings: &mut Vec<String>,
) -> Verify {
    let ca_file = text(layers, "ca_file");
    if insecure {
        warnings.push(format!(
            "THE SOURCE IS NOT VERIFIED (insecure): whoever answers for {} learns this receiver's token and credential, \
             and can deliver whatever it likes; only for tests",
            link.server()
        ));
        if let Some((origin, _)) = ca_file {
            taker.wrong(
                origin,
                "has no effect together with insecure; leave one of them out",
            );
        }
        return Verify::Insecure;
    }
    match (ca_file, link.pins.is_empty()) {
        (Some((origin, _)), false) => {
            taker.wrong(
                origin,
                "has no effect, for the link has a pin, which is stricter; leave one of them out",
            );
            Verify::Roots
        }
        (_, false) => Verify::Pins(link.pins.iter().map(|pin| pin.0).collect()),
        (Some((origin, file)), true) => {
            if let Err(what) = has_certificate(Path::new(file)) {
                taker.wrong(origin, &what);
            }
            Verify::CaFile(file.into())
        }
        (None, true) => Verify::Roots,
    }
}

/// Whether it is the kind of file that is expected; the transport reads it.
fn has_certificate(path: &Path) -> Result<(), String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_CA_FILE).read_to_end(&mut bytes))
        .map_err(FileError::of("read the authorities in", path))
        .map_err(|error| error.to_string())?;
    if String::from_utf8_lossy(&bytes).contains("-----BEGIN CERTIFICATE-----") {
        return Ok(());
    }
    Err(format!("{} has no certificate in PEM form", path.display()))
}

fn link(layers: &Layers, taker: &mut Taker, warnings: &mut Vec<String>) -> Option<Link> {
    let layer = layers.with_any(&["link", "link_file"]);
    let given = layer.map(|layer| (layer.text("link"), layer.text("link_file")));
    let (origin, text) = match given {
        Some((Some((one, _)), Some((other, _)))) => {
            taker.problem(format!(
                "both {one} and {other} are given; leave one of them out"
            ));
            return None;
        }
        Some((Some((origin, text)), None)) => (origin, text.to_owned()),
        Some((None, Some((origin, file)))) => match read_link(Path::new(file)) {
            Ok(text) => (origin, text),
            Err(what) => {
                taker.wrong(origin, &what);
                return None;
            }
        },
        _ => {
            taker.problem(NO_LINK.to_owned());
            return None;
        }
    };
    match Link::parse(&text) {
        Ok((link, unknown)) => {
            warnings.extend(unknown.iter().map(|name| {
                format!("this version does not know the link's parameter {name}, which is ignored")
            }));
            Some(link)
        }
        Err(error) => {
            taker.take::<()>(origin, Err(error.to_string()));
            None
        }
    }
}

/// The first line that is neither empty nor a comment.
fn read_link(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_LINK_FILE + 1).read_to_end(&mut bytes))
        .map_err(FileError::of("read the link file", path))
        .map_err(|error| format!("{error}; it should hold the enrolment link"))?;
    let no_text = || format!("{} is no file with an enrolment link", path.display());
    if bytes.len() as u64 > MAX_LINK_FILE {
        return Err(no_text());
    }
    let text = String::from_utf8(bytes).map_err(|_| no_text())?;
    let mut lines = text.lines().map(str::trim);
    let link = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(link.ok_or_else(no_text)?.to_owned())
}

fn machine_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    values::name(&name)
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| NAMELESS.to_owned())
}

/// A setting as `config check` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Its name.
    pub name: &'static str,
    /// What may be shown of its value; empty where it is not set and has no default.
    pub value: String,
    /// Who says so; `None` for the default.
    pub origin: Option<String>,
}

/// Every setting with what it is and who says so.
#[must_use]
pub fn all_shown(loaded: &Loaded) -> Vec<Shown> {
    let all = SETTINGS.iter().map(|setting| {
        let given = loaded.layers.given(setting.name);
        let value = match given.map(|given| &given.value) {
            Some(Value::Texts(texts)) => {
                let texts = texts.iter().map(|text| shown(setting, text));
                texts.collect::<Vec<_>>().join(" ")
            }
            Some(Value::Tables(tables)) => format!("{} of them", tables.len()),
            None if setting.name == "name" => plain(&loaded.settings.name),
            None => setting.default.to_owned(),
        };
        Shown {
            name: setting.name,
            value,
            origin: given.map(|given| given.origin.to_string()),
        }
    });
    all.collect()
}
