//! The receiving end of a stream.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use flexicast_tokio::Cursor;
use flexicast_tokio::receiver::{
    Event, Faults, Receiver, ReceiverConfig, Redundancy, RelayName, Relays, Verify,
};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use super::{Arrival, Messages, Records, STREAM, TOKEN, now_ns};

/// Minimum time between a message and the next disk write: the disk is not measured.
const QUIET: Duration = Duration::from_millis(500);

/// Options of a stream's receiver.
#[derive(Debug, Clone)]
pub struct ReceiverSettings {
    /// `host:port` of the source.
    pub server: String,
    /// For people.
    pub name: String,
    /// The file of arrivals to make.
    pub records: PathBuf,
    /// AMT relays to use, if any.
    pub relays: Vec<RelayName>,
    /// Whether to take the flow by two legs.
    pub two_legs: bool,
    /// Fault: duplicates are delivered twice.
    pub dedupe_off: bool,
}

/// Receives and writes down until SIGTERM.
///
/// # Errors
/// When something arrives that was not sent, or the disk refuses.
pub async fn receive(settings: ReceiverSettings) -> Result<()> {
    let mut records = Records::create(&settings.records)?;
    let mut end = signal(SignalKind::terminate())?;
    let config = ReceiverConfig {
        server: settings.server,
        known: Vec::new(),
        verify: Verify::Insecure,
        token: TOKEN.to_vec(),
        credential: rand::random(),
        receiver_id: Uuid::new_v4(),
        name: settings.name,
        software: concat!("flexfeed-stream/", env!("CARGO_PKG_VERSION")).to_owned(),
        channels: vec![(STREAM.to_owned(), None)],
        interface: None,
        multicast: true,
        replicated: true,
        amt: (!settings.relays.is_empty()).then(|| Relays {
            configured: settings.relays,
            ..Relays::default()
        }),
        redundancy: match settings.two_legs {
            true => Redundancy::Two,
            false => Redundancy::One,
        },
        qlog: None,
        check: None,
        verify_updates: true,
        pinned_keys: Vec::new(),
    };
    let faults = Faults {
        dedupe_off: settings.dedupe_off,
        ..Faults::default()
    };
    let (handle, mut events) = Receiver::start_with_faults(config, faults);
    loop {
        let event = tokio::select! {
            event = events.recv() => event.context("the receiver has stopped")?,
            _ = end.recv() => break,
            () = tokio::time::sleep(QUIET) => {
                records.flush()?;
                continue;
            }
        };
        match event {
            Event::Update {
                seq,
                encoded,
                incarnation,
                via,
                ..
            } => {
                let received_ns = now_ns();
                let Some(sent_ns) = Messages::sent_ns(seq, &encoded) else {
                    bail!("message {seq} is not what was sent");
                };
                let way = via.into();
                records.add(&Arrival {
                    seq,
                    sent_ns,
                    received_ns,
                    way,
                })?;
                handle.confirm(STREAM, Cursor { incarnation, seq });
            }
            Event::Stats { .. }
            | Event::Distrusted { .. }
            | Event::Relay { .. }
            | Event::Explained { .. } => {}
            other => eprintln!("{} {other:?}", now_ns()),
        }
    }
    records.flush()?;
    handle.shutdown().await;
    Ok(())
}
