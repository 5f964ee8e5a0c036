//! Readiness of several sockets in one thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::sys::check;

/// Most events of one wait.
const EVENTS: usize = 64;

/// Token of the waker, which no socket has.
const WAKER: u64 = u64::MAX;

/// Readiness of one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readiness {
    /// Token of the socket, from [`Poller::add`].
    pub token: u64,
    /// Whether something can be received.
    pub readable: bool,
    /// Whether the kernel has an error to report.
    pub error: bool,
}

/// Readiness of a set of sockets (epoll, level-triggered). A closed socket leaves the set.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    waker: Arc<OwnedFd>,
    ready: Vec<Readiness>,
}

/// Handle that ends a [`Poller::wait`] from another thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Ends the wait in progress, or else the next one.
    pub fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the descriptor is open as long as `self` is; eight bytes are read. The only error
        // is a full counter, and then it wakes anyway.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

impl Poller {
    /// Creates a poller without sockets.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the calls take no memory; the descriptors are new and owned from here on.
        let (epoll, waker) = unsafe {
            let epoll = OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?);
            let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
            (epoll, OwnedFd::from_raw_fd(check(libc::eventfd(0, flags))?))
        };
        let poller = Self {
            epoll,
            waker: Arc::new(waker),
            ready: Vec::with_capacity(EVENTS),
        };
        poller.add(&*poller.waker, WAKER)?;
        Ok(poller)
    }

    /// Returns a handle that ends a wait.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.waker))
    }

    /// Adds `socket` with a `token` that identifies it (any number but the largest).
    ///
    /// # Errors
    /// The socket was added already, or a system limit is reached.
    pub fn add(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: token,
        };
        // SAFETY: both descriptors are open; the kernel reads one `epoll_event`.
        let result = unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                socket.as_fd().as_raw_fd(),
                &raw mut event,
            )
        };
        check(result).map(|_| ())
    }

    /// Waits until a socket is ready, at most for `most` (for ever without); returns nothing when
    /// woken or timed out.
    ///
    /// # Errors
    /// The poller is unusable.
    pub fn wait(&mut self, most: Option<Duration>) -> io::Result<&[Readiness]> {
        // Rounded up: waking up early would only cause another wait.
        let timeout = most.map_or(-1, |most| {
            i32::try_from(most.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
        });
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // SAFETY: the kernel writes at most `EVENTS` events to the array.
        let result = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS as libc::c_int,
                timeout,
            )
        };
        self.ready.clear();
        let count = match check(result) {
            Ok(count) => usize::try_from(count).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        for event in events.iter().take(count) {
            if event.u64 == WAKER {
                let mut sink = [0_u8; 8];
                // SAFETY: as in `wake`; eight bytes are written.
                unsafe { libc::read(self.waker.as_raw_fd(), sink.as_mut_ptr().cast(), sink.len()) };
                continue;
            }
            self.ready.push(Readiness {
                token: event.u64,
                readable: event.events & libc::EPOLLIN as u32 != 0,
                error: event.events & libc::EPOLLERR as u32 != 0,
            });
        }
        Ok(&self.ready)
    }
}
