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
mod thread;
mod train;
mod view;
mod way;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amt::relay::Relay;
use netio::direct::{Capture, Inbox, Memberships, Poller, UdpPort, Waker};
use rand::Rng;
use tokio::sync::oneshot;

use counters::Counters;
use forward::Forwarder;
use native::{FIRST_TOKEN, Native, NativeSide};
use thread::Thread;
use train::Trains;
pub use view::{Gateway, Group, View};

/// Messages of the kernel that one read of the native side takes.
const NATIVE_BATCH: usize = 32;

/// The same for gateways' messages: between two such batches, packets are forwarded.
const CONTROL_BATCH: usize = 32;

/// The capture's token.
const CAPTURE: u64 = FIRST_TOKEN - 1;

/// Views that are asked for and not there yet, at most.
const VIEWS: usize = 16;

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
}

/// How multicast is received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receive {
    /// By UDP sockets for these ports.
    Ports(Vec<u16>),
    /// By capturing all of it.
    Capture,
}

/// What the thread is told, and tells, without a queue: it looks at them in each turn.
#[derive(Debug, Default)]
struct Orders {
    drain: AtomicBool,
    stop: AtomicBool,
    /// Turns that it has begun.
    turns: AtomicU64,
}

/// The engine from outside.
#[derive(Debug)]
pub struct Engine {
    views: SyncSender<oneshot::Sender<View>>,
    orders: Arc<Orders>,
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
            #[cfg(feature = "fault-injection")]
            if service::faults::Fault::FragmentOuter.is_injected() {
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
                Native::Capture(Some(Box::new(capture)), Memberships::default())
            }
        };
        let waker = poller.waker();
        let (views, waiting) = sync_channel(VIEWS);
        let orders = Arc::new(Orders::default());
        let (end, ended) = tokio::sync::watch::channel(false);
        let now = Instant::now();
        #[cfg_attr(not(feature = "fault-injection"), allow(unused_mut))]
        let mut relay = Relay::new(setup.relay, fresh(), now);
        #[cfg(feature = "fault-injection")]
        relay.inject_faults(crate::faults::of_relay());
        let thread = Thread {
            relay,
            forwarder: Forwarder::new(setup.ports, Arc::clone(&counters)),
            native: NativeSide::new(native, setup.interface, Arc::clone(&counters)),
            poller,
            inbox: Inbox::new(NATIVE_BATCH),
            trains: Trains::new(),
            counters: Arc::clone(&counters),
            orders: Arc::clone(&orders),
            views: waiting,
            answer: Vec::new(),
            look: now,
            ask_lost: None,
            hurry: false,
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
            views,
            orders,
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

    /// How it is now; `None` if the thread has ended or has no time.
    pub async fn view(&self) -> Option<View> {
        let (answer, answered) = oneshot::channel();
        self.views.try_send(answer).ok()?;
        self.waker.wake();
        answered.await.ok()
    }

    /// Whether the thread begins a turn within this time. Costs it nothing but that turn.
    pub async fn is_alive(&self, within: Duration) -> bool {
        let before = self.orders.turns.load(Ordering::Acquire);
        self.waker.wake();
        let turned = || self.orders.turns.load(Ordering::Acquire) != before;
        comes(within, turned, || *self.ended.borrow()).await
    }

    /// Takes no new gateways from now on.
    pub fn drain(&self) {
        self.orders.drain.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Ends once the thread has.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error is an end, too: the thread has panicked.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.orders.stop.store(true, Ordering::Release);
        self.waker.wake();
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

/// Whether something is there within a time, unless it is over before. What counts is how long was meant to be waited, not what went
/// by meanwhile: where the whole process stood still, so did the thread that is waited for.
async fn comes(within: Duration, is_there: impl Fn() -> bool, is_over: impl Fn() -> bool) -> bool {
    let (mut left, mut pause) = (within, Duration::from_millis(1));
    while !is_there() {
        if left.is_zero() || is_over() {
            return false;
        }
        pause = pause.min(left);
        tokio::time::sleep(pause).await;
        left -= pause;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    true
}
