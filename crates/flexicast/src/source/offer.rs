//! Channels added and removed at run time, and channels of another source.

use std::time::Instant;

use super::Source;
use super::session::Session;
use super::types::{Absence, ChannelConfig, ChannelIndex, SourceEvent, close};
use crate::protect::KeyError;

impl Source {
    /// The channel with this name.
    pub fn channel_named(&self, name: &str) -> Option<ChannelIndex> {
        self.channels.named(name)
    }

    /// Adds a channel, with a fresh flow if it has one, and returns its place: that of a removed
    /// channel, or the next. `None` if the name is taken.
    ///
    /// # Errors
    /// The cryptographic library refuses the flow's key.
    pub fn add_channel(
        &mut self,
        mut config: ChannelConfig,
    ) -> Result<Option<ChannelIndex>, KeyError> {
        if self.channel_named(&config.name).is_some() {
            return Ok(None);
        }
        let index = self.channels.add(&mut config)?;
        if let Some(channel) = self.channels.get_mut(index) {
            channel.relays.clone_from(&self.relays);
        }
        self.set_up_flow(index);
        Ok(Some(index))
    }

    /// Removes a channel with its flow. Its receivers are disconnected, whatever else they
    /// subscribe to: they reconnect and get the current list.
    pub fn remove_channel(&mut self, c: ChannelIndex, absence: Absence, now: Instant) {
        let Some(channel) = self.channels.get(c) else {
            return;
        };
        let name = channel.name.clone();
        let reason = match absence {
            Absence::Gone => format!("the channel \"{name}\" is not served here any more"),
            Absence::Elsewhere => format!("another source publishes \"{name}\" now"),
        };
        let is_on = |session: &Session| session.subscriptions().iter().any(|s| s.channel == c);
        for session in self.sessions.select(is_on) {
            self.closed(session, now);
            self.out.push(SourceEvent::Close {
                session,
                code: close::CHANNEL_GONE,
                reason: reason.clone(),
            });
        }
        // Pending events and timers would mean another channel once the place is reused.
        self.out.discard_channel(c);
        self.timers.stop_channel(c);
        self.channels.remove(c);
        self.channels.set_absent(&name, absence);
    }

    /// Says why a channel is not here: because another source publishes it, or because there is
    /// none (any more). Does nothing for a channel of this source.
    pub fn set_absent(&mut self, name: &str, absence: Absence) {
        self.channels.set_absent(name, absence);
    }
}
