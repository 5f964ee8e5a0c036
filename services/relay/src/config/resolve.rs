//! From layers to settings.

use std::net::{IpAddr, SocketAddr};

use amt::relay;
use service::settings::{Environment, Layer, Problems, Taker};

use super::values::{self, Listen};
use super::{Loaded, Settings, TABLE};
use crate::engine::Receive;

/// Default HTTP address.
const HTTP: ([u8; 4], u16) = ([127, 0, 0, 1], 8091);

/// Default port of a flexfeed source's flows.
const FLOW_PORT: u16 = 4434;

/// Returns the settings of the command line, the environment and the TOML file that either names.
///
/// # Errors
/// All problems of the settings.
pub fn load(line: Layer, environment: &Environment) -> Result<Loaded, Problems> {
    TABLE.load(line, environment, settings)
}

/// Returns only the HTTP address, for commands that ask a running relay.
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

fn receive(taker: &mut Taker<'_>) -> Receive {
    let ports = taker.list("udp_ports", values::port);
    let capture = taker.is_on("capture");
    if capture {
        let layers = taker.layers;
        if ports.is_some()
            && let Some(given) = layers.given("udp_ports")
        {
            taker.wrong(
                &given.origin,
                "has no effect together with capture, which receives all ports; leave one of them \
                 out",
            );
        }
        return Receive::Capture;
    }
    let mut ports = ports.unwrap_or_else(|| vec![FLOW_PORT]);
    ports.sort_unstable();
    ports.dedup();
    Receive::Ports(ports)
}

fn relay(taker: &mut Taker<'_>) -> relay::Config {
    let mut config = relay::Config::default();
    let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    if let Some(number) = taker.value("max_gateways", values::count) {
        config.max_gateways = size(number);
    }
    if let Some(number) = taker.value("max_groups_per_gateway", values::count) {
        config.max_groups_per_gateway = size(number);
    }
    if let Some(number) = taker.value("max_groups", values::count) {
        config.max_joins = size(number);
    }
    if let Some(number) = taker.value("requests_per_second_per_address", values::count) {
        config.requests_per_second = number;
    }
    if let Some(interval) = taker.value("query_interval", values::query_interval) {
        config.query_interval = interval;
        // A host has to answer before the next Query.
        config.max_response = config.max_response.min(interval / 2);
    }
    if let Some(when) = taker.value("gateway_address_in_query", values::gateway_address) {
        config.gateway_address = when;
    }
    if let Some(mtu) = taker.value("mtu", values::mtu) {
        config.mtu = mtu;
    }
    config.allow = taker.list("allow", values::prefix).unwrap_or_default();
    config.deny = taker.list("deny", values::prefix).unwrap_or_default();
    for ip in taker.list("advertise", values::address).unwrap_or_default() {
        let twice = match ip {
            IpAddr::V4(ip) => config.advertise_v4.replace(ip).is_some(),
            IpAddr::V6(ip) => config.advertise_v6.replace(ip).is_some(),
        };
        if twice && let Some(given) = taker.layers.given("advertise") {
            taker.wrong(
                &given.origin,
                "has two addresses of one family; leave one of them out",
            );
        }
    }
    config
}

fn settings(taker: &mut Taker<'_>) -> Settings {
    let listen = taker.list("listen", values::listen);
    Settings {
        listen: listen.unwrap_or_else(|| vec![Listen::All(amt::PORT)]),
        interface: taker.value("native_interface", values::interface),
        receive: receive(taker),
        relay: relay(taker),
        drain_time: taker
            .value("drain_time", service::values::duration_or_seconds)
            .unwrap_or(super::DRAIN_TIME),
        http: taker.http(HTTP.into()),
        log: taker.log(),
    }
}
