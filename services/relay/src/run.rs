//! The `run` command: from settings to an exit.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netio::direct::UdpPort;
use service::program::{LAST_WAIT, block_on};
use service::{listen, signals};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::Settings;
use crate::engine::{Engine, Receive, Setup};
use crate::http::{self, Site};
use crate::notify;

/// Interval of checks for remaining gateways while draining.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the relay until a signal.
///
/// # Errors
/// If the relay cannot start, or cannot continue; in words for the operator.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).thread_name("relay");
    block_on(&mut builder, LAST_WAIT, serve(settings))
}

async fn serve(settings: &Settings) -> anyhow::Result<()> {
    let stop = signals::stop_token("taking no new gateways, then stopping", |_| 1)?;
    let listener = match settings.http {
        Some(http) => listen::bind(http, "FLEXFEED_RELAY_HTTP").map_err(anyhow::Error::msg)?,
        None => None,
    };
    if let Err(error) = netio::direct::raise_descriptor_limit() {
        warn!(%error, "limit of open files not raised");
    }
    let ports = open_ports(&settings.listen)?;
    let addresses: Vec<String> = ports
        .iter()
        .map(|port| port.local_addr().to_string())
        .collect();
    let engine = Engine::start(Setup {
        relay: settings.relay(),
        ports,
        receive: settings.receive(),
        interface: settings.native_interface.clone(),
    })?;
    let engine = Arc::new(engine);
    info!(
        "gateways reach this relay at {}; {}",
        addresses.join(" and "),
        match settings.receive() {
            Receive::Capture => "multicast to any port is captured".to_owned(),
            Receive::Ports(ports) => {
                let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
                format!("multicast to UDP port {} is received", ports.join(" and "))
            }
        }
    );
    let ending = CancellationToken::new();
    let site = Arc::new(Site::new(Arc::clone(&engine), addresses, ending.clone()));
    let answering = listener.map(|listener| {
        if let Ok(address) = listener.local_addr() {
            info!("status and metrics are at http://{address}/");
        }
        tokio::spawn(http::serve(Arc::clone(&site), listener))
    });
    let done = CancellationToken::new();
    let notified = notify::keep(Arc::clone(&engine), stop.clone(), done.clone());
    let notified = tokio::spawn(notified);
    let broken = tokio::select! {
        () = stop.cancelled() => false,
        () = engine.ended() => true,
    };
    if !broken {
        site.leave();
        drain(&engine, settings.drain_time).await;
    }
    ending.cancel();
    if let Some(answering) = answering {
        // Requests in progress have been cut off by now; they lose nothing.
        let _ = answering.await;
    }
    done.cancel();
    // A stop that takes no time is reported, too.
    let _ = notified.await;
    let stopping = Arc::clone(&engine);
    let stopped = tokio::task::spawn_blocking(move || stopping.stop()).await;
    if broken || stopped.is_err() {
        anyhow::bail!("the thread that forwards packets has ended; see the log above");
    }
    info!("stopped");
    Ok(())
}

/// Serves existing gateways for a while, but no new ones.
async fn drain(engine: &Engine, time: Duration) {
    engine.drain();
    let begun = Instant::now();
    let left = || engine.counters().gateways.get();
    if left() > 0 {
        info!(gateways = left(), ?time, "draining");
    }
    while left() > 0 && begun.elapsed() < time {
        tokio::time::sleep(LOOK.min(time)).await;
    }
    if left() > 0 {
        warn!(gateways = left(), "drain ended with gateways left");
    }
}

/// Opens the sockets that gateways reach; `[::]` stands for all addresses of both families, or only
/// of IPv6 where an IPv4 address with the same port is listed.
fn open_ports(listen: &[SocketAddr]) -> anyhow::Result<Vec<UdpPort>> {
    let mut ports = Vec::new();
    for address in listen {
        if *address != (Ipv6Addr::UNSPECIFIED, address.port()).into() {
            ports.push(open(*address)?);
            continue;
        }
        let mut port = address.port();
        // All addresses of IPv4 exclude a single one with the same port.
        if !listen.iter().any(|a| a.is_ipv4() && a.port() == port) {
            let v4 = open((Ipv4Addr::UNSPECIFIED, port).into())?;
            // The same port for both, also if the kernel chose it.
            port = v4.local_addr().port();
            ports.push(v4);
        }
        match UdpPort::bind((Ipv6Addr::UNSPECIFIED, port).into()) {
            Ok(v6) => ports.push(v6),
            Err(error) if no_ipv6(&error) => {
                warn!("no IPv6 on this machine: gateways reach the relay by IPv4 only");
            }
            Err(error) => return Err(advised(error)),
        }
    }
    Ok(ports)
}

fn open(address: SocketAddr) -> anyhow::Result<UdpPort> {
    UdpPort::bind(address).map_err(advised)
}

fn advised(error: io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => "stop the program that has it, or choose another with --listen",
        io::ErrorKind::AddrNotAvailable => "choose an address of this machine with --listen",
        _ => "choose another address with --listen",
    };
    anyhow::anyhow!("{error}; {advice}")
}

fn no_ipv6(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::AddrNotAvailable
    ) || error.to_string().contains("Address family not supported")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_ipv4_address_may_be_next_to_all_addresses_with_its_port() {
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let listed = free.local_addr().unwrap();
        drop(free);
        let all: SocketAddr = (Ipv6Addr::UNSPECIFIED, listed.port()).into();
        for listen in [[all, listed], [listed, all]] {
            let ports = open_ports(&listen).unwrap();
            let v4 = ports.iter().map(UdpPort::local_addr);
            let v4: Vec<SocketAddr> = v4.filter(SocketAddr::is_ipv4).collect();
            assert_eq!(v4, [listed]);
        }
    }
}
