//! Repairs on the flow: what many members miss is sent again once, for all of them, instead of on
//! the unicast path of each (protocol.md section 8.3).
//!
//! Losses are counted by packet. Below the threshold each member gets its repair on its unicast
//! path, without delay. At the threshold the packet's ranges are queued for the flow, and from then
//! on members that miss the packet wait for the one that carries them again. A member that misses
//! that one, too, gets its repair on its unicast path.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::ledger::{PacketContents, StreamRange};
use super::member::{Resolution, collect};
use super::sender::{FlowEvent, FlowSender, MemberId};
use crate::authentication::SIGNATURE_LEN;
use crate::frame;

/// Minimum number of members that miss a packet that is sent again on the flow.
const MIN_MEMBERS: usize = 3;
/// Minimum share of them in all members, as one part of so many.
const SHARE: usize = 20;
/// Bound on the bytes that wait to be sent again. Beyond it, members are repaired one by one.
const MAX_QUEUED: usize = 256 << 10;

/// Range of an update that is sent again.
#[derive(Debug)]
struct Piece {
    seq: u64,
    offset: u64,
    data: Bytes,
    /// Whether the update ends with this range.
    ends: bool,
    /// Signature of the update, which is sent in the place of bytes.
    signature: Option<Box<[u8; SIGNATURE_LEN]>>,
}

/// Repair of one lost packet.
#[derive(Debug)]
enum Repair {
    /// On the unicast paths of so many members, so far.
    Counted(usize),
    /// On unicast paths, however many members miss it.
    Declined,
    /// On the flow.
    Shared {
        ranges: Vec<StreamRange>,
        /// Members that wait for it.
        waiting: BTreeSet<MemberId>,
        /// Last packet that carries its ranges; `None` until all of them are sent.
        sent_as: Option<u64>,
    },
}

/// Packets that members have lost, as long as another one may report them.
#[derive(Debug, Default)]
pub(super) struct SharedRepairs {
    lost: BTreeMap<u64, Repair>,
    /// Lost packets by the numbers of the packets that carry their ranges again.
    carried: BTreeMap<u64, Vec<u64>>,
    /// Lost packets that wait to be sent again, with what is left of them.
    queue: VecDeque<(u64, VecDeque<Piece>)>,
    queued_bytes: usize,
    /// Lost packets whose ranges are in the packet in the making, and whether these are the last.
    in_packet: Vec<(u64, bool)>,
}

impl SharedRepairs {
    /// Returns the bytes that wait to be sent again.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Whether something waits to be sent again.
    pub(super) fn has_frames(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Discards everything: the flow has no members.
    pub(super) fn clear(&mut self) {
        *self = SharedRepairs::default();
    }

    /// Returns the ranges that a member waits for and that are not sent yet.
    fn unsent(&self, member: MemberId) -> impl Iterator<Item = &StreamRange> {
        let of = move |repair| match repair {
            &Repair::Shared {
                ref ranges,
                ref waiting,
                sent_as: None,
            } if waiting.contains(&member) => ranges.as_slice(),
            _ => &[],
        };
        self.lost.values().flat_map(of)
    }

    /// Returns the lowest update that a member waits for and that is not sent yet.
    pub(super) fn lowest_unsent(&self, member: MemberId) -> Option<u64> {
        self.unsent(member).map(|range| range.seq).min()
    }

    /// Forgets a member; returns the ranges that it waited for and that are not sent yet.
    pub(super) fn leave(&mut self, member: MemberId) -> Vec<StreamRange> {
        let owed = self.unsent(member).cloned().collect();
        for repair in self.lost.values_mut() {
            if let Repair::Shared { waiting, .. } = repair {
                waiting.remove(&member);
            }
        }
        owed
    }

    /// Adds the ranges that a member waits for in this packet, which it has lost as well.
    fn collect_carried(&mut self, pn: u64, member: MemberId, ranges: &mut Vec<StreamRange>) {
        for packet in self.carried.get(&pn).into_iter().flatten() {
            if let Some(Repair::Shared {
                ranges: missed,
                waiting,
                ..
            }) = self.lost.get_mut(packet)
                && waiting.remove(&member)
            {
                collect(ranges, missed);
            }
        }
    }

    /// Forgets packets that no member can report any more; `base` is the lowest that one owes.
    fn sweep(&mut self, base: u64) {
        while let Some(first) = self.lost.first_entry() {
            let last = match first.get() {
                Repair::Counted(_) | Repair::Declined => Some(*first.key()),
                Repair::Shared { sent_as, .. } => *sent_as,
            };
            if last.is_none_or(|last| last >= base) {
                break;
            }
            first.remove();
        }
        self.carried = self.carried.split_off(&base);
    }

    /// Fills a packet, whose frames begin and end at these places, with what waits, and adds its
    /// ranges to `sent`.
    fn put_frames(
        &mut self,
        out: &mut Vec<u8>,
        (begin, limit): (usize, usize),
        sent: &mut PacketContents,
    ) {
        while let Some((packet, pieces)) = self.queue.front_mut() {
            let before = sent.ranges().len();
            let mut is_full = false;
            while let Some(piece) = pieces.front_mut() {
                let (seq, start) = (piece.seq, piece.offset);
                if let Some(signature) = &piece.signature {
                    is_full = !frame::put_stream_signature(out, limit, seq, signature);
                    if is_full {
                        break;
                    }
                    sent.push(StreamRange::whole(seq));
                    pieces.pop_front();
                    continue;
                }
                let room = (begin, limit);
                let fits = frame::keeps_header(out, room, seq, start, &piece.data);
                let taken = fits
                    .then(|| frame::put_stream(out, limit, seq, start, &piece.data, piece.ends));
                let Some(taken) = taken.flatten() else {
                    is_full = true;
                    break;
                };
                let end = start + taken as u64;
                sent.push(StreamRange {
                    seq,
                    range: start..end,
                });
                self.queued_bytes = self.queued_bytes.saturating_sub(taken);
                if taken < piece.data.len() {
                    piece.data = piece.data.slice(taken..);
                    piece.offset = end;
                    is_full = true;
                    break;
                }
                pieces.pop_front();
            }
            if sent.ranges().len() > before {
                self.in_packet.push((*packet, pieces.is_empty()));
            }
            if is_full {
                return;
            }
            self.queue.pop_front();
        }
    }

    /// Notes that the packet that was filled cannot be sent.
    pub(super) fn note_unsent(&mut self) {
        self.in_packet.clear();
    }

    /// Notes the number of the packet that was filled.
    pub(super) fn note_sent(&mut self, pn: u64) {
        for (packet, is_last) in self.in_packet.drain(..) {
            self.carried.entry(pn).or_default().push(packet);
            if let Some(Repair::Shared { sent_as, .. }) = self.lost.get_mut(&packet)
                && is_last
            {
                *sent_as = Some(pn);
            }
        }
    }
}

impl FlowSender {
    /// Repairs what a member has lost.
    pub(super) fn repair(&mut self, member: MemberId, lost: &Resolution) {
        if lost.gaps.is_empty() && lost.tail.is_empty() {
            return;
        }
        let wanted_by = MIN_MEMBERS.max(self.members.len().div_ceil(SHARE));
        // A key that newcomers have does not protect what was sent before it.
        let first = self.epochs.current.first_pn;
        let mut ranges = Vec::new();
        for pn in &lost.gaps {
            let Some(sent) = self.ledger.get(*pn) else {
                continue;
            };
            if self.shared.carried.contains_key(pn) {
                self.shared.collect_carried(*pn, member, &mut ranges);
                continue;
            }
            let missed = sent.contents.ranges();
            let repair = self.shared.lost.entry(*pn).or_insert(Repair::Counted(0));
            match repair {
                Repair::Shared { waiting, .. } => {
                    waiting.insert(member);
                    continue;
                }
                Repair::Counted(members) if *members + 1 >= wanted_by && *pn >= first => {
                    *repair = Repair::Shared {
                        ranges: missed.to_vec(),
                        waiting: BTreeSet::from([member]),
                        sent_as: None,
                    };
                    self.events.push_back(FlowEvent::Wanted {
                        packet: *pn,
                        ranges: missed.to_vec(),
                    });
                    continue;
                }
                Repair::Counted(members) => *members += 1,
                Repair::Declined => {}
            }
            collect(&mut ranges, missed);
        }
        for pn in &lost.tail {
            if self.shared.carried.contains_key(pn) {
                self.shared.collect_carried(*pn, member, &mut ranges);
            } else if let Some(sent) = self.ledger.get(*pn) {
                collect(&mut ranges, sent.contents.ranges());
            }
        }
        let repairs = ranges.into_iter();
        self.events
            .extend(repairs.map(|range| FlowEvent::Repair { member, range }));
        self.shared.sweep(self.ledger.base());
    }

    /// Answers [`FlowEvent::Wanted`] with the updates of its ranges, `None` where one is not at
    /// hand. Returns whether the ranges are sent again; otherwise the members that miss them are
    /// repaired on their unicast paths.
    pub fn provide(&mut self, packet: u64, updates: Option<Vec<Bytes>>) -> bool {
        let Some(Repair::Shared { ranges, .. }) = self.shared.lost.get(&packet) else {
            return false;
        };
        let signer = self.queue.signer();
        let piece = |(range, update): (&StreamRange, Bytes)| {
            if range.is_whole() {
                let signature = signer?.sign_stream(range.seq, &update);
                return Some(Piece {
                    seq: range.seq,
                    offset: 0,
                    data: Bytes::new(),
                    ends: true,
                    signature: Some(Box::new(signature)),
                });
            }
            let (start, end) = (range.range.start as usize, range.range.end as usize);
            let is_part = start <= end && end <= update.len();
            is_part.then(|| Piece {
                seq: range.seq,
                offset: range.range.start,
                ends: end == update.len(),
                data: update.slice(start..end),
                signature: None,
            })
        };
        let pieces = updates
            .filter(|updates| updates.len() == ranges.len())
            .and_then(|updates| ranges.iter().zip(updates).map(piece).collect());
        let pieces: VecDeque<Piece> = pieces.unwrap_or_default();
        let bytes: usize = pieces.iter().map(|piece| piece.data.len()).sum();
        if pieces.is_empty() || self.shared.queued_bytes + bytes > MAX_QUEUED {
            self.decline(packet);
            return false;
        }
        self.shared.queued_bytes += bytes;
        self.shared.queue.push_back((packet, pieces));
        true
    }

    /// Sends no more of an update again: members that wait for it are repaired on their unicast
    /// paths. Returns whether any of it was still to be sent.
    pub(super) fn withdraw_repairs(&mut self, seq: u64) -> bool {
        let has = |pieces: &VecDeque<Piece>| pieces.iter().any(|piece| piece.seq == seq);
        let (gone, kept): (VecDeque<_>, _) = std::mem::take(&mut self.shared.queue)
            .into_iter()
            .partition(|(_, pieces)| has(pieces));
        self.shared.queue = kept;
        for (packet, pieces) in &gone {
            let bytes: usize = pieces.iter().map(|piece| piece.data.len()).sum();
            self.shared.queued_bytes = self.shared.queued_bytes.saturating_sub(bytes);
            self.decline(*packet);
        }
        !gone.is_empty()
    }

    /// Repairs a packet on the unicast paths of the members that wait for it.
    fn decline(&mut self, packet: u64) {
        let former = self.shared.lost.insert(packet, Repair::Declined);
        let Some(Repair::Shared {
            ranges, waiting, ..
        }) = former
        else {
            return;
        };
        let mut missed = Vec::new();
        collect(&mut missed, &ranges);
        for member in waiting {
            let ranges = missed.iter().cloned();
            self.events
                .extend(ranges.map(|range| FlowEvent::Repair { member, range }));
        }
    }

    /// Fills a packet, whose frames begin and end at these places, with what is to be sent again.
    /// Returns whether there was something.
    pub(super) fn put_shared_repairs(
        &mut self,
        out: &mut Vec<u8>,
        room: (usize, usize),
        contents: &mut PacketContents,
    ) -> bool {
        self.shared.in_packet.clear();
        let first = self.epochs.current.first_pn;
        while let Some((packet, pieces)) = self.shared.queue.pop_front_if(|(pn, _)| *pn < first) {
            let bytes: usize = pieces.iter().map(|piece| piece.data.len()).sum();
            self.shared.queued_bytes = self.shared.queued_bytes.saturating_sub(bytes);
            self.decline(packet);
        }
        self.shared.put_frames(out, room, contents);
        !self.shared.in_packet.is_empty()
    }
}
