//! One receiver's connection as the source sees it: from HELLO to service, its control stream, and
//! the turns of its channels on the unicast path.

use std::time::Duration;

use uuid::Uuid;
use zeroize::Zeroizing;

use super::delivery::ItemKind;
use super::messages::Datagrams;
use super::pacing::Urgency;
use super::recent::Recent;
use super::subscription::Subscription;
use super::types::{ChannelIndex, Limits, Unicast};
use crate::authentication::FlowAuthentication;
use crate::control::{
    CAPABILITY_DEADLINES, CAPABILITY_PACKET_AUTHENTICATION, CAPABILITY_SIGNATURES,
    CAPABILITY_STREAM_SIGNATURES, Control, ControlReader, Credential, Hello, NEEDS_PER_S,
};
use crate::pace::TokenBucket;

/// Burst of frames, in seconds of their rate: a receiver of many channels joins all at once.
const BURST_S: u64 = 5;

/// Feedback packets that are decrypted for each acknowledgement of the limit: copies and forged
/// ones are among them.
const FEEDBACK_PER_ACK: u64 = 2;

/// Reports of a receiver per second that change what is known of its legs; those of five seconds at
/// once. More are believed, and make neither an event nor a move.
const LEG_CHANGES_PER_S: u64 = 2;

/// A bucket that counts things, not bytes.
fn bucket(per_s: u64) -> TokenBucket {
    TokenBucket::new(
        per_s.saturating_mul(8),
        per_s.saturating_mul(BURST_S) as usize,
    )
}

/// Budgets of a receiver's input.
#[derive(Debug)]
pub(super) struct Budgets {
    pub(super) control: TokenBucket,
    pub(super) acks: TokenBucket,
    /// Feedback packets that are decrypted.
    pub(super) feedback: TokenBucket,
    pub(super) needs: TokenBucket,
    /// Changes of legs that are events and move the receiver.
    pub(super) legs: TokenBucket,
}

/// HELLO of a receiver.
#[derive(Debug)]
struct Greeting {
    /// The frame, without the credential.
    hello: Hello,
    /// Run of the receiver's program, if it said so.
    instance: Option<[u8; 8]>,
}

/// Service of a receiver that was welcomed.
#[derive(Debug)]
struct Service {
    greeting: Greeting,
    /// Whether the operator keeps the receiver on unicast.
    held: bool,
    subscriptions: Vec<Subscription>,
    /// Subscription whose turn it is on the unicast path.
    turn: usize,
}

/// Progress of a session, with the data that each phase adds.
#[derive(Debug)]
enum Phase {
    /// No HELLO has come.
    Connected,
    /// The HELLO waits for a verdict.
    Greeted(Greeting),
    /// The receiver was welcomed.
    Served(Service),
}

/// One receiver's connection.
#[derive(Debug)]
pub(super) struct Session {
    phase: Phase,
    /// Whether the connection is being closed: its input is ignored.
    closing: bool,
    pub(super) control: ControlReader,
    control_out: Zeroizing<Vec<u8>>,
    /// RTT of the unicast path.
    pub(super) rtt: Duration,
    /// Whether the current address is validated: replicated packets may go there.
    pub(super) validated: bool,
    pub(super) budgets: Budgets,
    /// Messages for the connection.
    pub(super) datagrams: Datagrams,
}

impl Session {
    pub(super) fn new(limits: &Limits) -> Self {
        Session {
            phase: Phase::Connected,
            closing: false,
            control: ControlReader::new(),
            control_out: Zeroizing::new(Vec::new()),
            rtt: Duration::from_millis(100),
            validated: true,
            datagrams: Datagrams::default(),
            budgets: Budgets {
                control: bucket(limits.control_per_s),
                acks: bucket(limits.acks_per_s),
                feedback: bucket(limits.acks_per_s.saturating_mul(FEEDBACK_PER_ACK)),
                needs: bucket(NEEDS_PER_S),
                legs: bucket(LEG_CHANGES_PER_S),
            },
        }
    }

    fn greeting(&self) -> Option<&Greeting> {
        match &self.phase {
            Phase::Connected => None,
            Phase::Greeted(greeting) => Some(greeting),
            Phase::Served(service) => Some(&service.greeting),
        }
    }

    fn service(&self) -> Option<&Service> {
        match &self.phase {
            Phase::Served(service) => Some(service),
            Phase::Connected | Phase::Greeted(_) => None,
        }
    }

    fn service_mut(&mut self) -> Option<&mut Service> {
        match &mut self.phase {
            Phase::Served(service) => Some(service),
            Phase::Connected | Phase::Greeted(_) => None,
        }
    }

    /// Returns the receiver's HELLO, without its credential.
    pub(super) fn hello(&self) -> Option<&Hello> {
        self.greeting().map(|greeting| &greeting.hello)
    }

    /// Returns the receiver's id, once it said HELLO.
    pub(super) fn receiver(&self) -> Option<Uuid> {
        self.hello().map(|hello| hello.receiver)
    }

    /// Returns the run of the receiver's program, if it said so.
    pub(super) fn instance(&self) -> Option<[u8; 8]> {
        self.greeting()?.instance
    }

    /// Whether the receiver verifies signed updates.
    pub(super) fn verifies(&self) -> bool {
        self.can(CAPABILITY_SIGNATURES)
    }

    /// Whether the receiver takes flows that are authenticated in this way.
    pub(super) fn authenticates(&self, flow: &FlowAuthentication) -> bool {
        self.can(match flow {
            FlowAuthentication::Packets(_) => CAPABILITY_PACKET_AUTHENTICATION,
            FlowAuthentication::Streams(_) => CAPABILITY_STREAM_SIGNATURES,
        })
    }

    /// Whether the receiver's HELLO lists a capability.
    pub(super) fn can(&self, capability: u64) -> bool {
        let hello = self.hello();
        hello.is_some_and(|hello| hello.capabilities.contains(&capability))
    }

    /// Whether the HELLO waits for a verdict.
    pub(super) fn awaits_verdict(&self) -> bool {
        matches!(self.phase, Phase::Greeted(_)) && !self.closing
    }

    pub(super) fn is_served(&self) -> bool {
        self.service().is_some()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Begins to close the connection; returns whether that is new.
    pub(super) fn begin_close(&mut self) -> bool {
        !std::mem::replace(&mut self.closing, true)
    }

    /// Whether the operator keeps the receiver on unicast.
    pub(super) fn is_held(&self) -> bool {
        self.service().is_some_and(|service| service.held)
    }

    /// Sets whether a served receiver is held; returns whether that is a change.
    pub(super) fn set_held(&mut self, held: bool) -> bool {
        let service = self.service_mut();
        service.is_some_and(|service| std::mem::replace(&mut service.held, held) != held)
    }

    /// Takes the first HELLO; its secret goes to the owner's decision and is not kept here.
    pub(super) fn greet(&mut self, hello: &Hello) {
        self.phase = Phase::Greeted(Greeting {
            instance: hello.credential.instance(),
            hello: Hello {
                credential: Credential::None,
                ..hello.clone()
            },
        });
    }

    /// Begins to serve a receiver that said HELLO.
    pub(super) fn serve(&mut self, held: bool, subscriptions: Vec<Subscription>) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Connected) {
            Phase::Greeted(greeting) => Phase::Served(Service {
                greeting,
                held,
                subscriptions,
                turn: 0,
            }),
            other => other,
        };
    }

    /// Returns the subscriptions of a served receiver.
    pub(super) fn subscriptions(&self) -> &[Subscription] {
        self.service().map_or(&[], |service| &service.subscriptions)
    }

    /// Returns the subscriptions of a served receiver.
    pub(super) fn subscriptions_mut(&mut self) -> &mut [Subscription] {
        let service = self.service_mut();
        service.map_or(&mut [], |service| &mut service.subscriptions)
    }

    pub(super) fn subscription(&mut self, channel: ChannelIndex) -> Option<&mut Subscription> {
        let mut all = self.subscriptions_mut().iter_mut();
        all.find(|s| s.channel == channel)
    }

    /// Returns the budgets of the receiver's input together with its subscriptions.
    pub(super) fn budgets_and_subscriptions(&mut self) -> (&mut Budgets, &mut [Subscription]) {
        let subscriptions: &mut [Subscription] = match &mut self.phase {
            Phase::Served(service) => &mut service.subscriptions,
            Phase::Connected | Phase::Greeted(_) => &mut [],
        };
        (&mut self.budgets, subscriptions)
    }

    /// Returns the channels of a served receiver.
    pub(super) fn channels(&self) -> Vec<ChannelIndex> {
        self.subscriptions().iter().map(|s| s.channel).collect()
    }

    /// Queues a frame of the control stream. Keys are among them, so no unerased copy is left when
    /// the buffer grows.
    pub(super) fn say(&mut self, frame: &Control) {
        let mut bytes = Zeroizing::new(Vec::with_capacity(256));
        frame.encode(&mut bytes);
        if self.control_out.capacity() - self.control_out.len() < bytes.len() {
            let mut larger = Vec::with_capacity((self.control_out.len() + bytes.len()) * 2);
            larger.extend_from_slice(&self.control_out);
            self.control_out = Zeroizing::new(larger);
        }
        self.control_out.extend_from_slice(&bytes);
    }

    pub(super) fn take_control(&mut self) -> Zeroizing<Vec<u8>> {
        std::mem::replace(&mut self.control_out, Zeroizing::new(Vec::new()))
    }

    /// Returns the urgency of what waits for the unicast path. Deadlines count where they are kept
    /// and the receiver knows them: what is sent however late it is would always be most urgent.
    pub(super) fn urgency<'a>(
        &self,
        keeps_deadlines: bool,
        recent: impl Fn(ChannelIndex) -> Option<&'a Recent>,
    ) -> Urgency {
        let deliveries = || {
            self.subscriptions()
                .iter()
                .map(|s| (s.channel, &s.delivery))
        };
        let is_timed = keeps_deadlines && self.can(CAPABILITY_DEADLINES);
        let timed = deliveries().filter(|_| is_timed);
        let deadlines = timed.filter_map(|(c, d)| d.next_deadline(recent(c)?));
        Urgency {
            deadline_ms: deadlines.min().unwrap_or(u64::MAX),
            behind: deliveries().map(|(_, d)| d.backlog.len()).sum(),
        }
    }

    /// Asks each subscription in turn for an item. `ahead` allows to read the store before its
    /// updates are needed.
    pub(super) fn poll_unicast<'a>(
        &mut self,
        recent: impl Fn(ChannelIndex) -> Option<&'a Recent>,
        ahead: bool,
    ) -> Option<(Unicast, ItemKind, ChannelIndex)> {
        let service = self.service_mut()?;
        let count = service.subscriptions.len();
        for step in 0..count {
            let at = (service.turn + step) % count;
            let subscription = &mut service.subscriptions[at];
            let Some(recent) = recent(subscription.channel) else {
                continue;
            };
            let (out, kind) = subscription.delivery.poll(recent, ahead);
            if out != Unicast::Idle {
                service.turn = at + 1;
                return Some((out, kind, subscription.channel));
            }
        }
        None
    }
}
