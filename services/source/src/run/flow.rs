//! The flow of a channel, from its settings.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, anyhow, bail};
use flexicast_tokio::source::{
    FecConfig, FlowEndpoint, FlowSettings, PacketAuthentication, RateControl, TAGS_UP_TO,
};
use netio::HostAddress;
use store::{AuthenticationType, ChannelSettings, FecSetting, Retention};

use crate::clock::millis;
use crate::config::{Config, Groups, Keep, groups as parse_groups};

/// Sending parameters of a channel; a change makes another flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FlowParameters {
    pub(super) groups: Groups,
    pub(super) rate_bps: u64,
    pub(super) private: bool,
    pub(super) packet_authentication: AuthenticationType,
    pub(super) fec: Option<FecConfig>,
}

impl FlowParameters {
    /// Returns the database's values, and this process's settings for the rest.
    pub(super) fn of(config: &Config, settings: &ChannelSettings) -> Result<Self> {
        let groups = match &settings.groups {
            Some(groups) => parse_groups(groups).map_err(|why| {
                anyhow!("its groups {groups:?} cannot be used: {why} (flexfeed-source channel set)")
            })?,
            None => Groups::default(),
        };
        Ok(Self {
            groups,
            rate_bps: settings.rate_bps.unwrap_or(config.flows.rate_bps),
            private: settings.private,
            packet_authentication: settings.packet_authentication,
            fec: fec(&settings.fec)?,
        })
    }

    /// Returns the paths of its updates, in words.
    pub(super) fn paths(&self, config: &Config) -> String {
        let groups = self.groups.all().iter().map(ToString::to_string);
        let groups: Vec<String> = groups.collect();
        let private = if self.private { "private, " } else { "" };
        match (groups.as_slice(), config.flows.replicate) {
            ([], true) => format!("{private}its flow by replication only"),
            ([], false) => format!("{private}by unicast only"),
            (groups, _) => format!("{private}its flow on {}", groups.join(" and ")),
        }
    }

    /// Returns the groups with the addresses of this machine that their packets come from.
    pub(super) fn endpoints(
        &self,
        config: &Config,
        addresses: &[HostAddress],
    ) -> Result<Vec<FlowEndpoint>> {
        let endpoints = self.groups.all().iter().map(|&group| {
            Ok(FlowEndpoint {
                group,
                interface: interface(config, group, addresses)?,
                asm: config.flows.asm,
                ttl: config.flows.ttl,
            })
        });
        endpoints.collect()
    }

    /// Returns the flow for the transport; `None` if everything goes by unicast.
    pub(super) fn flow(
        &self,
        config: &Config,
        addresses: &[HostAddress],
    ) -> Result<Option<FlowSettings>> {
        let endpoints = self.endpoints(config, addresses)?;
        if endpoints.is_empty() && !config.flows.replicate {
            return Ok(None);
        }
        Ok(Some(FlowSettings {
            endpoints,
            replicate: config.flows.replicate,
            rate_bps: self.rate_bps,
            control: RateControl {
                policy: config.flows.rate_policy,
                min_rate: config.flows.min_rate,
                max_loss: f64::from(config.flows.max_loss) / 100.0,
            },
            authentication: authentication(self.packet_authentication),
            fec: self.fec,
        }))
    }
}

/// Returns the authentication of packets for the transport.
fn authentication(kind: AuthenticationType) -> Option<PacketAuthentication> {
    match kind {
        AuthenticationType::None => None,
        AuthenticationType::Signature => Some(PacketAuthentication::Signature),
        AuthenticationType::Stream => Some(PacketAuthentication::Stream),
        AuthenticationType::Tags => Some(PacketAuthentication::Tags),
        AuthenticationType::Auto => Some(PacketAuthentication::Auto {
            tags_up_to: TAGS_UP_TO,
        }),
    }
}

/// Returns the erasure coding for the transport.
fn fec(setting: &FecSetting) -> Result<Option<FecConfig>> {
    let coding = setting.coding().map(str::parse).transpose();
    coding.context("its erasure coding cannot be used (flexfeed-source channel set --fec)")
}

/// Returns the retention of a channel: its own, or that of this process's settings.
pub(super) fn keep(config: &Config, settings: &ChannelSettings) -> Retention {
    match settings.keep == Retention::default() {
        true => config.keep.into(),
        false => settings.keep,
    }
}

impl From<Keep> for Retention {
    fn from(keep: Keep) -> Self {
        Self {
            count: keep.count,
            age_ms: keep.age.map(millis),
        }
    }
}

/// Returns the local address that sends the flow to a group: of `addresses`, none that is about to
/// go, if its interface has another one.
fn interface(config: &Config, group: SocketAddr, addresses: &[HostAddress]) -> Result<IpAddr> {
    if let Some(ip) = config.flows.sources.unwrap_or_default().of_family(group) {
        return Ok(ip);
    }
    let remedy = "name its address with --flow-source, or leave the group out of --group";
    let ip = netio::route_source(group.ip()).with_context(|| {
        format!("cannot find the interface that the flow to {group} should leave by; {remedy}")
    })?;
    if let IpAddr::V6(v6) = ip
        && v6.is_unicast_link_local()
    {
        bail!(
            "the flow to {group} would leave from {v6}, which routers do not forward for: this \
             machine's interface has no other IPv6 address; {remedy}"
        );
    }
    Ok(successor(ip, addresses).unwrap_or(ip))
}

/// Returns the address to use in the place of a deprecated one.
fn successor(ip: IpAddr, addresses: &[HostAddress]) -> Option<IpAddr> {
    let leaving = |one: &&HostAddress| one.ip == ip && one.deprecated;
    let old = addresses.iter().find(leaving)?;
    let other = addresses.iter().find(|one| {
        one.interface == old.interface && one.ip.is_ipv4() == ip.is_ipv4() && !one.deprecated
    });
    other.map(|one| one.ip)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_stored_as_erasure_coding_is_what_the_transport_takes() {
        let numbers = (0..=70).flat_map(|symbols| (0..=70).map(move |packets| (symbols, packets)));
        let ratios = numbers.map(|(symbols, packets)| format!("proactive:{symbols}/{packets}"));
        let words = ["adaptive", "tail", "reactive", "proactive", "on", ""];
        for policy in ratios.chain(words.map(str::to_owned)) {
            let codes = [
                "",
                ",rlc",
                ",reed-solomon",
                ",xor",
                ",ldpc",
                ",",
                ",unicast",
            ];
            let paths = ["", ",unicast", ",flow"];
            for (code, path) in codes.iter().flat_map(|c| paths.iter().map(move |p| (c, p))) {
                let text = format!("{policy}{code}{path}");
                let config: Option<FecConfig> = text.parse().ok();
                let stored: Option<FecSetting> = text.parse().ok();
                let of_stored = stored.as_ref().and_then(|stored| fec(stored).unwrap());
                assert_eq!(of_stored, config, "{text}");
                let canonical = config.map(|config| config.to_string());
                assert_eq!(
                    stored.as_ref().map(FecSetting::as_str),
                    canonical.as_deref()
                );
            }
        }
        assert_eq!(fec(&"off".parse().unwrap()).unwrap(), None);
        let default = fec(&FecSetting::default()).unwrap();
        assert_eq!(default, Some(FecConfig::default()));
    }
}
