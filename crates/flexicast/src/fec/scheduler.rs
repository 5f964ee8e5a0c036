//! When a flow sends repair symbols.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use erasure::{Encoder, MAX_SPAN, MAX_UNKNOWNS, Scheme, Window};

use super::config::{FecConfig, FecPolicy, SPAN, SymbolPath};
use super::demand::Demand;
use crate::FlowId;
use crate::flow::MemberId;
use crate::frame;
use crate::protect::BLOCK_LEN;

/// Bytes by which the frames of a source packet end before those of a full packet, so that a REPAIR
/// frame can carry its symbol.
pub(crate) const RESERVE: usize = 2 * BLOCK_LEN;
/// Bytes of a packet's frames at most whose repair symbol travels on the members' connections:
/// those of a packet of the base size. A DATAGRAM of every connection takes their symbol.
const MAX_APART: usize = 1_104;
/// A burst is over when nothing was sent for so long.
const TAIL: Duration = Duration::from_millis(2);
/// Repair symbols that wait to be sent, at most: more unknowns than that no receiver solves.
const MAX_PENDING: u32 = MAX_UNKNOWNS as u32;
/// Repair symbols that come by themselves while a member may wait, where they follow packets.
const COMING: usize = 3;
/// Newest repair symbols whose windows are remembered: their effect may be on the way back.
const REMEMBERED: usize = 16;

/// Packets that repair symbols may still bring.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// Window of symbols to come, if any are.
    coming: Option<Window>,
    /// Newest symbols that were sent, by the numbers of their packets.
    sent: Vec<(u64, Window)>,
}

impl Expected {
    /// Whether a symbol may still bring a packet to a member that acknowledged `largest` and was
    /// sent these of the newest symbols.
    pub(crate) fn brings(&self, pn: u64, largest: u64, served: Served) -> bool {
        let is_coming = self.coming.is_some_and(|window| window.contains(pn));
        is_coming
            || served
                .unseen(&self.sent, largest)
                .any(|window| window.contains(pn))
    }
}

/// Those of a flow's newest repair symbols that were sent to a member: a bit for each, the lowest
/// for the last one. What travels on the flow is sent to everybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Served(u16);

const _: () = assert!(REMEMBERED <= u16::BITS as usize);

impl Default for Served {
    fn default() -> Self {
        Served(u16::MAX)
    }
}

impl Served {
    /// Notes whether another symbol was sent to the member.
    pub(crate) fn note(&mut self, is_sent: bool) {
        self.0 = self.0 << 1 | u16::from(is_sent);
    }

    /// Returns the windows of those symbols, `newest` with the numbers of their packets, that a
    /// member has not seen that acknowledged `largest`.
    fn unseen<'a>(
        self,
        newest: impl IntoIterator<Item = &'a (u64, Window), IntoIter: DoubleEndedIterator>,
        largest: u64,
    ) -> impl Iterator<Item = &'a Window> {
        let newest = newest.into_iter().rev().zip(0..u16::BITS);
        newest.filter_map(move |((carrier, window), at)| {
            (*carrier > largest && self.0 >> at & 1 == 1).then_some(window)
        })
    }
}

/// Scheduler of a flow's repair symbols, with the window that they are made of.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: FecConfig,
    encoder: Encoder,
    /// Source packets sent since the last repair symbol.
    unprotected: u32,
    /// Repair symbols to be sent now.
    pending: u32,
    /// When the first and the last of them were sent.
    unprotected_at: Option<(Instant, Instant)>,
    /// When the last source packet was sent.
    last_packet_at: Option<Instant>,
    /// Last pause between two bursts.
    pause: Option<Duration>,
    /// Time that a packet waits for its repair symbol where many more packets may share it.
    hold: Duration,
    /// Number of repair symbols that were sent.
    sent: u64,
    /// Window of the one that was appended last.
    appended: Option<Window>,
    /// Packet numbers and windows of the newest of them.
    newest: VecDeque<(u64, Window)>,
    /// Number of repair symbols after which each member has what it needs.
    targets: BTreeMap<MemberId, u64>,
    demand: Demand,
    /// Whether a window spans key epochs.
    #[cfg(feature = "fault-injection")]
    pub(crate) window_across_epochs: bool,
}

impl Scheduler {
    /// A scheduler by which packets wait for so long while more of them come.
    pub(crate) fn new(config: FecConfig, hold: Duration) -> Self {
        Scheduler {
            config,
            encoder: Encoder::new(config.scheme, SPAN),
            unprotected: 0,
            pending: 0,
            unprotected_at: None,
            last_packet_at: None,
            pause: None,
            hold,
            sent: 0,
            appended: None,
            newest: VecDeque::new(),
            targets: BTreeMap::new(),
            demand: Demand::new(config.path),
            #[cfg(feature = "fault-injection")]
            window_across_epochs: false,
        }
    }

    /// Returns the losses of members, which are to be kept up to date.
    pub(crate) fn demand(&mut self) -> &mut Demand {
        &mut self.demand
    }

    /// Whether repair symbols travel on the members' connections.
    pub(crate) fn is_apart(&self) -> bool {
        self.config.path == SymbolPath::Unicast
    }

    /// Returns the bytes of a packet's frames at most, of those for which there is `room`, that a
    /// repair symbol can carry.
    pub(crate) fn frames_room(&self, room: usize) -> usize {
        let room = room.saturating_sub(RESERVE);
        if self.is_apart() {
            room.min(MAX_APART)
        } else {
            room
        }
    }

    /// Whether a member with this share of lost packets gets the next symbol on its connection.
    pub(crate) fn serves(&self, member: MemberId, lost: f64) -> bool {
        match self.config.policy {
            FecPolicy::Adaptive => lost > 0.0,
            FecPolicy::Reactive => self.targets.contains_key(&member),
            FecPolicy::Tail | FecPolicy::Proactive { .. } => true,
        }
    }

    fn is_adaptive(&self) -> bool {
        self.config.policy == FecPolicy::Adaptive
    }

    /// Whether packets are protected at present: some member rebuilds, and with the adaptive policy
    /// one has lost packets lately.
    pub(crate) fn is_on(&self, now: Instant) -> bool {
        match self.config.policy {
            FecPolicy::Adaptive => self.demand.is_lossy(now),
            _ => self.demand.has_members(),
        }
    }

    /// Adds a source packet. No member needs packets below `settled` any more.
    pub(crate) fn on_packet(&mut self, pn: u64, plaintext: &[u8], settled: u64, now: Instant) {
        // Rows of a code that has few are good for one block.
        if self.config.scheme != Scheme::Rlc && self.unprotected == 0 {
            self.encoder.clear();
        }
        self.encoder.settle(settled);
        if self.encoder.push(pn, plaintext).is_err() {
            return;
        }
        self.unprotected += 1;
        let first = self.unprotected_at.map_or(now, |(first, _)| first);
        self.unprotected_at = Some((first, now));
        let last = self.last_packet_at.replace(now);
        let gap = last.map(|last| now.saturating_duration_since(last));
        self.pause = gap.filter(|gap| *gap > TAIL).or(self.pause);
        let wanted = match self.config.policy {
            FecPolicy::Proactive { symbols, packets } if self.unprotected >= packets.into() => {
                symbols.into()
            }
            FecPolicy::Adaptive => {
                let spacing = self.demand.spacing();
                let is_due = spacing.is_some_and(|spacing| self.unprotected >= spacing);
                let has_waited = now >= first + self.hold;
                u32::from(is_due || (has_waited && self.demand.deserves(self.unprotected)))
            }
            _ => 0,
        };
        self.want(wanted);
    }

    fn want(&mut self, symbols: u32) {
        self.pending = self.pending.max(symbols).min(MAX_PENDING);
    }

    /// Sets the time that a packet waits for its repair symbol where many more may share it.
    pub(crate) fn set_hold(&mut self, hold: Duration) {
        self.hold = hold;
    }

    /// Whether more packets are likely to be sent soon: the last pause was a short one.
    fn is_steady(&self) -> bool {
        self.pause.is_some_and(|pause| pause < self.hold)
    }

    /// Returns the number of repair symbols that come soon by themselves.
    fn coming(&self, now: Instant) -> usize {
        let is_busy = self.last_packet_at.is_some_and(|at| now < at + self.hold);
        let comes = self.is_adaptive() && self.demand.spacing().is_some() && is_busy;
        if comes { COMING } else { 0 }
    }

    /// Takes that a member misses so many packets of those that can be rebuilt, having acknowledged
    /// `largest`, with those of the newest symbols that were sent to it (Listing 1 of MCQUIC).
    pub(crate) fn on_missing(
        &mut self,
        member: MemberId,
        missing: usize,
        (largest, served): (u64, Served),
        now: Instant,
    ) {
        let unseen = served.unseen(&self.newest, largest).count();
        let coming = unseen + self.coming(now);
        let needs = missing.saturating_sub(coming).min(MAX_UNKNOWNS);
        if needs == 0 {
            self.targets.remove(&member);
            return;
        }
        self.targets.insert(member, self.sent + needs as u64);
        match self.config.policy {
            FecPolicy::Reactive => self.want(needs as u32),
            FecPolicy::Adaptive => {
                let wanted = u32::from(self.is_wanted_by_enough());
                self.want(wanted);
            }
            FecPolicy::Tail | FecPolicy::Proactive { .. } => {}
        }
    }

    /// Whether another repair symbol costs less than the repairs that it saves.
    fn is_wanted_by_enough(&self) -> bool {
        self.targets.len() > self.demand.cost()
    }

    /// Whether a repair symbol can still be made of this packet.
    pub(crate) fn covers(&self, pn: u64) -> bool {
        self.encoder
            .window()
            .is_some_and(|window| window.contains(pn))
    }

    /// Forgets a member.
    pub(crate) fn remove(&mut self, member: MemberId) {
        self.targets.remove(&member);
    }

    /// Returns when a repair symbol is to be sent, if nothing else waits then: when the burst is
    /// over, or with the adaptive policy, where the next burst comes soon, when the first packet of
    /// several bursts has waited for long enough.
    pub(crate) fn tail_at(&self) -> Option<Instant> {
        let (first, last) = self.unprotected_at?;
        match self.config.policy {
            FecPolicy::Reactive => None,
            FecPolicy::Adaptive if !self.demand.deserves(self.unprotected) => None,
            FecPolicy::Adaptive if self.is_steady() => Some((first + self.hold).max(last + TAIL)),
            FecPolicy::Adaptive | FecPolicy::Tail | FecPolicy::Proactive { .. } => {
                Some(last + TAIL)
            }
        }
    }

    /// Whether repair symbols are to be sent before anything else.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// Whether a repair symbol is to be sent now, where the queue is empty or not.
    pub(crate) fn is_due(&self, is_idle: bool, now: Instant) -> bool {
        self.is_pending() || (is_idle && self.tail_at().is_some_and(|at| at <= now))
    }

    /// Appends a REPAIR frame, if there is one to be sent and `out` takes it until it is `limit`
    /// bytes long; returns whether it did.
    pub(crate) fn put_repair(&mut self, out: &mut Vec<u8>, limit: usize) -> bool {
        self.make(|encoder, len| {
            let mut window = None;
            frame::put_repair(out, limit, len, |out| {
                window = encoder.repair(out);
                window.is_some()
            });
            window
        })
    }

    /// Returns a DATAGRAM with a repair symbol for the members' connections, if there is one to be
    /// sent.
    pub(crate) fn apart_symbol(&mut self, flow: FlowId) -> Option<Vec<u8>> {
        let mut datagram = None;
        self.make(|encoder, len| {
            let mut window = None;
            datagram = frame::apart_symbol(flow, len, |out| {
                window = encoder.repair(out);
                window.is_some()
            });
            window
        });
        datagram
    }

    /// Has `put` append a repair symbol of at most so many bytes, if there is one to be sent.
    /// Returns whether it did.
    fn make(&mut self, put: impl FnOnce(&mut Encoder, usize) -> Option<Window>) -> bool {
        if !self.is_pending()
            && let FecPolicy::Proactive { symbols, packets } = self.config.policy
        {
            let share = self.unprotected * u32::from(symbols);
            self.want(share.div_ceil(packets.into()));
        }
        (self.unprotected, self.unprotected_at) = (0, None);
        let encoder = &mut self.encoder;
        let len = encoder.repair_len().map(|len| len - (MAX_SPAN - SPAN) / 8);
        self.appended = len.and_then(|len| put(encoder, len));
        let put = self.appended.is_some();
        self.pending = if put {
            self.pending.saturating_sub(1)
        } else {
            0
        };
        if len.is_some() && !put {
            // Packets of a larger size than the flow has now.
            self.encoder.clear();
        }
        put
    }

    /// Notes the packet with the repair symbol that was made last, or the next one, where that
    /// travels apart.
    pub(crate) fn on_sent(&mut self, pn: u64) {
        self.sent += 1;
        if self.newest.len() == REMEMBERED {
            self.newest.pop_front();
        }
        self.newest
            .extend(self.appended.take().map(|window| (pn, window)));
        let sent = self.sent;
        self.targets.retain(|_, target| *target > sent);
        if self.is_adaptive() && self.pending == 0 && self.is_wanted_by_enough() {
            self.pending = 1;
        }
    }

    /// Writes down which packets repair symbols may still bring: those on their way, and those that
    /// are sent soon.
    pub(crate) fn expect(&self, is_idle: bool, now: Instant, expected: &mut Expected) {
        let is_busy = self.last_packet_at.is_some_and(|at| now < at + self.hold);
        let comes = match self.config.policy {
            FecPolicy::Proactive { .. } => is_busy,
            FecPolicy::Reactive => true,
            FecPolicy::Adaptive => self.demand.spacing().is_some() && is_busy,
            FecPolicy::Tail => false,
        };
        let ends = is_idle && self.tail_at().is_some();
        let is_coming = comes || ends || self.is_pending();
        expected.coming = self.encoder.window().filter(|_| is_coming);
        expected.sent.clear();
        expected.sent.extend(self.newest.iter().copied());
    }

    /// Begins another window: the packets before are none of this key epoch.
    pub(crate) fn begin_epoch(&mut self) {
        #[cfg(feature = "fault-injection")]
        if self.window_across_epochs {
            return;
        }
        self.clear();
    }

    /// Drops the window where packets are not protected any more: it would become old.
    pub(crate) fn stop(&mut self) {
        if self.encoder.window().is_some() {
            self.clear();
        }
    }

    /// Drops the window, and all that was to be sent.
    pub(crate) fn clear(&mut self) {
        self.encoder.clear();
        self.targets.clear();
        (self.unprotected, self.pending, self.unprotected_at) = (0, 0, None);
        self.newest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fec::demand::MemberLoss;

    const MS: Duration = Duration::from_millis(1);
    const HOLD: Duration = Duration::from_millis(25);
    const LIMIT: usize = 1_149;

    fn scheduler(policy: FecPolicy) -> Scheduler {
        let config = FecConfig {
            policy,
            ..FecConfig::default()
        };
        let mut scheduler = Scheduler::new(config, HOLD);
        losses(&mut scheduler, 1, 0.0, Instant::now());
        scheduler
    }

    fn losses(scheduler: &mut Scheduler, members: usize, share: f64, now: Instant) {
        let loss = MemberLoss {
            share: Some(share),
            is_replicated: false,
        };
        let all = std::iter::repeat_n(loss, members);
        scheduler.demand().update(all, now);
    }

    /// The lowest packet that symbols to come may bring.
    fn coming(scheduler: &Scheduler, is_idle: bool, now: Instant) -> Option<u64> {
        let mut expected = Expected::default();
        scheduler.expect(is_idle, now, &mut expected);
        expected.coming.map(|window| window.first())
    }

    /// Sends packets, and repair symbols where they are due; returns the numbers of these.
    fn send(scheduler: &mut Scheduler, packets: u64, next: &mut u64, now: Instant) -> Vec<u64> {
        let mut symbols = Vec::new();
        for _ in 0..packets {
            scheduler.on_packet(*next, b"packet", 0, now);
            *next += 1;
            symbols.extend(drain(scheduler, false, next, now));
        }
        symbols
    }

    fn drain(scheduler: &mut Scheduler, idle: bool, next: &mut u64, now: Instant) -> Vec<u64> {
        let mut symbols = Vec::new();
        while scheduler.is_due(idle, now) && scheduler.put_repair(&mut Vec::new(), LIMIT) {
            scheduler.on_sent(*next);
            symbols.push(*next);
            *next += 1;
        }
        symbols
    }

    #[test]
    fn one_symbol_follows_a_burst() {
        let (start, mut next) = (Instant::now(), 0);
        let mut tail = scheduler(FecPolicy::Tail);
        assert_eq!(tail.tail_at(), None);
        assert_eq!(send(&mut tail, 5, &mut next, start), []);
        assert_eq!(tail.tail_at(), Some(start + TAIL));
        assert_eq!(
            drain(&mut tail, false, &mut next, start + TAIL),
            [],
            "more comes"
        );
        assert_eq!(drain(&mut tail, true, &mut next, start + MS), []);
        assert_eq!(coming(&tail, false, start), None);
        assert_eq!(coming(&tail, true, start), Some(0));
        assert_eq!(drain(&mut tail, true, &mut next, start + TAIL), [5]);
        let mut expected = Expected::default();
        tail.expect(false, start + TAIL, &mut expected);
        assert!(
            expected.brings(0, 4, Served::default()) && !expected.brings(0, 5, Served::default()),
            "it has come"
        );
        assert!(
            !expected.brings(5, 4, Served::default()),
            "no packet of the window"
        );
        assert_eq!(
            drain(&mut tail, true, &mut next, start + MS * 99),
            [],
            "once"
        );
    }

    #[test]
    fn a_ratio_is_kept_and_rounded_up_behind_a_burst() {
        let (start, mut next) = (Instant::now(), 0);
        let policy = FecPolicy::Proactive {
            symbols: 2,
            packets: 10,
        };
        let mut proactive = scheduler(policy);
        let symbols = send(&mut proactive, 36, &mut next, start);
        assert_eq!(symbols, [10, 11, 22, 23, 34, 35]);
        let behind = drain(&mut proactive, true, &mut next, start + TAIL);
        assert_eq!(behind, [42, 43], "of six packets");
    }

    #[test]
    fn the_member_that_misses_most_decides() {
        let (start, mut next) = (Instant::now(), 0);
        let mut reactive = scheduler(FecPolicy::Reactive);
        send(&mut reactive, 10, &mut next, start);
        reactive.on_missing(1, 1, (9, Served::default()), start);
        reactive.on_missing(2, 3, (9, Served::default()), start);
        assert_eq!(drain(&mut reactive, false, &mut next, start), [10, 11, 12]);
        // Acknowledged before the symbols came.
        reactive.on_missing(3, 4, (10, Served::default()), start);
        assert_eq!(drain(&mut reactive, false, &mut next, start), [13, 14]);
        reactive.on_missing(1, 1000, (14, Served::default()), start);
        assert_eq!(
            drain(&mut reactive, false, &mut next, start).len(),
            MAX_UNKNOWNS
        );
        assert_eq!(drain(&mut reactive, true, &mut next, start + MS * 99), []);
    }

    #[test]
    fn symbols_come_where_they_cost_less_than_repairs() {
        let (start, mut next) = (Instant::now(), 0);
        let mut adaptive = scheduler(FecPolicy::Adaptive);
        assert!(!adaptive.is_on(start));
        // One member of a hundred in a hundred packets: each symbol would save a third of a repair.
        losses(&mut adaptive, 1, 0.01, start);
        assert!(adaptive.is_on(start));
        assert_eq!(send(&mut adaptive, 100, &mut next, start), []);
        assert_eq!(coming(&adaptive, false, start), None);
        losses(&mut adaptive, 1000, 0.01, start);
        let symbols = send(&mut adaptive, 1000, &mut next, start).len();
        assert!((30..=40).contains(&symbols), "{symbols} symbols");
        assert!(coming(&adaptive, false, start).is_some());
        // A burst that all have lost.
        let largest = next;
        let miss = |member| adaptive.on_missing(member, 4, (largest, Served::default()), start);
        (0..1000).for_each(miss);
        let symbols = drain(&mut adaptive, false, &mut next, start).len();
        assert_eq!(symbols, 1, "three more come with packets");
        let largest = next;
        let miss =
            |member| adaptive.on_missing(member, 3, (largest, Served::default()), start + HOLD);
        (0..1000).for_each(miss);
        assert_eq!(drain(&mut adaptive, false, &mut next, start).len(), 3);
        losses(&mut adaptive, 1000, 0.0, start + MS);
        assert!(adaptive.is_on(start + MS), "for a while");
        assert!(!adaptive.is_on(start + MS * 60_000));
    }

    #[test]
    fn bursts_that_follow_each_other_share_a_symbol() {
        let (start, mut next) = (Instant::now(), 0);
        let mut adaptive = scheduler(FecPolicy::Adaptive);
        losses(&mut adaptive, 100, 0.01, start);
        send(&mut adaptive, 1, &mut next, start);
        assert_eq!(adaptive.tail_at(), Some(start + TAIL), "nothing is known");
        drain(&mut adaptive, true, &mut next, start + TAIL);
        let second = start + MS * 5;
        for n in 0..5 {
            send(&mut adaptive, 1, &mut next, second + MS * 5 * n);
            assert_eq!(adaptive.tail_at(), Some(second + HOLD));
        }
        drain(&mut adaptive, true, &mut next, second + HOLD);
        let third = second + MS * 60;
        send(&mut adaptive, 2, &mut next, third);
        assert_eq!(adaptive.tail_at(), Some(third + TAIL), "after a long pause");
    }

    #[test]
    fn a_symbol_of_full_packets_and_the_longest_window_fits() {
        let (start, mut tail) = (Instant::now(), scheduler(FecPolicy::Tail));
        let (first, full) = (1 << 40, vec![7; LIMIT - RESERVE]);
        for n in (0..SPAN as u64).filter(|n| n % 5 != 3) {
            tail.on_packet(first + n, &full, 0, start);
        }
        assert_eq!(coming(&tail, true, start), Some(first));
        assert!(tail.put_repair(&mut Vec::new(), LIMIT));
        assert!(!tail.put_repair(&mut Vec::new(), LIMIT - 1));
    }

    #[test]
    fn no_window_spans_two_epochs() {
        let (start, mut next) = (Instant::now(), 0);
        for scheme in Scheme::ALL {
            let config = FecConfig {
                policy: FecPolicy::Tail,
                scheme,
                ..FecConfig::default()
            };
            let mut tail = Scheduler::new(config, HOLD);
            losses(&mut tail, 1, 0.0, start);
            send(&mut tail, 5, &mut next, start);
            tail.begin_epoch();
            assert_eq!(drain(&mut tail, true, &mut next, start + TAIL), []);
            let first = next;
            send(&mut tail, 2, &mut next, start);
            assert_eq!(coming(&tail, true, start), Some(first));
        }
    }

    /// Symbols on connections bring nothing to members that they were not sent to.
    #[test]
    fn symbols_bring_packets_to_those_that_they_were_sent_to() {
        let start = Instant::now();
        let mut tail = scheduler(FecPolicy::Tail);
        let mut served = [Served::default(); 2];
        for burst in 0..3 {
            let now = start + HOLD * burst;
            tail.on_packet(burst.into(), &[1; 9], 0, now);
            assert!(tail.is_due(true, now + TAIL) && tail.put_repair(&mut Vec::new(), LIMIT));
            tail.on_sent(u64::from(burst) + 1);
            served[0].note(burst == 1);
            served[1].note(true);
        }
        let mut expected = Expected::default();
        tail.expect(false, start + HOLD * 3, &mut expected);
        let brings = |largest, served| [0, 1, 2].map(|pn| expected.brings(pn, largest, served));
        assert_eq!(brings(0, served[1]), [true, true, true]);
        assert_eq!(
            brings(0, served[0]),
            [true, true, false],
            "the second one alone"
        );
        assert_eq!(brings(2, served[0]), [false; 3], "seen");
        assert_eq!(brings(2, served[1]), [true; 3], "the third is not");
    }
}
