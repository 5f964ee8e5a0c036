//! Channels that come and go while a source runs.

use std::time::{Duration, Instant};

use bytes::Bytes;
use flexicast::control::{
    Control, ControlReader, Credential, Hello, MAX_SOURCE_ADDRESSES, Refusal, SourceAddress,
};
use flexicast::source::{Absence, ChannelConfig, MessageError, SourceEvent, close};
use flexicast::{Cause, Rung};
use uuid::Uuid;

use crate::lab::{Lab, flow_config};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn channel(name: &str, seed: u64) -> ChannelConfig {
    ChannelConfig {
        name: name.into(),
        incarnation: Uuid::from_u128(u128::from(seed)),
        head: 0,
        first: 1,
        private: false,
        endpoints: Vec::new(),
        replicate: true,
        flow: Some(flow_config(seed)),
    }
}

/// A session beyond the lab's receivers requests channels. Returns the first answer.
fn ask(lab: &mut Lab, session: u64, channels: &[&str]) -> Control {
    lab.source.accept(session, lab.now);
    let hello = Hello {
        receiver: Uuid::from_u128(u128::from(session)),
        name: "guest".into(),
        software: "test".into(),
        credential: Credential::Token(b"t".to_vec()),
        channels: channels.iter().map(|c| ((*c).to_owned(), None)).collect(),
        capabilities: Vec::new(),
    };
    let mut bytes = Vec::new();
    Control::Hello(hello).encode(&mut bytes);
    lab.source.on_control(session, &bytes, lab.now).unwrap();
    lab.source.authorised(session, Ok(()), lab.now);
    let mut reader = ControlReader::new();
    reader.push(&lab.source.take_control(session));
    reader.next_frame().unwrap().expect("an answer")
}

fn refusal(answer: Control) -> Option<Refusal> {
    match answer {
        Control::Refused { code, .. } => Refusal::from_number(code),
        _ => None,
    }
}

#[test]
fn other_channels_are_not_disturbed() {
    let mut lab = Lab::new(1, 2);
    (0..2).for_each(|i| lab.connect(i));
    lab.run(SECOND);
    for round in 0..200u64 {
        lab.publish(1 + round as usize * 13);
        if round % 20 == 5 {
            let added = lab.source.add_channel(channel("news", 100 + round));
            let place = added.unwrap().expect("no such name");
            assert_eq!(place, 1, "the place of the one before");
            assert_eq!(lab.source.channel_named("news"), Some(1));
            let head = lab.source.head(1);
            lab.source.publish(1, head + 1, Bytes::from_static(b"news"));
            assert!(matches!(
                ask(&mut lab, 500 + round, &["news"]),
                Control::Welcome(_)
            ));
        }
        if round % 20 == 15 {
            lab.source.remove_channel(1, Absence::Gone, lab.now);
            assert!(!lab.source.has_channel(1) && lab.source.has_channel(0));
            let guest = 500 + round - 10;
            assert!(!lab.source.is_served(guest), "its session is over");
        }
        lab.run(10 * MS);
    }
    lab.run(SECOND);
    lab.assert_complete(1);
    for i in 0..2 {
        assert_eq!(
            lab.moves(i),
            [(Rung::Multicast, Cause::Joined)],
            "receiver {i}"
        );
        assert_eq!(lab.nodes[i].closes, []);
    }
    assert_eq!(lab.source.channels(), 2, "places are used again");
}

#[test]
fn sessions_of_a_removed_channel_are_closed_and_get_the_new_list() {
    let mut lab = Lab::new(2, 1);
    lab.connect(0);
    lab.run(SECOND);
    lab.source.add_channel(channel("news", 7)).unwrap().unwrap();
    assert!(
        lab.source
            .add_channel(channel("news", 8))
            .unwrap()
            .is_none()
    );
    assert!(matches!(
        ask(&mut lab, 600, &["lore", "news"]),
        Control::Welcome(_)
    ));
    assert!(matches!(ask(&mut lab, 601, &["lore"]), Control::Welcome(_)));
    lab.source.remove_channel(1, Absence::Elsewhere, lab.now);
    let closed = |lab: &mut Lab| -> Vec<_> {
        let events = std::iter::from_fn(|| lab.source.poll_event());
        let closed = events.filter_map(|event| match event {
            SourceEvent::Close { session, code, .. } => Some((session, code)),
            _ => None,
        });
        closed.collect()
    };
    assert_eq!(closed(&mut lab), [(600, close::CHANNEL_GONE)]);
    assert!(lab.source.is_served(601));

    // A channel of another source is refused for now, an unknown one for good; together for good.
    assert_eq!(
        refusal(ask(&mut lab, 602, &["news"])),
        Some(Refusal::Unavailable)
    );
    assert_eq!(
        refusal(ask(&mut lab, 603, &["none"])),
        Some(Refusal::UnknownChannel)
    );
    let both = refusal(ask(&mut lab, 604, &["news", "none"]));
    assert_eq!(both, Some(Refusal::UnknownChannel));
    // An empty place has no name.
    assert_eq!(
        refusal(ask(&mut lab, 605, &[""])),
        Some(Refusal::UnknownChannel)
    );
    lab.source.set_absent("none", Absence::Elsewhere);
    assert_eq!(
        refusal(ask(&mut lab, 606, &["none"])),
        Some(Refusal::Unavailable)
    );
    lab.source.set_absent("lore", Absence::Elsewhere);
    assert!(matches!(ask(&mut lab, 607, &["lore"]), Control::Welcome(_)));

    lab.source.set_absent("none", Absence::Gone);
    let gone = refusal(ask(&mut lab, 610, &["none"]));
    assert_eq!(gone, Some(Refusal::UnknownChannel));

    // Back again: a session asks as it did before, and gets another flow.
    lab.source.add_channel(channel("news", 9)).unwrap().unwrap();
    let Control::Welcome(welcome) = ask(&mut lab, 608, &["news"]) else {
        panic!("served");
    };
    assert_eq!(welcome.channels[0].incarnation, Uuid::from_u128(9));
    lab.source.remove_channel(1, Absence::Gone, lab.now);
    assert_eq!(
        refusal(ask(&mut lab, 609, &["news"])),
        Some(Refusal::UnknownChannel)
    );
    // Nothing of what is gone does anything.
    lab.source.publish(1, 1, Bytes::from_static(b"late"));
    lab.source.set_first(1, 5);
    lab.source.withdraw(1, lab.now);
    lab.source.request_rekey(1, lab.now);
    lab.source.remove_channel(1, Absence::Gone, lab.now);
    lab.source.remove_channel(99, Absence::Gone, lab.now);
    let late = lab.source.send_message(1, 1, b"late", lab.now);
    assert_eq!(late, Err(MessageError::NoChannel));
    assert_eq!((lab.source.head(1), lab.source.has_channel(1)), (0, false));
}

/// An answer of the store for a removed channel is not taken for its successor in the slot.
#[test]
fn late_answers_of_the_store_are_dropped() {
    let mut lab = Lab::new(3, 0);
    let mut old = channel("old", 5);
    old.head = 1000;
    lab.source.add_channel(old).unwrap().unwrap();
    assert!(matches!(ask(&mut lab, 700, &["old"]), Control::Welcome(_)));
    let asked = lab.source.poll_unicast(700, lab.now);
    assert!(matches!(
        asked,
        flexicast::source::Unicast::Fetch { channel: 1, .. }
    ));
    lab.source.remove_channel(1, Absence::Gone, lab.now);
    lab.source.add_channel(channel("new", 6)).unwrap().unwrap();
    let stale = vec![(901, Bytes::from_static(b"of the old one"))];
    lab.source.provide(700, 1, 901, Some(stale), lab.now);
    assert!(!lab.source.is_served(700));
    let no_time = Instant::now() + Duration::from_secs(3600);
    lab.source.handle_timeout(no_time);
}

#[test]
fn a_source_without_channels_waits_for_one() {
    let mut lab = Lab::new(4, 1);
    lab.source.remove_channel(0, Absence::Gone, lab.now);
    assert_eq!(lab.source.poll_timeout(lab.now), None);
    assert_eq!(
        refusal(ask(&mut lab, 800, &["lore"])),
        Some(Refusal::Unavailable)
    );
    let mut out = Vec::new();
    assert_eq!(lab.source.poll_transmit(lab.now, &mut out), None);
    lab.source
        .add_channel(channel("lore", 42))
        .unwrap()
        .unwrap();
    lab.connect(0);
    lab.run(SECOND);
    lab.publish(100);
    lab.run(SECOND);
    assert_eq!(lab.nodes[0].got.len(), 1);
}

/// Reads the addresses announced to a session; `None` if none were.
fn announced(lab: &mut Lab, session: u64) -> Option<Vec<SourceAddress>> {
    let mut reader = ControlReader::new();
    reader.push(&lab.source.take_control(session));
    let mut found = None;
    while let Some(frame) = reader.next_frame().unwrap() {
        if let Control::Addresses(addresses) = frame {
            found = Some(addresses);
        }
    }
    found
}

#[test]
fn addresses_are_announced_once_to_all_that_are_served() {
    let at = |text: &str, leaving| SourceAddress {
        at: text.parse().unwrap(),
        leaving,
    };
    let mut lab = Lab::new(3, 1);
    assert!(matches!(ask(&mut lab, 700, &["lore"]), Control::Welcome(_)));
    assert_eq!(announced(&mut lab, 700), None, "there are none");

    // Addresses to which no one can connect are left out, and each comes once.
    let (new, old) = (at("192.0.2.2:4433", false), at("192.0.2.1:4433", true));
    let useless = ["0.0.0.0:4433", "239.1.1.1:4433", "192.0.2.3:0"].map(|text| at(text, false));
    let given = [&useless[..], &[old, new, at("192.0.2.2:4433", true)]].concat();
    lab.source.set_addresses(given.clone());
    assert_eq!(announced(&mut lab, 700), Some(vec![new, old]));
    lab.source.set_addresses(given);
    assert_eq!(announced(&mut lab, 700), None, "nothing has changed");

    // One that is welcomed later gets them behind its WELCOME.
    lab.source.accept(701, lab.now);
    let hello = Control::Hello(Hello {
        receiver: Uuid::from_u128(701),
        name: "late".into(),
        software: "test".into(),
        credential: Credential::Token(b"t".to_vec()),
        channels: vec![("lore".into(), None)],
        capabilities: Vec::new(),
    });
    let mut bytes = Vec::new();
    hello.encode(&mut bytes);
    lab.source.on_control(701, &bytes, lab.now).unwrap();
    lab.source.set_addresses(vec![new]);
    assert_eq!(announced(&mut lab, 701), None, "not served yet");
    lab.source.authorised(701, Ok(()), lab.now);
    assert_eq!(announced(&mut lab, 701), Some(vec![new]));

    // Of many, some of both kinds are kept.
    let many = (1..50).map(|n| at(&format!("192.0.2.{n}:4433"), n < 40));
    lab.source.set_addresses(many.collect());
    let kept = announced(&mut lab, 701).unwrap();
    assert_eq!(kept.len(), MAX_SOURCE_ADDRESSES);
    let leaving = kept.iter().filter(|address| address.leaving).count();
    assert_eq!(leaving, MAX_SOURCE_ADDRESSES / 2, "{kept:?}");
}
