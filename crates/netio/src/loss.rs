//! Classification of socket errors: "this datagram is lost" or "this socket is broken".

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Snapshot of a socket's lost datagrams and hidden errors; the counters never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Errors reported while receiving, each caused by a datagram sent earlier (an ICMP message):
    /// nothing was lost on the receiving side.
    pub recv_errors: u64,
    /// Datagrams that the kernel refused to send; they count as lost.
    pub send_lost: u64,
    /// `errno` of the latest of them, 0 if there was none.
    pub last_send_errno: i32,
    /// Trains that the kernel refused to segment and that were sent one by one instead.
    pub gso_refused: u64,
}

impl Counters {
    /// Returns the error of [`last_send_errno`](Self::last_send_errno), for a log line or a status
    /// page.
    pub fn last_send_error(&self) -> Option<io::Error> {
        (self.last_send_errno != 0).then(|| io::Error::from_raw_os_error(self.last_send_errno))
    }
}

/// Live counters of [`Counters`].
#[derive(Debug, Default)]
pub(crate) struct Losses {
    recv_errors: AtomicU64,
    send_lost: AtomicU64,
    last_send_errno: AtomicI32,
    gso_refused: AtomicU64,
}

impl Losses {
    pub(crate) fn received_error(&self) {
        self.recv_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn lost(&self, datagrams: u64, errno: i32) {
        self.send_lost.fetch_add(datagrams, Ordering::Relaxed);
        self.last_send_errno.store(errno, Ordering::Relaxed);
    }

    pub(crate) fn refused_train(&self) {
        self.gso_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            recv_errors: self.recv_errors.load(Ordering::Relaxed),
            send_lost: self.send_lost.load(Ordering::Relaxed),
            last_send_errno: self.last_send_errno.load(Ordering::Relaxed),
            gso_refused: self.gso_refused.load(Ordering::Relaxed),
        }
    }
}

/// Whether an error of a send or receive concerns a destination or a datagram, not the socket.
///
/// The list holds the errors that Linux makes of ICMP and ICMPv6 messages (`icmp_err_convert`), the
/// refusals of routing and packet filters, and those of a single datagram's size or address.
pub(crate) fn concerns_one_datagram(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::ECONNRESET
                | libc::EHOSTUNREACH
                | libc::EHOSTDOWN
                | libc::ENETUNREACH
                | libc::ENETDOWN
                | libc::ENONET
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::EPROTO
                | libc::EPERM
                | libc::EACCES
                | libc::EMSGSIZE
                | libc::EADDRNOTAVAIL
                | libc::EINVAL
                | libc::EIO
                | libc::ENODEV
                | libc::ENXIO
                | libc::ENOBUFS
        )
    )
}

/// Whether an error may mean that the kernel or the network card cannot segment a train.
pub(crate) fn may_refuse_segmentation(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}
