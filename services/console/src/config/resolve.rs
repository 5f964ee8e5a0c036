//! From layers to settings.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use super::layer::{Layer, Layers, Origin};
use super::table::SETTINGS;
use super::values::{self, LogFormat};
use super::{DatabaseUrl, Problems, SecureCookies, Settings, SiteSettings, file};
use service::peer_text::plain;

/// Where HTTP is answered if nobody says anything.
const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 9470);

/// No such file is longer, in bytes.
const MAX_SECRET: u64 = 64 << 10;

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
    let (layers, problems) = gather(line, variable);
    let mut taker = Taker {
        layers: &layers,
        problems,
    };
    let mut warnings: Vec<String> = super::check::unknown_variables(names)
        .map(|name| {
            format!("the environment variable {name} is no setting of this program and is ignored")
        })
        .collect();
    let settings = taker.settings();
    warnings.extend(Taker::doubts(&settings));
    if taker.problems.is_empty() {
        Ok(Loaded {
            settings,
            warnings,
            layers,
        })
    } else {
        Err(Problems(taker.problems))
    }
}

/// Only the database, for commands that need no more.
///
/// # Errors
/// If the settings that could name it cannot be read, or none does.
pub fn load_database<T: Into<OsString>>(
    line: Layer,
    variable: impl Fn(&str) -> Option<T>,
) -> Result<(DatabaseUrl, SiteSettings), Problems> {
    let (layers, problems) = gather(line, variable);
    let mut taker = Taker {
        layers: &layers,
        problems,
    };
    let found = (taker.database(), taker.site());
    if taker.problems.is_empty() {
        Ok(found)
    } else {
        Err(Problems(taker.problems))
    }
}

/// Only where it answers HTTP, for commands that ask a running one.
///
/// # Errors
/// If the settings that could name it cannot be read.
pub fn load_listen<T: Into<OsString>>(
    line: Layer,
    variable: impl Fn(&str) -> Option<T>,
) -> Result<SocketAddr, Problems> {
    let (layers, problems) = gather(line, variable);
    let mut taker = Taker {
        layers: &layers,
        problems,
    };
    let listen = taker.listen();
    if taker.problems.is_empty() {
        Ok(listen)
    } else {
        Err(Problems(taker.problems))
    }
}

/// The layers, the strongest first.
pub(super) fn gather<T: Into<OsString>>(
    line: Layer,
    variable: impl Fn(&str) -> Option<T>,
) -> (Layers, Vec<String>) {
    let (environment, mut problems) = Layer::of_environment(variable);
    let mut layers = Layers(vec![line, environment]);
    if let Some((_, path)) = layers.text("config").filter(|(_, path)| !path.is_empty()) {
        let (layer, more) = file::read(Path::new(path));
        problems.extend(more);
        layers.0.push(layer);
    }
    (layers, problems)
}

/// Takes settings, and collects what is wrong.
struct Taker<'l> {
    layers: &'l Layers,
    problems: Vec<String>,
}

impl Taker<'_> {
    fn wrong(&mut self, origin: &Origin, what: &str) {
        self.problems.push(format!("{origin}: {what}"));
    }

    fn parse<T>(
        &mut self,
        origin: &Origin,
        text: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        match parse(text) {
            Ok(value) => Some(value),
            Err(what) => {
                self.wrong(origin, &format!("{:?} {what}", plain(text)));
                None
            }
        }
    }

    /// A value; an empty text takes back what a weaker layer says.
    fn value<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let layers = self.layers;
        let (origin, text) = layers
            .text(name)
            .filter(|(_, text)| !text.trim().is_empty())?;
        self.parse(origin, text, parse)
    }

    /// The values of a list; `None` if it is not given.
    fn list<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<Vec<T>> {
        let layers = self.layers;
        let given = layers.given(name)?;
        let texts = given.texts.iter().flat_map(|text| text.split(','));
        let texts = texts.map(str::trim).filter(|text| !text.is_empty());
        let values: Vec<T> = texts
            .filter_map(|text| self.parse(&given.origin, text, &parse))
            .collect();
        (!values.is_empty()).then_some(values)
    }

    /// The database: the URL, or the file that holds it.
    fn database(&mut self) -> DatabaseUrl {
        let layers = self.layers;
        let set = |name| {
            layers
                .text(name)
                .filter(|(_, text)| !text.trim().is_empty())
        };
        let none = DatabaseUrl(String::new());
        let (origin, url) = match (set("database_url"), set("database_url_file")) {
            (Some((origin, _)), Some((other, _))) => {
                let what = format!("has no effect together with {other}; leave one of them out");
                self.wrong(origin, &what);
                return none;
            }
            (Some((origin, url)), None) => (origin, url.trim().to_owned()),
            (None, Some((origin, path))) => match read_secret(Path::new(path)) {
                Ok(url) => (origin, url),
                Err(what) => {
                    self.wrong(origin, &what);
                    return none;
                }
            },
            (None, None) => {
                self.problems.push(
                    "no database is named: give --database-url, or DATABASE_URL in the environment, \
                     as the source has it"
                        .to_owned(),
                );
                return none;
            }
        };
        if let Err(error) = store::check_url(&url) {
            self.wrong(origin, &error.to_string());
        }
        DatabaseUrl(url)
    }

    fn site(&mut self) -> SiteSettings {
        let default = SiteSettings::default();
        SiteSettings {
            public_url: self.value("public_url", values::public_url),
            secure_cookies: self
                .value("secure_cookies", values::secure_cookies)
                .unwrap_or(default.secure_cookies),
            trusted_proxies: self
                .list("trusted_proxy", values::prefix)
                .unwrap_or_default(),
            session_time: self
                .value("session_time", values::session_time)
                .unwrap_or(default.session_time),
            allow_private_feeds: self
                .value("allow_private_feeds", values::switch)
                .unwrap_or(default.allow_private_feeds),
            contact: self.value("contact", values::contact),
        }
    }

    fn listen(&mut self) -> SocketAddr {
        self.value("listen", values::listen)
            .unwrap_or_else(|| LISTEN.into())
    }

    fn settings(&mut self) -> Settings {
        Settings {
            database: self.database(),
            listen: self.listen(),
            site: self.site(),
            log_format: self
                .value("log_format", values::log_format)
                .unwrap_or(LogFormat::Text),
            log_level: self.value("log_level", |text| Ok(text.to_owned())),
        }
    }

    /// What is not wrong but perhaps not meant.
    fn doubts(settings: &Settings) -> Vec<String> {
        let mut doubts = Vec::new();
        let beyond = !service::host::is_own(settings.listen.ip());
        if beyond && settings.site.public_url.is_none() {
            doubts.push(
                "listen is an address that other machines reach, and public_url is not set: \
                 passwords would go through the network as they are; put a proxy with TLS in front \
                 and set public_url to its https:// address"
                    .to_owned(),
            );
        }
        let https = settings
            .site
            .public_url
            .as_ref()
            .is_some_and(|url| url.scheme() == "https");
        if https && settings.site.secure_cookies == SecureCookies::Off {
            doubts.push(
                "secure_cookies is off although public_url is one of https: browsers would send \
                 the cookie without TLS, too"
                    .to_owned(),
            );
        }
        if !settings.site.trusted_proxies.is_empty() && settings.site.public_url.is_none() {
            doubts.push(
                "trusted_proxy is set and public_url is not: the address that people use is taken \
                 from the Host that the proxy sends"
                    .to_owned(),
            );
        }
        doubts
    }
}

/// The first line of a file.
fn read_secret(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_SECRET).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text.lines().next().unwrap_or_default().trim().to_owned()),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// A setting as `config check` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Its name.
    pub name: &'static str,
    /// Its value; empty where it is not set and has no default.
    pub value: String,
    /// Who says so; `None` for the default.
    pub origin: Option<String>,
}

/// Every setting with what it is and who says so.
#[must_use]
pub fn all_shown(loaded: &Loaded) -> Vec<Shown> {
    let all = SETTINGS.iter().map(|setting| {
        let given = loaded.layers.given(setting.name);
        let value = given.map(|given| match setting.is_secret() {
            true => "(secret)".to_owned(),
            false => plain(&given.texts.join(",")),
        });
        Shown {
            name: setting.name,
            value: value.unwrap_or_else(|| setting.default.to_owned()),
            origin: given.map(|given| given.origin.to_string()),
        }
    });
    all.collect()
}
