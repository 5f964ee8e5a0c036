//! Moves and connections, when the database fails, and when sources follow one another.

use store::{Failure, Fault, FaultRule, StateRow};

use super::made::id;
use super::site::{Site, WRITE};
use crate::record::LAST_WORDS;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mass_fall_back_is_recorded_whole() {
    const MANY: usize = 5_000;
    let site = Site::new().await;
    let source = site.source(1).await;
    (0..MANY).for_each(|n| source.made.connect(n));
    (0..MANY).for_each(|n| source.made.step(n, "multicast", "joined"));
    site.until("all joined", async |site| site.moves().await.len() == MANY)
        .await;
    (0..MANY).for_each(|n| source.made.step(n, "unicast", "ack-timeout"));
    site.until("all fell back", async |site| {
        site.moves().await.len() == 2 * MANY
    })
    .await;
    let moves = site.moves().await;
    let fell: std::collections::BTreeSet<_> = moves
        .iter()
        .filter(|row| row.cause == "ack-timeout" && row.to == "unicast")
        .map(|row| row.receiver)
        .collect();
    assert_eq!(fell.len(), MANY, "each of them once");
    site.until("their states", async |site| {
        let states = site.states().await;
        let is_on = |row: &&StateRow| row.rung == "unicast" && row.cause == "ack-timeout";
        states.iter().filter(is_on).count() == MANY
    })
    .await;
    let metrics = source.end().await;
    assert_eq!(metrics.counted("moves"), (0, 2 * MANY as u64));
    let states = site.states().await;
    assert!(
        states
            .iter()
            .all(|row| !row.connected && row.rung == "offline")
    );
}

/// A report of forged packets is kept among the moves, and changes no state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_of_forged_packets_is_recorded_as_no_move() {
    let site = Site::new().await;
    let source = site.source(1).await;
    source.made.connect(0);
    source.made.step(0, "multicast", "joined");
    source.made.report_forgery(0);
    site.until("both", async |site| site.moves().await.len() == 2)
        .await;
    let moves = site.moves().await;
    let report = moves.iter().find(|row| row.cause == "forged").unwrap();
    assert_eq!((&*report.from, &*report.to), ("multicast", "multicast"));
    assert_eq!(report.receiver, id(0));
    source.made.step(0, "unicast", "forged");
    site.until("its state", async |site| {
        let states = site.states().await;
        states
            .iter()
            .any(|row| row.rung == "unicast" && row.cause == "forged")
    })
    .await;
    source.end().await;
    assert_eq!(site.moves().await.len(), 3);
}

/// Moves during an outage of the database are written once it is back; nothing waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_fails_or_hangs_loses_nothing() {
    let site = Site::new().await;
    let source = site.source(1).await;
    source.made.connect(0);
    source.made.step(0, "multicast", "joined");
    site.until("the first", async |site| site.moves().await.len() == 1)
        .await;
    for fault in [Fault::Fail(Failure::Unreachable), Fault::Hang] {
        let before = site.moves().await.len();
        site.faults.inject(FaultRule::new(fault).on(&[WRITE]));
        for n in 0..50 {
            let (to, cause) = match n % 2 {
                0 => ("unicast", "ack-timeout"),
                _ => ("multicast", "joined"),
            };
            source.made.step(0, to, cause);
        }
        let writes = site.faults.sessions(WRITE);
        site.until("it is tried", async |site| {
            site.faults.sessions(WRITE) > writes
        })
        .await;
        assert_eq!(site.moves().await.len(), before);
        site.faults.clear();
        site.until("it is made up for", async |site| {
            site.moves().await.len() == before + 50
        })
        .await;
    }
    let metrics = source.end().await;
    assert_eq!(metrics.counted("moves"), (0, 101));
}

/// A database that writes and cannot answer is not sent a row twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_without_an_answer_is_not_repeated() {
    let site = Site::new().await;
    let source = site.source(1).await;
    source.made.connect(0);
    source.made.step(0, "multicast", "joined");
    site.until("the first", async |site| site.moves().await.len() == 1)
        .await;
    // Every batch is written twice: the reply to the first attempt is lost.
    let lost_reply = FaultRule::new(Fault::LostReply(Failure::Unreachable));
    site.faults.inject(lost_reply.on(&[WRITE]).every(2));
    source.made.step(0, "unicast", "ack-timeout");
    site.until("the second", async |site| site.moves().await.len() == 2)
        .await;
    source.made.step(0, "multicast", "joined");
    site.until("the third", async |site| site.moves().await.len() >= 3)
        .await;
    source.end().await;
    assert_eq!(site.moves().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_and_another_source_go_on_with_the_history() {
    let site = Site::new().await;
    let first = site.source(1).await;
    (0..3).for_each(|n| first.made.connect(n));
    first.made.step(0, "multicast", "joined");
    site.until("three", async |site| {
        site.states().await.len() == 3 && site.moves().await.len() == 1
    })
    .await;
    first.end().await;
    let sessions = site
        .opened
        .records()
        .sessions(id(0), None, 10)
        .await
        .unwrap();
    assert_eq!(sessions.len(), 1);
    assert_eq!(
        sessions[0].end_cause.as_deref(),
        Some("the source has stopped")
    );

    // After a restart no row is written twice.
    let second = site.source(1).await;
    second.made.connect(0);
    site.until("it is back", async |site| {
        let states = site.states().await;
        states.iter().filter(|row| row.connected).count() == 1
    })
    .await;
    assert_eq!(
        (site.moves().await.len(), site.states().await.len()),
        (1, 3)
    );
    assert_eq!(
        site.opened
            .records()
            .sessions(id(0), None, 10)
            .await
            .unwrap()
            .len(),
        2
    );

    // Another source takes over; later records of the one before are void.
    let third = site.source(2).await;
    third.made.connect(1);
    site.until("only its own", async |site| {
        let states = site.states().await;
        let connected = states.iter().filter(|row| row.connected);
        connected.map(|row| row.receiver).eq([id(1)])
    })
    .await;
    second.made.step(0, "multicast", "joined");
    third.made.step(1, "amt", "joined");
    site.until("the move", async |site| site.moves().await.len() == 2)
        .await;
    let metrics = second.end().await;
    assert!(metrics.counted("moves").0 > 0, "dropped and counted");
    let moves = site.moves().await;
    assert_eq!((moves.len(), moves[0].to.as_str()), (2, "amt"));
    third.end().await;
}

/// The end waits for a store that hangs as long as for pending rows, and no longer,
/// also when a write was under way; and nothing of it is left behind, where it would hold a
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_hangs_does_not_hold_up_the_end() {
    let mut site = Site::new().await;
    site.last_words = LAST_WORDS;
    let source = site.source(1).await;
    source.made.connect(0);
    source.made.step(0, "multicast", "joined");
    site.until("the first", async |site| site.moves().await.len() == 1)
        .await;
    site.faults.inject(FaultRule::new(Fault::Hang).on(&[WRITE]));
    let writes = site.faults.sessions(WRITE);
    source.made.step(0, "unicast", "ack-timeout");
    site.until("a write is under way", async |site| {
        site.faults.sessions(WRITE) > writes
    })
    .await;
    let metrics = source.end().await;
    // Had it been waited for to its end, it would have failed.
    assert_eq!(metrics.failures(), 0);
    assert_eq!(metrics.counted("moves"), (1, 1));
    assert_eq!(site.faults.open_sessions(), 0, "it is still in use");
}
