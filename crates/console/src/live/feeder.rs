//! Follows the database: everything at first, then what has changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use service::backoff::Backoff;
use store::{Changes, ReceiverRow, StateRow, StoreError, Topic, Watch};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::clock::now_ms;
use crate::fleet::{Facts, Fleet, ForgeryReports, Rung, State};
use crate::site::Site;

/// Interval of reads without a notification.
const LOOK: Duration = Duration::from_secs(2);

/// Between two looks, however much changes.
const PAUSE: Duration = Duration::from_millis(200);

/// The same while a caller waits for its own change.
const BREATH: Duration = Duration::from_millis(20);

/// Channels and feeds are read so often.
const SETTINGS: Duration = Duration::from_secs(5);

/// Rows of each kind in one read.
const ROWS: usize = 5_000;

/// Cause of moves because of forged packets, and of reports of them.
const FORGED: &str = "forged";

/// Reports of forged packets are shown for this time.
const FORGERIES_MS: i64 = 24 * 3_600_000;

/// The longest wait after a failure.
const LONGEST: Duration = Duration::from_secs(10);

/// Read position.
#[derive(Debug, Clone, Copy)]
struct ReadPosition {
    epoch: i64,
    upto: u64,
}

/// Follows the database until the site's stop.
pub async fn follow(site: Arc<Site>) {
    let stop = site.stop.clone();
    stop.run_until_cancelled(follow_forever(&site)).await;
}

async fn follow_forever(site: &Site) {
    let mut watch = site.store.watch(Topic::Changes);
    let mut read: Option<ReadPosition> = None;
    let mut settings_at: Option<Instant> = None;
    let mut seen = 0;
    let mut backoff = Backoff::new(PAUSE * 2, LONGEST);
    loop {
        // Read first: a change made during the look may be missed by it.
        let changes = site.changes();
        let due = changes != seen || settings_at.is_none_or(|at| at.elapsed() >= SETTINGS);
        match look(site, &mut read, due).await {
            Ok(with_settings) => {
                if with_settings {
                    settings_at = Some(Instant::now());
                }
                if site.health.set_failing(false) {
                    info!("the database answers");
                }
                backoff.reset();
                site.changed();
                seen = changes;
                site.saw(seen);
                rest(site, &mut watch).await;
            }
            Err(error) => {
                if site.health.set_failing(true) {
                    warn!(%error, "database read failed; showing the last state");
                    site.changed();
                }
                sleep(backoff.delay()).await;
            }
        }
    }
}

/// Waits for a possible change. A request that changed something waits for the next read.
async fn rest(site: &Site, watch: &mut Watch) {
    sleep(BREATH).await;
    tokio::select! {
        () = site.nudged() => return,
        () = sleep(PAUSE) => {}
    }
    tokio::select! {
        () = watch.changed() => {}
        () = site.nudged() => {}
        () = sleep(LOOK) => {}
    }
}

/// Takes in what is new. Returns whether channels and feeds were read, too.
async fn look(
    site: &Site,
    read: &mut Option<ReadPosition>,
    mut with_settings: bool,
) -> Result<bool, StoreError> {
    loop {
        let (mut changes, replace) = match *read {
            None => (site.store.records().snapshot().await?, true),
            Some(before) => {
                let changes = site
                    .store
                    .records()
                    .changes_since(before.upto, ROWS)
                    .await?;
                if changes.epoch == before.epoch {
                    (changes, false)
                } else {
                    info!("database was replaced; reading everything again");
                    (site.store.records().snapshot().await?, true)
                }
            }
        };
        let more = changes.more;
        with_settings |= replace;
        *read = Some(ReadPosition {
            epoch: changes.epoch,
            upto: changes.upto,
        });
        take(site, &mut changes, replace);
        if !more {
            break;
        }
    }
    if with_settings {
        let (channels, feeds) = (
            site.store.channels().list().await?,
            site.store.feeds().list(None).await?,
        );
        let mut there = HashMap::new();
        let mut fleet = site.fleet_mut();
        for row in &channels {
            // Also the heads of channels whose source does not report them each second.
            fleet.raise_head(&row.channel.name, row.channel.head);
            there.insert(&*row.channel.name, row.active);
        }
        fleet.set_channels(&there);
        fleet.expire_forgeries(now_ms() - FORGERIES_MS);
        drop(fleet);
        site.board_mut().take_settings(channels, feeds);
    }
    site.board_mut().looked();
    Ok(with_settings)
}

fn take(site: &Site, changes: &mut Changes, replace: bool) {
    #[cfg(feature = "fault-injection")]
    if !replace && service::faults::Fault::RungsFrozen.is_injected() {
        changes.states.clear();
    }
    let mut fleet = site.fleet_mut();
    if replace {
        fleet.clear();
    }
    for id in changes.forgotten.drain(..) {
        fleet.remove(id);
    }
    for row in changes.receivers.drain(..) {
        let facts = facts(&mut fleet, row);
        fleet.put_receiver(facts);
    }
    for pulse in &changes.pulses {
        fleet.put_head(&pulse.channel, pulse.head);
    }
    for row in changes.states.drain(..) {
        let (id, state) = (row.receiver, state(&mut fleet, row));
        fleet.put_state(id, state);
    }
    for row in changes.forgeries.drain(..) {
        let reports = ForgeryReports {
            first_ms: row.first_ms,
            last_ms: row.last_ms,
            reports: row.reports,
        };
        fleet.put_forgeries(row.receiver, &row.channel, reports);
    }
    // Those of a snapshot are among its reports.
    let new = changes.moves.iter().filter(|_| !replace);
    for row in new.filter(|row| row.cause == FORGED) {
        fleet.put_forgeries(row.receiver, &row.channel, ForgeryReports::at(row.at_ms));
    }
    drop(fleet);
    site.board_mut().take(changes, replace);
}

/// Returns the fleet's facts of a receiver.
#[must_use]
pub fn facts(fleet: &mut Fleet, row: ReceiverRow) -> Facts {
    Facts {
        channels: row.channels.iter().map(|name| fleet.word(name)).collect(),
        id: row.id,
        name: row.name,
        label: row.label.unwrap_or_default(),
        tags: row.tags,
        software: row.software,
        address: row.address,
        enrolled_ms: row.enrolled_ms,
        seen_ms: row.seen_ms,
        revoked_ms: row.revoked_ms,
        held: row.held,
    }
}

fn state(fleet: &mut Fleet, row: StateRow) -> State {
    State {
        channel: fleet.word(&row.channel),
        connected: row.connected,
        // A newer source may have more of them: what is not known here is no multicast for sure.
        rung: Rung::of_word(&row.rung).unwrap_or(Rung::Unicast),
        since_ms: row.since_ms,
        cause: (!row.cause.is_empty()).then(|| fleet.word(&row.cause)),
        cursor: row.cursor,
        backlog: row.backlog,
        key_sequence: row.key_sequence,
        rtt_us: row.rtt_us,
        legs: (!row.legs.is_empty()).then(|| fleet.word(&row.legs)),
        updated_ms: row.updated_ms,
    }
}
