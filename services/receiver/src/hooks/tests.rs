#![allow(clippy::unwrap_used)]
mod failures;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flexicast::Cursor;
use kit::wait::on_tokio;
use tempfile::TempDir;

use super::*;
use crate::deliver::tests::{encoded, incarnation};
use crate::journal::{Journal, Limits, Missing};
use crate::messages::{Messages, ReceivedMessage};

const PAUSES: Pauses = Pauses {
    first: Duration::from_millis(2),
    max: Duration::from_millis(10),
};

/// Scripted verdicts for an update, in order; then success.
type Answers = HashMap<u64, Vec<Verdict>>;

/// A target that records its calls.
#[derive(Clone, Default)]
struct Fake {
    delivered: Arc<Mutex<Vec<u64>>>,
    answers: Arc<Mutex<Answers>>,
    /// While it is true, nothing is ever answered.
    hangs: Arc<Mutex<bool>>,
    most: Arc<Mutex<(usize, usize)>>,
    takes: Duration,
}

impl Target for Fake {
    const KIND: &'static str = "fake";

    async fn attempt(&self, event: &Event, _attempt: u32) -> Verdict {
        {
            let mut most = self.most.lock().unwrap();
            most.0 += 1;
            most.1 = most.1.max(most.0);
        }
        self.delivered.lock().unwrap().push(event.seq);
        while *self.hangs.lock().unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(self.takes).await;
        self.most.lock().unwrap().0 -= 1;
        let mut answers = self.answers.lock().unwrap();
        match answers.get_mut(&event.seq) {
            Some(answers) if !answers.is_empty() => answers.remove(0),
            _ => Verdict::Done,
        }
    }
}

impl Fake {
    fn delivered(&self) -> Vec<u64> {
        self.delivered.lock().unwrap().clone()
    }

    fn fails(&self, seq: u64, times: usize) {
        let again = Verdict::Again {
            reason: format!("no {seq}"),
            after: None,
        };
        self.answers.lock().unwrap().insert(seq, vec![again; times]);
    }
}

struct Bench {
    data: TempDir,
    limits: Limits,
    journals: HashMap<String, Journal>,
    hooks: Hooks,
    messages: Messages,
}

impl Bench {
    fn new(limits: Limits) -> Self {
        Self {
            data: tempfile::tempdir().unwrap(),
            limits,
            journals: HashMap::new(),
            hooks: Hooks::default(),
            messages: Messages::default(),
        }
    }

    fn journal(&mut self, channel: &str) -> &mut Journal {
        let folder = crate::journal::folder(self.data.path(), channel);
        let limits = self.limits;
        let open = || Journal::open(&folder, limits).unwrap().0;
        self.journals.entry(channel.to_owned()).or_insert_with(open)
    }

    fn add(&mut self, settings: Settings, target: &Fake) -> anyhow::Result<()> {
        self.journal("lore");
        let tapes: Vec<_> = self
            .journals
            .iter()
            .map(|(channel, journal)| (channel.clone(), journal.reader()))
            .collect();
        self.hooks.add(
            self.data.path(),
            settings,
            target.clone(),
            &tapes,
            self.messages.follow(),
        )
    }

    fn put(&mut self, channel: &str, seqs: impl IntoIterator<Item = u64>) {
        let journal = self.journal(channel);
        for seq in seqs {
            journal.take(incarnation(), seq, &encoded(seq));
        }
        journal.write().unwrap();
        journal.announce();
    }

    /// As a start of the program after a kill or a stop.
    fn again(&mut self) {
        self.hooks = Hooks::default();
        self.journals.clear();
    }

    async fn stop(&mut self) {
        std::mem::take(&mut self.hooks).stop().await;
    }

    fn status(&self) -> HookStatus {
        self.hooks.stats()[0].status()
    }

    fn dead(&self) -> Vec<Letter> {
        let mut letters = Vec::new();
        dead::read(self.data.path(), "h", |letter| letters.push(letter)).unwrap();
        letters
    }
}

fn settings(concurrency: usize) -> Settings {
    Settings {
        name: "h".into(),
        channels: vec![],
        patience: RetryLimits {
            attempts: 5,
            max_age: Duration::MAX,
            pauses: PAUSES,
        },
        concurrency,
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    on_tokio::until(what, async || condition()).await;
}

fn upto(last: u64) -> Vec<u64> {
    (1..=last).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_update_is_delivered_in_order_and_nothing_else() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    bench.add(settings(1), &fake).unwrap();
    bench.journal("lore").begin(
        Cursor {
            incarnation: incarnation(),
            seq: 0,
        },
        false,
    );
    bench.put("lore", 1..=3);
    bench
        .journal("lore")
        .miss(incarnation(), 4, 6, Missing::Gone);
    bench.put("lore", 7..=9);
    until("all", || fake.delivered().len() == 6).await;
    assert_eq!(fake.delivered(), [1, 2, 3, 7, 8, 9]);
    until("counted", || bench.status().pending == 0).await;
    let status = bench.status();
    assert_eq!(
        (status.delivered, status.dead_letters, status.lost),
        (6, 0, 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_tried_again_and_holds_the_order() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    fake.fails(2, 3);
    bench.add(settings(1), &fake).unwrap();
    bench.put("lore", 1..=4);
    until("all", || fake.delivered().len() == 7).await;
    assert_eq!(fake.delivered(), [1, 2, 2, 2, 2, 3, 4]);
    until("counted", || bench.status().delivered == 4).await;
    let status = bench.status();
    assert_eq!((status.failed_attempts, status.error), (3, None));
    assert_eq!(bench.dead(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_fails_too_often_is_a_dead_letter_and_others_continue() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    fake.fails(2, 1000);
    bench.add(settings(1), &fake).unwrap();
    bench.put("lore", 1..=3);
    until("all", || fake.delivered().last() == Some(&3)).await;
    assert_eq!(fake.delivered(), [1, 2, 2, 2, 2, 2, 3]);
    let dead = bench.dead();
    assert_eq!((dead.len(), dead[0].seq, dead[0].attempts), (1, 2, 5));
    assert_eq!(
        (dead[0].reason.as_str(), dead[0].channel.as_str()),
        ("no 2", "lore")
    );
    // All of it, so that it can be sent by hand.
    assert_eq!(dead[0].event["data"]["id"], "urn:2");
    assert_eq!(dead[0].event["id"], format!("{}/2", incarnation()));
    assert!(dead[0].received_ms > 1_600_000_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_too_old_is_a_dead_letter_after_one_attempt() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    fake.fails(1, 1000);
    let mut impatient = settings(1);
    impatient.patience.max_age = Duration::ZERO;
    bench.add(impatient, &fake).unwrap();
    bench.put("lore", 1..=2);
    until("all", || fake.delivered().len() == 2).await;
    assert_eq!(fake.delivered(), [1, 2]);
    assert_eq!(bench.dead().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_continues_after_a_restart_and_a_new_one_begins_with_new_updates() {
    let mut bench = Bench::new(Limits::default());
    bench.put("lore", 1..=5);
    let fake = Fake::default();
    bench.add(settings(1), &fake).unwrap();
    bench.put("lore", 6..=8);
    until("delivered", || bench.status().delivered == 3).await;
    bench.stop().await;
    bench.put("lore", 9..=12);
    bench.again();
    bench.add(settings(1), &fake).unwrap();
    until("the rest", || fake.delivered().len() == 7).await;
    assert_eq!(fake.delivered(), (6..=12).collect::<Vec<_>>());
    // After a kill the last deliveries may be repeated, and none is left out.
    for round in 0..5u64 {
        let from = 13 + round * 10;
        bench.put("lore", from..from + 10);
        until("some", || fake.delivered().last() > Some(&(from + 4))).await;
        bench.again();
        bench.add(settings(1), &fake).unwrap();
    }
    until("all", || fake.delivered().last() == Some(&62)).await;
    // The last place of one that was killed may be half there; then the next one begins with all
    // that there is.
    let delivered = fake.delivered();
    let missing: Vec<u64> = (6..=62).filter(|seq| !delivered.contains(seq)).collect();
    assert_eq!(missing, [] as [u64; 0], "{delivered:?}");
    // Repetition is rare: at most one of five.
    let repeated = delivered.iter().filter(|seq| **seq == 1).count();
    assert!(repeated <= 1, "{delivered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_hangs_loses_nothing_that_leaves_the_journal() {
    let limits = Limits {
        updates: 32,
        bytes: 1 << 20,
    };
    let mut bench = Bench::new(limits);
    let fake = Fake::default();
    *fake.hangs.lock().unwrap() = true;
    let other = Fake::default();
    bench.add(settings(1), &fake).unwrap();
    let mut second = settings(1);
    second.name = "other".into();
    bench.add(second, &other).unwrap();
    for seq in 1..=200 {
        // Writing is never held up by it.
        bench.put("lore", [seq]);
        until("the other hook goes on", || {
            other.delivered().last() == Some(&seq)
        })
        .await;
    }
    let dead: Vec<u64> = bench.dead().iter().map(|letter| letter.seq).collect();
    let left = bench.status().pending;
    assert!((16..=32).contains(&left), "{left}");
    assert_eq!(dead, upto(200 - left));
    assert!(
        bench.dead()[0].reason.contains("too slow"),
        "{:?}",
        bench.dead()[0]
    );
    assert_eq!(bench.status().dead_letters, dead.len() as u64);
    *fake.hangs.lock().unwrap() = false;
    until("the rest", || bench.status().pending == 0).await;
    // The update in hand was delivered and is a dead letter, too: at least once.
    let mut delivered = fake.delivered();
    assert_eq!(delivered.remove(0), 1);
    assert_eq!(delivered, (201 - left..=200).collect::<Vec<_>>());
    assert_eq!(other.delivered(), upto(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_that_cannot_be_written_wait() {
    let mut bench = Bench::new(Limits::default());
    std::fs::write(bench.data.path().join("dead-letters"), "").unwrap();
    let fake = Fake::default();
    fake.fails(1, 5);
    let mut once = settings(1);
    once.patience.attempts = 1;
    bench.add(once, &fake).unwrap();
    bench.put("lore", 1..=2);
    until("the error", || {
        bench
            .status()
            .error
            .is_some_and(|e| e.contains("dead letters"))
    })
    .await;
    assert_eq!(bench.status().pending, 2);
    std::fs::remove_file(bench.data.path().join("dead-letters")).unwrap();
    until("all", || bench.status().pending == 0).await;
    assert_eq!(fake.delivered().last(), Some(&2));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_run_at_once_but_no_more_than_allowed() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake {
        takes: Duration::from_millis(5),
        ..Fake::default()
    };
    // One that is tried again holds none of the others up.
    fake.fails(1, 4);
    bench.journal("net");
    bench.add(settings(3), &fake).unwrap();
    bench.put("lore", 1..=40);
    bench.put("net", 1..=40);
    until("all", || bench.status().delivered == 80).await;
    let most = fake.most.lock().unwrap().1;
    assert_eq!(most, 3);
    let mut delivered = fake.delivered();
    delivered.sort_unstable();
    delivered.dedup();
    assert_eq!(delivered, upto(40));
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_out_of_order_are_not_repeated_after_a_stop() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    fake.fails(2, 1000);
    let mut patient = settings(2);
    patient.patience.attempts = u32::MAX;
    bench.add(patient, &fake).unwrap();
    bench.put("lore", 1..=6);
    until("the others", || bench.status().delivered == 5).await;
    bench.stop().await;
    bench.again();
    let later = Fake::default();
    bench.add(settings(2), &later).unwrap();
    bench.put("lore", [7]);
    until("the rest", || later.delivered().len() == 2).await;
    let mut delivered = later.delivered();
    delivered.sort_unstable();
    assert_eq!(delivered, [2, 7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_is_gone_is_left_alone_until_the_next_start() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    let gone = Verdict::Disable {
        reason: "410".into(),
    };
    fake.answers.lock().unwrap().insert(2, vec![gone]);
    bench.add(settings(1), &fake).unwrap();
    bench.put("lore", 1..=5);
    until("disabled", || bench.status().disabled).await;
    bench.put("lore", 6..=7);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fake.delivered(), [1, 2]);
    assert_eq!(
        (bench.status().pending, bench.status().error.as_deref()),
        (6, Some("410"))
    );
    bench.stop().await;
    bench.again();
    bench.add(settings(1), &fake).unwrap();
    until("all", || fake.delivered().len() == 8).await;
    assert_eq!(fake.delivered(), [1, 2, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_does_not_wait_for_a_hung_hook() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    *fake.hangs.lock().unwrap() = true;
    bench.add(settings(1), &fake).unwrap();
    bench.put("lore", 1..=2);
    until("in hand", || fake.delivered() == [1]).await;
    let stopping = tokio::time::timeout(Duration::from_secs(30), bench.stop());
    stopping.await.unwrap();
    bench.again();
    *fake.hangs.lock().unwrap() = false;
    bench.add(settings(1), &fake).unwrap();
    until("all", || fake.delivered() == [1, 1, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_was_replaced_is_followed_from_where_it_fits() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    bench.add(settings(1), &fake).unwrap();
    bench.put("lore", 1..=9);
    until("delivered", || bench.status().delivered == 9).await;
    bench.stop().await;
    bench.again();
    std::fs::remove_dir_all(bench.data.path().join("journal")).unwrap();
    // The new one has other positions for the same updates.
    bench.put("lore", 6..=12);
    bench.add(settings(1), &fake).unwrap();
    until("delivered", || fake.delivered().last() == Some(&12)).await;
    assert_eq!(fake.delivered(), upto(12));
    bench.stop().await;
    bench.again();
    // An unreadable offset file means all records of the journal.
    let place = bench.data.path().join("state/hooks/h.lore.json");
    std::fs::write(place, "{").unwrap();
    bench.add(settings(1), &fake).unwrap();
    until("delivered", || fake.delivered().len() == 19).await;
    assert_eq!(fake.delivered()[12..], [6, 7, 8, 9, 10, 11, 12]);
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_have_names_that_fit_and_channels_that_there_are() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    let named = |name: &str| Settings {
        name: name.into(),
        ..settings(1)
    };
    for name in ["", "a/b", "..", "ä", &"x".repeat(65)] {
        assert!(bench.add(named(name), &fake).is_err(), "{name}");
    }
    bench.add(named("h"), &fake).unwrap();
    let twice = bench.add(named("h"), &fake).unwrap_err().to_string();
    assert!(twice.contains("two hooks"), "{twice}");
    let mut other = named("o");
    other.channels = vec!["net".into()];
    let unknown = bench.add(other, &fake).unwrap_err().to_string();
    assert!(unknown.contains("net"), "{unknown}");
}

/// Returns a message of a channel that expires after `lifetime`.
fn message(channel: &str, number: u64, lifetime: Duration) -> Arc<ReceivedMessage> {
    let message = feed::message::Message {
        id: format!("m{number}"),
        time_ms: 1_800_000_000_000,
        content_type: "text/plain".into(),
        subject: None,
        body: b"hello".to_vec(),
    };
    let expires_at = Instant::now().checked_add(lifetime);
    let read = ReceivedMessage::of(channel, number, &message.encode(), expires_at);
    Arc::new(read.unwrap())
}

#[tokio::test]
async fn a_message_is_tried_until_it_is_delivered() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    fake.fails(1001, 3);
    bench.journal("news");
    let mut wanted = settings(1);
    wanted.channels = vec!["lore".into()];
    bench.add(wanted, &fake).unwrap();
    bench.put("lore", 1..=1);
    until("the update", || fake.delivered() == [1]).await;
    bench
        .messages
        .send(message("news", 1000, Duration::from_secs(60)));
    bench
        .messages
        .send(message("lore", 1001, Duration::from_secs(60)));
    bench
        .messages
        .send(message("lore", 1002, Duration::from_secs(60)));
    until("all", || fake.delivered().last() == Some(&1002)).await;
    assert_eq!(fake.delivered(), [1, 1001, 1001, 1001, 1001, 1002]);
    until("counted", || bench.status().delivered == 3).await;
    let status = bench.status();
    assert_eq!(
        (status.failed_attempts, status.expired, status.error),
        (3, 0, None)
    );
    bench.hooks.stop().await;
}

#[tokio::test]
async fn an_expired_message_is_given_up() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    fake.fails(1001, 1000);
    bench.add(settings(1), &fake).unwrap();
    bench
        .messages
        .send(message("lore", 1001, Duration::from_millis(150)));
    until("given up", || bench.status().expired == 1).await;
    let tries = fake.delivered().len();
    assert!(tries > 0);
    bench
        .messages
        .send(message("lore", 1002, Duration::from_secs(60)));
    until("the next", || fake.delivered().last() == Some(&1002)).await;
    assert_eq!(bench.dead(), [], "no journal had it");
    bench.hooks.stop().await;
}
