//! Several sources on one database: one publishes, the others stand by.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use flexicast_tokio::receiver::{Event, ReceiverConfig};
use kit::ports;
use kit::postgres::Postgres;
use rustix::process::Signal;
use serde_json::Value;
use uuid::Uuid;

use crate::receiving::{Listening, configuration};
use crate::relay::Relay;
use crate::running::{Feed, Running, source_at};

/// Two places where a source may run, with a relay in front.
struct Site {
    folder: tempfile::TempDir,
    database: String,
    feed: Feed,
    listen: [SocketAddr; 2],
    relay: Relay,
    fault: Option<&'static str>,
}

impl Site {
    fn new(database: Option<String>, fault: Option<&'static str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shared = folder.path().join("shared.db");
        let listen = [ports::free(), ports::free()];
        Self {
            database: database.unwrap_or_else(|| format!("sqlite://{}", shared.display())),
            feed: Feed::with(5),
            relay: Relay::to(listen.to_vec()),
            listen,
            folder,
            fault,
        }
    }

    fn data(&self, which: usize) -> PathBuf {
        self.folder.path().join(["a", "b"][which])
    }

    /// The second one shows the certificate of the first, and signs with its key.
    fn command(&self, which: usize) -> Command {
        self.with_feed(which, &self.feed)
    }

    fn with_feed(&self, which: usize, feed: &Feed) -> Command {
        let mut command = source_at(&self.listen[which].to_string(), &self.data(which), feed);
        command.args(["--database-url", &self.database]);
        command.args(["--holder-name", ["a", "b"][which]]);
        if let Some(fault) = self.fault {
            command.env("FLEXFEED_FAULTS", fault);
        }
        if which == 1 {
            let own = |file: &str| self.data(0).join(file);
            command.arg("--cert").arg(own("cert.pem"));
            command.arg("--key").arg(own("key.pem"));
            command.env("FLEXFEED_SIGNING_KEY", own("signing.key"));
        }
        command
    }

    fn start(&self, which: usize) -> Running {
        Running::start(self.command(which))
    }

    /// Returns the settings of a receiver behind the relay.
    fn receiver(&self) -> ReceiverConfig {
        ReceiverConfig {
            server: self.relay.address.to_string(),
            ..configuration(&self.data(0))
        }
    }
}

fn status(running: &Running) -> Value {
    serde_json::from_str(&running.page("/status.json").1).unwrap()
}

fn publishes(running: &Running) -> bool {
    status(running)["role"] == "active" && running.page("/readyz").0 == 200
}

fn stands_by(running: &Running) -> bool {
    let (code, page) = running.page("/readyz");
    let page: Value = serde_json::from_str(&page).unwrap();
    code == 503
        && page["standby"] == true
        && status(running)["role"] == "standby"
        && running.page("/readyz?standby=ok").0 == 200
}

/// The URLs of the feeds that are polled, and the rate of the channel `lore`.
async fn set_up(site: &Site) -> (Vec<String>, Option<u64>) {
    let store = store::open(&site.database).await.unwrap();
    let feeds = store.feeds().list(None).await.unwrap();
    let feeds = feeds.into_iter().filter(|feed| feed.active);
    let mut feeds: Vec<String> = feeds.map(|feed| feed.settings.url).collect();
    feeds.sort();
    let channels = store.channels().list().await.unwrap();
    let lore = channels.iter().find(|row| row.channel.name == "lore");
    let rate = lore.unwrap().settings.rate_bps;
    store.close().await;
    (feeds, rate)
}

/// Two sources with different settings: those of the publisher count.
async fn settings_of_the_publisher_count(site: Site) {
    let (second, third) = (Feed::with(2), Feed::with(2));
    let mut first = site.command(0);
    let net = format!("net,feed={}", third.url);
    first.args(["--rate", "1M", "--channel-spec", &net]);
    let mut a = Running::start(first);
    a.until("it publishes", publishes);
    let mut feeds = vec![site.feed.url.clone(), third.url.clone()];
    feeds.sort();
    let before = set_up(&site).await;
    assert_eq!(before.0, feeds);

    let other = || {
        let mut other = site.with_feed(1, &second);
        other.args(["--rate", "2M"]);
        other
    };
    let mut b = Running::start(other());
    b.until("it stands by", stands_by);
    assert_eq!(set_up(&site).await, before);
    b.until("it says what differs", |b| {
        let log = b.log();
        let has_line = |message, field| {
            let mut lines = log.lines();
            lines.any(|line| line.contains(message) && line.contains(field))
        };
        has_line(
            "settings differ from those of the publishing source",
            "publisher=\"a\"",
        ) && has_line("channel is not in these settings", "channel=\"net\"")
    });

    // While the first one is away for a moment, the second one starts: nothing is taken out.
    b.terminate();
    a.terminate();
    let mut b = Running::start(other());
    b.until("it publishes", publishes);
    // If the lease was given back late, its settings are taken behind it.
    b.until("its feed is polled", |running| {
        running.page("/status.json").1.contains(&second.url)
    });
    let (feeds, rate) = set_up(&site).await;
    assert_eq!(feeds.len(), 3, "{feeds:?}");
    assert_ne!(rate, before.1);
    b.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_publisher_count_on_sqlite() {
    settings_of_the_publisher_count(Site::new(None, None)).await;
}

/// A standby whose settings were not taken has them taken when it publishes.
#[tokio::test(flavor = "multi_thread")]
async fn settings_of_a_standby_count_when_it_takes_over() {
    let site = Site::new(None, None);
    let second = Feed::with(2);
    let mut a = site.start(0);
    a.until("it publishes", publishes);
    let mut b = Running::start(site.with_feed(1, &second));
    b.until("it stands by", stands_by);
    assert_eq!(set_up(&site).await.0.join(" "), site.feed.url);
    a.terminate();
    b.until("it publishes", publishes);
    b.until("its feed is polled", |running| {
        running.page("/status.json").1.contains(&second.url)
    });
    assert_eq!(set_up(&site).await.0.len(), 2, "nothing is taken out");
    b.terminate();
}

async fn one_publishes_and_the_other_takes_over(site: Site) {
    let mut a = site.start(0);
    a.until("it publishes", publishes);
    let mut b = site.start(1);
    b.until("it stands by", stands_by);
    assert!(
        b.page("/readyz").1.contains("\\\"a\\\""),
        "{}",
        b.page("/readyz").1
    );
    let incarnation = status(&a)["incarnation"].clone();

    // Behind the relay it meets now this source and now that, and is let in by the one that
    // publishes.
    let mut receiver = Listening::start(site.receiver());
    receiver.update(5).await;
    site.feed.grow(3);
    receiver.update(8).await;

    // Killed.
    a.signal(Signal::KILL);
    a.end();
    site.feed.grow(4);
    receiver.update(12).await;
    b.until("it publishes", publishes);

    // It returns as the standby.
    let mut a = site.start(0);
    a.until("one publishes and the other stands by", |a| {
        (stands_by(a) && publishes(&b)) || (publishes(a) && stands_by(&b))
    });
    let mut second = 1;
    if publishes(&a) {
        // The machine stood still for as long as a lease lasts: they have changed places.
        std::mem::swap(&mut a, &mut b);
        second = 0;
    }

    // Stopped, so that it does not know that time goes by.
    b.signal(Signal::STOP);
    site.feed.grow(5);
    receiver.update(17).await;
    a.until("it publishes", publishes);
    b.signal(Signal::CONT);
    b.until("who wakes up stands by", stands_by);
    b.until("it says why", |b| {
        let log = b.log();
        let mut lines = log.lines();
        lines.any(|line| {
            line.contains("lease lost; publishing stopped")
                && line.contains("another source has taken it over")
        })
    });
    // No receiver is admitted.
    let mut stranger = Listening::start(ReceiverConfig {
        server: site.listen[second].to_string(),
        ..configuration(&site.data(0))
    });
    stranger
        .until("the refusal", |event| match event {
            Event::Refused { fatal, reason, .. } => {
                assert!(!fatal, "{reason}");
                Some(())
            }
            Event::Welcome { .. } => panic!("who stands by serves"),
            _ => None,
        })
        .await;
    site.feed.grow(2);
    receiver.update(19).await;

    // In good order: the other one has it at once.
    let (code, log, _) = a.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
    site.feed.grow(6);
    receiver.update(25).await;
    b.until("it publishes", publishes);

    assert_eq!(receiver.seqs, (1..=25).collect::<Vec<_>>());
    let page = status(&b);
    assert_eq!(
        (&page["incarnation"], &page["head"]),
        (&incarnation, &25.into())
    );
    let (code, log, _) = b.terminate();
    assert_eq!(code.code(), Some(0), "{log}");
    assert!(!log.contains("new incarnation"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sources_on_one_postgresql() {
    let server = Postgres::start().unwrap();
    let database = server.create("leases").unwrap();
    one_publishes_and_the_other_takes_over(Site::new(Some(database), None)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sources_on_one_file() {
    one_publishes_and_the_other_takes_over(Site::new(None, None)).await;
}

/// With meaningless leases, a resumed source continues as if it had never been suspended.
#[cfg(feature = "fault-injection")]
#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "not in time: who wakes up stands by")]
async fn a_source_that_ignores_its_lease_is_noticed() {
    one_publishes_and_the_other_takes_over(Site::new(None, Some("fence-off"))).await;
}

#[test]
fn all_channels_are_published_by_one_source() {
    let site = Site::new(None, None);
    let more = Feed::with(2);
    let command = |which: usize| {
        let mut command = site.command(which);
        command.args(["--channel-spec", &format!("alpha,feed={}", more.url)]);
        command
    };
    // Both at the same time.
    let first = Running::start(site.command(0));
    first.terminate();
    let mut both = [Running::begin(command(0)), Running::begin(command(1))];
    for running in &mut both {
        running.until("it runs", |running| {
            running.log().contains("status pages on")
        });
    }
    let roles = |running: &Running| {
        let page = status(running);
        let channels = page["channels"].as_array().unwrap().clone();
        let roles: Vec<String> = channels
            .iter()
            .map(|channel| channel["role"].as_str().unwrap().to_owned())
            .collect();
        roles
    };
    let [a, b] = &mut both;
    a.until("one has both, the other none", |a| {
        let (mut one, mut other) = (roles(a), roles(b));
        if one.first() > other.first() {
            std::mem::swap(&mut one, &mut other);
        }
        one == ["active", "active"] && other == ["standby", "standby"]
    });
}

/// Receivers that pin the key of the first source would refuse what this one signs.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_with_another_signing_key_takes_no_lease() {
    let site = Site::new(None, None);
    let mut a = site.start(0);
    a.until("it publishes", publishes);
    let strange = site.data(0).join("strange.key");
    fs::write(&strange, [7; 32]).unwrap();
    let mut command = site.command(1);
    command.arg("--signing-key").arg(&strange);
    let mut b = Running::start(command);
    let has_no_key = |b: &Running| {
        let (code, page) = b.page("/readyz");
        code == 503 && page.contains("signed with another key")
    };
    b.until("it has no key", has_no_key);
    a.terminate();
    // Nobody publishes, and it does not either.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(has_no_key(&b), "{}", b.page("/readyz").1);
    assert_eq!(
        b.log().matches("signed with another key").count(),
        1,
        "{}",
        b.log()
    );
    b.terminate();
    // With the file it does.
    let mut b = site.start(1);
    b.until("it publishes", publishes);
    b.terminate();
}

#[test]
fn a_restart_does_not_wait_for_its_own_lease() {
    let site = Site::new(None, None);
    let first = site.start(0);
    first.signal(Signal::KILL);
    first.end();
    let again = site.start(0);
    // Said at the start: it had the lease at once.
    assert!(
        again.log().contains("serving channel \"lore\""),
        "{}",
        again.log()
    );
}

#[test]
fn a_source_without_settings_takes_the_database_as_it_is() {
    let site = Site::new(None, None);
    let mut a = site.start(0);
    a.until("stored", |running| status(running)["head"] == 5);
    a.terminate();
    let mut bare = crate::running::program();
    bare.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    bare.args(["--database-url", &site.database, "--allow-private-feed"]);
    bare.arg("--data").arg(site.data(1));
    fs::create_dir_all(site.data(1)).unwrap();
    let key = |which: usize| site.data(which).join("signing.key");
    fs::copy(key(0), key(1)).unwrap();
    let mut b = Running::start(bare);
    b.until("it publishes", publishes);
    site.feed.grow(1);
    // Without a setting, the feed is polled at its own rate: the first poll has been done.
    assert_eq!(status(&b)["channel"], "lore");
    assert_eq!(status(&b)["feed"]["url"], site.feed.url);
    let id: Uuid = status(&b)["incarnation"].as_str().unwrap().parse().unwrap();
    assert_ne!(id, Uuid::nil());
    b.terminate();
}
