//! The channels of a source by place and name, and those of another source.

use std::collections::BTreeSet;

use super::channel::Channel;
use super::types::{Absence, ChannelConfig, ChannelIndex};
use crate::FlowId;
use crate::control::Refusal;
use crate::protect::KeyError;

/// Channels of a source. Each has a place for as long as it is there.
#[derive(Debug)]
pub(super) struct Channels {
    /// Channels by place; `None` for the place of a removed one.
    places: Vec<Option<Channel>>,
    /// Names of channels that another source publishes.
    elsewhere: BTreeSet<String>,
    next_flow_index: u64,
}

impl Channels {
    pub(super) fn new() -> Self {
        Channels {
            places: Vec::new(),
            elsewhere: BTreeSet::new(),
            next_flow_index: 1,
        }
    }

    /// Returns the number of places, empty ones included.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, index: ChannelIndex) -> Option<&Channel> {
        self.places.get(index)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: ChannelIndex) -> Option<&mut Channel> {
        self.places.get_mut(index)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ChannelIndex, &Channel)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(index, channel)| Some((index, channel.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ChannelIndex, &mut Channel)> {
        let places = self.places.iter_mut().enumerate();
        places.filter_map(|(index, channel)| Some((index, channel.as_mut()?)))
    }

    /// Returns the first channel for which `is` holds.
    pub(super) fn find(&self, is: impl Fn(&Channel) -> bool) -> Option<(ChannelIndex, &Channel)> {
        self.iter().find(|(_, channel)| is(channel))
    }

    /// Returns the place of the channel with this name.
    pub(super) fn named(&self, name: &str) -> Option<ChannelIndex> {
        let (index, _) = self.find(|channel| channel.name == name)?;
        Some(index)
    }

    /// Returns the place of the channel with this flow.
    pub(super) fn of_flow(&self, flow: FlowId) -> Option<ChannelIndex> {
        let is = |c: &Channel| c.flow.as_ref().is_some_and(|f| f.config().flow == flow);
        let (index, _) = self.find(is)?;
        Some(index)
    }

    /// Returns the last `seq` of a channel; 0 if there is no such channel.
    pub(super) fn head(&self, index: ChannelIndex) -> u64 {
        self.get(index).map_or(0, |channel| channel.head)
    }

    /// Returns the index of another flow. Path ids are made of it: acknowledgements of a flow that
    /// was replaced mean nothing for the next one.
    pub(super) fn take_flow_index(&mut self) -> u64 {
        let index = self.next_flow_index;
        self.next_flow_index += 1;
        index
    }

    /// Adds a channel and returns its place: an empty one, or the next. The secret of its flow is
    /// moved out of `config`, so that no copy of it is left when that is dropped.
    ///
    /// # Errors
    /// The cryptographic library refuses the flow's key.
    pub(super) fn add(&mut self, config: &mut ChannelConfig) -> Result<ChannelIndex, KeyError> {
        let secret = config.flow.as_mut().map(|f| std::mem::take(&mut f.secret));
        let mut own = config.clone();
        if let (Some(flow), Some(secret)) = (&mut own.flow, secret) {
            flow.secret = secret;
        }
        let channel = Channel::new(own, self.next_flow_index)?;
        self.next_flow_index += 1;
        self.elsewhere.remove(&config.name);
        let empty = self.places.iter().position(Option::is_none);
        let index = empty.unwrap_or(self.places.len());
        match self.places.get_mut(index) {
            Some(place) => *place = Some(channel),
            None => self.places.push(Some(channel)),
        }
        Ok(index)
    }

    /// Empties the place of a channel.
    pub(super) fn remove(&mut self, index: ChannelIndex) {
        if let Some(place) = self.places.get_mut(index) {
            *place = None;
        }
    }

    /// Notes why a channel is not here. Does nothing for a channel of this source.
    pub(super) fn set_absent(&mut self, name: &str, absence: Absence) {
        match absence {
            Absence::Gone => {
                self.elsewhere.remove(name);
            }
            Absence::Elsewhere if self.named(name).is_none() => {
                self.elsewhere.insert(name.to_owned());
            }
            Absence::Elsewhere => {}
        }
    }

    /// Returns why this channel cannot be had here, if it cannot.
    pub(super) fn absence(&self, name: &str) -> Option<(Refusal, String)> {
        if self.named(name).is_some() {
            return None;
        }
        if self.elsewhere.contains(name) {
            let reason = format!("another source publishes \"{name}\" at the moment");
            return Some((Refusal::Unavailable, reason));
        }
        let ours = self.iter().take(10);
        let ours: Vec<_> = ours.map(|(_, c)| format!("\"{}\"", c.name)).collect();
        if ours.is_empty() {
            // As while a source starts.
            let reason = format!("there is no channel \"{name}\" here, and no other one yet");
            return Some((Refusal::Unavailable, reason));
        }
        let reason = format!(
            "there is no channel \"{name}\" here, only {}",
            ours.join(", ")
        );
        Some((Refusal::UnknownChannel, reason))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn add(channels: &mut Channels, name: &str) -> ChannelIndex {
        let mut config = ChannelConfig {
            name: name.to_owned(),
            incarnation: Uuid::nil(),
            head: 0,
            first: 1,
            private: false,
            endpoints: Vec::new(),
            replicate: false,
            flow: None,
        };
        channels.add(&mut config).unwrap()
    }

    #[test]
    fn the_place_of_a_removed_channel_is_used_again_and_its_flow_index_is_not() {
        let mut channels = Channels::new();
        assert_eq!([add(&mut channels, "a"), add(&mut channels, "b")], [0, 1]);
        channels.remove(0);
        assert_eq!((channels.named("a"), channels.named("b")), (None, Some(1)));
        assert_eq!((add(&mut channels, "c"), channels.len()), (0, 2));
        assert_eq!(channels.get(0).unwrap().flow_index, 3);
    }

    #[test]
    fn absent_channels_are_refused_by_reason() {
        let mut channels = Channels::new();
        let refused = channels.absence("here").map(|(refusal, _)| refusal);
        assert_eq!(refused, Some(Refusal::Unavailable), "none is here yet");
        add(&mut channels, "here");
        channels.set_absent("there", Absence::Elsewhere);
        channels.set_absent("here", Absence::Elsewhere);
        let refusal = |channels: &Channels, name| channels.absence(name).map(|(r, _)| r);
        assert_eq!(refusal(&channels, "here"), None);
        assert_eq!(refusal(&channels, "there"), Some(Refusal::Unavailable));
        assert_eq!(refusal(&channels, "nowhere"), Some(Refusal::UnknownChannel));
        add(&mut channels, "there");
        assert_eq!(refusal(&channels, "there"), None);
        channels.remove(1);
        assert_eq!(refusal(&channels, "there"), Some(Refusal::UnknownChannel));
    }
}
