//! A process that appends is killed in the middle, again and again, and nothing is half stored.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use store::{Draft, HeadMark, Kind, Validators};

use crate::site::{Site, on_both};

const URL: &str = "https://example.org/new.atom";
const PER_APPEND: u64 = 7;
/// Names the database to the process that is to be killed; without it that test does nothing.
const DATABASE: &str = "FLEXFEED_TEST_CRASH_DATABASE";
/// Names its head mark.
const MARK: &str = "FLEXFEED_TEST_CRASH_MARK";

on_both! { kill_9_in_mid_append_leaves_whole_appends }

/// The entries of one append, and its validators, tell which append it was.
fn batch(first: u64) -> Vec<Draft> {
    (first..first + PER_APPEND)
        .map(|number| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&number.to_be_bytes());
            Draft {
                entry_id: format!("urn:entry:{number}"),
                hash,
                kind: Kind::Created,
                index: 0,
            }
        })
        .collect()
}

fn encode(seq: u64, draft: &Draft) -> Vec<u8> {
    let mut encoded = format!("{seq} {} ", draft.entry_id).into_bytes();
    encoded.resize(4000, b'.');
    encoded
}

/// The victim: appends without end, marks each append as one that may be published, and prints the
/// head after it.
#[tokio::test]
async fn victim() {
    let (Ok(url), Some(mark)) = (std::env::var(DATABASE), std::env::var_os(MARK)) else {
        return;
    };
    let store = store::open(&url).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let adopted = HeadMark::adopt(Path::new(&mark), &store, "lore", None)
        .await
        .unwrap();
    let mut head = adopted.channel.head;
    loop {
        let validators = Validators {
            etag: Some((head + PER_APPEND).to_string()),
            last_modified: None,
        };
        let stored = store
            .updates()
            .append(
                "lore",
                URL,
                None,
                &batch(head + 1),
                Some(&validators),
                &encode,
            )
            .await
            .unwrap();
        head = stored.last().unwrap().seq;
        adopted.mark.raise(head).await.unwrap();
        println!("\nstored {head}");
    }
}

async fn kill_9_in_mid_append_leaves_whole_appends(site: Site) {
    let mark = site.path("lore.head");
    let mut incarnation = None;
    let mut before = 0;
    for round in 0..12_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::victim", "--nocapture"])
            .env(DATABASE, &site.url)
            .env(MARK, &mark)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = || {
            lines
                .by_ref()
                .map_while(Result::ok)
                .find_map(|line| line.strip_prefix("stored ")?.parse::<u64>().ok())
        };
        let mut last = acknowledged().expect("the victim appends");
        for _ in 0..round {
            last = acknowledged().unwrap();
        }
        // Somewhere within the next appends: a different place in each round.
        tokio::time::sleep(Duration::from_micros(137 * round)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        while let Some(head) = acknowledged() {
            last = head;
        }

        let store = site.open().await;
        store.channels().open("lore").await.unwrap();
        let adopted = HeadMark::adopt(&mark, &store, "lore", None).await.unwrap();
        assert_eq!(adopted.renewal, None, "a kill is no restored backup");
        let channel = adopted.channel;
        assert_eq!(
            *incarnation.get_or_insert(channel.incarnation),
            channel.incarnation
        );
        let head = channel.head;
        assert!(head >= last, "{last} was acknowledged, {head} is the head");
        assert!(head > before, "every round adds something");
        assert_eq!(head % PER_APPEND, 0, "appends are whole");
        before = head;
        let updates = store
            .updates()
            .read("lore", 1, usize::MAX, usize::MAX)
            .await
            .unwrap();
        let seqs: Vec<_> = updates.iter().map(|update| update.seq).collect();
        assert_eq!(seqs, (1..=head).collect::<Vec<_>>());
        for update in &updates {
            let expected = format!("{0} urn:entry:{0} ", update.seq);
            assert!(update.encoded.starts_with(expected.as_bytes()));
            assert_eq!(update.encoded.len(), 4000);
        }
        let validators = store.feeds().validators("lore", URL).await.unwrap();
        assert_eq!(validators.etag, Some(head.to_string()));
        let ids: Vec<_> = (1..=head + PER_APPEND)
            .map(|number| format!("urn:entry:{number}"))
            .collect();
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let known = store.entries().hashes("lore", URL, &ids).await.unwrap();
        assert_eq!(known.len() as u64, head, "entries and updates agree");
        store.close().await;
    }
}
