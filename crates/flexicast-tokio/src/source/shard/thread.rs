//! A shard on a thread of its own.

use std::io;
use std::net::UdpSocket as StdSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as StdReceiver, sync_channel};
use std::time::{Duration, Instant};

use netio::UdpSocket;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{Batch, Shard, ShardContext, Work};

/// Work that waits for a shard, in messages.
const WORKS: usize = 1024;
/// After so much work a shard reports even if nothing has happened: the engine may wait for room.
const REPORT_EVERY: usize = WORKS / 4;

/// The engine's end of a shard.
pub(in crate::source) struct ShardThread {
    pub(in crate::source) works: mpsc::Sender<Work>,
    /// Ends with the shard. An error is its socket's, for good.
    pub(in crate::source) reports: mpsc::Receiver<io::Result<Batch>>,
    ended: StdReceiver<()>,
    /// Whether the engine has given the shard up.
    retired: Arc<AtomicBool>,
}

impl ShardThread {
    /// Reports that wait for the engine. A shard does not read its socket while there is no room
    /// for its own.
    pub(in crate::source) const REPORTS: usize = 4;

    /// Starts a shard.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub(in crate::source) fn start(
        number: u8,
        socket: &StdSocket,
        context: ShardContext,
    ) -> io::Result<Self> {
        let socket = socket.try_clone()?;
        let (works, inbox) = mpsc::channel(WORKS);
        let (outbox, reports) = mpsc::channel(Self::REPORTS);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (ends, ended) = sync_channel(0);
        let retired = Arc::new(AtomicBool::new(false));
        let is_retired = Arc::clone(&retired);
        std::thread::Builder::new()
            .name(format!("shard-{number}"))
            .spawn(move || {
                // Dropped when everything else is.
                let _ends = ends;
                let failed = outbox.clone();
                let served = runtime.block_on(async move {
                    let socket = UdpSocket::pausable(socket)?;
                    let shard = Shard::new(number, socket, context, Arc::clone(&is_retired));
                    serve(number, shard, inbox, outbox, &is_retired).await
                });
                if let Err(error) = served {
                    let _ = failed.blocking_send(Err(error));
                }
            })?;
        Ok(ShardThread {
            works,
            reports,
            ended,
            retired,
        })
    }

    /// Has the shard end without a goodbye, and without another packet if it hangs and goes on
    /// later. The receiver is disconnected when it has.
    pub(in crate::source) fn end(self) -> StdReceiver<()> {
        self.retired.store(true, Ordering::Relaxed);
        self.ended
    }
}

/// Serves a shard's sessions until the engine ends it or is gone.
async fn serve(
    number: u8,
    mut shard: Shard,
    mut inbox: mpsc::Receiver<Work>,
    outbox: mpsc::Sender<io::Result<Batch>>,
    is_retired: &AtomicBool,
) -> io::Result<()> {
    let passage = Arc::clone(&shard.context.passage);
    shard.writable().await?;
    let mut unreported = 0;
    loop {
        let wake = shard.next_timeout();
        let wake = wake.unwrap_or_else(|| Instant::now() + Duration::from_secs(60));
        let reports = shard.has_report();
        let mut work = None;
        tokio::select! {
            // Whatever is ready, everything is looked at below.
            taken = inbox.recv() => match taken {
                Some(taken) => work = Some(taken),
                None => return Ok(()),
            },
            room = outbox.reserve(), if reports => match room {
                Ok(room) => room.send(Ok(shard.take_report())),
                Err(_) => return Ok(()),
            },
            ready = shard.readable(), if !reports => ready?,
            () = passage.arrived(number), if !reports => {}
            () = tokio::time::sleep_until(wake.into()) => {}
        }
        // While the engine has not taken the last report, the kernel keeps what arrives.
        let is_blocked = reports && shard.has_report();
        let now = Instant::now();
        let mut ends = false;
        while let Some(next) = work.take().or_else(|| inbox.try_recv().ok()) {
            ends |= matches!(next, Work::Shutdown);
            unreported += 1;
            shard.execute(next, now);
        }
        // What comes after a hang is for the successor, which reads the same socket.
        if is_retired.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !is_blocked {
            shard.receive()?;
            if is_retired.load(Ordering::Relaxed) {
                return Ok(());
            }
            for datagram in passage.take(number) {
                shard.take_passed(datagram, now);
            }
        }
        let now = Instant::now();
        shard.expire(now);
        while !is_retired.load(Ordering::Relaxed) && shard.flush_next(now).await? {}
        if ends {
            return Ok(());
        }
        if shard.has_report() || unreported >= REPORT_EVERY {
            unreported = 0;
            match outbox.try_reserve() {
                Ok(room) => room.send(Ok(shard.take_report())),
                Err(TrySendError::Full(())) => {}
                Err(TrySendError::Closed(())) => return Ok(()),
            }
        }
    }
}
