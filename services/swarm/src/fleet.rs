//! All receivers: their start, their churn, their end.

use std::sync::Arc;
use std::time::Duration;

use flexicast_tokio::receiver::{FlowLoss, SharedGroups, Verify};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::board::{Board, Connection};
use crate::cli::Options;
use crate::identity::Identity;
use crate::member::{Member, Settings};

/// Granularity of starts and departures.
const STEP: Duration = Duration::from_millis(10);
/// Time limit for all connections to be closed.
const GOODBYE: Duration = Duration::from_secs(10);

/// Requests to a receiver to be away for a while.
#[derive(Debug, Default)]
pub struct Exits {
    /// To leave with a word to the source.
    pub leave: Notify,
    /// To crash.
    pub crash: Notify,
}

/// The receivers of a run.
pub struct Fleet {
    settings: Arc<Settings>,
    board: Arc<Board>,
    groups: SharedGroups,
    seed: u64,
    running: JoinSet<()>,
    /// By receiver.
    exits: Vec<Arc<Exits>>,
    stop: CancellationToken,
}

impl Fleet {
    /// Returns the receivers that the options describe, none of them started.
    #[must_use]
    pub fn new(options: &Options, seed: u64, board: Arc<Board>) -> Self {
        let link = &options.link;
        let pins: Vec<[u8; 32]> = link.pins.iter().map(|pin| pin.0).collect();
        let settings = Settings {
            server: link.server(),
            verify: match pins.is_empty() {
                true => Verify::Roots,
                false => Verify::Pins(pins),
            },
            token: link.token.as_bytes().to_vec(),
            channels: link.channels.clone(),
            history: options.history,
            interface: options.interface,
            multicast: !options.no_multicast,
            replicate: !options.no_replicate,
        };
        let part = options.loss / 100.0;
        Fleet {
            settings: Arc::new(settings),
            board,
            groups: SharedGroups::with_loss(FlowLoss { part, seed }),
            seed,
            running: JoinSet::new(),
            exits: Vec::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Returns the number of receivers started.
    #[must_use]
    pub fn started(&self) -> u32 {
        u32::try_from(self.exits.len()).unwrap_or(u32::MAX)
    }

    /// Starts receivers up to a number, at a rate per second.
    pub async fn ramp_up(&mut self, receivers: u32, rate: f64) {
        let begun = Instant::now();
        while self.started() < receivers {
            let due = begun.elapsed().as_secs_f64() * rate + 1.0;
            while self.started() < receivers && f64::from(self.started()) + 1.0 <= due {
                self.start();
            }
            tokio::time::sleep(STEP).await;
        }
    }

    fn start(&mut self) {
        let index = self.started();
        let exits = Arc::<Exits>::default();
        self.exits.push(exits.clone());
        let member = Member {
            index: self.exits.len() - 1,
            identity: Identity::new(self.seed, index),
            settings: self.settings.clone(),
            groups: self.groups.clone(),
            board: self.board.clone(),
            exits,
            stop: self.stop.clone(),
        };
        self.running.spawn(member.live());
    }

    /// Has receivers leave and crash at these rates, and come back, for ever.
    pub async fn churn(&self, leaves: Option<f64>, crashes: Option<f64>) {
        let leaves = self.ask_at(leaves, self.seed, |exits| &exits.leave);
        let crashes = self.ask_at(crashes, self.seed.wrapping_add(1), |exits| &exits.crash);
        tokio::join!(leaves, crashes);
    }

    /// Asks random receivers at a rate, for ever.
    async fn ask_at(&self, rate: Option<f64>, seed: u64, exit: impl Fn(&Exits) -> &Notify) {
        let Some(rate) = rate else {
            return std::future::pending().await;
        };
        let mut random = StdRng::seed_from_u64(seed);
        let (begun, mut left) = (Instant::now(), 0.0);
        loop {
            tokio::time::sleep(STEP).await;
            while left + 1.0 <= begun.elapsed().as_secs_f64() * rate {
                left += 1.0;
                let Some(last) = self.exits.len().checked_sub(1) else {
                    continue;
                };
                let index = random.random_range(0..=last);
                let member = self.board.member(index);
                if member.is_some_and(|member| member.connection == Connection::Served)
                    && let Some(exits) = self.exits.get(index)
                {
                    exit(exits).notify_one();
                }
            }
        }
    }

    /// Closes all connections.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        let all = async { while self.running.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(GOODBYE, all).await;
    }
}
