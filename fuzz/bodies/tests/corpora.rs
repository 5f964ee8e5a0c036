//! Every input that fuzzing kept, through the body of its target: what was found once stays found,
//! on the stable compiler.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bodies::TARGETS;
use flexicast::receiver::ChannelStats;
use flexicast::source::SourceCounters;

/// The most that the corpus of one target takes in the repository, in bytes.
const MAX_CORPUS: u64 = 200_000;

/// Bytes that mean something to some format.
const MARKUP: &[u8] = b"<>&;\"'/![]-?x: \n{}\\,\0\xff\xc3";

/// Number of damaged versions of each document.
const DAMAGED: usize = 10;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn names(path: &Path) -> BTreeSet<String> {
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    fs::read_dir(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .map(name)
        .collect()
}

#[test]
fn every_target_has_a_body_a_binary_and_a_corpus() {
    let bodies: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&folder("corpus")), bodies);
    let binaries = names(&folder("targets"));
    let files = bodies.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(binaries, files);
    let manifest = fs::read_to_string(folder("Cargo.toml")).unwrap();
    for name in &bodies {
        assert!(
            manifest.contains(&format!("path = \"targets/{name}.rs\"")),
            "{name} is not in fuzz/Cargo.toml"
        );
    }
}

#[test]
fn corpora_are_small_and_not_empty() {
    for (target, _) in TARGETS {
        let path = folder("corpus").join(target);
        let sizes = names(&path)
            .into_iter()
            .map(|name| fs::metadata(path.join(name)).unwrap().len());
        let size: u64 = sizes.sum();
        assert!((1..=MAX_CORPUS).contains(&size), "{target}: {size} bytes");
    }
}

#[test]
fn every_kept_input_runs_through_its_body() {
    for (target, body) in TARGETS {
        for kept in ["corpus", "found"] {
            let path = folder(kept).join(target);
            if kept == "found" && !path.exists() {
                continue;
            }
            for name in names(&path) {
                // Shown only where the body panics.
                println!("fuzz/{kept}/{target}/{name}");
                body(&fs::read(path.join(name)).unwrap());
            }
        }
    }
}

fn kept(target: &str) -> impl Iterator<Item = Vec<u8>> {
    let path = folder("corpus").join(target);
    names(&path)
        .into_iter()
        .map(move |name| fs::read(path.join(name)).unwrap())
}

/// The documents that the feed crate's own tests read, whole and damaged.
#[test]
fn the_documents_of_the_field_run_through_the_bodies() {
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below.max(1)
    };
    let root = folder("../crates/feed/tests/corpus");
    let mut documents = 0;
    for sub in names(&root).into_iter().map(|name| root.join(name)) {
        if !sub.is_dir() {
            continue;
        }
        for name in names(&sub) {
            if name.ends_with(".expected") {
                continue;
            }
            documents += 1;
            // Shown only where a body panics.
            println!("{}/{name}", sub.display());
            let whole = fs::read(sub.join(name)).unwrap();
            bodies::feed(&whole);
            bodies::opml(&whole);
            for _ in 0..DAMAGED {
                let mut damaged = whole.clone();
                for _ in 0..random(4) {
                    if let Some(byte) = damaged.get_mut(random(whole.len())) {
                        *byte = MARKUP[random(MARKUP.len())];
                    }
                }
                damaged.truncate(random(3 * whole.len()));
                bodies::feed(&damaged);
            }
        }
    }
    assert!(documents >= 120, "only {documents} documents");
}

/// The state machines are not only turned away at the door.
#[test]
fn kept_updates_reach_every_verdict() {
    let reached: BTreeSet<_> = kept("signature")
        .flat_map(|input| bodies::play_signature(&input))
        .collect();
    let all = [
        "another signature",
        "misplaced",
        "no header",
        "other bytes",
        "outside all eras",
        "taken",
    ];
    assert!(reached.iter().eq(&all), "{reached:?}");
}

#[test]
fn kept_repair_symbols_reach_every_result() {
    let reached: BTreeSet<_> = kept("erasure")
        .flat_map(|input| bodies::play_erasure(&input))
        .collect();
    let all = [
        "another epoch",
        "another span",
        "contradiction",
        "invalid packet",
        "new",
        "no header",
        "rebuilt among forged ones",
        "rebuilt as sent",
        "redundant",
        "too many missing",
        "too short",
    ];
    assert!(reached.iter().eq(&all), "{reached:?}");
}

#[test]
fn kept_inputs_reach_their_targets() {
    let all: Vec<_> = kept("source")
        .map(|data| bodies::play_source(&data))
        .collect();
    let mut missed = Vec::new();
    let mut reached = |what, count: fn(&SourceCounters) -> u64| {
        missed.extend(all.iter().all(|c| count(c) == 0).then_some(what));
    };
    reached("promotions", |c| c.promotions);
    reached("fall-backs", |c| c.fall_backs);
    reached("repairs", |c| c.repairs);
    reached("rekeys", |c| c.rekeys);
    reached("gaps", |c| c.gaps);
    reached("copies that are refused", |c| c.replication.refused);
    reached("copies that are not proved", |c| c.replication.unproved);
    reached("copies that fail", |c| c.replication.failed);
    reached("proofs that are ignored", |c| c.proofs_ignored);
    reached("invalid acknowledgements", |c| c.invalid_acks);
    reached("too many acknowledgements", |c| c.excess_acks);
    reached("cursors beyond the head", |c| c.cursors_ahead);
    reached("requests for bytes", |c| c.needs);
    reached("too many control frames", |c| c.excess_control);
    reached("the rate of all unicast paths", |c| c.unicast_held);

    reached("feedback packets", |c| c.feedback.packets);
    reached("invalid feedback packets", |c| c.feedback.invalid);

    let all: Vec<_> = kept("feedback")
        .map(|data| bodies::play_feedback(&data))
        .collect();
    missed.extend(
        all.iter()
            .all(|(opened, _)| *opened == 0)
            .then_some("feedback"),
    );
    missed.extend(
        all.iter()
            .all(|(_, again)| *again == 0)
            .then_some("replays"),
    );

    let all: Vec<_> = kept("receiver")
        .map(|data| bodies::play_receiver(&data))
        .collect();
    let signed = all.iter().any(|(_, (signed, _))| *signed > 0);
    missed.extend((!signed).then_some("signed packets"));
    let tagged = all.iter().any(|(_, (_, tagged))| *tagged > 0);
    missed.extend((!tagged).then_some("packets with tags"));
    let mut reached = |what, count: fn(&ChannelStats) -> u64| {
        missed.extend(all.iter().all(|(c, _)| count(c) == 0).then_some(what));
    };
    reached("forged packets", |c| c.forged_packets);
    reached("wrong tags", |c| c.failed_tags);
    reached("flow packets", |c| c.reception.flow_packets);
    reached("copies", |c| c.copied_packets);
    reached("packets without room", |c| c.no_room);
    reached("several keys", |c| c.keys.saturating_sub(1));
    reached("resets", |c| c.resets);
    reached("messages", |c| c.messages.taken);
    reached("gaps", |c| c.gone);
    reached("invalid packets", |c| c.reception.flow_invalid);
    reached("duplicates", |c| c.reception.duplicates);
    reached("contradictions", |c| c.reception.mismatches);
    reached("updates that are fetched again", |c| c.reception.refetched);
    let all: Vec<_> = kept("amt_gateway")
        .map(|data| bodies::play_amt_gateway(&data))
        .collect();
    let mut reached = |what, count: fn(&amt::gateway::Counters) -> u64| {
        missed.extend(all.iter().all(|(c, _)| count(c) == 0).then_some(what));
    };
    reached("tunnelled packets", |c| c.data);
    reached("discoveries", |c| c.discoveries);
    reached("queries", |c| c.queries);
    reached("updates", |c| c.updates);
    reached("teardowns", |c| c.teardowns);
    assert!(all.iter().any(|(_, relays)| *relays > 1), "one relay only");
    let dropped: BTreeSet<_> = all.iter().flat_map(|(c, _)| c.dropped()).collect();
    for why in [
        "not-the-relay",
        "unknown-nonce",
        "bad-query",
        "not-subscribed",
    ] {
        missed.extend(
            dropped
                .iter()
                .all(|(w, n)| *w != why || *n == 0)
                .then_some(why),
        );
    }

    let all: Vec<_> = kept("amt_relay")
        .map(|data| bodies::play_amt_relay(&data))
        .collect();
    let mut reached = |what, count: fn(&bodies::Coverage) -> u64| {
        missed.extend(all.iter().all(|r| count(r) == 0).then_some(what));
    };
    reached("several tunnels", |r| r.tunnels.saturating_sub(1));
    reached("joins", |r| r.joins);
    reached("leaves", |r| r.leaves);
    reached("relay's teardowns", |r| r.teardowns);
    reached("forged MACs", |r| r.forged);
    reached("queries with L", |r| r.limited);
    reached("too many groups", |r| r.too_many);
    assert_eq!(
        missed, [""; 0],
        "no kept input reaches these; ./dev fuzz finds some"
    );
}

/// No input at all, and bytes that no corpus need hold.
#[test]
fn bodies_take_any_bytes() {
    for (_, body) in TARGETS {
        body(&[]);
        for byte in [0, 1, 0x40, 0x7f, 0xff] {
            body(&[byte; 400]);
        }
    }
}
