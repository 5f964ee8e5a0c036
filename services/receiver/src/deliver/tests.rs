#![allow(clippy::unwrap_used)]
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::bail;
use feed::feed_file::KEEP;
use feed::payload::Update;
use feed::{Entry, Kind};

use super::*;

/// One call of a sink.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    Begin(u64),
    Take(u64),
    Pass(u64),
    Miss(u64, u64),
    Keys(usize),
    Log(Vec<u64>),
    Journal,
    Announce,
    Cursor(u64),
    Files,
    Failed,
}

/// A sink that records the calls and fails a configured number of steps.
#[derive(Debug, Default, Clone)]
pub(crate) struct FakeSink {
    pub(crate) calls: Arc<Mutex<Vec<Call>>>,
    /// Step that fails, and the number of failures.
    pub(crate) failing: Arc<Mutex<Option<(Step, u32)>>>,
    /// When the feed files are due, and how often writing them fails.
    pub(crate) files: Arc<Mutex<(Option<Instant>, u32)>>,
}

impl FakeSink {
    pub(crate) fn fail(&self, step: Step, times: u32) {
        *self.failing.lock().unwrap() = Some((step, times));
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    fn note(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }

    fn call(&self, step: Step, call: Call) -> anyhow::Result<()> {
        let mut failing = self.failing.lock().unwrap();
        if let Some((bad, times)) = failing.as_mut()
            && *bad == step
            && *times > 0
        {
            *times -= 1;
            self.calls.lock().unwrap().push(Call::Failed);
            bail!("no room");
        }
        self.calls.lock().unwrap().push(call);
        Ok(())
    }
}

impl Sink for FakeSink {
    fn keep(&self) -> usize {
        KEEP
    }
    fn begin(&mut self, cursor: Cursor, _resync: bool) {
        self.note(Call::Begin(cursor.seq));
    }
    fn take(&mut self, _: Uuid, update: Update, sent: &Bytes) {
        assert_eq!(*sent, encoded(update.seq));
        self.note(Call::Take(update.seq));
    }
    fn pass(&mut self, _: Uuid, seq: u64, sent: &Bytes) {
        assert_eq!(*sent, encoded(seq));
        self.note(Call::Pass(seq));
    }
    fn miss(&mut self, _: Uuid, from: u64, to: u64, _: Missing) {
        self.note(Call::Miss(from, to));
    }
    fn name_keys(&mut self, _: Uuid, lineage: &Lineage) {
        self.note(Call::Keys(lineage.eras().len()));
    }
    fn write_journal(&mut self) -> anyhow::Result<()> {
        self.call(Step::Journal, Call::Journal)
    }
    fn files_due(&mut self, _: Instant) -> Option<Instant> {
        self.files.lock().unwrap().0
    }
    fn write_files(&mut self) -> anyhow::Result<()> {
        let mut files = self.files.lock().unwrap();
        if files.1 > 0 {
            files.1 -= 1;
            self.note(Call::Failed);
            bail!("no room for files");
        }
        files.0 = None;
        self.note(Call::Files);
        Ok(())
    }
    fn announce(&mut self) {
        self.note(Call::Announce);
    }
    fn append_log(&mut self, records: &[Record]) -> anyhow::Result<()> {
        let seqs = records.iter().map(|record| record.seq).collect();
        self.call(Step::Log, Call::Log(seqs))
    }
    fn write_cursor(&mut self, cursor: Cursor) -> anyhow::Result<()> {
        self.call(Step::Cursor, Call::Cursor(cursor.seq))
    }
}

pub(crate) fn incarnation() -> Uuid {
    Uuid::from_u128(7)
}

/// An update as a source encodes it, stored at Unix time 1,000 s.
pub(crate) fn encoded(seq: u64) -> Bytes {
    let entry = Entry {
        id: format!("urn:{seq}"),
        ..Entry::default()
    };
    let stored = "1970-01-01T00:16:40Z".parse().unwrap();
    let url = "https://example.org/f";
    payload::encode(&entry, Kind::Created, url, incarnation(), seq, stored).into()
}

fn item(seq: u64) -> Item {
    Item {
        incarnation: incarnation(),
        seq,
        kind: ItemKind::Update(ReceivedUpdate {
            encoded: encoded(seq),
            via: Via::Flow,
            live: true,
        }),
    }
}

fn garbled(seq: u64) -> Item {
    Item {
        kind: ItemKind::Update(ReceivedUpdate {
            encoded: Bytes::from_static(b"\x09garbage"),
            via: Via::Unicast,
            live: false,
        }),
        ..item(seq)
    }
}

fn at(seq: u64) -> Option<Cursor> {
    Some(Cursor {
        incarnation: incarnation(),
        seq,
    })
}

#[test]
fn the_journal_comes_after_the_log_and_before_all_else() {
    let mut sink = FakeSink::default();
    let mut delivery = Delivery::new(vec![item(3), item(4)], at(2), ORDER);
    delivery.attempt(&mut sink, || 1_000_250.5).unwrap();
    assert_eq!(
        sink.calls(),
        [
            Call::Take(3),
            Call::Take(4),
            Call::Log(vec![3, 4]),
            Call::Journal,
            Call::Announce,
            Call::Cursor(4)
        ]
    );
    let outcome = delivery.into_outcome();
    assert_eq!(outcome.cursor, at(4));
    let (record, live) = &outcome.delivered[1];
    assert_eq!((record.seq, record.id.as_str()), (4, "urn:4"));
    assert_eq!((record.at_ms, record.latency_ms), (1_000_250.5, 250.5));
    assert!(live);
}

#[test]
fn a_failed_step_is_tried_again_and_those_before_it_are_not() {
    let all = [
        Call::Log(vec![3]),
        Call::Journal,
        Call::Announce,
        Call::Cursor(3),
    ];
    for (step, before) in [(Step::Log, 0), (Step::Journal, 1), (Step::Cursor, 3)] {
        let mut sink = FakeSink::default();
        sink.fail(step, 2);
        let mut delivery = Delivery::new(vec![item(3)], at(2), ORDER);
        for _ in 0..2 {
            let error = delivery.attempt(&mut sink, || 0.0).unwrap_err();
            assert_eq!(error.to_string(), "no room");
        }
        delivery.attempt(&mut sink, || 0.0).unwrap();
        let mut expected = vec![Call::Take(3)];
        expected.extend(all[..before].iter().cloned());
        expected.extend([Call::Failed, Call::Failed]);
        expected.extend(all[before..].iter().cloned());
        assert_eq!(sink.calls(), expected);
    }
}

#[test]
fn undecodable_updates_are_skipped() {
    let mut sink = FakeSink::default();
    let mut stranger = item(5);
    stranger.seq = 6;
    let items = vec![item(3), garbled(4), garbled(5), stranger];
    let mut delivery = Delivery::new(items, at(2), ORDER);
    delivery.attempt(&mut sink, || 0.0).unwrap();
    let outcome = delivery.into_outcome();
    assert_eq!(outcome.undecodable, 3);
    assert_eq!(outcome.delivered.len(), 1);
    assert_eq!(outcome.cursor, at(6));
    // Readers of the journal are notified.
    let missed = |seq| Call::Miss(seq, seq);
    assert_eq!(sink.calls()[1..4], [missed(4), missed(5), missed(6)]);
}

#[test]
fn a_long_batch_decodes_only_updates_that_files_show() {
    let keep = KEEP as u64;
    let mut items: Vec<Item> = (1..=keep + 20).map(item).collect();
    items[7] = garbled(8);
    items[keep as usize + 9] = garbled(keep + 10);
    items[keep as usize].kind = items[keep as usize + 1].kind.clone();
    let mut sink = FakeSink::default();
    let mut delivery = Delivery::new(items.clone(), at(0), ORDER);
    delivery.attempt(&mut sink, || 0.0).unwrap();
    let of = |seq| match seq {
        8 => Call::Miss(8, 8),
        // Two invalid ones, one of which has another number.
        n if n == keep + 1 || n == keep + 10 => Call::Miss(n, n),
        n if n <= 18 => Call::Pass(n),
        n => Call::Take(n),
    };
    let expected: Vec<Call> = (1..=keep + 20).map(of).collect();
    assert_eq!(sink.calls()[..expected.len()], expected);
    let outcome = delivery.into_outcome();
    assert_eq!(outcome.undecodable, 3);
    let ids: Vec<&str> = outcome
        .delivered
        .iter()
        .map(|(r, _)| r.id.as_str())
        .collect();
    assert_eq!(
        (ids.len(), ids[0], ids[9]),
        (keep as usize + 17, "urn:1", "urn:11")
    );
    // A new incarnation accepts the numbers of the old one as they were.
    let begin = Item {
        kind: ItemKind::Begins { resync: true },
        ..item(keep + 20)
    };
    items.push(begin);
    let mut sink = FakeSink::default();
    let mut delivery = Delivery::new(items, at(0), ORDER);
    delivery.attempt(&mut sink, || 0.0).unwrap();
    assert!(
        !sink
            .calls()
            .iter()
            .any(|call| matches!(call, Call::Pass(_)))
    );
}

#[test]
fn the_cursor_takes_a_new_incarnation_and_never_goes_back() {
    let twice = Delivery::new(vec![item(9), item(4)], at(8), ORDER);
    assert_eq!(twice.cursor, at(9));

    let repeated = Item {
        incarnation: Uuid::from_u128(8),
        ..item(3)
    };
    let resync = Delivery::new(vec![item(9), repeated], at(8), ORDER);
    let expected = Cursor {
        incarnation: Uuid::from_u128(8),
        seq: 3,
    };
    assert_eq!(resync.cursor, Some(expected));

    // Unless the source restarts the numbers of this incarnation.
    let again = Item {
        kind: ItemKind::Begins { resync: true },
        ..item(3)
    };
    let restored = Delivery::new(vec![item(9), again.clone()], at(8), ORDER);
    assert_eq!(restored.cursor, at(3));
    let restored = Delivery::new(vec![again, item(4)], at(8), ORDER);
    assert_eq!(restored.cursor, at(4));
}

#[test]
fn the_starting_point_is_persisted_before_any_update() {
    let begin = Item {
        kind: ItemKind::Begins { resync: true },
        ..item(40)
    };
    let mut sink = FakeSink::default();
    let mut delivery = Delivery::new(vec![begin], None, ORDER);
    delivery.attempt(&mut sink, || 0.0).unwrap();
    assert_eq!(sink.calls().last(), Some(&Call::Cursor(40)));
    let outcome = delivery.into_outcome();
    assert_eq!((outcome.cursor, outcome.delivered.len()), (at(40), 0));
}

#[test]
fn storage_failures_are_logged_once_per_change() {
    let mut report = StorageReport::default();
    assert!(!report.succeeded());
    assert_eq!(report.failed(&anyhow::anyhow!("no\nroom")), "no room");
    report.failed(&anyhow::anyhow!("no\nroom"));
    assert_eq!(report.failing, Some(("no room".to_owned(), 2)));
    let again: Vec<u64> = (1..100).filter(|tries| is_reported_again(*tries)).collect();
    assert_eq!(again, [8, 16, 32, 64]);
    assert!(report.succeeded());
    assert!(!report.succeeded());
}

#[cfg(feature = "fault-injection")]
#[test]
fn the_fault_writes_the_cursor_first() {
    let mut sink = FakeSink::default();
    let order = crate::faults::CURSOR_FIRST;
    let mut delivery = Delivery::new(vec![item(3)], at(2), order);
    delivery.attempt(&mut sink, || 0.0).unwrap();
    assert_eq!(sink.calls().first(), Some(&Call::Cursor(3)));
}
