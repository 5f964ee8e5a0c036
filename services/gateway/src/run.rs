//! Main loop of the program.

use std::time::Duration;

use amt_tokio::{Config, MemoryFile, discovery};
use anyhow::Context;
use netio::RecvBatch;
use sd_notify::NotifyState;
use service::signals::{self, Stop};
use service::systemd::{notify, ready};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::cli::Options;
use crate::http::{self, PageStatus};
use crate::out::Outlet;
use crate::tunnels::Tunnels;

/// Largest age of the status on the pages.
const LOOK: Duration = Duration::from_secs(1);

/// Interval of the status in a debug log.
const DEBUG_STATUS: Duration = Duration::from_secs(10);

/// Receives and re-emits until a signal.
///
/// # Errors
/// A flow is invalid, or the interface cannot send; the text contains a remedy.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let stop = signals::stop_token("leaving the groups, then stopping", Stop::exit_code)?;
    let config = Config {
        relays: options.relay.clone(),
        dns: options.dns.then(discovery::Config::default),
        port: options.local_port,
        ..Config::default()
    };
    let memory = options.state_file.clone().map(MemoryFile::open);
    let (mut tunnels, groups) = Tunnels::open(&config, memory.as_ref(), &options.flows())?;
    let mut outlet = Outlet::open(&options.out_interface, options.ttl, groups)
        .await
        .context("cannot send on (--out-interface)")?;
    let pages = Pages::open(options, PageStatus::of(&tunnels, &outlet))?;
    ready(None).await;
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let period = options.status.map_or(DEBUG_STATUS, Duration::from_secs);
    let mut tick = tokio::time::interval_at(Instant::now() + period, period);
    let mut batch = RecvBatch::new();
    loop {
        tokio::select! {
            () = tunnels.ready() => {
                tunnels.receive(&mut batch, |flow, packet| {
                    outlet.push(flow, packet.from, packet.data);
                });
                outlet.flush();
            }
            _ = looks.tick(), if pages.is_some() => {
                if let Some(pages) = &pages {
                    pages.shown.send_replace(PageStatus::of(&tunnels, &outlet));
                }
            }
            _ = tick.tick() => {
                let line = line(&tunnels, &outlet);
                match options.status {
                    Some(_) => info!("{line}"),
                    None => debug!("{line}"),
                }
            }
            () = stop.cancelled() => break,
        }
    }
    notify(&[NotifyState::Stopping]).await;
    let last = line(&tunnels, &outlet);
    if let Some(pages) = pages {
        pages.stop().await;
    }
    tunnels.stop().await;
    info!("ended; {last}");
    Ok(())
}

/// HTTP pages.
struct Pages {
    shown: watch::Sender<PageStatus>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Pages {
    /// Serves the pages, if enabled.
    fn open(options: &Options, first: PageStatus) -> anyhow::Result<Option<Self>> {
        let Some(address) = options.http else {
            return Ok(None);
        };
        let listener = http::bind(address)?;
        let at = listener.local_addr().context("no address")?;
        let (shown, seen) = watch::channel(first);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(http::serve(listener, seen, stop.clone()));
        info!("serving metrics at http://{at}/metrics");
        Ok(Some(Self {
            shown,
            stop,
            serving,
        }))
    }

    async fn stop(self) {
        self.stop.cancel();
        // The panic hook reports a panic of the task.
        let _ = self.serving.await;
    }
}

/// Returns the status in one line.
fn line(tunnels: &Tunnels, outlet: &Outlet) -> String {
    let mut relays = Vec::new();
    let mut received = 0;
    let mut dropped: Vec<(&str, u64)> = Vec::new();
    for status in tunnels.status() {
        relays.push(match status.relay {
            Some(relay) => format!("relay {} ({:.1?})", relay.addr, relay.rtt),
            None => "no relay".to_owned(),
        });
        received += status.counters.data;
        for (reason, count) in status.counters.dropped() {
            match dropped.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, sum)) => *sum += count,
                None => dropped.push((reason, count)),
            }
        }
    }
    let sent = outlet.sent();
    let own = ("own", sent.own);
    let dropped: Vec<String> = dropped
        .into_iter()
        .chain([own])
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| format!(", {count} dropped ({reason})"))
        .collect();
    format!(
        "{}: {received} packets received, {} sent on, {} lost on the way out{}",
        relays.join(", "),
        sent.packets,
        sent.lost,
        dropped.concat()
    )
}
