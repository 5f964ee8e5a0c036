//! From layers to settings.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use console::config::{LISTEN, SecureCookies, SiteSettings, prefix, public_url};
use service::settings::{Environment, Layer, Problems, Taker};

use super::{DatabaseUrl, Loaded, Settings, TABLE, values};

/// No such file is longer, in bytes.
const MAX_SECRET: u64 = 64 << 10;

/// Returns the settings of the command line, the environment and the TOML file that either names.
///
/// # Errors
/// All problems of the settings.
pub fn load(line: Layer, environment: &Environment) -> Result<Loaded, Problems> {
    let mut loaded = TABLE.load(line, environment, settings)?;
    loaded.warnings.extend(doubts(&loaded.settings));
    Ok(loaded)
}

/// Returns the database, and what links need, for commands on the database.
///
/// # Errors
/// The settings that could name the database cannot be read, or none does.
pub fn load_database(
    line: Layer,
    environment: &Environment,
) -> Result<(DatabaseUrl, SiteSettings, SocketAddr), Problems> {
    TABLE.load_some(line, environment, |taker| {
        (database(taker), site(taker), listen(taker))
    })
}

/// Returns only the HTTP address, for commands that ask a running console.
///
/// # Errors
/// The settings that could name it cannot be read.
pub fn load_listen(line: Layer, environment: &Environment) -> Result<SocketAddr, Problems> {
    TABLE.load_some(line, environment, listen)
}

/// The database: the URL, or the file that holds it.
fn database(taker: &mut Taker<'_>) -> DatabaseUrl {
    let none = DatabaseUrl(String::new());
    let (own, file) = (taker.text("database_url"), taker.text("database_url_file"));
    let (origin, url) = match (own, file) {
        (Some((origin, _)), Some((other, _))) => {
            let what = format!("has no effect together with {other}; leave one of them out");
            taker.wrong(origin, &what);
            return none;
        }
        (Some((origin, url)), None) => (origin, url.trim().to_owned()),
        (None, Some((origin, path))) => match read_secret(Path::new(path)) {
            Ok(url) => (origin, url),
            Err(what) => {
                taker.wrong(origin, &what);
                return none;
            }
        },
        (None, None) => {
            taker.problem(
                "no database is named: give --database-url, or DATABASE_URL in the environment, \
                 as the source has it"
                    .to_owned(),
            );
            return none;
        }
    };
    if let Err(error) = store::check_url(&url) {
        taker.wrong(origin, &error.to_string());
    }
    DatabaseUrl(url)
}

fn site(taker: &mut Taker<'_>) -> SiteSettings {
    let default = SiteSettings::default();
    SiteSettings {
        public_url: taker.value("public_url", public_url),
        secure_cookies: taker
            .value("secure_cookies", values::secure_cookies)
            .unwrap_or(default.secure_cookies),
        trusted_proxies: taker.list("trusted_proxy", prefix).unwrap_or_default(),
        session_time: taker
            .value("session_time", values::session_time)
            .unwrap_or(default.session_time),
        allow_private_feeds: taker.is_on("allow_private_feeds"),
        contact: taker.value("contact", values::contact),
    }
}

fn listen(taker: &mut Taker<'_>) -> SocketAddr {
    taker
        .value("listen", |text| service::values::listen(text, LISTEN.1))
        .unwrap_or_else(|| LISTEN.into())
}

fn settings(taker: &mut Taker<'_>) -> Settings {
    Settings {
        database: database(taker),
        listen: listen(taker),
        site: site(taker),
        log: taker.log(),
    }
}

/// Returns warnings about valid but suspicious settings.
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

/// The first line of a file.
fn read_secret(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_SECRET).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text.lines().next().unwrap_or_default().trim().to_owned()),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}
