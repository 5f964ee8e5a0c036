//! The rate controller of a flow beside unicast CUBIC, in virtual time.

use anyhow::{Context, Result, anyhow};
use flexicast::rate::RatePolicy;
use simulation::rate::{
    Comparison, MIXED_PATHS, compare, join_dip, recovery_after_eviction, shared_loss_halving, worst,
};

use crate::figures::Figures;

/// All figures of this file.
pub const NAMES: [&str; 11] = [
    "rate_vs_unicast_n1",
    "rate_vs_unicast_n10",
    "rate_vs_unicast_n100",
    "rate_vs_unicast_n1000",
    "rate_cubic_min_vs_unicast_n1",
    "rate_cubic_min_vs_unicast_n10",
    "rate_cubic_min_vs_unicast_n100",
    "rate_cubic_min_vs_unicast_n1000",
    "evict_recover_s",
    "shared_loss_halved_rtts",
    "join_dip",
];

const MEMBERS: [usize; 4] = [1, 10, 100, 1000];
/// Members of the scenarios with a single number.
const MANY: usize = 1000;
const SOME: usize = 100;

/// Measures what is asked for.
///
/// # Errors
///
/// A figure's event does not happen in its scenario.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let (comparisons, scenarios) = NAMES.split_at(2 * MEMBERS.len());
    let policies = [RatePolicy::TcpFriendly, RatePolicy::CubicMin];
    let pairs = policies.map(|policy| MEMBERS.map(|members| (policy, members)));
    for (name, (policy, members)) in comparisons.iter().zip(pairs.concat()) {
        if figures.wants(&[name]) {
            let all = compare_paths(policy, members)?;
            report(policy, members, &all);
            figures.take(name, worst(&all), "ratio");
        }
    }
    let [evict, halved, dip] = scenarios else {
        return Ok(());
    };
    if figures.wants(&[evict]) {
        let took = recovery_after_eviction(MANY).context("the slow member was not evicted")?;
        figures.take(evict, took.as_secs_f64(), "s");
    }
    if figures.wants(&[halved]) {
        let round_trips = shared_loss_halving(SOME).context("the rate was not halved")?;
        figures.take(halved, round_trips, "round trips");
    }
    if figures.wants(&[dip]) {
        figures.take(dip, join_dip(SOME), "ratio");
    }
    Ok(())
}

/// All paths, on as many threads.
fn compare_paths(policy: RatePolicy, members: usize) -> Result<Vec<Comparison>> {
    std::thread::scope(|scope| {
        MIXED_PATHS
            .map(|path| scope.spawn(move || compare(policy, members, path)))
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a simulation panicked")))
            .collect()
    })
}

fn report(policy: RatePolicy, members: usize, comparisons: &[Comparison]) {
    for comparison in comparisons {
        eprintln!(
            "{policy:?}, {members} members, {:.1} % loss, {} ms: {:.2} of {:.2} Mbit/s",
            comparison.path.loss * 100.0,
            comparison.path.rtt.as_millis(),
            comparison.ratio,
            comparison.unicast / 1e6
        );
    }
}
