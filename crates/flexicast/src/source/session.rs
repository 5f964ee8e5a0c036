//! One receiver's unicast session as the source sees it.

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::subscription::Subscription;
use super::{ChannelIndex, Limits};
use crate::control::{Control, ControlReader, Hello, NEEDS_PER_S};
use crate::pace::TokenBucket;

/// Next item for a session's unicast path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unicast {
    /// A new server-initiated stream: the head, then the body, then FIN. Streams are not interleaved: the one that was opened first goes first.
    Stream {
        /// The header's bytes.
        head: Vec<u8>,
        /// The range's bytes.
        body: Bytes,
    },
    /// More for the channel's catch-up stream, which is opened if there is none.
    CatchUp {
        /// The channel.
        channel: ChannelIndex,
        /// Goes before the body.
        head: Vec<u8>,
        /// An encoded update.
        body: Bytes,
    },
    /// The end of the channel's catch-up stream.
    CatchUpEnd {
        /// The channel.
        channel: ChannelIndex,
    },
    /// Ask the store for updates of a channel from `from` on, at most `limit`, and call [`super::Source::provide`]. Nothing else comes of this channel until then.
    Fetch {
        /// The channel.
        channel: ChannelIndex,
        /// First `seq`.
        from: u64,
        /// Most updates to be returned.
        limit: usize,
    },
    /// Nothing to send now.
    Idle,
}

#[derive(Debug)]
pub(super) struct Session {
    /// Its HELLO, without the credential.
    pub(super) hello: Option<Hello>,
    /// Which run of the receiver's program this is.
    pub(super) instance: Option<[u8; 8]>,
    pub(super) served: bool,
    /// Whether it is being closed: its input is ignored.
    pub(super) closing: bool,
    pub(super) control: ControlReader,
    control_out: Zeroizing<Vec<u8>>,
    pub(super) rtt: Duration,
    /// The operator keeps its receiver on unicast.
    pub(super) held: bool,
    /// Its address is validated: copies may go there.
    pub(super) validated: bool,
    pub(super) subscriptions: Vec<Subscription>,
    /// Which subscription is served next.
    turn: usize,
    pub(super) control_limit: TokenBucket,
    pub(super) ack_limit: TokenBucket,
    pub(super) need_limit: TokenBucket,
}

/// Burst of frames, in seconds of their rate: a receiver of many channels joins all at once.
const BURST_S: u64 = 5;

/// A bucket that counts things, not bytes.
fn bucket(per_s: u64) -> TokenBucket {
    TokenBucket::new(
        per_s.saturating_mul(8),
        per_s.saturating_mul(BURST_S) as usize,
    )
}

impl Session {
    pub(super) fn new(limits: &Limits) -> Self {
        Session {
            hello: None,
            instance: None,
            served: false,
            closing: false,
            control: ControlReader::new(),
            control_out: Zeroizing::new(Vec::new()),
            rtt: Duration::from_millis(100),
            held: false,
            validated: true,
            subscriptions: Vec::new(),
            turn: 0,
            control_limit: bucket(limits.control_per_s),
            ack_limit: bucket(limits.acks_per_s),
            need_limit: bucket(NEEDS_PER_S),
        }
    }

    pub(super) fn receiver(&self) -> Option<Uuid> {
        self.hello.as_ref().map(|h| h.receiver)
    }

    pub(super) fn subscription(&mut self, channel: ChannelIndex) -> Option<&mut Subscription> {
        let mut all = self.subscriptions.iter_mut();
        all.find(|s| s.channel == channel)
    }

    /// Queues a frame of the control stream. Keys go this way, so no unerased copy is left behind when the buffer grows.
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

    /// Asks each subscription in turn for what it has to send. `ahead` allows to read the store before it is needed.
    pub(super) fn poll_unicast<'a>(
        &mut self,
        recent: impl Fn(ChannelIndex) -> Option<(u64, &'a super::recent::Recent)>,
        ahead: bool,
    ) -> (Unicast, Option<ChannelIndex>) {
        let count = self.subscriptions.len();
        for step in 0..count {
            let at = (self.turn + step) % count;
            let subscription = &mut self.subscriptions[at];
            let Some((number, recent)) = recent(subscription.channel) else {
                continue;
            };
            let out = subscription.poll_unicast(number, recent, ahead);
            if out != Unicast::Idle {
                self.turn = at + 1;
                return (out, Some(subscription.channel));
            }
        }
        (Unicast::Idle, None)
    }
}
