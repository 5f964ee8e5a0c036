//! An observer of every flow packet and every key handed out: checks readability and packet
//! numbers.
//!
//! An eavesdropper can read exactly the packets whose secret it was ever given, so it is enough to
//! track the holders of each secret: each packet is opened here once, and every holder of its
//! secret must belong to the flow at that time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{Action, Control, ControlReader};
use flexicast::flow::FlowConfig;
use flexicast::frame::{Frame, Frames};
use flexicast::protect::{Algorithm, FlowSecret, HEADER_LEN, OVERHEAD, PacketKey};
use flexicast::source::SessionId;
use flexicast::{Cause, FlowId, Rung};

use crate::proofs::{ProofCounts, Proofs};
use crate::symbols::Symbols;
use crate::violation::{BrokenPromise, Promise, broken};

/// An announced epoch begins within a second, one that was announced before it may take another,
/// and the source's timer may be a little late.
const SWITCHES: Duration = Duration::from_millis(2100);
/// Leaves are batched into one epoch per so long (protocol.md section 5.3).
const LEAVE_BATCH: Duration = Duration::from_secs(10);

struct Epoch {
    secret: FlowSecret,
    key: PacketKey,
    first_used: Option<Instant>,
    packets: u64,
    /// Receivers that were given the secret.
    holders: BTreeSet<usize>,
}

/// Whether a receiver belongs to a channel's flow.
#[derive(Default)]
struct Participation {
    /// Its sessions that joined and did not leave.
    sessions: BTreeSet<SessionId>,
    since: Option<Instant>,
    /// When the last of them went, and how long the flow's packets may still be readable for it.
    gone: Option<(Instant, Duration)>,
}

struct Channel {
    private: bool,
    algorithm: Algorithm,
    flow: Option<FlowId>,
    epoch_packets: u64,
    epochs: Vec<Epoch>,
    largest: Option<u64>,
    /// Update and offset up to which the flow has sent.
    position: (u64, u64),
    /// Ranges of updates that the flow has sent a second time.
    repeated: BTreeMap<u64, Vec<Range<u64>>>,
    standing: BTreeMap<usize, Participation>,
    /// Of a flow whose packets are authenticated.
    proofs: Option<Proofs>,
    symbols: Symbols,
}

impl Channel {
    /// A receiver is given a secret.
    fn given(
        &mut self,
        channel: usize,
        receiver: usize,
        secret: &FlowSecret,
        sequence: u64,
    ) -> Result<(), BrokenPromise> {
        let Some(epoch) = self.epochs.iter_mut().find(|e| e.secret == *secret) else {
            // Of a flow that was replaced meanwhile: no packet will be sent under it.
            return Ok(());
        };
        if !epoch.holders.insert(receiver) {
            return Ok(());
        }
        let standing = self.standing.entry(receiver).or_default();
        if standing.sessions.is_empty() {
            return broken(
                Promise::Secrecy,
                format!(
                    "receiver {receiver} gets key {sequence} of channel {channel} without \
                     belonging to its flow"
                ),
            );
        }
        let earlier = epoch
            .first_used
            .zip(standing.since)
            .and_then(|(used, since)| since.checked_duration_since(used))
            .filter(|d| !d.is_zero());
        match earlier {
            Some(before) if self.private => broken(
                Promise::Secrecy,
                format!(
                    "receiver {receiver} joined the private channel {channel} {before:?} after key \
                     {sequence} was first used, and is given it"
                ),
            ),
            _ => Ok(()),
        }
    }
}

/// Properties of a packet for the other checks.
pub(crate) struct PacketView<'a> {
    pub(crate) pn: u64,
    /// STREAM frames: seq, offset, bytes, whether the update ends.
    pub(crate) streams: Vec<(u64, u64, &'a [u8], bool)>,
}

/// The observer.
pub(crate) struct Watch {
    channels: Vec<Channel>,
    flows: BTreeMap<FlowId, usize>,
    up: BTreeMap<SessionId, ControlReader>,
    down: BTreeMap<SessionId, ControlReader>,
    /// FC_KEYs that were seen.
    pub(crate) keys: u64,
    /// Packets that were opened.
    pub(crate) packets: u64,
    /// Packets that were authenticated.
    pub(crate) proofs: ProofCounts,
    /// Repair symbols that were sent.
    pub(crate) symbols: u64,
}

impl Watch {
    pub(crate) fn new(private: impl IntoIterator<Item = bool>) -> Self {
        let channel = |private| Channel {
            private,
            algorithm: Algorithm::default(),
            flow: None,
            epoch_packets: u64::MAX,
            epochs: Vec::new(),
            largest: None,
            position: (0, 0),
            repeated: BTreeMap::new(),
            standing: BTreeMap::new(),
            proofs: None,
            symbols: Symbols::default(),
        };
        Watch {
            channels: private.into_iter().map(channel).collect(),
            flows: BTreeMap::new(),
            up: BTreeMap::new(),
            down: BTreeMap::new(),
            keys: 0,
            packets: 0,
            proofs: ProofCounts::default(),
            symbols: 0,
        }
    }

    /// Seals a packet of a channel's flow as any holder of the current epoch's key could.
    pub(crate) fn seal(
        &mut self,
        channel: usize,
        pn: u64,
        frames: &[u8],
    ) -> Option<(FlowId, Bytes)> {
        let c = &mut self.channels[channel];
        let flow = c.flow?;
        let used = c.epochs.iter().rposition(|e| e.first_used.is_some())?;
        let epoch = c.epochs.get_mut(used)?;
        let mut packet = vec![0; frames.len() + OVERHEAD];
        let end = HEADER_LEN + frames.len();
        packet[HEADER_LEN..end].copy_from_slice(frames);
        // The first epoch of a flow has sequence 1.
        let phase = used % 2 == 0;
        epoch.key.seal(flow, pn, phase, &mut packet, end)?;
        Some((flow, packet.into()))
    }

    /// Makes a packet of wrong tags of a channel's flow as any holder of the current epoch's key
    /// could.
    pub(crate) fn forge_tags(&mut self, channel: usize, pn: u64) -> Option<(FlowId, Bytes)> {
        let c = &mut self.channels[channel];
        let used = c.epochs.iter().rposition(|e| e.first_used.is_some())?;
        Some((c.flow?, c.proofs.as_mut()?.forge(used, pn)?))
    }

    /// Returns a datagram that the source sent, where its packets are authenticated.
    pub(crate) fn recorded(&self, channel: usize, back: usize) -> Option<(FlowId, Bytes)> {
        let c = &self.channels[channel];
        Some((c.flow?, c.proofs.as_ref()?.recorded(back)?))
    }

    /// Whether a packet has the name of the channel's packets of tags.
    pub(crate) fn is_tags(&self, channel: usize, id: FlowId) -> bool {
        let proofs = self.channels[channel].proofs.as_ref();
        proofs.is_some_and(|proofs| proofs.tag_flow == id)
    }

    /// A packet of tags leaves the source.
    pub(crate) fn tags(&mut self, channel: usize, packet: &[u8]) -> Result<(), BrokenPromise> {
        let proofs = self.channels[channel].proofs.as_mut();
        proofs.map_or(Ok(()), |proofs| proofs.tags(packet, &mut self.proofs))
    }

    /// A flow begins, perhaps in place of another.
    pub(crate) fn flow(&mut self, channel: usize, config: &FlowConfig) {
        let c = &mut self.channels[channel];
        c.flow = Some(config.flow);
        c.algorithm = config.algorithm;
        c.epoch_packets = config.epoch_packets;
        c.epochs.clear();
        c.largest = None;
        c.position = (0, 0);
        c.repeated.clear();
        c.proofs = Proofs::of(config);
        c.symbols = Symbols::default();
        self.flows.insert(config.flow, channel);
        self.secret(channel, &config.secret);
    }

    /// The source was handed the secret of the next epoch.
    pub(crate) fn secret(&mut self, channel: usize, secret: &FlowSecret) {
        let c = &mut self.channels[channel];
        if let Ok(key) = PacketKey::new(c.algorithm, secret) {
            c.epochs.push(Epoch {
                secret: secret.clone(),
                key,
                first_used: None,
                packets: 0,
                holders: BTreeSet::new(),
            });
        }
        if let Some(proofs) = &mut c.proofs {
            proofs.secret(secret);
        }
    }

    /// A receiver's control bytes reach the source.
    pub(crate) fn said(&mut self, session: SessionId, receiver: usize, bytes: &[u8], now: Instant) {
        let reader = self.up.entry(session).or_default();
        reader.push(bytes);
        while let Ok(Some(frame)) = reader.next_frame() {
            let Control::State(state) = frame else {
                continue;
            };
            let Some(&channel) = self.flows.get(&state.flow) else {
                continue;
            };
            let c = &mut self.channels[channel];
            if c.flow != Some(state.flow) {
                continue;
            }
            let standing = c.standing.entry(receiver).or_default();
            match state.action {
                Action::Join => {
                    if standing.sessions.is_empty() {
                        standing.since = Some(now);
                        standing.gone = None;
                    }
                    standing.sessions.insert(session);
                }
                // The receiver keeps listening: for the flow's return, or on other paths.
                Action::Leave
                    if matches!(
                        state.cause,
                        Some(Cause::HeartbeatLost | Cause::RelayLost | Cause::ProbeTimeout)
                    ) || matches!(state.path.rung(), Some(Rung::Amt | Rung::Replicated)) => {}
                Action::Leave => {
                    standing.sessions.remove(&session);
                    if standing.sessions.is_empty() {
                        standing.gone = Some((now, LEAVE_BATCH + SWITCHES));
                    }
                }
                Action::Ready => {}
            }
        }
    }

    /// The source's control bytes leave for a receiver.
    pub(crate) fn control_sent(
        &mut self,
        session: SessionId,
        receiver: usize,
        bytes: &[u8],
    ) -> Result<(), BrokenPromise> {
        let reader = self.down.entry(session).or_default();
        reader.push(bytes);
        while let Ok(Some(frame)) = reader.next_frame() {
            let key = match frame {
                Control::Key(key) => key,
                Control::TagKey(key) => {
                    let channel = self.flows.get(&key.flow);
                    let channel = channel.and_then(|channel| self.channels.get_mut(*channel));
                    let current = channel.filter(|c| c.flow == Some(key.flow));
                    if let Some(proofs) = current.and_then(|c| c.proofs.as_mut()) {
                        proofs.given(key.receiver, &key.secret)?;
                    }
                    continue;
                }
                _ => continue,
            };
            self.keys += 1;
            let Some(&channel) = self.flows.get(&key.flow) else {
                return broken(Promise::Secrecy, "a key for an unknown flow");
            };
            self.channels[channel].given(channel, receiver, &key.secret, key.sequence)?;
        }
        Ok(())
    }

    /// A spy in the source's house: a departed receiver is handed every secret. Only to show that
    /// the watch notices.
    pub(crate) fn leak(&mut self, channel: usize) {
        let c = &mut self.channels[channel];
        let gone = c.standing.iter().filter(|(_, s)| s.gone.is_some());
        let spies: Vec<_> = gone.map(|(receiver, _)| *receiver).collect();
        if let Some(epoch) = c.epochs.last_mut() {
            epoch.holders.extend(spies);
        }
    }

    /// The source knows that a session is over.
    pub(crate) fn gone(
        &mut self,
        session: SessionId,
        receiver: usize,
        ejected: bool,
        now: Instant,
    ) {
        self.up.remove(&session);
        self.down.remove(&session);
        let grace = if ejected {
            SWITCHES
        } else {
            LEAVE_BATCH + SWITCHES
        };
        for c in &mut self.channels {
            let Some(standing) = c.standing.get_mut(&receiver) else {
                continue;
            };
            if standing.sessions.remove(&session) && standing.sessions.is_empty() {
                standing.gone = Some((now, grace));
            }
        }
    }

    /// The source's host was paused until now: what it owed by the clock is owed from here.
    pub(crate) fn resumed(&mut self, now: Instant) {
        let standing = self
            .channels
            .iter_mut()
            .flat_map(|c| c.standing.values_mut());
        standing
            .filter_map(|s| s.gone.as_mut())
            .for_each(|(at, _)| *at = now);
    }

    /// A packet leaves the source. `packet` is decrypted in place.
    pub(crate) fn packet<'a>(
        &mut self,
        channel: usize,
        packet: &'a mut Vec<u8>,
        now: Instant,
    ) -> Result<PacketView<'a>, BrokenPromise> {
        self.packets += 1;
        let c = &mut self.channels[channel];
        let expected = c.largest.map_or(0, |pn| pn + 1);
        let is_signed = match &mut c.proofs {
            Some(proofs) => proofs.take_signature(packet, &mut self.proofs)?,
            None => true,
        };
        let sealed = Bytes::copy_from_slice(packet);
        let mut found = None;
        for (i, epoch) in c.epochs.iter_mut().enumerate().rev().take(3) {
            packet.clear();
            packet.extend_from_slice(&sealed);
            if let Ok(opened) = epoch.key.open(expected, packet) {
                found = Some((i, opened.pn, opened.frames.len()));
                break;
            }
        }
        let Some((i, pn, len)) = found else {
            return broken(
                Promise::Secrecy,
                format!("a packet of channel {channel} opens under none of its secrets"),
            );
        };
        if c.largest.is_some_and(|largest| pn <= largest) {
            return broken(
                Promise::Flow,
                format!(
                    "packet number {pn} of channel {channel} is used again or late: a nonce is \
                     used twice"
                ),
            );
        }
        c.largest = Some(pn);
        if let Some(proofs) = c.proofs.as_mut().filter(|_| !is_signed) {
            proofs.note_unsigned(pn, sealed);
        }
        let epoch = &mut c.epochs[i];
        epoch.packets += 1;
        epoch.first_used.get_or_insert(now);
        if epoch.packets > c.epoch_packets {
            return broken(
                Promise::Flow,
                format!(
                    "a key of channel {channel} protects more than {} packets",
                    c.epoch_packets
                ),
            );
        }
        for (receiver, standing) in &c.standing {
            let Some((at, grace)) = standing.gone else {
                continue;
            };
            if now > at + grace && epoch.holders.contains(receiver) {
                let late = now - at;
                return broken(
                    Promise::Secrecy,
                    format!(
                        "receiver {receiver} left channel {channel} {late:?} ago and can read \
                         packet {pn}"
                    ),
                );
            }
        }
        let start = flexicast::protect::HEADER_LEN;
        let mut streams = Vec::new();
        c.symbols.note_sent(pn, i, &packet[start..start + len]);
        for frame in Frames::new(&packet[start..start + len]) {
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => {
                    return broken(
                        Promise::Flow,
                        format!("packet {pn} of channel {channel}: {error}"),
                    );
                }
            };
            if let Frame::Repair { symbol } = frame {
                self.symbols += 1;
                c.symbols.check(i, symbol)?;
            }
            if let Frame::Stream {
                seq,
                offset,
                data,
                fin,
            } = frame
            {
                let range = offset..offset + data.len() as u64;
                if (seq, offset) < c.position {
                    // Once more, for those that have lost it.
                    let repeated = c.repeated.entry(seq).or_default();
                    let overlaps =
                        |other: &Range<u64>| other.start < range.end && range.start < other.end;
                    if repeated.iter().any(overlaps) {
                        return broken(
                            Promise::Flow,
                            format!(
                                "the flow of channel {channel} repeats update {seq} from offset \
                                 {offset} for the second time"
                            ),
                        );
                    }
                    repeated.push(range);
                } else {
                    c.position = if fin { (seq + 1, 0) } else { (seq, range.end) };
                }
                streams.push((seq, offset, data, fin));
            }
        }
        Ok(PacketView { pn, streams })
    }
}
