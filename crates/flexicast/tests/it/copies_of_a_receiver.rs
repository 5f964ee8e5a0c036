//! Two programs with one receiver id: a copy of a data folder, or the same receiver come back.

use std::time::{Duration, Instant};

use flexicast::control::{Control, ControlReader, Credential, Hello, Refusal};
use flexicast::source::{ChannelConfig, Limits, Source, SourceConfig, SourceEvent, close};
use uuid::Uuid;

const MS: Duration = Duration::from_millis(1);

struct Scene {
    source: Source,
    now: Instant,
    closes: Vec<(u64, u64)>,
    probed: Vec<u64>,
}

impl Scene {
    fn new() -> Self {
        let channel = ChannelConfig {
            name: "lore".into(),
            incarnation: Uuid::from_u128(1),
            head: 0,
            first: 1,
            private: false,
            endpoints: Vec::new(),
            replicate: false,
            flow: None,
        };
        let source = Source::new(SourceConfig {
            channels: vec![channel],
            unicast_rate: None,
            limits: Limits::default(),
            seed: 1,
        });
        Scene {
            source: source.unwrap(),
            now: Instant::now(),
            closes: Vec::new(),
            probed: Vec::new(),
        }
    }

    /// A HELLO of the one receiver in a run of its program, or without saying which; the owner has
    /// nothing against it.
    fn hello(&mut self, session: u64, instance: Option<u8>) {
        self.source.accept(session, self.now);
        let credential = match instance {
            Some(instance) => Credential::Enrol {
                token: Vec::new(),
                secret: [1; 32],
                instance: [instance; 8],
            },
            None => Credential::Token(b"t".to_vec()),
        };
        let hello = Control::Hello(Hello {
            receiver: Uuid::from_u128(7),
            name: "r1".into(),
            software: "test".into(),
            credential,
            channels: vec![("lore".into(), None)],
            capabilities: Vec::new(),
        });
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        self.source.on_control(session, &bytes, self.now).unwrap();
        self.settle();
    }

    /// Executes the source's requests; closed connections are gone at once.
    fn settle(&mut self) {
        while let Some(event) = self.source.poll_event() {
            match event {
                SourceEvent::Authorise { session, .. } => {
                    self.source.authorised(session, Ok(()), self.now)
                }
                SourceEvent::Probe { session } => self.probed.push(session),
                SourceEvent::Close { session, code, .. } => self.closes.push((session, code)),
                _ => {}
            }
        }
    }

    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.source.poll_timeout(self.now).filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.source.handle_timeout(self.now);
            self.settle();
        }
        self.now = end;
    }

    fn heard(&mut self, session: u64) {
        let from = "192.0.2.7:4000".parse().unwrap();
        self.source.heard(session, from);
        self.settle();
    }

    fn served(&self) -> Vec<u64> {
        self.source.sessions().map(|s| s.session).collect()
    }

    /// Returns the refusal sent to a session.
    fn refusal(&mut self, session: u64) -> Option<(u64, String)> {
        let mut reader = ControlReader::new();
        reader.push(&self.source.take_control(session));
        std::iter::from_fn(|| reader.next_frame().unwrap()).find_map(|frame| match frame {
            Control::Refused { code, reason } => Some((code, reason)),
            _ => None,
        })
    }
}

#[test]
fn a_copy_is_refused_while_the_original_lives() {
    let mut scene = Scene::new();
    scene.hello(1, Some(1));
    assert_eq!(scene.served(), [1]);
    scene.hello(2, Some(2));
    assert_eq!((scene.served(), scene.probed.clone()), (vec![1], vec![1]));
    assert!(scene.source.is_probed(1) && !scene.source.is_probed(2));
    scene.pass(400 * MS);
    scene.heard(1);
    let (code, reason) = scene.refusal(2).unwrap();
    assert_eq!(code, Refusal::IdInUse as u64);
    assert!(
        reason.contains("r1") && reason.contains("192.0.2.7:4000"),
        "{reason}"
    );
    assert!(reason.contains("data folder"), "{reason}");
    assert_eq!(scene.closes, [(2, close::REFUSED)]);
    scene.source.closed(2, scene.now);
    scene.pass(5000 * MS);
    assert_eq!(scene.served(), [1], "the original goes on");
    assert_eq!(scene.source.counters().ids_in_use, 1);
    assert!(!scene.source.is_probed(1), "asked once for each that comes");
}

#[test]
fn a_silent_holder_loses_its_id_within_a_second() {
    let mut scene = Scene::new();
    scene.hello(1, Some(1));
    scene.hello(2, Some(2));
    scene.pass(999 * MS);
    assert_eq!(scene.served(), [1]);
    scene.pass(2 * MS);
    assert_eq!(scene.served(), [2]);
    assert_eq!(scene.closes, [(1, close::SUPERSEDED)]);
    // Late input of the old session changes nothing.
    scene.heard(1);
    assert_eq!(scene.served(), [2]);
}

/// The source stalls while it waits: the holder's sign of life is still to be read then.
#[test]
fn a_source_that_was_away_itself_hears_the_original_first() {
    let mut scene = Scene::new();
    scene.hello(1, Some(1));
    scene.hello(2, Some(2));
    scene.now += 3000 * MS;
    scene.source.grant_grace(3000 * MS, scene.now);
    scene.pass(400 * MS);
    assert_eq!(scene.served(), [1]);
    scene.heard(1);
    assert_eq!(scene.refusal(2).map(|r| r.0), Some(6));
    // Once only: with a source that is always late, a dead holder loses its id all the same.
    scene.source.closed(2, scene.now);
    scene.hello(3, Some(3));
    for _ in 0..10 {
        scene.now += 300 * MS;
        scene.source.grant_grace(300 * MS, scene.now);
        scene.pass(100 * MS);
    }
    assert_eq!(scene.served(), [3]);
}

#[test]
fn a_goodbye_lets_the_newcomer_in_at_once() {
    let mut scene = Scene::new();
    scene.hello(1, Some(1));
    scene.hello(2, Some(2));
    scene.source.closed(1, scene.now);
    scene.settle();
    assert_eq!((scene.served(), scene.closes.len()), (vec![2], 0));
}

#[test]
fn the_same_program_is_never_doubted() {
    let mut scene = Scene::new();
    for session in 1..5 {
        scene.hello(session, Some(1));
        assert_eq!(scene.served(), [session]);
    }
    assert_eq!(scene.probed, []);
    assert_eq!(scene.closes.len(), 3);
    assert!(
        scene
            .closes
            .iter()
            .all(|(_, code)| *code == close::SUPERSEDED)
    );
    // As one that does not say which run it is.
    scene.hello(5, None);
    scene.hello(6, Some(3));
    assert_eq!((scene.served(), scene.probed.len()), (vec![6], 0));
}

#[test]
fn several_newcomers_wait_for_one_answer() {
    let mut scene = Scene::new();
    scene.hello(1, Some(1));
    for (session, instance) in [(2, 2), (3, 3), (4, 3)] {
        scene.hello(session, Some(instance));
    }
    // A newcomer that gives up does not matter any more.
    scene.source.closed(2, scene.now);
    scene.pass(1001 * MS);
    assert_eq!(
        scene.served(),
        [4],
        "the newest of the one program that still waits"
    );
    scene.hello(5, Some(5));
    scene.hello(6, Some(6));
    scene.heard(4);
    assert_eq!(scene.served(), [4]);
    for session in [5, 6] {
        assert_eq!(scene.refusal(session).map(|r| r.0), Some(6), "{session}");
    }
    // A removed receiver stays out, also where it was waiting.
    scene.source.closed(5, scene.now);
    scene.source.closed(6, scene.now);
    scene.hello(7, Some(7));
    scene.source.eject_receiver(Uuid::from_u128(7), scene.now);
    scene.settle();
    scene.source.closed(4, scene.now);
    scene.pass(3000 * MS);
    assert_eq!(scene.served(), []);
}
