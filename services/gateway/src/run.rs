//! The program's loop.

use std::time::Duration;

use amt_tokio::{Config, discovery};
use anyhow::Context;
use netio::RecvBatch;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tracing::{debug, info};

use crate::cli::Options;
use crate::out::Outlet;
use crate::tunnels::Tunnels;

/// The status is logged so often for who looks at everything.
const DEBUG_STATUS: Duration = Duration::from_secs(10);

/// Receives and sends on until a signal ends it.
///
/// # Errors
/// A flow cannot be one, or the interface cannot send; the text says what to do.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let mut ends = [SignalKind::terminate(), SignalKind::interrupt()]
        .into_iter()
        .map(signal)
        .collect::<Result<Vec<_>, _>>()
        .context("cannot wait for signals")?;
    let config = Config {
        relays: options.relay.clone(),
        dns: options.dns.then(discovery::Config::default),
        #[cfg(feature = "sabotage")]
        sabotage: crate::sabotage::from_environment()?,
        ..Config::default()
    };
    let (mut tunnels, groups) = Tunnels::open(&config, &options.flows())?;
    let mut outlet = Outlet::open(&options.out_interface, options.ttl, groups)
        .await
        .context("cannot send on (--out-interface)")?;
    notify(&[NotifyState::Ready]);
    let period = options.status.map_or(DEBUG_STATUS, Duration::from_secs);
    let mut tick = tokio::time::interval_at(Instant::now() + period, period);
    let mut batch = RecvBatch::new();
    let [terminated, interrupted] = ends.as_mut_slice() else {
        anyhow::bail!("cannot wait for signals");
    };
    loop {
        tokio::select! {
            () = tunnels.ready() => {
                tunnels.receive(&mut batch, |flow, packet| {
                    outlet.push(flow, packet.from, packet.data);
                });
                outlet.flush();
            }
            _ = tick.tick() => {
                let line = line(&tunnels, &outlet);
                match options.status {
                    Some(_) => info!("{line}"),
                    None => debug!("{line}"),
                }
            }
            _ = terminated.recv() => break,
            _ = interrupted.recv() => break,
        }
    }
    notify(&[NotifyState::Stopping]);
    let last = line(&tunnels, &outlet);
    tunnels.stop().await;
    info!("ended; {last}");
    Ok(())
}

/// How it goes, in one line.
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

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!(%error, "systemd could not be told");
    }
}
