//! The data path: one thread between the kernel's receive and send calls.
//!
//! It waits for gateways' messages and for packets of the native side, takes what is there in
//! batches, makes trains of packets that go the same way, and sends each train to all its gateways in
//! one call. Nothing is queued here: what the thread cannot take waits in the kernel's buffers, whose
//! size bounds it, and what finds no room there is counted. There is no timer between a packet and
//! its gateways.

pub mod counters;
mod forward;
mod native;
mod segment;
mod train;
mod view;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amt::Message;
use amt::relay::{Event, Handled, Local, Relay};
use netio::direct::{Capture, Captured, Inbox, Memberships, Poller, UdpPort, Waker};
use rand::Rng;
use tokio::sync::oneshot;
use tracing::{debug, warn};

use counters::Counters;
use forward::Forwarder;
use native::{FIRST_TOKEN, Native, NativePort, NativeSide};
use train::{Flow, Train};
pub use view::{Gateway, Group, View};

/// Messages of the kernel that one read of the native side takes.
const NATIVE_BATCH: usize = 32;

/// The same for gateways' messages: between two such batches, packets are forwarded.
const CONTROL_BATCH: usize = 32;

/// Reads of one native socket before the others have their turn.
const NATIVE_READS: usize = 4;

/// Slots of a capture's ring that are taken before the gateways have their turn.
const CAPTURE_BATCH: usize = 512;

/// The capture's token.
const CAPTURE: u64 = FIRST_TOKEN - 1;

/// Failed joins are tried again so often.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The kernel is asked what it lost so long after a packet, which also counts what came last.
const ASK_LOST: Duration = Duration::from_secs(1);

/// Commands that wait at most.
const COMMANDS: usize = 16;

/// What the engine is told.
#[derive(Debug)]
pub struct Setup {
    /// The relay's settings.
    pub relay: amt::relay::Config,
    /// Sockets that gateways reach.
    pub ports: Vec<UdpPort>,
    /// How to receive.
    pub receive: Receive,
    /// The interface to join on, by name or address.
    pub interface: Option<String>,
    /// Test-only: lets outer packets be fragmented.
    pub fragment_outer: bool,
}

/// How multicast is received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receive {
    /// By UDP sockets for these ports.
    Ports(Vec<u16>),
    /// By capturing all of it.
    Capture,
}

#[derive(Debug)]
enum Command {
    View(oneshot::Sender<View>),
    Drain,
    Stop,
}

/// The engine from outside.
#[derive(Debug)]
pub struct Engine {
    commands: SyncSender<Command>,
    waker: Waker,
    counters: Arc<Counters>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
    ended: tokio::sync::watch::Receiver<bool>,
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// If packets cannot be captured, or the process has no descriptors left.
    pub fn start(setup: Setup) -> io::Result<Engine> {
        let counters = Arc::new(Counters::default());
        let poller = Poller::new()?;
        for (number, port) in (0..).zip(&setup.ports) {
            if setup.fragment_outer {
                port.allow_fragments()?;
            }
            poller.add(port, number)?;
        }
        let interface = setup.interface.as_deref();
        let interface = interface.map_or(Ok(0), netio::find_interface)?;
        let native = match setup.receive {
            Receive::Ports(ports) => Native::Ports(ports),
            Receive::Capture => {
                let capture = Capture::open(interface)?;
                poller.add(&capture, CAPTURE)?;
                Native::Capture(Box::new(capture), Memberships::default())
            }
        };
        let waker = poller.waker();
        let (commands, waiting) = sync_channel(COMMANDS);
        let (end, ended) = tokio::sync::watch::channel(false);
        let now = Instant::now();
        let thread = Thread {
            relay: Relay::new(setup.relay, fresh(), now),
            forwarder: Forwarder::new(setup.ports, Arc::clone(&counters), setup.fragment_outer),
            native: NativeSide::new(native, setup.interface, Arc::clone(&counters)),
            poller,
            inbox: Inbox::new(NATIVE_BATCH),
            train: Train::new(),
            counters: Arc::clone(&counters),
            commands: waiting,
            answer: Vec::new(),
            try_again: None,
            ask_lost: None,
        };
        let thread = std::thread::Builder::new()
            .name("packets".into())
            .spawn(move || {
                if let Err(error) = thread.run() {
                    tracing::error!("the packet loop ended: {error}");
                }
                let _ = end.send(true);
            })?;
        Ok(Engine {
            commands,
            waker,
            counters,
            thread: std::sync::Mutex::new(Some(thread)),
            ended,
        })
    }

    /// What is counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn tell(&self, command: Command) -> bool {
        let told = self.commands.try_send(command).is_ok();
        self.waker.wake();
        told
    }

    /// How it is now; `None` if the thread has ended or has no time.
    pub async fn view(&self) -> Option<View> {
        let (answer, answered) = oneshot::channel();
        if !self.tell(Command::View(answer)) {
            return None;
        }
        answered.await.ok()
    }

    /// Takes no new gateways from now on.
    pub fn drain(&self) {
        self.tell(Command::Drain);
    }

    /// Ends once the thread has.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error is an end, too: the thread has panicked.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Ends the thread.
    pub fn stop(&self) {
        // The queue may be full for a moment.
        while !*self.ended.borrow() && !self.tell(Command::Stop) {
            std::thread::yield_now();
        }
        let thread = match self.thread.lock() {
            Ok(mut thread) => thread.take(),
            Err(_) => None,
        };
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

fn fresh() -> [u8; 32] {
    let mut seed = [0; 32];
    rand::rng().fill_bytes(&mut seed);
    seed
}

struct Thread {
    relay: Relay,
    forwarder: Forwarder,
    native: NativeSide,
    poller: Poller,
    inbox: Inbox,
    train: Train,
    counters: Arc<Counters>,
    commands: Receiver<Command>,
    answer: Vec<u8>,
    try_again: Option<Instant>,
    /// When the kernel is asked what it lost; set when there was something to read.
    ask_lost: Option<Instant>,
}

impl Thread {
    fn run(mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        loop {
            let until = self.relay.poll_timeout();
            let until = until.into_iter().chain(self.try_again);
            let until = until.chain(self.ask_lost).min();
            let patience = until.map(|until| until.saturating_duration_since(Instant::now()));
            ready.clear();
            ready.extend_from_slice(self.poller.wait(patience)?);
            let now = Instant::now();
            while let Ok(command) = self.commands.try_recv() {
                match command {
                    Command::View(answer) => {
                        let _ = answer.send(view::look(&self.relay, now));
                    }
                    Command::Drain => self.relay.drain(),
                    Command::Stop => return Ok(()),
                }
            }
            // Packets first: no flood of requests keeps them waiting for longer than a batch.
            for one in ready.iter().filter(|one| one.token >= CAPTURE) {
                if one.token == CAPTURE {
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
            self.relay.handle_timeout(now, fresh());
            self.changed();
        }
        if self.try_again.is_some_and(|at| at <= now) {
            self.native.try_again(&self.poller);
            self.try_again = None;
        }
        if self.native.is_missing() && self.try_again.is_none() {
            self.try_again = Some(now + TRY_AGAIN);
        }
        if self.ask_lost.is_some_and(|at| at <= now) {
            self.ask_lost = None;
            let lost = self.native.take_lost();
            self.counters.lost.overrun.add(lost);
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
        let (relay, answer, counters) = (&mut self.relay, &mut self.answer, &self.counters);
        let received = self.inbox.receive(port, CONTROL_BATCH, |message| {
            let local = Local {
                ip: message.to.unwrap_or(port.local_addr().ip()),
                socket: number,
            };
            for payload in message.datagrams() {
                count_message(counters, payload);
                let handled = relay.handle(message.from, local, payload, now, answer);
                match handled {
                    Handled::Taken => {}
                    Handled::Dropped(why) => {
                        if let Some(count) = counters.dropped(why) {
                            count.add(1);
                        }
                    }
                    Handled::Answer => match port.send(answer, message.from, Some(local.ip)) {
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

    /// Brings the native side in line with what gateways want.
    fn changed(&mut self) {
        while let Some(event) = self.relay.poll_event() {
            match event {
                Event::Join(join) => self.native.join(join, &self.poller),
                Event::Leave(join) => self.native.leave(join),
            }
        }
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
            train: &mut self.train,
            counters: &self.counters,
            now,
        };
        for _ in 0..NATIVE_READS {
            let NativePort { port, headers, .. } = socket;
            let received = self.inbox.receive(port, NATIVE_BATCH, |message| {
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
                Ok(NATIVE_BATCH) => {}
                Ok(_) => break,
                Err(error) => {
                    warn!("group {group} cannot be received: {error}");
                    break;
                }
            }
        }
        way.flush();
    }

    /// Takes what the capture has, and sends it on.
    fn captured(&mut self, now: Instant) {
        let Native::Capture(capture, _) = &mut self.native.native else {
            return;
        };
        self.ask_lost.get_or_insert(now + ASK_LOST);
        let mut way = Way {
            relay: &mut self.relay,
            forwarder: &mut self.forwarder,
            train: &mut self.train,
            counters: &self.counters,
            now,
        };
        capture.receive(CAPTURE_BATCH, |captured: Captured<'_>| {
            let Ok((source, group, len)) = amt::ip::addresses(captured.packet) else {
                way.counters.broken.add(1);
                return;
            };
            let Some(packet) = captured.packet.get(..len) else {
                way.counters.broken.add(1);
                return;
            };
            match captured.segment {
                None if !captured.checksum_missing => {
                    way.push(source, group, len, |place| segment::copy(packet, place));
                }
                size => {
                    let whole = size.unwrap_or(usize::MAX);
                    let cut = segment::datagrams(packet, whole, |len, write| {
                        way.push(source, group, len, write);
                    });
                    if !cut {
                        way.counters.broken.add(1);
                    }
                }
            }
        });
        way.flush();
    }
}

/// The way of packets to gateways.
struct Way<'a> {
    relay: &'a mut Relay,
    forwarder: &'a mut Forwarder,
    train: &'a mut Train,
    counters: &'a Counters,
    now: Instant,
}

impl Way<'_> {
    /// Puts a packet of `len` bytes on the way, which `write` makes if somebody wants it.
    fn push(
        &mut self,
        source: IpAddr,
        group: IpAddr,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) {
        if self.train.ready().is_none() || !self.train.takes(source, group, len) {
            self.flush();
            let Some(recipients) = self.relay.recipients(source, group) else {
                self.counters.unwanted.add(1);
                return;
            };
            let recipients = recipients.clone();
            self.train.begin(Flow {
                source,
                group,
                recipients,
            });
        }
        let written = self.train.push(write);
        if written > 0 {
            self.counters.native_packets.add(1);
            self.counters.native_bytes.add(written as u64);
        }
    }

    fn flush(&mut self) {
        self.forwarder.flush(self.train, self.relay, self.now);
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
