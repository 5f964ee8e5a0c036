//! The source's host: its process, its stores, and where it sends its flows.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use flexicast::authentication::AuthenticationConfig;
use flexicast::control::Endpoint;
use flexicast::flow::FlowConfig;
use flexicast::protect::{Algorithm, FlowSecret};
use flexicast::source::{ChannelConfig, Faults, Limits, Source, SourceConfig};
use rand::RngExt;
use rand::rngs::SmallRng;
use uuid::Uuid;

use crate::fault::Fault;
use crate::script::{ChannelPlan, Script};
use crate::store::{self, Store, fresh};
use crate::violation::{BrokenPromise, Promise, broken};
use crate::wake::Wake;
use crate::watch::Watch;
use crate::world::channel_name;

pub(crate) struct Origin {
    /// `None` while the process is down.
    pub(crate) core: Option<Source>,
    pub(crate) boot: u64,
    pub(crate) stores: Vec<Store>,
    /// Endpoints of each flow.
    pub(crate) endpoints: Vec<Vec<Endpoint>>,
    /// The channels' flows, by their present name.
    pub(crate) flows: Vec<Option<flexicast::FlowId>>,
    /// Receivers whose credentials count no more.
    pub(crate) banned: BTreeSet<Uuid>,
    pub(crate) suspended_until: Option<Instant>,
    pub(crate) store_bad_until: Option<Instant>,
    pub(crate) store_fails: bool,
    pub(crate) store_delay: Duration,
    pub(crate) wake: Wake,
}

impl Origin {
    pub(crate) fn new(script: &Script, rng: &mut SmallRng) -> Self {
        let names = (0..script.channels.len()).map(channel_name);
        let mut stores: Vec<_> = names.map(|name| Store::new(name, rng)).collect();
        for (store, plan) in stores.iter_mut().zip(&script.channels) {
            for _ in 0..plan.stored {
                store.push(rng.random_range(0..plan.max_len.min(400) + 1));
            }
        }
        let endpoints = script.channels.iter().enumerate();
        Origin {
            core: None,
            boot: 0,
            endpoints: endpoints
                .map(|(c, plan)| endpoints_of(c, plan.v4, plan.v6, 0))
                .collect(),
            flows: vec![None; stores.len()],
            stores,
            banned: BTreeSet::new(),
            suspended_until: None,
            store_bad_until: None,
            store_fails: false,
            store_delay: Duration::ZERO,
            wake: Wake::default(),
        }
    }

    /// Starts the process: fresh flows, the same stores.
    pub(crate) fn start(
        &mut self,
        script: &Script,
        fault: Option<Fault>,
        rng: &mut SmallRng,
        watch: &mut Watch,
    ) -> Result<(), BrokenPromise> {
        let mut channels = Vec::new();
        for (c, plan) in script.channels.iter().enumerate() {
            let flow = plan.flow.then(|| flow_config(plan, rng));
            if let Some(flow) = &flow {
                watch.flow(c, flow);
            }
            self.flows[c] = flow.as_ref().map(|f| f.flow);
            let store = &mut self.stores[c];
            store.published = store.head();
            channels.push(ChannelConfig {
                name: store.name.clone(),
                incarnation: store.incarnation,
                head: store.head(),
                first: store.first,
                private: plan.private && fault != Some(Fault::NotPrivate),
                endpoints: self.endpoints[c].clone(),
                replicate: plan.copies,
                flow,
            });
        }
        let config = SourceConfig {
            channels,
            unicast_rate: script.unicast_rate,
            limits: Limits {
                replicas: script.copies,
                ..Limits::default()
            },
            seed: rng.random(),
        };
        match Source::new(config) {
            Ok(mut core) => {
                core.inject_faults(Faults {
                    repair_off: fault == Some(Fault::RepairOff),
                    window_across_epochs: fault == Some(Fault::WindowAcrossEpochs),
                    ..Faults::default()
                });
                core.enable_feedback(FlowSecret::from(rng.random::<[u8; 32]>()), 0);
                self.core = Some(core);
            }
            Err(error) => return broken(Promise::Protocol, format!("no source: {error}")),
        }
        self.wake.armed = None;
        Ok(())
    }

    /// The store of a channel, by its name.
    pub(crate) fn store_of(&self, channel: &str) -> Option<&Store> {
        self.stores.iter().find(|s| s.name == channel)
    }

    /// Returns delay and availability of the store.
    pub(crate) fn store_now(&self, now: Instant) -> (Duration, bool) {
        if self.store_bad_until.is_some_and(|until| now < until) {
            (self.store_delay, self.store_fails)
        } else {
            (Duration::from_micros(300), false)
        }
    }
}

/// A new flow for a channel.
pub(crate) fn flow_config(plan: &ChannelPlan, rng: &mut SmallRng) -> FlowConfig {
    let (flow, secret) = fresh(rng);
    let mut config = FlowConfig::new(flow, secret);
    if plan.chacha {
        config.algorithm = Algorithm::ChaCha20Poly1305;
    }
    config.rate = plan.rate;
    config.ack_delay = plan.ack_delay;
    config.fall_back = plan.fall_back;
    config.heartbeat = plan.heartbeat;
    config.authentication = plan.authentication.map(|packets| AuthenticationConfig {
        packets,
        secret: store::secret(rng),
    });
    config.fec = plan.fec;
    if let Some(packets) = plan.epoch_packets {
        config.epoch_packets = packets;
    }
    config
}

/// The endpoints of a channel; another `variant` has other groups.
pub(crate) fn endpoints_of(channel: usize, v4: bool, v6: bool, variant: u8) -> Vec<Endpoint> {
    let channel = channel as u8 + 1;
    let four = Endpoint {
        group: SocketAddr::new(Ipv4Addr::new(232, 70, channel, variant + 1).into(), 4434),
        source: Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))),
    };
    let group = Ipv6Addr::new(
        0xff3e,
        0,
        0,
        0,
        0,
        0,
        channel.into(),
        u16::from(variant) + 1,
    );
    let six = Endpoint {
        group: SocketAddr::new(group.into(), 4434),
        source: None,
    };
    let all = [(v4, four), (v6, six)];
    all.into_iter()
        .filter_map(|(yes, e)| yes.then_some(e))
        .collect()
}
