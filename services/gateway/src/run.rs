//! The program's loop.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use amt::gateway::Event;
use amt_tokio::{Config, Gateway, discovery};
use anyhow::Context;
use netio::RecvBatch;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::cli::Options;
use crate::out::Outlet;

/// The status is logged so often for who looks at everything.
const DEBUG_STATUS: Duration = Duration::from_secs(10);

/// The relay is asked when nothing came for so long, though something came before. The pauses
/// after that double: a flow may be at rest.
const SILENCE: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// When packets that do not come are a reason to ask the relay.
#[derive(Debug, Default)]
struct Silence {
    /// Not before the first packet.
    next: Option<Instant>,
    pause: Duration,
}

impl Silence {
    fn broken(&mut self, now: Instant) {
        self.pause = SILENCE;
        self.next = Some(now + SILENCE);
    }

    /// Waits until it has lasted.
    async fn lasted(&mut self) {
        match self.next {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
        self.pause = (self.pause * 2).min(SILENCE_MAX);
        self.next = Some(Instant::now() + self.pause);
    }
}

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
    let mut gateway = Gateway::start(config)?;
    let mut groups = BTreeMap::new();
    for flow in options.flows() {
        let id = gateway
            .subscribe(flow)
            .with_context(|| format!("cannot receive {flow}"))?;
        groups.insert(id, SocketAddr::new(flow.group, flow.port));
        info!("asking for {flow}");
    }
    let mut outlet = Outlet::open(&options.out_interface, options.ttl, groups)
        .await
        .context("cannot send on (--out-interface)")?;
    notify(&[NotifyState::Ready]);
    let period = options.status.map_or(DEBUG_STATUS, Duration::from_secs);
    let mut tick = tokio::time::interval_at(Instant::now() + period, period);
    let mut batch = RecvBatch::new();
    let mut silence = Silence::default();
    let [terminated, interrupted] = ends.as_mut_slice() else {
        anyhow::bail!("cannot wait for signals");
    };
    loop {
        tokio::select! {
            () = gateway.ready() => {
                let received = gateway.receive(&mut batch, |packet| {
                    outlet.push(packet.subscription, packet.data);
                });
                outlet.flush();
                match received {
                    Ok(0) => {}
                    Ok(_) => silence.broken(Instant::now()),
                    Err(error) => {
                        warn!("the socket towards the relay failed, and is opened again: {error}");
                    }
                }
                while let Some(event) = gateway.poll_event() {
                    tell(&event, &gateway);
                }
            }
            () = silence.lasted() => gateway.suspect(),
            _ = tick.tick() => {
                let line = line(&gateway, &outlet);
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
    let last = line(&gateway, &outlet);
    gateway.stop().await;
    info!("ended; {last}");
    Ok(())
}

/// Logs an event, and what can be done where something can be.
fn tell(event: &Event, gateway: &Gateway) {
    match event {
        Event::NoRelay { .. } => {
            let failures = gateway.status().failures().join("; ");
            warn!(
                "{event}: {failures}. Trying again; see that the relay runs, and that UDP to its port (2268 if none was given) is allowed"
            );
        }
        Event::Lost { .. } | Event::Unanswered { .. } => warn!("{event}"),
        Event::Connected { .. } | Event::AddressChanged { .. } | Event::Idle { .. } => {
            info!("{event}");
        }
    }
}

/// How it goes, in one line.
fn line(gateway: &Gateway, outlet: &Outlet) -> String {
    let status = gateway.status();
    let relay = match status.relay {
        Some(relay) => format!("relay {} ({:.1?})", relay.addr, relay.rtt),
        None => "no relay".to_owned(),
    };
    let sent = outlet.sent();
    let dropped: Vec<String> = status
        .counters
        .dropped()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| format!(", {count} dropped ({reason})"))
        .collect();
    format!(
        "{relay}: {} packets received, {} sent on, {} lost on the way out{}",
        status.counters.data,
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
