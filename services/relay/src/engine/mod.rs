//! The data path: one thread between the kernel's receive and send calls.
//!
//! The thread waits for gateways' messages and for packets of the native side, reads them in
//! batches, makes trains of packets with the same recipients, and sends each train to all its
//! gateways in one call. Nothing is queued here: unread packets wait in the kernel's buffers, whose
//! size bounds them, and overflows are counted. There is no timer between a packet and its
//! gateways.

pub mod counters;
mod dispatch;
mod forward;
mod native;
mod segment;
mod thread;
mod train;
mod view;

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

/// Messages of the kernel per read of the native side.
const NATIVE_BATCH: usize = 32;

/// The same for gateways' messages: between two such batches, packets are forwarded.
const CONTROL_BATCH: usize = 32;

/// Token of the capture.
const CAPTURE: u64 = FIRST_TOKEN - 1;

/// Largest number of pending requests for views.
const VIEWS: usize = 16;

/// Configuration of the engine.
#[derive(Debug)]
pub struct Setup {
    /// Settings of the relay.
    pub relay: amt::relay::Config,
    /// Sockets that gateways reach.
    pub ports: Vec<UdpPort>,
    /// Reception of multicast.
    pub receive: Receive,
    /// Interface to join on, by name or address.
    pub interface: Option<String>,
}

/// Reception of multicast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receive {
    /// UDP sockets for these ports.
    Ports(Vec<u16>),
    /// Capture of all multicast.
    Capture,
}

/// Flags exchanged with the thread without a queue: it reads them in each turn.
#[derive(Debug, Default)]
struct Controls {
    drain: AtomicBool,
    stop: AtomicBool,
    /// Turns that the thread has begun.
    turns: AtomicU64,
}

/// Handle of the engine.
#[derive(Debug)]
pub struct Engine {
    views: SyncSender<oneshot::Sender<View>>,
    controls: Arc<Controls>,
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
        let controls = Arc::new(Controls::default());
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
            controls: Arc::clone(&controls),
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
                    tracing::error!(%error, "packet loop failed");
                }
                let _ = end.send(true);
            })?;
        Ok(Engine {
            views,
            controls,
            waker,
            counters,
            thread: std::sync::Mutex::new(Some(thread)),
            ended,
        })
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the current state; `None` if the thread has ended or is too busy.
    pub async fn view(&self) -> Option<View> {
        let (answer, answered) = oneshot::channel();
        self.views.try_send(answer).ok()?;
        self.waker.wake();
        answered.await.ok()
    }

    /// Whether the thread begins a turn within this time. Costs the thread nothing but that turn.
    pub async fn is_alive(&self, within: Duration) -> bool {
        let before = self.controls.turns.load(Ordering::Acquire);
        self.waker.wake();
        let turned = || self.controls.turns.load(Ordering::Acquire) != before;
        comes(within, turned, || *self.ended.borrow()).await
    }

    /// Refuses new gateways from now on.
    pub fn drain(&self) {
        self.controls.drain.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Waits for the end of the thread.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error is an end, too: the thread has panicked.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Stops the thread.
    pub fn stop(&self) {
        self.controls.stop.store(true, Ordering::Release);
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

/// Whether a condition is met within a time, unless the wait is over before. The time is the sum of
/// the intended waits, not the elapsed time: if the whole process stalled, so did the awaited
/// thread.
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
