//! The loop: waits for gateways' messages and for packets, and gives each its turn.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use amt::Message;
use amt::relay::{DropReason, Event, LocalEndpoint, Outcome, Relay};
use netio::direct::{CapturedPacket, Inbox, Poller};
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::counters::Counters;
use super::forward::Forwarder;
use super::native::{self, Native, NativePort, NativeSide};
use super::train::Trains;
use super::view::{self, View};
use super::way::Way;
use super::{CAPTURE, CONTROL_BATCH, NATIVE_BATCH, Orders};

/// Reads of one native socket before the others have their turn.
const NATIVE_READS: usize = 4;

/// Slots of a capture's ring that are taken in one go, and how often before the gateways have their
/// turn.
const CAPTURE_BATCH: usize = 64;
const CAPTURE_READS: usize = 8;

/// No more is read in a turn that has taken so long already: gateways' messages and orders wait.
const TURN: Duration = Duration::from_millis(10);

/// Full send buffers are waited for so long in a turn, for all gateways together.
const PATIENCE: Duration = Duration::from_millis(5);

/// Joins and leaves in one turn: each is a system call, some are several.
const CHANGES: usize = 64;

/// The native side is looked at so often: what was lost and what could not be joined is tried again.
const LOOK: Duration = Duration::from_secs(5);

/// The kernel is asked what it lost so long after a packet, which also counts what came last.
const ASK_LOST: Duration = Duration::from_secs(1);

pub(super) struct Thread {
    pub(super) relay: Relay,
    pub(super) forwarder: Forwarder,
    pub(super) native: NativeSide,
    pub(super) poller: Poller,
    pub(super) inbox: Inbox,
    pub(super) trains: Trains,
    pub(super) counters: Arc<Counters>,
    pub(super) orders: Arc<Orders>,
    pub(super) views: Receiver<oneshot::Sender<View>>,
    pub(super) answer: Vec<u8>,
    /// When the native side is looked at.
    pub(super) look: Instant,
    /// When the kernel is asked what it lost; set when there was something to read.
    pub(super) ask_lost: Option<Instant>,
    /// Something was left for the next turn, which is not waited for.
    pub(super) hurry: bool,
}

impl Thread {
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        loop {
            let until = self.relay.poll_timeout().into_iter();
            let until = until.chain([self.look]).chain(self.ask_lost).min();
            let patience = until.map(|until| until.saturating_duration_since(Instant::now()));
            let patience = if self.hurry {
                Some(Duration::ZERO)
            } else {
                patience
            };
            ready.clear();
            ready.extend_from_slice(self.poller.wait(patience)?);
            let now = Instant::now();
            self.hurry = false;
            self.orders.turns.fetch_add(1, Ordering::Release);
            if self.orders.stop.load(Ordering::Acquire) {
                return Ok(());
            }
            if self.orders.drain.load(Ordering::Acquire) && !self.relay.is_draining() {
                self.relay.drain();
            }
            // One in a turn: however many ask, packets pass between.
            if let Ok(asked) = self.views.try_recv() {
                let _ = asked.send(view::look(&self.relay, now));
                self.hurry = true;
            }
            self.forwarder.begin_turn(PATIENCE);
            // Packets first: no flood of requests keeps them waiting for longer than a batch.
            for one in ready.iter().filter(|one| one.token >= CAPTURE) {
                if one.token == CAPTURE {
                    if one.error {
                        self.native.capture_failed(&self.poller);
                    }
                    self.captured(now);
                } else {
                    self.received(one.token, now);
                }
            }
            for one in ready.iter().filter(|one| one.token < CAPTURE) {
                if one.error {
                    self.forwarder.path_errors(&mut self.relay, now);
                }
                if one.readable {
                    self.asked(one.token, now);
                }
            }
            self.keep_time(now);
        }
    }

    fn keep_time(&mut self, now: Instant) {
        if self.relay.poll_timeout().is_some_and(|at| at <= now) {
            self.relay.handle_timeout(now, super::fresh());
        }
        self.changed();
        if self.look <= now {
            self.native.check(&self.poller);
            let more = self.native.try_again(&self.poller);
            // As long as joins succeed they go on, packets between.
            self.look = if more { now } else { now + LOOK };
        }
        if self.ask_lost.is_some_and(|at| at <= now) {
            self.ask_lost = None;
            let lost = self.native.take_lost();
            self.counters.lost.overrun.add(lost);
            let lost = self.forwarder.take_lost();
            self.counters.lost.messages.add(lost);
        }
    }

    /// Takes what gateways sent to one of the ports.
    fn asked(&mut self, token: u64, now: Instant) {
        let Ok(number) = u16::try_from(token) else {
            return;
        };
        let Some(port) = self.forwarder.ports.get(usize::from(number)) else {
            return;
        };
        self.ask_lost.get_or_insert(now + ASK_LOST);
        let (relay, answer, counters) = (&mut self.relay, &mut self.answer, &self.counters);
        let received = self.inbox.receive(port, CONTROL_BATCH, |message| {
            let local = LocalEndpoint {
                ip: message.to.unwrap_or(port.local_addr().ip()),
                socket: number,
            };
            for payload in message.datagrams() {
                count_message(counters, payload);
                let handled = if local.ip.is_multicast() {
                    // A kernel that cannot keep it away; no answer could come from there.
                    Outcome::Dropped(DropReason::Unexpected)
                } else {
                    relay.handle(message.from, local, payload, now, answer)
                };
                match handled {
                    Outcome::Accepted => {}
                    Outcome::Dropped(why) => {
                        if let Some(count) = counters.dropped(why) {
                            count.add(1);
                        }
                    }
                    Outcome::Answer => match port.send(answer, message.from, Some(local.ip)) {
                        Ok(()) => counters.answers.add(1),
                        Err(error) => {
                            counters.answers_refused.add(1);
                            debug!("an answer to {} was refused: {error}", message.from);
                        }
                    },
                }
            }
        });
        if let Err(error) = received {
            // About an earlier datagram; the error queue has more.
            debug!("{}: {error}", port.local_addr());
        }
        self.changed();
    }

    /// Brings the native side in line with what gateways want; what is much, in several turns.
    fn changed(&mut self) {
        for _ in 0..CHANGES {
            match self.relay.poll_change() {
                Some((Event::Join(join), by)) => self.native.join(join, by, &self.poller),
                Some((Event::Leave(join), by)) => self.native.leave(join, by),
                None => break,
            }
        }
        self.hurry |= self.relay.has_events();
        self.counters.gateways.set(self.relay.tunnels());
    }

    /// Takes what one of the native sockets has, and sends it on.
    fn received(&mut self, token: u64, now: Instant) {
        let Some(socket) = self.native.sockets.get_mut(&token) else {
            return;
        };
        let group = socket.port.group().ip();
        self.ask_lost.get_or_insert(now + ASK_LOST);
        let mut way = Way {
            relay: &mut self.relay,
            forwarder: &mut self.forwarder,
            trains: &mut self.trains,
            counters: &self.counters,
            now,
        };
        for _ in 0..NATIVE_READS {
            let NativePort { port, headers, .. } = socket;
            let batch = way.forwarder.share(NATIVE_BATCH);
            let received = self.inbox.receive(port, batch, |message| {
                let (ttl, tos) = (native::ttl(message.ttl), message.tos.unwrap_or(0));
                let Some(template) = headers.template(message.from) else {
                    return;
                };
                let header_len = template.header_len();
                for payload in message.datagrams() {
                    let len = header_len + payload.len();
                    way.push(message.from.ip(), group, len, |place| {
                        template.write(payload, ttl, tos, place)
                    });
                }
            });
            match received {
                Ok(taken) if taken == batch && now.elapsed() < TURN => {}
                Ok(_) => break,
                Err(error) => {
                    warn!(%group, %error, "group cannot be received");
                    break;
                }
            }
        }
        way.flush();
    }

    /// Takes what the capture has, and sends it on.
    fn captured(&mut self, now: Instant) {
        let NativeSide { native, places, .. } = &mut self.native;
        let Native::Capture(Some(capture), _) = native else {
            return;
        };
        self.ask_lost.get_or_insert(now + ASK_LOST);
        let mut way = Way {
            relay: &mut self.relay,
            forwarder: &mut self.forwarder,
            trains: &mut self.trains,
            counters: &self.counters,
            now,
        };
        for _ in 0..CAPTURE_READS {
            let batch = way.forwarder.share(CAPTURE_BATCH);
            let taken = capture.receive(batch, |captured: CapturedPacket<'_>| {
                way.push_captured(&captured, places);
            });
            if taken < batch || now.elapsed() >= TURN {
                break;
            }
        }
        way.flush();
    }
}

fn count_message(counters: &Counters, payload: &[u8]) {
    let messages = &counters.messages;
    let count = match Message::parse(payload) {
        Ok(Message::Discovery { .. }) => &messages.discovery,
        Ok(Message::Request { .. }) => &messages.request,
        Ok(Message::Update { .. }) => &messages.update,
        Ok(Message::Teardown { .. }) => &messages.teardown,
        _ => &messages.other,
    };
    count.add(1);
}
