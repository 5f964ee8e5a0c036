//! Losses of a flow's members, weighed against the cost of repair symbols.

use std::time::{Duration, Instant};

use super::config::SymbolPath;

/// Interval at which the losses are looked at.
const EVERY: Duration = Duration::from_millis(200);
/// The same after the first loss of a flow whose packets are not protected yet; each further one is
/// twice as long. What is lost until then no symbol can bring.
const FIRST: Duration = Duration::from_millis(25);
/// Packets are protected for so long after a loss.
const LOSSY_FOR: Duration = Duration::from_secs(30);
/// Lost packets per repair symbol, of a member with the usual losses: a window has enough symbols
/// for far more.
const LOST_PER_SYMBOL: f64 = 0.27;
/// Spacings of repair symbols, in packets: the closest is a quarter of the flow, the widest lets
/// each packet be protected three times.
const SPACINGS: (f64, f64) = (4.0, 32.0);

/// Losses of a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemberLoss {
    /// Share of packets that it loses, if it rebuilds.
    pub(crate) share: Option<f64>,
    /// Whether packets are replicated for it.
    pub(crate) is_replicated: bool,
}

/// Demand for repair symbols.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// Whether symbols travel on the connections of the members that lose packets.
    is_apart: bool,
    /// When the losses were last looked at.
    updated_at: Option<Instant>,
    /// Time until they are looked at again, while losses are new.
    soon: Option<Duration>,
    members: usize,
    /// Lost packets of all members together, per packet sent.
    lost: f64,
    /// Packets that the source sends for one repair symbol.
    cost: usize,
    /// Packets per repair symbol, if these pay.
    spacing: Option<u32>,
    /// Until when packets are protected.
    lossy_until: Option<Instant>,
}

impl Demand {
    /// The demand of a flow whose symbols travel so.
    pub(crate) fn new(path: SymbolPath) -> Self {
        Demand {
            is_apart: path == SymbolPath::Unicast,
            ..Demand::default()
        }
    }

    /// Whether the losses have to be looked at again.
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        let every = self.soon.unwrap_or(EVERY);
        self.updated_at.is_none_or(|at| now >= at + every)
    }

    /// Notes that a member that rebuilds has lost a packet: where none are protected, the losses
    /// are looked at soon.
    pub(crate) fn on_loss(&mut self, now: Instant) {
        if self.soon.is_none() && self.lossy_until.is_none_or(|until| now >= until) {
            self.soon = Some(FIRST);
        }
    }

    /// Has the losses looked at at once: members have come or gone.
    pub(crate) fn expire(&mut self) {
        self.updated_at = None;
    }

    /// Takes the losses of all members.
    pub(crate) fn update(&mut self, losses: impl Iterator<Item = MemberLoss>, now: Instant) {
        let (mut all, mut replicated) = (0, 0);
        let (mut members, mut losing, mut lost, mut squares) = (0, 0, 0.0, 0.0);
        for loss in losses {
            all += 1;
            replicated += usize::from(loss.is_replicated);
            if let Some(share) = loss.share {
                members += 1;
                losing += usize::from(share > 0.0);
                lost += share;
                squares += share * share;
            }
        }
        self.cost = match self.is_apart {
            true => losing,
            // One packet for those that get it by multicast, and one for each other.
            false => replicated + usize::from(all > replicated),
        };
        (self.members, self.lost, self.updated_at) = (members, lost, Some(now));
        let soon = self.soon.map(|soon| soon * 2);
        self.soon = soon.filter(|soon| *soon < EVERY);
        self.spacing = None;
        if lost <= 0.0 {
            return;
        }
        self.lossy_until = Some(now + LOSSY_FOR);
        // By the share of the members that most lost packets are missed by.
        let usual = squares / lost;
        let pays = self.cost as f64 / lost;
        let (closest, widest) = SPACINGS;
        if pays <= widest {
            let spacing = (LOST_PER_SYMBOL / usual).clamp(closest, widest).max(pays);
            self.spacing = Some(spacing.round() as u32);
        }
    }

    /// Whether any member rebuilds.
    pub(crate) fn has_members(&self) -> bool {
        self.members > 0
    }

    /// Whether a member that rebuilds has lost packets lately.
    pub(crate) fn is_lossy(&self, now: Instant) -> bool {
        self.has_members() && self.lossy_until.is_some_and(|until| now < until)
    }

    /// Returns the packets per repair symbol that pay; `None` if none do.
    pub(crate) fn spacing(&self) -> Option<u32> {
        self.spacing
    }

    /// Returns the packets that the source sends for one repair symbol.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    /// Whether so many packets deserve a repair symbol that replaces a PING.
    pub(crate) fn deserves(&self, packets: u32) -> bool {
        self.lost * f64::from(packets) * 2.0 >= self.cost as f64 && self.lost > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(losses: &[(usize, f64, bool)]) -> Demand {
        demand_by(SymbolPath::Flow, losses)
    }

    fn demand_by(path: SymbolPath, losses: &[(usize, f64, bool)]) -> Demand {
        let mut demand = Demand::new(path);
        let all = losses.iter().flat_map(|&(members, share, is_replicated)| {
            let loss = MemberLoss {
                share: Some(share),
                is_replicated,
            };
            std::iter::repeat_n(loss, members)
        });
        demand.update(all, Instant::now());
        demand
    }

    #[test]
    fn the_more_is_lost_the_closer_symbols_come() {
        assert_eq!(demand(&[(1000, 0.0, false)]).spacing(), None);
        assert_eq!(demand(&[(1000, 0.001, false)]).spacing(), Some(32));
        assert_eq!(demand(&[(1000, 0.01, false)]).spacing(), Some(27));
        assert_eq!(demand(&[(1000, 0.05, false)]).spacing(), Some(5));
        assert_eq!(demand(&[(1000, 0.2, false)]).spacing(), Some(4));
    }

    #[test]
    fn few_members_with_few_losses_are_repaired_one_by_one() {
        assert_eq!(demand(&[(2, 0.01, false)]).spacing(), None);
        assert_eq!(demand(&[(4, 0.01, false)]).spacing(), Some(27));
        assert_eq!(demand(&[(1, 0.05, false)]).spacing(), Some(20));
    }

    /// Each of a hundred members costs a packet of its own.
    #[test]
    fn replicated_symbols_cost_what_they_save() {
        assert_eq!(demand(&[(100, 0.01, true)]).spacing(), None);
        assert_eq!(demand(&[(100, 0.05, true)]).spacing(), Some(20));
        assert_eq!(demand(&[(100, 0.05, true)]).cost(), 100);
        assert_eq!(demand(&[(9, 0.0, true), (1000, 0.05, false)]).cost(), 10);
    }

    /// On connections each member that loses packets has a symbol of its own, and no other pays.
    #[test]
    fn symbols_on_connections_cost_one_for_each_member_that_loses() {
        let few = demand_by(SymbolPath::Unicast, &[(9, 0.0, false), (10, 0.05, false)]);
        assert_eq!((few.cost(), few.spacing()), (10, Some(20)));
        let rare = demand_by(SymbolPath::Unicast, &[(1000, 0.01, false)]);
        assert_eq!((rare.cost(), rare.spacing()), (1000, None));
    }

    /// The first loss is not waited for, and neither is what the next ones say; from then on the
    /// losses of many members are looked at rarely.
    #[test]
    fn first_losses_are_looked_at_soon() {
        let start = Instant::now();
        let mut demand = Demand::default();
        let looks = |demand: &mut Demand, share: f64, from: u64, to: u64| {
            let mut looks = Vec::new();
            for ms in from..to {
                let now = start + Duration::from_millis(ms);
                if share > 0.0 {
                    demand.on_loss(now);
                }
                if demand.is_stale(now) {
                    let loss = MemberLoss {
                        share: Some(share),
                        is_replicated: false,
                    };
                    demand.update(std::iter::once(loss), now);
                    looks.push(ms);
                }
            }
            looks
        };
        assert_eq!(looks(&mut demand, 0.0, 0, 450), [0, 200, 400]);
        let lossy = looks(&mut demand, 0.05, 450, 1_000);
        assert_eq!(lossy, [450, 500, 600, 800]);
        assert_eq!(looks(&mut demand, 0.0, 1_000, 1_300), [1_000, 1_200]);
    }

    /// Replicated members that do not rebuild cost as much.
    #[test]
    fn members_that_do_not_rebuild_count_in_the_cost_alone() {
        let mut demand = Demand::default();
        let old = MemberLoss {
            share: None,
            is_replicated: true,
        };
        let new = MemberLoss {
            share: Some(0.05),
            is_replicated: false,
        };
        let all = std::iter::repeat_n(old, 100).chain([new; 3]);
        demand.update(all, Instant::now());
        assert_eq!((demand.cost(), demand.spacing()), (101, None));
        assert!(demand.has_members());
    }

    #[test]
    fn one_bad_path_does_not_decide_for_all() {
        let spacing = demand(&[(1000, 0.001, false), (1, 0.2, false)]).spacing();
        assert!(
            spacing.is_some_and(|spacing| (8..=9).contains(&spacing)),
            "{spacing:?}"
        );
    }
}
