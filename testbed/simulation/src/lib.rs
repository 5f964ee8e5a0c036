//! A source and its receivers in virtual time: no sockets, clocks or threads inside a run, and all
//! randomness from one seed.
//!
//! A run makes a random [`Script`] of participants and events (losses, cuts, partitions, restarts,
//! joins, leaves, new keys, clock jumps), plays it, lets the world heal and then checks the
//! promises of flexicast. [`run`] plays one seed, [`runner::run`] many. A seed that breaks a
//! promise breaks it every time: [`Violation`] prints the line that reproduces it.
//!
//! Apart from that are [`rate`], a rate controller alone with a thousand receivers, [`crowd`], a
//! source's state machine with up to a million, [`fec`], a flow with repair symbols, and
//! [`mcquic`], the experiments of a paper.
//!
//! `flexicast` is real: its source and receivers, with real packets and keys. QUIC is modelled (its
//! promises about streams and datagrams, not its packets), and so are the network, the store and
//! the applications.

mod acts;
mod agenda;
mod checks;
pub mod crowd;
mod fault;
pub mod fec;
mod flow_out;
mod gilbert_elliott;
mod link;
pub mod mcquic;
mod network;
mod node;
mod origin;
mod path;
mod proofs;
pub mod rate;
mod receiver_host;
mod relays;
pub mod runner;
mod scenario;
mod script;
mod source_host;
mod store;
mod symbols;
mod trace;
mod violation;
mod wake;
mod watch;
mod world;
pub mod wsp;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use fault::Fault;
pub use gilbert_elliott::GilbertElliott;
pub use link::{Loss, Quality};
pub use script::{Act, ChannelPlan, ReceiverPlan, Script};
pub use violation::{Promise, Violation};
pub use world::Report;
use world::World;

/// Plays the scenario of a seed.
pub fn run(seed: u64) -> Result<Report, Violation> {
    play(Script::random(seed), None, false)
}

/// Plays a seed twice: both must be the same.
pub fn run_twice(seed: u64, fault: Option<Fault>) -> Result<Report, Violation> {
    let first = play(Script::random(seed), fault, false)?;
    let second = play(Script::random(seed), fault, false)?;
    if first != second {
        return Err(Violation {
            seed,
            at: first.time,
            promise: Promise::Determinism,
            what: format!("the run is not the same twice: {first:?}, then {second:?}"),
        });
    }
    Ok(first)
}

/// Plays a scenario. `verbose` prints what happens, line by line.
pub fn play(script: Script, fault: Option<Fault>, verbose: bool) -> Result<Report, Violation> {
    let seed = script.seed;
    let violation = |at: Duration, promise, what| Violation {
        seed,
        at,
        promise,
        what,
    };
    let mut at = Duration::ZERO;
    let run = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(script, fault, verbose)?;
        let result = catch_unwind(AssertUnwindSafe(|| world.run()));
        at = world.elapsed();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }));
    match run {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(broken)) => Err(violation(at, broken.promise, broken.what)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("no message").to_owned();
            Err(violation(at, Promise::Panic, text))
        }
    }
}
