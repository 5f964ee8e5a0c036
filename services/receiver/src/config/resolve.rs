//! From layers to settings.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use feed::feed_file;
use flexicast_tokio::receiver::{Relays, Verify};
use service::ownership;
use service::settings::{Environment, Layer, Layers, Origin, Problems, Taker, Value};
use service::values::{count, size};

use super::{JournalSettings, Loaded, Settings, TABLE, hooks, values};
use crate::durable::FileError;
use crate::link::Link;

/// A link file is a line; more than this is another file.
const MAX_LINK_FILE: u64 = 64 << 10;

/// All authorities of the web are less, in bytes.
const MAX_CA_FILE: u64 = 4 << 20;

/// The most entries of a feed file: all of them are in memory, and each write writes all.
const MAX_KEEP_ENTRIES: u32 = 10_000;

/// Default HTTP address.
const HTTP: ([u8; 4], u16) = ([127, 0, 0, 1], 8080);

/// Default of the time between two writes of the feed files.
const FILE_INTERVAL: Duration = Duration::from_secs(5);

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

/// Joins what the command line says with the environment and the TOML file that either names.
///
/// # Errors
/// Everything that is wrong.
pub fn load(line: Layer, environment: &Environment) -> Result<Loaded, Problems> {
    load_or(line, environment, |_| None).map(|(loaded, _)| loaded)
}

/// The same; where no link is given, `link_of` may know one for the data folder. Returns whether
/// that was so.
///
/// # Errors
/// Everything that is wrong.
pub fn load_or(
    line: Layer,
    environment: &Environment,
    link_of: impl Fn(&Path) -> Option<String>,
) -> Result<(Loaded, bool), Problems> {
    let (mut layers, problems) = TABLE.gather(line, environment);
    let mut made_up = false;
    if layers.with_any(&["link", "link_file"]).is_none()
        && let Some(link) = link_of(&data(&layers))
        && let Some(setting) = TABLE.find("link")
    {
        made_up = true;
        let mut layer = Layer::default();
        let origin = Origin::Line("the data folder's status".into());
        layer.put(setting, origin, Value::Texts(vec![link]));
        layers.0.push(layer);
    }
    let mut taker = Taker::new(&TABLE, &layers, problems);
    let mut warnings = TABLE.warnings(environment);
    let settings = settings(&mut taker, &mut warnings);
    // Without a link there are no settings, and that is one of the problems.
    let settings = taker.finish(settings)?.ok_or_else(no_link)?;
    Ok((
        Loaded {
            settings,
            warnings,
            layers,
        },
        made_up,
    ))
}

/// Returns only the data folder, for commands that look at one.
///
/// # Errors
/// The settings that could name it cannot be read.
pub fn data_folder(line: Layer, environment: &Environment) -> Result<PathBuf, Problems> {
    TABLE.load_some(line, environment, |taker| data(taker.layers))
}

/// Returns only the HTTP address, for commands that ask a running receiver; `None` for no HTTP.
///
/// # Errors
/// The settings that could name it cannot be read.
pub fn http_address(
    line: Layer,
    environment: &Environment,
) -> Result<Option<SocketAddr>, Problems> {
    TABLE.load_some(line, environment, |taker| {
        taker.http(HTTP.into()).map(|http| http.addr)
    })
}

fn no_link() -> Problems {
    Problems(vec![NO_LINK.to_owned()])
}

fn data(layers: &Layers) -> PathBuf {
    let given = Taker::new(&TABLE, layers, Vec::new()).path("data");
    given.unwrap_or_else(|| "./flexfeed-receiver".into())
}

fn settings(taker: &mut Taker<'_>, warnings: &mut Vec<String>) -> Option<Settings> {
    let link = link(taker, warnings);
    let channels = link.as_ref().map_or(&[][..], |link| &link.channels);
    let (webhooks, exec) = hooks::read(taker, channels);
    let (no_json, no_multicast, no_replicate) = (
        taker.is_on("no_json"),
        taker.is_on("no_multicast"),
        taker.is_on("no_replicate"),
    );
    let (no_amt, no_amt_dns) = (taker.is_on("no_amt"), taker.is_on("no_amt_dns"));
    let insecure = taker.is_on("insecure");
    let http = taker.http(HTTP.into());
    let name = taker.value("name", values::name);
    let interface = taker.value("interface", values::interface);
    let relays = taker.value("amt_relay", values::relays);
    let port = taker.value("amt_local_port", values::port);
    let log = taker.log();
    let keep_entries = taker.value("keep_entries", |text| count(text, MAX_KEEP_ENTRIES));
    let updates = taker.value("journal_updates", |text| {
        count(text, u32::MAX).and_then(|n| at_least(n, 16))
    });
    let bytes = taker.value("journal_bytes", |text| {
        size(text).and_then(|n| at_least(n, 64 << 10))
    });
    let history = taker.value("history", values::history);
    let file_interval = taker.value("file_interval", values::file_interval);
    let link = link?;
    Some(Settings {
        verify: verify(&link, insecure, taker, warnings),
        data: data(taker.layers),
        name: name.unwrap_or_else(machine_name),
        http,
        json: !no_json,
        keep_entries: keep_entries.map_or(feed_file::KEEP, |n| n as usize),
        file_interval: file_interval.unwrap_or(FILE_INTERVAL),
        webhooks,
        exec,
        delivery_log: taker.path("delivery_log"),
        interface,
        multicast: !no_multicast,
        replicate: !no_replicate,
        amt: (!no_amt).then(|| Relays {
            dns: !no_amt_dns,
            port,
            ..relays.unwrap_or_default()
        }),
        qlog: taker.path("qlog"),
        log,
        journal: JournalSettings {
            updates: updates.unwrap_or(10_000) as usize,
            bytes: bytes.unwrap_or(64 << 20),
        },
        history,
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

/// Returns the verification of the source. One weaker than the link's needs a setting, and a
/// warning.
fn verify(
    link: &Link,
    insecure: bool,
    taker: &mut Taker<'_>,
    warnings: &mut Vec<String>,
) -> Verify {
    let ca_file = taker.text("ca_file");
    if insecure {
        warnings.push(format!(
            "THE SOURCE IS NOT VERIFIED (insecure): any machine that answers for {} learns this \
             receiver's token and credential, and can deliver arbitrary updates; only for tests",
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

fn link(taker: &mut Taker<'_>, warnings: &mut Vec<String>) -> Option<Link> {
    let layer = taker.layers.with_any(&["link", "link_file"]);
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

/// Returns the error of a link file that cannot be read. The source makes it for its owner only,
/// often another user than the receiver's.
fn unreadable(error: &FileError) -> String {
    let mut text = format!("{error}; it should hold the enrolment link");
    if error.source.kind() == io::ErrorKind::PermissionDenied {
        text.push_str(&format!("; {}", ownership::remedy_to_read(&error.path)));
    }
    text
}

/// The first line that is neither empty nor a comment.
fn read_link(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_LINK_FILE + 1).read_to_end(&mut bytes))
        .map_err(FileError::of("read the link file", path))
        .map_err(|error| unreadable(&error))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_link_comes_with_a_remedy() {
        let path = Path::new("/home/link");
        let said = |kind: io::ErrorKind| {
            let error = FileError::of("read the link file", path)(kind.into());
            unreadable(&error)
        };
        let text = said(io::ErrorKind::PermissionDenied);
        assert!(
            text.contains("cannot read the link file /home/link"),
            "{text}"
        );
        assert!(
            text.contains("runs as uid ") && text.contains("chown "),
            "{text}"
        );
        let text = said(io::ErrorKind::NotFound);
        assert!(
            text.ends_with("it should hold the enrolment link"),
            "{text}"
        );
    }
}
