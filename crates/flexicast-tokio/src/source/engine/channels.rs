//! Channels of a running source: how they come, go, and get fresh flows.

use std::sync::PoisonError;
use std::time::Instant;

use flexicast::source::ChannelIndex;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::Engine;
use crate::Error;
use crate::source::outlets::Outlets;
use crate::source::{Absence, ChannelConfig, Senders, Updates, core_channel, fresh_flow};

/// Updates of each channel that wait for the engine.
const UPDATES: usize = 256;

/// The engine's state of a channel, next to the state machine's.
pub(in crate::source) struct Place {
    pub(super) config: ChannelConfig,
    /// Where its flow leaves by multicast.
    pub(super) outlets: Outlets,
    /// Taken only while the channel has room.
    pub(super) updates: Updates,
    /// Bytes of copies of its flow's packets.
    pub(super) copied: u64,
}

impl Place {
    /// Opens the sockets of a channel, and the way by which its updates come.
    pub(in crate::source) fn open(config: ChannelConfig, senders: &Senders) -> Result<Self, Error> {
        let endpoints = config.flow.as_ref().map_or(&[][..], |f| &f.endpoints);
        let outlets = Outlets::open(endpoints)?;
        let (sender, updates) = mpsc::channel(UPDATES);
        let mut senders = senders.write().unwrap_or_else(PoisonError::into_inner);
        senders.insert(config.name.clone(), sender);
        Ok(Place {
            config,
            outlets,
            updates,
            copied: 0,
        })
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
        // Where the sockets cannot be opened nothing has happened.
        let place = Place::open(config, &self.senders);
        let added = place.and_then(|place| match self.core.add_channel(own)? {
            Some(index) => Ok((index, place)),
            None => Err(Error::TwoChannels(name.clone())),
        });
        let (index, place) = added.inspect_err(|_| self.forget_sender(&name))?;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        self.places[index] = Some(place);
        info!(channel = name, "added");
        Ok(())
    }

    pub(super) fn remove_channel(&mut self, name: &str, absence: Absence, now: Instant) {
        let Some(channel) = self.channel(name) else {
            return self.core.set_absent(name, absence);
        };
        self.core.remove_channel(channel, absence, now);
        if let Some(place) = self.places.get_mut(channel) {
            *place = None;
        }
        self.forget_sender(name);
        info!(channel = name, ?absence, "removed");
    }

    fn forget_sender(&self, name: &str) {
        let mut senders = self.senders.write().unwrap_or_else(PoisonError::into_inner);
        senders.remove(name);
    }

    pub(super) fn replace_flow(&mut self, name: &str, now: Instant) {
        let Some(channel) = self.channel(name) else {
            return;
        };
        let place = self.places.get(channel).and_then(Option::as_ref);
        let Some(settings) = place.and_then(|place| place.config.flow.as_ref()) else {
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
