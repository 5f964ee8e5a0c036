//! Dead letters, lost updates, and their reports.

use super::*;

/// Longer than any of this takes.
const TIME: Duration = Duration::from_secs(60);

/// An update that leaves the journal while its last attempt fails is one letter, not two.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_given_up_twice_is_one_letter() {
    let limits = Limits {
        updates: 16,
        bytes: 1 << 20,
    };
    let mut bench = Bench::new(limits);
    let fake = Fake::default();
    fake.fails(1, 1);
    *fake.hangs.lock().unwrap() = true;
    let mut one = settings(1);
    one.patience.attempts = 1;
    bench.add(one, &fake).unwrap();
    bench.put("lore", [1]);
    until("in hand", || fake.delivered() == [1]).await;
    for seq in 2..=60 {
        bench.put("lore", [seq]);
    }
    assert!(bench.dead().iter().any(|letter| letter.seq == 1));
    *fake.hangs.lock().unwrap() = false;
    until("all", || bench.status().pending == 0).await;
    let dead = bench.dead();
    assert_eq!(dead.iter().filter(|letter| letter.seq == 1).count(), 1);
    let status = bench.status();
    assert_eq!(status.dead_letters, dead.len() as u64);
    assert_eq!(status.dead_letters + status.delivered, 60);
}

/// Updates in a damaged part of the journal are lost, and counted.
#[tokio::test(flavor = "multi_thread")]
async fn updates_lost_with_the_journal_are_counted() {
    let limits = Limits {
        updates: 64,
        bytes: 1 << 20,
    };
    let mut bench = Bench::new(limits);
    let fake = Fake::default();
    *fake.hangs.lock().unwrap() = true;
    bench.add(settings(1), &fake).unwrap();
    for seq in 1..=40 {
        bench.put("lore", [seq]);
    }
    until("in hand", || fake.delivered() == [1]).await;
    bench.stop().await;
    bench.again();
    let folder = crate::journal::folder(bench.data.path(), "lore");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 3, "{files:?}");
    // Once in the middle, once at the beginning.
    for damaged in [&files[0], &files[2]] {
        std::fs::remove_file(damaged).unwrap();
    }
    *fake.hangs.lock().unwrap() = false;
    fake.delivered.lock().unwrap().clear();
    bench.add(settings(1), &fake).unwrap();
    until("all", || bench.status().pending == 0).await;
    let delivered = fake.delivered().len() as u64;
    assert!((1..40).contains(&delivered), "{delivered}");
    assert_eq!(bench.status().lost + delivered, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_one_channel_is_shown_until_it_is_over() {
    let mut bench = Bench::new(Limits::default());
    let fake = Fake::default();
    // Only the second channel has it.
    fake.fails(9, 3);
    let mut slow = settings(1);
    slow.patience.pauses = Pauses {
        first: TIME,
        max: TIME,
    };
    bench.journal("net");
    bench.add(slow, &fake).unwrap();
    bench.put("net", [9]);
    until("failed", || bench.status().error.is_some()).await;
    bench.put("lore", 1..=3);
    until("delivered", || bench.status().delivered == 3).await;
    assert_eq!(bench.status().error.as_deref(), Some("no 9"));
}
