//! The thread's loop: waits for gateways' messages and for packets, and serves each in turn.

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
use super::dispatch::Dispatcher;
use super::forward::Forwarder;
use super::native::{self, Native, NativePort, NativeSide};
use super::train::Trains;
use super::view::{self, View};
use super::{CAPTURE, CONTROL_BATCH, Controls, NATIVE_BATCH};

/// Reads of one native socket before the others are served.
const NATIVE_READS: usize = 4;

/// Slots of a capture's ring that are read at a time, and number of such reads before the gateways
/// are served.
const CAPTURE_BATCH: usize = 64;
const CAPTURE_READS: usize = 8;

/// Duration of a turn after which no more is read: gateways' messages and requests wait.
const TURN: Duration = Duration::from_millis(10);

/// Largest wait for full send buffers in a turn, for all gateways together.
const PATIENCE: Duration = Duration::from_millis(5);

/// Joins and leaves per turn: each is one system call or several.
const CHANGES: usize = 64;

/// Interval of checks of the native side: lost and failed joins are retried.
const LOOK: Duration = Duration::from_secs(5);

/// Delay after a packet until the kernel's drop counters are read, which include the latest drops.
const ASK_LOST: Duration = Duration::from_secs(1);

pub(super) struct Thread {
    pub(super) relay: Relay,
    pub(super) forwarder: Forwarder,
    pub(super) native: NativeSide,
    pub(super) poller: Poller,
    pub(super) inbox: Inbox,
    pub(super) trains: Trains,
    pub(super) counters: Arc<Counters>,
    pub(super) controls: Arc<Controls>,
    pub(super) views: Receiver<oneshot::Sender<View>>,
    pub(super) answer: Vec<u8>,
    /// Time of the next check of the native side.
    pub(super) look: Instant,
    /// Time to read the kernel's drop counters; set after there was something to read.
    pub(super) ask_lost: Option<Instant>,
    /// Whether work was left for the next turn, which starts without a wait.
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
            self.controls.turns.fetch_add(1, Ordering::Release);
            if self.controls.stop.load(Ordering::Acquire) {
                return Ok(());
            }
            if self.controls.drain.load(Ordering::Acquire) && !self.relay.is_draining() {
                self.relay.drain();
            }
            // One per turn: any number of requests lets packets pass in between.
            if let Ok(asked) = self.views.try_recv() {
                let _ = asked.send(view::look(&self.relay, now));
                self.hurry = true;
            }
            self.forwarder.begin_turn(PATIENCE);
            // Packets first: a flood of requests delays them by no more than one batch.
            for one in ready.iter().filter(|one| one.token >= CAPTURE) {
                if one.token == CAPTURE {
                    if one.error {
                        self.native.capture_failed(&self.poller);
                    }
                    self.read_capture(now);
                } else {
                    self.read_socket(one.token, now);
                }
            }
            for one in ready.iter().filter(|one| one.token < CAPTURE) {
                if one.error {
                    self.forwarder.path_errors(&mut self.relay, now);
                }
                if one.readable {
                    self.read_control(one.token, now);
                }
            }
            self.keep_time(now);
        }
    }

    fn keep_time(&mut self, now: Instant) {
        if self.relay.poll_timeout().is_some_and(|at| at <= now) {
            self.relay.handle_timeout(now, super::fresh());
        }
        self.update_joins();
        if self.look <= now {
            self.native.check(&self.poller);
            let more = self.native.try_again(&self.poller);
            // As long as joins succeed, they continue, with packets in between.
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

    /// Reads the messages of gateways to one of the ports.
    fn read_control(&mut self, token: u64, now: Instant) {
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
                    // The kernel could not filter the message; no answer could reach its sender.
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
            // The error concerns an earlier datagram; the error queue has more.
            debug!("{}: {error}", port.local_addr());
        }
        self.update_joins();
    }

    /// Updates the native side to the wishes of gateways; many changes take several turns.
    fn update_joins(&mut self) {
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

    /// Reads packets of one of the native sockets, and forwards them.
    fn read_socket(&mut self, token: u64, now: Instant) {
        let Some(socket) = self.native.sockets.get_mut(&token) else {
            return;
        };
        let group = socket.port.group().ip();
        self.ask_lost.get_or_insert(now + ASK_LOST);
        let mut dispatcher = Dispatcher {
            relay: &mut self.relay,
            forwarder: &mut self.forwarder,
            trains: &mut self.trains,
            counters: &self.counters,
            now,
        };
        for _ in 0..NATIVE_READS {
            let NativePort { port, headers, .. } = socket;
            let batch = dispatcher.forwarder.share(NATIVE_BATCH);
            let received = self.inbox.receive(port, batch, |message| {
                let (ttl, tos) = (native::ttl(message.ttl), message.tos.unwrap_or(0));
                let Some(template) = headers.template(message.from) else {
                    return;
                };
                let header_len = template.header_len();
                for payload in message.datagrams() {
                    let len = header_len + payload.len();
                    dispatcher.push(message.from.ip(), group, len, |place| {
                        template.write(payload, ttl, tos, place)
                    });
                }
            });
            match received {
                Ok(taken) if taken == batch && now.elapsed() < TURN => {}
                Ok(_) => break,
                Err(error) => {
                    warn!(%group, %error, "receive failed");
                    break;
                }
            }
        }
        dispatcher.flush();
    }

    /// Reads packets of the capture, and forwards them.
    fn read_capture(&mut self, now: Instant) {
        let NativeSide {
            native, interfaces, ..
        } = &mut self.native;
        let Native::Capture(Some(capture), _) = native else {
            return;
        };
        self.ask_lost.get_or_insert(now + ASK_LOST);
        let mut dispatcher = Dispatcher {
            relay: &mut self.relay,
            forwarder: &mut self.forwarder,
            trains: &mut self.trains,
            counters: &self.counters,
            now,
        };
        for _ in 0..CAPTURE_READS {
            let batch = dispatcher.forwarder.share(CAPTURE_BATCH);
            let taken = capture.receive(batch, |captured: CapturedPacket<'_>| {
                dispatcher.push_captured(&captured, interfaces);
            });
            if taken < batch || now.elapsed() >= TURN {
                break;
            }
        }
        dispatcher.flush();
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
