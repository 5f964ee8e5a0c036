//! Channels of a running source: added, removed, given fresh flows.

use std::future::poll_fn;
use std::sync::PoisonError;
use std::task::Poll;
use std::time::Instant;

use flexicast::source::{ChannelIndex, Source as Core};
use netio::Packets;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::Engine;
use crate::Error;
use crate::source::outlets::Outlets;
use crate::source::replication::Replicas;
use crate::source::{
    Absence, ChannelConfig, FlowEndpoint, Publication, Senders, Updates, core_channel, fresh_flow,
};

/// Updates of each channel that wait for the engine.
const UPDATES: usize = 256;

/// The engine's state of a channel, next to the state machine's.
pub(in crate::source) struct EngineChannel {
    pub(super) config: ChannelConfig,
    /// Where its flow leaves by multicast.
    pub(super) outlets: Outlets,
    /// Taken only while the channel has room.
    pub(super) updates: Updates,
    /// Packets of its flow on their way out.
    pub(super) packets: Packets,
    /// Receivers that they are replicated to.
    pub(super) replicas: Replicas,
}

impl EngineChannel {
    /// Opens the sockets of a channel and the queue of its updates.
    pub(in crate::source) fn open(config: ChannelConfig, senders: &Senders) -> Result<Self, Error> {
        let endpoints = config.flow.as_ref().map_or(&[][..], |f| &f.endpoints);
        let outlets = Outlets::open(endpoints)?;
        let (sender, updates) = mpsc::channel(UPDATES);
        let mut senders = senders.write().unwrap_or_else(PoisonError::into_inner);
        senders.insert(config.name.clone(), sender);
        Ok(EngineChannel {
            config,
            outlets,
            updates,
            packets: Packets::default(),
            replicas: Replicas::default(),
        })
    }
}

/// The channels of the engine, by index.
pub(super) struct EngineChannels {
    /// `None` in the place of a removed one.
    by_index: Vec<Option<EngineChannel>>,
    /// The channel whose turn it is to publish.
    turn: ChannelIndex,
}

impl EngineChannels {
    pub(super) fn new(channels: Vec<EngineChannel>) -> Self {
        EngineChannels {
            by_index: channels.into_iter().map(Some).collect(),
            turn: 0,
        }
    }

    /// Returns the index after the last channel.
    pub(super) fn end(&self) -> ChannelIndex {
        self.by_index.len()
    }

    pub(super) fn get(&self, index: ChannelIndex) -> Option<&EngineChannel> {
        self.by_index.get(index)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: ChannelIndex) -> Option<&mut EngineChannel> {
        self.by_index.get_mut(index)?.as_mut()
    }

    fn insert(&mut self, index: ChannelIndex, channel: EngineChannel) {
        if index >= self.by_index.len() {
            self.by_index.resize_with(index + 1, || None);
        }
        self.by_index[index] = Some(channel);
    }

    fn remove(&mut self, index: ChannelIndex) {
        if let Some(channel) = self.by_index.get_mut(index) {
            *channel = None;
        }
    }

    /// Whether updates wait to be published.
    pub(super) fn have_updates(&self) -> bool {
        let mut channels = self.by_index.iter().flatten();
        channels.any(|channel| !channel.updates.is_empty())
    }

    /// Takes the next update of any channel that has room for one; channels take turns.
    pub(super) async fn next_update(&mut self, core: &Core) -> (ChannelIndex, Publication) {
        poll_fn(|cx| {
            for _ in 0..self.by_index.len() {
                self.turn = (self.turn + 1) % self.by_index.len();
                if let Some(channel) = &mut self.by_index[self.turn]
                    && core.has_room(self.turn)
                    && let Poll::Ready(Some(publication)) = channel.updates.poll_recv(cx)
                {
                    return Poll::Ready((self.turn, publication));
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl Engine {
    /// The channel with this name. One that is gone, or not there yet, is no mistake: what belongs
    /// to it may be under way.
    pub(super) fn channel(&self, name: &str) -> Option<ChannelIndex> {
        let channel = self.core.channel_named(name);
        if channel.is_none() {
            debug!(channel = name, "there is no such channel");
        }
        channel
    }

    pub(super) fn add_channel(&mut self, config: ChannelConfig) -> Result<(), Error> {
        let name = config.name.clone();
        if self.core.channel_named(&name).is_some() {
            return Err(Error::TwoChannels(name));
        }
        let own = core_channel(&self.config, &config)?;
        let (lineage, endorsements) = (config.lineage.clone(), config.endorsements.clone());
        // Where the sockets cannot be opened nothing has happened.
        let opened = EngineChannel::open(config, &self.senders);
        let added = opened.and_then(|opened| match self.core.add_channel(own)? {
            Some(index) => Ok((index, opened)),
            None => Err(Error::TwoChannels(name.clone())),
        });
        let (index, opened) = added.inspect_err(|_| self.forget_sender(&name))?;
        self.core.set_endorsements(endorsements);
        self.core.set_lineage(index, lineage);
        self.channels.insert(index, opened);
        info!(channel = name, "added");
        Ok(())
    }

    pub(super) fn remove_channel(&mut self, name: &str, absence: Absence, now: Instant) {
        let Some(channel) = self.channel(name) else {
            return self.core.set_absent(name, absence);
        };
        self.core.remove_channel(channel, absence, now);
        self.channels.remove(channel);
        self.forget_sender(name);
        info!(channel = name, ?absence, "removed");
    }

    /// Sends a channel's flow to other groups, or to the same ones from another address.
    pub(super) fn set_endpoints(
        &mut self,
        name: &str,
        endpoints: Vec<FlowEndpoint>,
        now: Instant,
    ) -> Result<(), Error> {
        let Some(channel) = self.channel(name) else {
            return Ok(());
        };
        let Some(opened) = self.channels.get_mut(channel) else {
            return Ok(());
        };
        let Some(flow) = &mut opened.config.flow else {
            return Ok(());
        };
        opened.outlets.replace(Outlets::open(&endpoints)?, now);
        let announced = endpoints.iter().map(FlowEndpoint::announced).collect();
        flow.endpoints = endpoints;
        self.core.set_endpoints(channel, announced, now);
        info!(channel = name, "flow moved to other endpoints");
        Ok(())
    }

    fn forget_sender(&self, name: &str) {
        let mut senders = self.senders.write().unwrap_or_else(PoisonError::into_inner);
        senders.remove(name);
    }

    pub(super) fn replace_flow(&mut self, name: &str, now: Instant) {
        let Some(channel) = self.channel(name) else {
            return;
        };
        let opened = self.channels.get(channel);
        let Some(settings) = opened.and_then(|opened| opened.config.flow.as_ref()) else {
            return;
        };
        let made = fresh_flow(&self.config, settings).and_then(|flow| {
            self.core.replace_flow(channel, flow, now)?;
            Ok(())
        });
        match made {
            Ok(()) => info!(channel = name, "a fresh flow"),
            Err(error) => warn!(channel = name, %error, "there is no fresh flow"),
        }
    }
}
