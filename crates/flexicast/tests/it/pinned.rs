//! A receiver that pins a signing key hands on nothing that the key does not answer for, by
//! whatever path it came.

use std::time::Instant;

use bytes::Bytes;
use flexicast::Cursor;
use flexicast::control::{self, Control, ControlReader, Credential};
use flexicast::receiver::{
    AuthenticationFailure, Output, Receiver, ReceiverConfig, ReceiverEvent, Rungs,
};
use flexicast::source::{ChannelConfig, Limits, Source, SourceConfig, Unicast};
use signing::{Endorsement, Era, Forgery, Lineage, Signer, VerifyingKey};
use uuid::Uuid;

use crate::lab::{CHANNEL, INCARNATION, signed};

/// Stream of the updates that a receiver catches up with, all that there are at once.
const CATCH_UP_STREAM: u64 = 3;

fn signer(seed: u8) -> Signer {
    Signer::from_seed(&[seed; 32]).unwrap()
}

fn key(seed: u8) -> VerifyingKey {
    signer(seed).key()
}

/// Eras from these first updates on, each with the key of a seed; the last one is open.
fn lineage(eras: &[(u64, u8)]) -> Lineage {
    let ends = eras.iter().skip(1).map(|(first, _)| Some(first - 1));
    let eras = eras.iter().zip(ends.chain([None])).map(|(era, last)| Era {
        first: era.0,
        last,
        incarnation: INCARNATION,
        key: key(era.1),
    });
    Lineage::new(eras.collect()).unwrap()
}

/// A source with these updates, keys and endorsements.
fn source(head: u64, eras: &[(u64, u8)], endorsements: Vec<Endorsement>) -> Source {
    let channel = ChannelConfig {
        name: CHANNEL.into(),
        incarnation: INCARNATION,
        head,
        first: 1,
        private: false,
        endpoints: Vec::new(),
        replicate: false,
        flow: None,
    };
    let mut source = Source::new(SourceConfig {
        channels: vec![channel],
        unicast_rate: None,
        limits: Limits::default(),
        seed: 1,
    })
    .unwrap();
    source.set_endorsements(endorsements);
    if !eras.is_empty() {
        assert!(source.set_lineage(0, lineage(eras)));
    }
    source
}

/// Both ends, and unicast streams between them.
struct Pair {
    source: Source,
    receiver: Receiver,
    session: u64,
    streams: u64,
    store: Vec<Bytes>,
    got: Vec<u64>,
    failed: Vec<AuthenticationFailure>,
    now: Instant,
}

impl Pair {
    fn new(pinned: &[u8], eras: &[(u64, u8)], endorsements: Vec<Endorsement>) -> Self {
        let source = source(0, eras, endorsements);
        let channels = vec![(CHANNEL.into(), Some(Cursor::of_last(u64::MAX)))];
        let mut config = ReceiverConfig::new(Uuid::from_u128(1), Credential::None, channels);
        config.rungs = Rungs {
            multicast_v4: false,
            multicast_v6: false,
            replicated: false,
            ..Rungs::default()
        };
        config.pinned_keys = pinned.iter().map(|seed| key(*seed)).collect();
        Pair {
            source,
            receiver: Receiver::new(config),
            session: 0,
            streams: 0,
            store: Vec::new(),
            got: Vec::new(),
            failed: Vec::new(),
            now: Instant::now(),
        }
    }

    /// The source stores and publishes the next update, as it is.
    fn publish_raw(&mut self, update: Vec<u8>) {
        self.store.push(update.into());
        let seq = self.store.len() as u64;
        self.source
            .publish(0, seq, self.store[seq as usize - 1].clone());
    }

    /// The source stores and publishes the next update, signed with the key of this seed.
    fn publish(&mut self, seed: u8) {
        let seq = self.store.len() as u64 + 1;
        self.publish_raw(signed(&signer(seed), seq, b"\0{}"));
    }

    fn connect(&mut self) {
        if self.session > 0 {
            self.source.closed(self.session, self.now);
            self.receiver.disconnected();
        }
        self.session += 1;
        self.source.accept(self.session, self.now);
        self.receiver.connected();
        let hello = self.receiver.take_control();
        self.source
            .on_control(self.session, &hello, self.now)
            .unwrap();
        self.source.authorised(self.session, Ok(()), self.now);
        self.run();
    }

    /// Moves what either end has for the other until both are silent.
    fn run(&mut self) {
        for _ in 0..20 {
            let control = self.source.take_control(self.session);
            self.receiver.on_control(&control, self.now).unwrap();
            self.take_streams();
            self.receiver.handle_timeout(self.now);
            let control = self.receiver.take_control();
            self.source
                .on_control(self.session, &control, self.now)
                .unwrap();
            while let Some((.., output)) = self.receiver.poll_update() {
                match output {
                    Output::Update(update) => {
                        assert_eq!(update.encoded, self.store[update.seq as usize - 1]);
                        self.got.push(update.seq);
                    }
                    Output::Gap { .. } | Output::Expired { .. } => panic!("{output:?}"),
                }
            }
            while let Some(event) = self.receiver.poll_event() {
                if let ReceiverEvent::AuthenticationFailed { channel, failure } = event {
                    assert_eq!(channel, CHANNEL);
                    self.failed.push(failure);
                }
            }
        }
    }

    fn take_streams(&mut self) {
        let mut catch_up = Vec::new();
        while self.receiver.wants_unicast() {
            let item = self.source.poll_unicast(self.session, self.now);
            if !matches!(item, Unicast::CatchUp { .. }) && !catch_up.is_empty() {
                let items = std::mem::take(&mut catch_up);
                self.receiver
                    .on_unicast(CATCH_UP_STREAM, &items, false)
                    .unwrap();
            }
            match item {
                Unicast::CatchUp { head, body, .. } => {
                    catch_up.extend_from_slice(&head);
                    catch_up.extend_from_slice(&body);
                }
                Unicast::CatchUpEnd { .. } => {
                    self.receiver
                        .on_unicast(CATCH_UP_STREAM, &[], true)
                        .unwrap();
                }
                Unicast::Stream { head, body, .. } => {
                    let item = [&head[..], &body].concat();
                    self.streams += 1;
                    let id = self.streams * 4 + 3;
                    self.receiver.on_unicast(id, &item, true).unwrap();
                }
                Unicast::Fetch { channel, from, .. } => {
                    let rest = self.store.iter().enumerate().skip(from as usize - 1);
                    let rest = rest.map(|(at, update)| (at as u64 + 1, update.clone()));
                    let rest = Some(rest.collect());
                    self.source
                        .provide(self.session, channel, from, rest, self.now);
                }
                _ => break,
            }
        }
    }

    #[track_caller]
    fn assert_failed(&mut self, seq: u64, forgery: Forgery) {
        let failure = AuthenticationFailure { seq, forgery };
        assert_eq!(std::mem::take(&mut self.failed), [failure]);
        assert_eq!(self.got, (1..seq).collect::<Vec<_>>());
    }
}

#[test]
fn updates_by_the_pinned_key_arrive() {
    for pinned in [&[][..], &[1], &[9, 1]] {
        let mut pair = Pair::new(pinned, &[(1, 1)], Vec::new());
        (0..3).for_each(|_| pair.publish(1));
        pair.connect();
        pair.publish(1);
        pair.run();
        assert_eq!(
            (&pair.got[..], &pair.failed[..]),
            (&[1, 2, 3, 4][..], &[][..])
        );
    }
}

/// The source itself signs with a key that is not the pinned one.
#[test]
fn another_key_is_refused_on_the_unicast_path() {
    let mut pair = Pair::new(&[1], &[(1, 2)], Vec::new());
    pair.publish(2);
    pair.connect();
    pair.assert_failed(1, Forgery::UnknownKey(key(2).id()));
    // Nothing is read on, and one failure is one event.
    assert!(!pair.receiver.wants_unicast());
    pair.publish(2);
    pair.run();
    assert_eq!((pair.got.len(), pair.failed.len()), (0, 0));
}

/// The source says that it uses the pinned key, and does not have it.
#[test]
fn forged_and_unsigned_bytes_are_refused_on_the_unicast_path() {
    let forged = signed(&signer(2), 2, b"\0{}");
    let mut changed = signed(&signer(1), 2, b"\0{}");
    *changed.last_mut().unwrap() ^= 1;
    let other = signed(&signer(1), 1, b"\0{}");
    for (update, forgery) in [
        (forged, Forgery::Misplaced),
        (changed, Forgery::Content),
        (other, Forgery::Misplaced),
    ] {
        let mut pair = Pair::new(&[1], &[(1, 1)], Vec::new());
        pair.publish(1);
        pair.connect();
        pair.publish_raw(update);
        pair.publish(1);
        pair.run();
        pair.assert_failed(2, forgery);
    }
    let mut pair = Pair::new(&[1], &[(2, 1)], Vec::new());
    pair.publish_raw(b"\0{}".to_vec());
    pair.publish(1);
    pair.connect();
    pair.assert_failed(1, Forgery::Unsigned);
}

/// Their signatures are verified together.
#[test]
fn a_forged_update_among_many_is_found() {
    for wrong in [None, Some(1), Some(200), Some(300)] {
        let mut pair = Pair::new(&[1], &[(1, 1)], Vec::new());
        for seq in 1..=600 {
            let mut update = signed(&signer(1), seq, b"\0{}");
            if wrong == Some(seq) {
                let signature = signing::header_len(&update).unwrap() - 1;
                update[signature] ^= 1;
            }
            pair.publish_raw(update);
        }
        pair.connect();
        match wrong {
            Some(seq) => pair.assert_failed(seq, Forgery::Signature),
            None => assert_eq!(pair.got, (1..=600).collect::<Vec<_>>()),
        }
    }
}

#[test]
fn a_source_that_does_not_sign_is_refused() {
    let mut pair = Pair::new(&[1], &[], Vec::new());
    pair.publish_raw(b"\0{}".to_vec());
    pair.connect();
    pair.assert_failed(1, Forgery::Unsigned);
}

/// A source of a version without KEYS would leave the receiver waiting for it.
#[test]
fn a_source_of_an_older_version_is_refused_at_once() {
    let mut pair = Pair::new(&[1], &[(1, 1)], Vec::new());
    pair.source.accept(1, pair.now);
    pair.receiver.connected();
    let hello = pair.receiver.take_control();
    pair.source.on_control(1, &hello, pair.now).unwrap();
    pair.source.authorised(1, Ok(()), pair.now);
    let mut reader = ControlReader::new();
    reader.push(&pair.source.take_control(1));
    let Some(Control::Welcome(mut welcome)) = reader.next_frame().unwrap() else {
        panic!("no WELCOME");
    };
    welcome.capabilities.retain(|capability| *capability == 1);
    let mut older = Vec::new();
    Control::Welcome(welcome).encode(&mut older);
    pair.receiver.on_control(&older, pair.now).unwrap();
    pair.session = 1;
    pair.run();
    pair.assert_failed(1, Forgery::Unsigned);
}

/// Key 1 was replaced by 2, and that by 3: receivers that pin any of them take the updates of all.
#[test]
fn a_rotated_key_is_followed_in_both_directions() {
    let endorsements = vec![
        signer(1).endorse(key(2)),
        signer(2).endorse(key(1)),
        signer(2).endorse(key(3)),
        signer(3).endorse(key(2)),
    ];
    for pinned in 1..=3 {
        let eras = [(1, 1), (2, 2), (3, 3)];
        let mut pair = Pair::new(&[pinned], &eras, endorsements.clone());
        (1..=3).for_each(|seed| pair.publish(seed));
        pair.connect();
        assert_eq!((&pair.got[..], &pair.failed[..]), (&[1, 2, 3][..], &[][..]));
    }
    // Key 2 was lost: 3 vouches for it, and no other key for 3.
    let eras = [(1, 2), (2, 3)];
    let mut pair = Pair::new(&[2], &eras, endorsements[3..].to_vec());
    (2..=3).for_each(|seed| pair.publish(seed));
    pair.connect();
    pair.assert_failed(2, Forgery::UnknownKey(key(3).id()));
}

/// A key that replaces another while receivers are connected.
#[test]
fn a_key_can_be_replaced_while_receivers_are_connected() {
    let mut pair = Pair::new(&[1], &[(1, 1)], Vec::new());
    pair.publish(1);
    pair.connect();
    pair.source
        .set_endorsements(vec![signer(1).endorse(key(2))]);
    assert!(pair.source.set_lineage(0, lineage(&[(1, 1), (2, 2)])));
    pair.run();
    pair.publish(2);
    pair.run();
    assert_eq!((&pair.got[..], &pair.failed[..]), (&[1, 2][..], &[][..]));
}

/// After a failure nothing is taken on that connection; the next one begins with the same update,
/// and a suspended channel is not asked for.
#[test]
fn a_failed_channel_goes_on_once_the_source_is_mended() {
    let mut pair = Pair::new(&[1], &[(1, 1)], Vec::new());
    pair.publish(1);
    pair.publish(2);
    pair.publish(1);
    pair.connect();
    pair.assert_failed(2, Forgery::Misplaced);
    pair.receiver.suspend(CHANNEL, true);
    assert!(pair.receiver.is_suspended(CHANNEL) && !pair.receiver.wants_channels());
    pair.receiver.suspend(CHANNEL, false);
    // The source restarts with what its key signed.
    pair.store[1] = signed(&signer(1), 2, b"\0{}").into();
    pair.receiver.disconnected();
    (pair.session, pair.source) = (0, source(3, &[(1, 1)], Vec::new()));
    pair.connect();
    assert_eq!((&pair.got[..], &pair.failed[..]), (&[1, 2, 3][..], &[][..]));
}

/// Each statement of keys costs checks of signatures, or is an event for the application.
#[test]
fn statements_of_keys_are_bounded() {
    let frame = |control: Control| {
        let mut bytes = Vec::new();
        control.encode(&mut bytes);
        bytes
    };
    let keys = frame(Control::Keys(vec![signer(1).endorse(key(2))]));
    let channel = 1;
    let eras = lineage(&[(1, 1)]);
    let lineage = frame(Control::Lineage(control::Lineage { channel, eras }));
    for statement in [keys, lineage] {
        let mut pair = Pair::new(&[1], &[(1, 1)], Vec::new());
        pair.connect();
        // One has come behind WELCOME.
        for _ in 1..64 {
            pair.receiver.on_control(&statement, pair.now).unwrap();
        }
        let refused = pair.receiver.on_control(&statement, pair.now);
        assert!(refused.is_err(), "{refused:?}");
    }
}
