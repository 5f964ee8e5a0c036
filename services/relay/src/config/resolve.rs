//! From layers to settings.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use amt::relay;

use super::layer::{Layer, Layers, Origin};
use super::table::SETTINGS;
use super::values::{self, Listen, LogFormat};
use super::{HttpSettings, Problems, Settings, file};
use crate::engine::Receive;
use service::peer_text::plain;

/// Where HTTP is answered if nobody says anything.
const HTTP: ([u8; 4], u16) = ([127, 0, 0, 1], 8091);

/// The port of a flexfeed source's flows, unless it is set there.
const FLOW_PORT: u16 = 4434;

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
    let warnings = super::check::unknown_variables(names)
        .map(|name| {
            format!("the environment variable {name} is no setting of this program and is ignored")
        })
        .collect();
    let settings = taker.settings();
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

/// Only where a running relay answers HTTP, for commands that look at one.
///
/// # Errors
/// If the settings that could name it cannot be read.
pub fn http_address<T: Into<OsString>>(
    line: Layer,
    variable: impl Fn(&str) -> Option<T>,
) -> Result<Option<SocketAddr>, Problems> {
    let (layers, problems) = gather(line, variable);
    let mut taker = Taker {
        layers: &layers,
        problems,
    };
    let http = taker.http().map(|http| http.addr);
    if taker.problems.is_empty() {
        Ok(http)
    } else {
        Err(Problems(taker.problems))
    }
}

/// The layers, the strongest first.
fn gather<T: Into<OsString>>(
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

    fn http(&mut self) -> Option<HttpSettings> {
        match self.value("http", values::http) {
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

    fn receive(&mut self) -> Receive {
        let ports = self.list("udp_ports", values::port);
        let capture = self.value("capture", values::switch).unwrap_or(false);
        if capture {
            let layers = self.layers;
            if ports.is_some()
                && let Some(given) = layers.given("udp_ports")
            {
                self.wrong(
                    &given.origin,
                    "has no effect together with capture, which receives all ports; leave one of them out",
                );
            }
            return Receive::Capture;
        }
        let mut ports = ports.unwrap_or_else(|| vec![FLOW_PORT]);
        ports.sort_unstable();
        ports.dedup();
        Receive::Ports(ports)
    }

    fn relay(&mut self) -> relay::Config {
        let mut config = relay::Config::default();
        let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        if let Some(number) = self.value("max_gateways", values::count) {
            config.max_gateways = size(number);
        }
        if let Some(number) = self.value("max_groups_per_gateway", values::count) {
            config.max_groups_per_gateway = size(number);
        }
        if let Some(number) = self.value("max_groups", values::count) {
            config.max_joins = size(number);
        }
        if let Some(number) = self.value("requests_per_second_per_address", values::count) {
            config.requests_per_second = number;
        }
        if let Some(interval) = self.value("query_interval", values::query_interval) {
            config.query_interval = interval;
            // A host has to answer before the next Query.
            config.max_response = config.max_response.min(interval / 2);
        }
        if let Some(when) = self.value("gateway_address_in_query", values::gateway_address) {
            config.gateway_address = when;
        }
        if let Some(mtu) = self.value("mtu", values::mtu) {
            config.mtu = mtu;
        }
        config.allow = self.list("allow", values::prefix).unwrap_or_default();
        config.deny = self.list("deny", values::prefix).unwrap_or_default();
        for ip in self.list("advertise", values::address).unwrap_or_default() {
            let twice = match ip {
                IpAddr::V4(ip) => config.advertise_v4.replace(ip).is_some(),
                IpAddr::V6(ip) => config.advertise_v6.replace(ip).is_some(),
            };
            if twice && let Some(given) = self.layers.given("advertise") {
                self.wrong(
                    &given.origin,
                    "has two addresses of one family; leave one of them out",
                );
            }
        }
        config
    }

    fn settings(&mut self) -> Settings {
        let listen = self.list("listen", values::listen);
        Settings {
            listen: listen.unwrap_or_else(|| vec![Listen::All(amt::PORT)]),
            interface: self.value("native_interface", values::interface),
            receive: self.receive(),
            relay: self.relay(),
            drain_time: self
                .value("drain_time", values::duration)
                .unwrap_or(super::DRAIN_TIME),
            http: self.http(),
            log_format: self
                .value("log_format", values::log_format)
                .unwrap_or(LogFormat::Text),
            log_level: self.value("log_level", |text| Ok(text.to_owned())),
        }
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
        let value = given.map(|given| plain(&given.texts.join(",")));
        Shown {
            name: setting.name,
            value: value.unwrap_or_else(|| setting.default.to_owned()),
            origin: given.map(|given| given.origin.to_string()),
        }
    });
    all.collect()
}
