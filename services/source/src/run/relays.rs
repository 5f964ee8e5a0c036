//! Health checks of the AMT relays: only relays that answer are announced to receivers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use amt_tokio::Prober;
use flexicast::control::RelayHint;
use flexicast_tokio::source::SourceHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::board::Board;
use crate::clock::now_ms;
use crate::config::Relay;
use crate::status::RelayView;

/// Interval of checks.
const EVERY: Duration = Duration::from_secs(5);
/// Interval for a relay that was lost a moment ago: most are restarted soon, and receivers come
/// back only once a relay is announced again.
const EVERY_WHEN_LOST: Duration = Duration::from_secs(1);
/// Time for which a relay counts as lost a moment ago.
const LOST_FOR: Duration = Duration::from_secs(30);
/// Time limit for an answer; until then the request is repeated.
const WITHIN: Duration = Duration::from_secs(2);
/// Consecutive unanswered checks after which a healthy relay counts as lost.
const MISSES: u32 = 2;

/// A relay with the results of its checks.
struct MonitoredRelay {
    relay: Relay,
    view: RelayView,
    misses: u32,
    /// Absent during a check.
    prober: Option<Prober>,
    /// Whether the check uses MLD.
    mld: bool,
    /// Time of the loss, until the relay is healthy again.
    lost: Option<Instant>,
    /// Time of the next check.
    due: Instant,
}

impl MonitoredRelay {
    fn new(relay: Relay) -> Self {
        let view = RelayView {
            address: relay.public.to_string(),
            asked: relay.asked.to_string(),
            error: Some("it was not checked yet".to_owned()),
            ..RelayView::default()
        };
        Self {
            relay,
            view,
            misses: 0,
            prober: None,
            mld: false,
            lost: None,
            due: Instant::now(),
        }
    }

    /// Records the result of a check and schedules the next one. Returns whether the set of
    /// announced relays changes.
    fn answered(&mut self, answer: Result<Duration, String>, now_ms: u64, now: Instant) -> bool {
        let view = &mut self.view;
        let first = view.since_ms.is_none();
        let healthy = match answer {
            Ok(took) => {
                self.misses = 0;
                view.answer_ms = Some(took.as_secs_f64() * 1e3);
                view.error = None;
                true
            }
            Err(why) => {
                self.misses += 1;
                let dead = !view.healthy || self.misses >= MISSES;
                if dead {
                    view.error = Some(why);
                }
                !dead
            }
        };
        let changed = healthy != view.healthy;
        if changed || first {
            view.since_ms = Some(now_ms);
            match &view.error {
                None => info!(relay = %view.address, "AMT relay answers; announced to receivers"),
                Some(why) => warn!(relay = %view.address, error = why, "AMT relay not announced"),
            }
        }
        self.lost = match (healthy, view.healthy) {
            (true, _) => None,
            (false, true) => Some(now),
            (false, false) => self.lost,
        };
        view.healthy = healthy;
        let is_lost = self.lost.is_some_and(|since| now < since + LOST_FOR);
        self.due = now + if is_lost { EVERY_WHEN_LOST } else { EVERY };
        changed
    }
}

fn hints(all: &[MonitoredRelay]) -> Vec<RelayHint> {
    let healthy = all.iter().filter(|w| w.view.healthy);
    healthy.filter_map(|w| w.relay.hint()).collect()
}

/// Whether the flows have IPv6 groups only, so that relays have to be checked by MLD. `endpoints`
/// are as in the transport's status.
fn only_ipv6<'a>(endpoints: impl Iterator<Item = &'a String>) -> bool {
    let mut groups = endpoints.filter_map(|text| {
        let (_, group) = text.trim_matches(['(', ')']).rsplit_once(", ")?;
        group.parse::<SocketAddr>().ok()
    });
    let first = groups.next();
    first.is_some_and(|first| first.is_ipv6()) && groups.all(|group| group.is_ipv6())
}

/// Whether relays have to be checked by MLD.
async fn by_mld(handle: &SourceHandle) -> bool {
    let status = handle.status().await;
    let channels = status.iter().flat_map(|status| &status.channels);
    let flows = channels.filter_map(|channel| channel.flow.as_ref());
    only_ipv6(flows.flat_map(|flow| &flow.endpoints))
}

/// Checks one relay.
async fn ask(prober: &mut Prober) -> Result<Duration, String> {
    match prober.ask(WITHIN).await {
        Ok(answer) if answer.limited => {
            Err("it takes no further gateways, for it is full".to_owned())
        }
        Ok(answer) => Ok(answer.took),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks the relays until `stop`.
pub(super) async fn watch(
    relays: Vec<Relay>,
    handle: SourceHandle,
    board: Arc<Board>,
    stop: CancellationToken,
) {
    if relays.is_empty() {
        return stop.cancelled().await;
    }
    let mut all: Vec<_> = relays.into_iter().map(MonitoredRelay::new).collect();
    let show =
        |all: &[MonitoredRelay]| board.set_relays(all.iter().map(|w| w.view.clone()).collect());
    show(&all);
    let watching = async {
        loop {
            let next = all.iter().map(|watched| watched.due).min();
            sleep_until(next.unwrap_or_else(|| Instant::now() + EVERY)).await;
            let mld = by_mld(&handle).await;
            let mut asked = tokio::task::JoinSet::new();
            let now = Instant::now();
            for (at, watched) in all.iter_mut().enumerate().filter(|(_, one)| one.due <= now) {
                // If the result is lost with its task, the next check follows all the same.
                watched.due = now + EVERY;
                let fresh = || Prober::new(watched.relay.asked.clone(), mld);
                let asks_so = std::mem::replace(&mut watched.mld, mld) == mld;
                let kept = watched.prober.take().filter(|_| asks_so);
                let mut prober = kept.unwrap_or_else(fresh);
                asked.spawn(async move { (at, ask(&mut prober).await, prober) });
            }
            let mut changed = false;
            while let Some(answer) = asked.join_next().await {
                if let Ok((at, answer, prober)) = answer
                    && let Some(watched) = all.get_mut(at)
                {
                    watched.prober = Some(prober);
                    changed |= watched.answered(answer, now_ms().unsigned_abs(), Instant::now());
                }
            }
            show(&all);
            if changed {
                handle.set_relays(hints(&all)).await;
            }
        }
    };
    stop.run_until_cancelled(watching).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn watched(name: &str) -> MonitoredRelay {
        let public: amt_tokio::RelayName = name.parse().unwrap();
        MonitoredRelay::new(Relay {
            asked: public.clone(),
            public,
            preference: 0,
        })
    }

    impl MonitoredRelay {
        /// [`MonitoredRelay::answered`] where the time of the next question does not matter.
        fn answers(&mut self, answer: Result<Duration, String>, now_ms: u64) -> bool {
            self.answered(answer, now_ms, Instant::now())
        }
    }

    const GOOD: Result<Duration, String> = Ok(Duration::from_millis(2));

    fn bad() -> Result<Duration, String> {
        Err("no answer".to_owned())
    }

    #[test]
    fn only_relays_that_answer_are_announced() {
        let mut all = [watched("a.example"), watched("b.example")];
        assert_eq!(hints(&all), [], "none is announced before its first answer");
        assert!(!all[0].answers(bad(), 1));
        assert_eq!(all[0].view.since_ms, Some(1));
        assert!(all[1].answers(GOOD, 2));
        let announced: Vec<_> = hints(&all).iter().map(ToString::to_string).collect();
        assert_eq!(announced, ["b.example:2268"]);
        assert!(all[0].answers(GOOD, 3), "one answer is enough");
        assert_eq!(hints(&all).len(), 2);
        assert_eq!(
            (all[0].view.since_ms, all[0].view.answer_ms),
            (Some(3), Some(2.0))
        );
    }

    #[test]
    fn relays_are_checked_by_mld_if_all_groups_are_ipv6() {
        let (v4, v6) = ("(192.0.2.1, 232.70.70.1:4434)", "(*, [ff3e::1]:4434)");
        for (endpoints, mld) in [
            (&[][..], false),
            (&[v4], false),
            (&[v6], true),
            (&[v6, v6], true),
            (&[v6, v4], false),
            (&[v4, v6], false),
            (&["what is this"], false),
        ] {
            let endpoints: Vec<_> = endpoints.iter().map(|e| (*e).to_owned()).collect();
            assert_eq!(only_ipv6(endpoints.iter()), mld, "{endpoints:?}");
        }
    }

    #[test]
    fn one_lost_answer_is_no_loss_of_the_relay() {
        let mut one = watched("a.example");
        assert!(one.answers(GOOD, 1));
        for _ in 0..5 {
            assert!(!one.answers(bad(), 2), "still healthy");
            assert!(one.view.healthy && one.view.error.is_none());
            assert!(!one.answers(GOOD, 3));
        }
        assert!(!one.answers(bad(), 4));
        assert!(one.answers(bad(), 5), "two in a row");
        assert_eq!((one.view.healthy, one.view.since_ms), (false, Some(5)));
        assert_eq!(one.view.error.as_deref(), Some("no answer"));
        assert!(!one.answers(bad(), 6), "no change");
        assert!(one.answers(GOOD, 7));
    }

    /// Receivers do not come back to a relay before it is announced.
    #[test]
    fn a_lost_relay_is_checked_each_second_for_a_while() {
        let mut one = watched("a.example");
        let mut now = Instant::now();
        let mut pauses =
            |one: &mut MonitoredRelay, answer: fn() -> Result<Duration, String>, times| {
                let mut all = Vec::new();
                for _ in 0..times {
                    one.answered(answer(), 1, now);
                    all.push((one.due - now).as_secs());
                    now = one.due;
                }
                all
            };
        assert_eq!(pauses(&mut one, bad, 3), [5; 3], "it was never there");
        assert_eq!(pauses(&mut one, || GOOD, 3), [5; 3]);
        assert_eq!(pauses(&mut one, bad, 1), [5], "one answer may get lost");
        let lost = pauses(&mut one, bad, 40);
        assert_eq!(lost, [[1; 30].as_slice(), &[5; 10]].concat());
        assert_eq!(pauses(&mut one, || GOOD, 2), [5; 2]);
        pauses(&mut one, bad, 1);
        assert_eq!(pauses(&mut one, bad, 2), [1; 2], "lost again");
    }
}
