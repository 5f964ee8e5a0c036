//! Several channels of one program, and what is kept of them.

use std::fs;

use flexicast_tokio::receiver::Event;
use serde_json::Value;

use crate::receiving::{Listening, configuration};
use crate::running::{Feed, Running, source};

fn status(running: &Running) -> Value {
    serde_json::from_str(&running.page("/status.json").1).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_channel_has_its_own_feed_and_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let (lore, net, bpf) = (Feed::with(3), Feed::with(5), Feed::with(1));
    let mut command = source(folder.path(), &lore);
    command.args(["--channel-spec", &format!("net,feed={},rate=5M", net.url)]);
    command.env("FLEXFEED_CHANNEL_SPEC", "ignored,feed=http://flags.win/");
    command.args(["--channel-spec", &format!("bpf,feed={},private", bpf.url)]);
    let mut running = Running::start(command);
    running.until("all is stored", |running| {
        let page = status(running);
        let heads = page["channels"].as_array().unwrap().iter();
        heads.map(|c| c["head"].as_u64().unwrap()).eq([3, 5, 1])
    });
    running.until("ready", |running| running.page("/readyz").0 == 200);

    // A receiver takes any set of them on one connection.
    let link = fs::read_to_string(folder.path().join("enrolment-link")).unwrap();
    assert!(link.trim().ends_with("&ch=lore&ch=net&ch=bpf"), "{link}");
    let all = configuration(folder.path());
    let mut two = all.clone();
    two.receiver_id = uuid::Uuid::new_v4();
    two.channels.remove(0);
    let (mut all, mut two) = (Listening::start(all), Listening::start(two));
    let has = |listening: &Listening, channel: &str, seq: u64| {
        listening.updates.contains(&(channel.to_owned(), seq))
    };
    for feed in [&lore, &net, &bpf] {
        feed.grow(2);
    }
    for (listening, expected) in [
        (&mut all, &[("lore", 5), ("net", 7), ("bpf", 3)][..]),
        (&mut two, &[("net", 7), ("bpf", 3)]),
    ] {
        while !expected
            .iter()
            .all(|(name, seq)| has(listening, name, *seq))
        {
            let next = |event: &Event| matches!(event, Event::Update { .. }).then_some(());
            listening.until("an update", next).await;
        }
        let mut count = 0;
        for (name, last) in expected {
            let of = listening.updates.iter().filter(|(of, _)| of == name);
            let seqs: Vec<u64> = of.map(|(_, seq)| *seq).collect();
            assert_eq!(seqs, (1..=*last).collect::<Vec<_>>(), "{name}");
            count += seqs.len();
        }
        assert_eq!(listening.updates.len(), count);
    }

    running.until("both cursors", |running| {
        let page = status(running);
        let at = |receiver: usize, channel: usize| {
            page["receivers"][receiver]["channels"][channel]["cursor"].as_u64()
        };
        let mut first = [at(0, 0), at(1, 0)];
        first.sort_unstable();
        first == [Some(5), Some(7)]
    });
    let page = status(&running);
    assert_eq!(
        (&page["channel"], &page["head"]),
        (&"lore".into(), &5.into())
    );
    let channels = page["channels"].as_array().unwrap();
    assert_eq!(channels[1]["feed"]["url"], net.url);
    assert_eq!(channels[2]["private"], true);
    let mut incarnations: Vec<_> = channels
        .iter()
        .map(|c| c["incarnation"].to_string())
        .collect();
    incarnations.dedup();
    assert_eq!(incarnations.len(), 3);
    // Published updates are counted with a delay.
    running.until("it is counted", |running| {
        let line = "flexfeed_source_updates_total{channel=\"net\"} 7\n";
        running.page("/metrics").1.contains(line)
    });
    let metrics = running.page("/metrics").1;
    for line in [
        "flexfeed_source_head_seq{channel=\"bpf\"} 3\n",
        "flexfeed_source_receivers{channel=\"lore\",rung=\"unicast\"} 1\n",
        "flexfeed_source_receivers{channel=\"net\",rung=\"unicast\"} 2\n",
        "flexfeed_source_connected_receivers 2\n",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let (exit, log, _) = running.terminate();
    assert_eq!(exit.code(), Some(0), "{log}");
    assert!(log.contains("serving 3 channels"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_last_updates_are_kept_and_gaps_are_announced() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(4);
    let start = || {
        let mut command = source(folder.path(), &feed);
        command.args(["--retention", "150"]);
        command
    };
    let mut running = Running::start(start());
    running.until("stored", |running| status(running)["head"] == 4);
    let mut receiver = Listening::start(configuration(folder.path()));
    receiver.update(4).await;
    running.until("the cursor", |running| {
        status(running)["receivers"][0]["cursor"] == 4
    });
    let incarnation = status(&running)["incarnation"].as_str().unwrap().parse();
    receiver.handle.shutdown().await;

    feed.grow(396);
    running.until("stored and cut", |running| {
        let page = status(running);
        (&page["head"], &page["first"]) == (&400.into(), &251.into())
    });
    let metrics = running.page("/metrics").1;
    let line = "flexfeed_source_first_seq{channel=\"lore\"} 251\n";
    assert!(metrics.contains(line), "{metrics}");

    // Once from a source that has seen the updates go, once from one that has not.
    for restart in [false, true] {
        if restart {
            running.terminate();
            running = Running::start(start());
            assert_eq!(status(&running)["channels"][0]["first"], 251);
        }
        let mut back = configuration(folder.path());
        let cursor = flexicast_tokio::Cursor {
            incarnation: incarnation.clone().unwrap(),
            seq: 4,
        };
        back.channels[0].1 = Some(cursor);
        let mut receiver = Listening::start(back);
        let gap = |event: &Event| match event {
            Event::Gap { from, to, .. } => Some((*from, *to)),
            Event::Update { seq, .. } => panic!("update {seq} before the gap"),
            _ => None,
        };
        assert_eq!(receiver.until("the gap", gap).await, (5, 250));
        receiver.update(400).await;
        assert_eq!(receiver.seqs, (251..=400).collect::<Vec<_>>());
    }
    let (exit, log, _) = running.terminate();
    assert_eq!(exit.code(), Some(0), "{log}");
}
