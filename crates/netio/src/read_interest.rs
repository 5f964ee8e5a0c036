//! Read readiness that can be suspended.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::direct::sys::check;

/// Interest in what arrives on a socket, which can be suspended.
///
/// tokio's own registration lasts as long as the socket, and every arrival wakes the thread. Here
/// the socket is in an epoll set of its own, for one event at a time, and tokio has that set.
#[derive(Debug)]
pub(crate) struct ReadInterest {
    epoll: AsyncFd<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the next arrival is an event.
    is_armed: bool,
    /// End of the pause, while there is one.
    paused_until: Option<Instant>,
}

impl ReadInterest {
    /// Adds `socket` to a set of its own.
    ///
    /// # Errors
    /// The process has no file descriptors left, or the call is not inside a tokio runtime.
    pub(crate) fn new(socket: &impl AsFd) -> io::Result<Self> {
        // SAFETY: the call takes no memory; the descriptor is new and owned from here on.
        let epoll =
            unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        control(&epoll, socket, libc::EPOLL_CTL_ADD, 0)?;
        Ok(Self {
            // SAFETY: an `OwnedFd` is one descriptor, which is open as long as it lives.
            epoll: unsafe { AsyncFd::register_with_interest(epoll, Interest::READABLE)? },
            state: Mutex::default(),
        })
    }

    /// Suspends events until then. No task may wait meanwhile.
    pub(crate) fn pause(&self, socket: &impl AsFd, until: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.paused_until = Some(until);
        if std::mem::take(&mut state.is_armed) {
            // It is in the set; at worst there is one event more.
            let _ = control(self.epoll.get_ref(), socket, libc::EPOLL_CTL_MOD, 0);
        }
    }

    /// Waits for the end of a pause, and then until something has arrived. Cancel safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub(crate) async fn readable(&self, socket: &impl AsFd) -> io::Result<()> {
        loop {
            if let Some(until) = self.arm(socket)? {
                tokio::time::sleep_until(until.into()).await;
                continue;
            }
            let mut guard = self.epoll.readable().await?;
            let has_arrived = self.take_event()?;
            guard.clear_ready();
            if has_arrived {
                return Ok(());
            }
        }
    }

    /// Makes the next arrival an event. Returns the end of a pause instead, if there is one.
    fn arm(&self, socket: &impl AsFd) -> io::Result<Option<Instant>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = state.paused_until
            && until > Instant::now()
        {
            return Ok(Some(until));
        }
        state.paused_until = None;
        if !std::mem::replace(&mut state.is_armed, true) {
            let events = libc::EPOLLIN | libc::EPOLLONESHOT;
            control(self.epoll.get_ref(), socket, libc::EPOLL_CTL_MOD, events)?;
        }
        Ok(None)
    }

    /// Returns whether something has arrived. If so, nothing more is an event.
    fn take_event(&self) -> io::Result<bool> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the descriptor is open, and the kernel writes at most one event.
        let result = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, 0) };
        let has_arrived = check(result)? > 0;
        state.is_armed &= !has_arrived;
        Ok(has_arrived)
    }
}

/// Changes the events of `socket` in a set.
fn control(
    epoll: &OwnedFd,
    socket: &impl AsFd,
    operation: libc::c_int,
    events: libc::c_int,
) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: events as u32,
        u64: 0,
    };
    // SAFETY: both descriptors are open; the kernel reads one `epoll_event`.
    let result = unsafe {
        libc::epoll_ctl(
            epoll.as_raw_fd(),
            operation,
            socket.as_fd().as_raw_fd(),
            &raw mut event,
        )
    };
    check(result).map(|_| ())
}
