//! Channels added and removed at run time, and channels of another source.

use std::time::Instant;

use super::channel::Channel;
use super::types::{Absence, ChannelConfig, close};
use super::{ChannelIndex, Source, SourceEvent};
use crate::control::Refusal;
use crate::protect::KeyError;

impl Source {
    /// The channel with this name.
    pub fn channel_named(&self, name: &str) -> Option<ChannelIndex> {
        let is = |c: &Channel| !c.vacant && c.name == name;
        self.channels.iter().position(is)
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
        let name = config.name.clone();
        // Moved, so that the configuration keeps no copy of the secret when it is dropped.
        let secret = config.flow.as_mut().map(|f| std::mem::take(&mut f.secret));
        let mut own = config.clone();
        if let (Some(flow), Some(secret)) = (&mut own.flow, secret) {
            flow.secret = secret;
        }
        let mut channel = Channel::new(own, self.next_flow_index)?;
        self.next_flow_index += 1;
        channel.relays.clone_from(&self.relays);
        if let Some(flow) = &mut channel.flow {
            flow.set_tracing(self.tracer.is_on());
            #[cfg(feature = "fault-injection")]
            flow.set_fall_back_off(self.faults.fall_back_off);
        }
        self.elsewhere.remove(&name);
        let place = self.channels.iter().position(|c| c.vacant);
        Ok(Some(match place {
            Some(place) => {
                self.channels[place] = channel;
                place
            }
            None => {
                self.channels.push(channel);
                self.channels.len() - 1
            }
        }))
    }

    /// Removes a channel with its flow. Its receivers are disconnected, whatever else they
    /// subscribe to: they reconnect and get the current list.
    pub fn remove_channel(&mut self, c: ChannelIndex, absence: Absence, now: Instant) {
        let Some(channel) = self.channels.get(c).filter(|c| !c.vacant) else {
            return;
        };
        let name = channel.name.clone();
        let its = self.sessions.iter();
        let its = its.filter(|(_, s)| s.subscriptions().iter().any(|s| s.channel == c));
        let ids: Vec<_> = its.map(|(id, _)| *id).collect();
        let reason = match absence {
            Absence::Gone => format!("the channel \"{name}\" is not served here any more"),
            Absence::Elsewhere => format!("another source publishes \"{name}\" now"),
        };
        for session in ids {
            self.closed(session, now);
            self.events.push_back(SourceEvent::Close {
                session,
                code: close::CHANNEL_GONE,
                reason: reason.clone(),
            });
        }
        // Pending events would mean another channel once the slot is reused.
        self.events.retain(|event| match event {
            SourceEvent::Moved { channel, .. }
            | SourceEvent::MassFallBack { channel, .. }
            | SourceEvent::SecretWanted { channel } => *channel != c,
            _ => true,
        });
        self.alarms.retain(|(_, _, channel, _)| *channel != c);
        self.channels[c] = Channel::vacant();
        self.set_absent(&name, absence);
    }

    /// Says why a channel is not here: because another source publishes it, or because there is
    /// none (any more). Does nothing for a channel of this source.
    pub fn set_absent(&mut self, name: &str, absence: Absence) {
        match absence {
            Absence::Gone => {
                self.elsewhere.remove(name);
            }
            Absence::Elsewhere if self.channel_named(name).is_none() => {
                self.elsewhere.insert(name.to_owned());
            }
            Absence::Elsewhere => {}
        }
    }

    /// Why this channel cannot be had here, if it cannot.
    pub(super) fn absence(&self, name: &str) -> Option<(Refusal, String)> {
        if self.channel_named(name).is_some() {
            return None;
        }
        if self.elsewhere.contains(name) {
            let reason = format!("another source publishes \"{name}\" at the moment");
            return Some((Refusal::Unavailable, reason));
        }
        let ours = self.channels.iter().filter(|c| !c.vacant);
        let ours: Vec<_> = ours.take(10).map(|c| format!("\"{}\"", c.name)).collect();
        let here = match ours.is_empty() {
            true => "none at all".to_owned(),
            false => format!("only {}", ours.join(", ")),
        };
        let reason = format!("there is no channel \"{name}\" here, {here}");
        Some((Refusal::UnknownChannel, reason))
    }
}
