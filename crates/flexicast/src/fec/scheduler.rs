//! When a flow sends repair symbols.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use erasure::{Encoder, MAX_SPAN, MAX_UNKNOWNS, Scheme};

use super::config::{FecConfig, FecPolicy, SPAN};
use super::demand::Demand;
use crate::flow::MemberId;
use crate::frame;
use crate::protect::BLOCK_LEN;

/// Bytes by which the frames of a source packet end before those of a full packet, so that a REPAIR
/// frame can carry its symbol.
pub(crate) const RESERVE: usize = 2 * BLOCK_LEN;
/// A burst is over when nothing was sent for so long.
const TAIL: Duration = Duration::from_millis(2);
/// Repair symbols that wait to be sent, at most: more unknowns than that no receiver solves.
const MAX_PENDING: u32 = MAX_UNKNOWNS as u32;
/// Time in which a repair symbol is on its way, or its effect on the way back.
const ON_ITS_WAY: Duration = Duration::from_millis(50);

/// Scheduler of a flow's repair symbols, with the window that they are made of.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: FecConfig,
    encoder: Encoder,
    /// Source packets sent since the last repair symbol.
    unprotected: u32,
    /// Repair symbols to be sent now.
    pending: u32,
    /// When the burst is over, if nothing else is sent.
    tail_at: Option<Instant>,
    /// When the last repair symbol was sent.
    last_at: Option<Instant>,
    /// Number of repair symbols that were sent.
    sent: u64,
    /// Packet numbers of the newest of them.
    newest: VecDeque<u64>,
    /// Number of repair symbols after which each member has what it needs.
    targets: BTreeMap<MemberId, u64>,
    demand: Demand,
    /// Whether a window spans key epochs.
    #[cfg(feature = "fault-injection")]
    pub(crate) window_across_epochs: bool,
}

impl Scheduler {
    pub(crate) fn new(config: FecConfig) -> Self {
        Scheduler {
            config,
            encoder: Encoder::new(config.scheme, SPAN),
            unprotected: 0,
            pending: 0,
            tail_at: None,
            last_at: None,
            sent: 0,
            newest: VecDeque::new(),
            targets: BTreeMap::new(),
            demand: Demand::default(),
            #[cfg(feature = "fault-injection")]
            window_across_epochs: false,
        }
    }

    /// Returns the losses of members, which are to be kept up to date.
    pub(crate) fn demand(&mut self) -> &mut Demand {
        &mut self.demand
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
        self.tail_at = Some(now + TAIL);
        let wanted = match self.config.policy {
            FecPolicy::Proactive { symbols, packets } if self.unprotected >= packets.into() => {
                symbols.into()
            }
            FecPolicy::Adaptive => {
                let spacing = self.demand.spacing();
                u32::from(spacing.is_some_and(|spacing| self.unprotected >= spacing))
            }
            _ => 0,
        };
        self.want(wanted);
    }

    fn want(&mut self, symbols: u32) {
        self.pending = self.pending.max(symbols).min(MAX_PENDING);
    }

    /// Takes that a member misses so many packets of those that can be rebuilt, having acknowledged
    /// `largest` (Listing 1 of MCQUIC).
    pub(crate) fn on_missing(&mut self, member: MemberId, missing: usize, largest: u64) {
        let unseen = self.newest.iter().filter(|pn| **pn > largest).count();
        let needs = missing.saturating_sub(unseen).min(MAX_UNKNOWNS);
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
    fn is_wanted_by_enough(&mut self) -> bool {
        let sent = self.sent;
        self.targets.retain(|_, target| *target > sent);
        self.targets.len() > self.demand.cost()
    }

    /// Forgets a member.
    pub(crate) fn remove(&mut self, member: MemberId) {
        self.targets.remove(&member);
    }

    /// Returns when the burst is over, if a repair symbol is to be sent behind it.
    pub(crate) fn tail_at(&self) -> Option<Instant> {
        let is_worth = match self.config.policy {
            FecPolicy::Reactive => false,
            FecPolicy::Adaptive => self.demand.deserves(self.unprotected),
            FecPolicy::Tail | FecPolicy::Proactive { .. } => true,
        };
        self.tail_at.filter(|_| is_worth)
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
        if !self.is_pending()
            && let FecPolicy::Proactive { symbols, packets } = self.config.policy
        {
            let share = self.unprotected * u32::from(symbols);
            self.want(share.div_ceil(packets.into()));
        }
        (self.unprotected, self.tail_at) = (0, None);
        let encoder = &mut self.encoder;
        let len = encoder.repair_len().map(|len| len - (MAX_SPAN - SPAN) / 8);
        let put = len.is_some_and(|len| {
            frame::put_repair(out, limit, len, |out| encoder.repair(out).is_some())
        });
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

    /// Notes the packet with the REPAIR frame that was appended last.
    pub(crate) fn on_sent(&mut self, pn: u64, now: Instant) {
        self.sent += 1;
        self.last_at = Some(now);
        if self.newest.len() == SPAN {
            self.newest.pop_front();
        }
        self.newest.push_back(pn);
        if self.is_adaptive() && self.pending == 0 && self.is_wanted_by_enough() {
            self.pending = 1;
        }
    }

    /// Returns the lowest packet that a repair symbol may still bring, on its way or to be sent
    /// soon; `None` if none is to be expected.
    pub(crate) fn rebuildable(&self, is_idle: bool, now: Instant) -> Option<u64> {
        let is_on_its_way = self.last_at.is_some_and(|at| now < at + ON_ITS_WAY);
        let comes = match self.config.policy {
            FecPolicy::Proactive { .. } | FecPolicy::Reactive => true,
            FecPolicy::Adaptive => self.demand.spacing().is_some(),
            FecPolicy::Tail => false,
        };
        let ends = is_idle && self.tail_at().is_some();
        let expected = comes || ends || is_on_its_way || self.is_pending();
        let window = self.encoder.window().filter(|_| expected)?;
        Some(window.first())
    }

    /// Begins another window: the packets before are none of this key epoch.
    pub(crate) fn begin_epoch(&mut self) {
        #[cfg(feature = "fault-injection")]
        if self.window_across_epochs {
            return;
        }
        self.clear();
    }

    /// Drops the window, and all that was to be sent.
    pub(crate) fn clear(&mut self) {
        self.encoder.clear();
        self.targets.clear();
        (self.unprotected, self.pending, self.tail_at) = (0, 0, None);
        self.last_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fec::demand::MemberLoss;

    const MS: Duration = Duration::from_millis(1);
    const LIMIT: usize = 1_149;

    fn scheduler(policy: FecPolicy) -> Scheduler {
        let mut scheduler = Scheduler::new(FecConfig {
            policy,
            ..FecConfig::default()
        });
        losses(&mut scheduler, 1, 0.0, Instant::now());
        scheduler
    }

    fn losses(scheduler: &mut Scheduler, members: usize, share: f64, now: Instant) {
        let loss = MemberLoss {
            share,
            is_replicated: false,
        };
        let all = std::iter::repeat_n(loss, members);
        scheduler.demand().update(all, now);
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
            scheduler.on_sent(*next, now);
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
        assert_eq!(tail.rebuildable(false, start), None);
        assert_eq!(tail.rebuildable(true, start), Some(0));
        assert_eq!(drain(&mut tail, true, &mut next, start + TAIL), [5]);
        assert_eq!(tail.rebuildable(false, start + TAIL), Some(0), "on its way");
        assert_eq!(tail.rebuildable(false, start + TAIL + ON_ITS_WAY), None);
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
        reactive.on_missing(1, 1, 9);
        reactive.on_missing(2, 3, 9);
        assert_eq!(drain(&mut reactive, false, &mut next, start), [10, 11, 12]);
        // Acknowledged before the symbols came.
        reactive.on_missing(3, 4, 10);
        assert_eq!(drain(&mut reactive, false, &mut next, start), [13, 14]);
        reactive.on_missing(1, 1000, 14);
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
        assert_eq!(adaptive.rebuildable(false, start), None);
        losses(&mut adaptive, 1000, 0.01, start);
        let symbols = send(&mut adaptive, 1000, &mut next, start).len();
        assert!((30..=50).contains(&symbols), "{symbols} symbols");
        assert!(adaptive.rebuildable(false, start).is_some());
        // A burst that all have lost.
        let largest = next;
        (0..1000).for_each(|member| adaptive.on_missing(member, 3, largest));
        assert_eq!(drain(&mut adaptive, false, &mut next, start).len(), 3);
        losses(&mut adaptive, 1000, 0.0, start + MS);
        assert!(adaptive.is_on(start + MS), "for a while");
        assert!(!adaptive.is_on(start + MS * 60_000));
    }

    #[test]
    fn no_window_spans_two_epochs() {
        let (start, mut next) = (Instant::now(), 0);
        for scheme in Scheme::ALL {
            let config = FecConfig {
                policy: FecPolicy::Tail,
                scheme,
            };
            let mut tail = Scheduler::new(config);
            losses(&mut tail, 1, 0.0, start);
            send(&mut tail, 5, &mut next, start);
            tail.begin_epoch();
            assert_eq!(drain(&mut tail, true, &mut next, start + TAIL), []);
            let first = next;
            send(&mut tail, 2, &mut next, start);
            assert_eq!(tail.rebuildable(true, start), Some(first));
        }
    }
}
