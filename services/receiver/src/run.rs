//! The `run` command: from settings to an exit.

use std::sync::Arc;
use std::time::Duration;

use flexicast_tokio::receiver::{ReceiverConfig, Redundancy, Relays, Validity, Verify};
use service::link::Link;
use service::program::{LAST_WAIT, block_on};
use service::{listen, signals, startup};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::addresses::{self, AddressFile};
use crate::admission::{self, Admission};
use crate::board::{Board, Identity};
use crate::config::Settings;
use crate::data::DataFolder;
use crate::hooks::exec::Exec;
use crate::hooks::webhook::Webhook;
use crate::hooks::{self, Hooks, Pauses, RetryLimits, SigningKey};
use crate::http::{self, ServedChannel, Site};
use crate::journal::{JournalReader, Limits};
use crate::memory;
use crate::notify;
use crate::receive::{BACKOFF, Loop, LoopExit, Outlet};
use crate::sink::{ChannelFiles, Layout};
use crate::status::file as status_file;
use crate::transport::Transport;

/// Time limit for closing the connection to the source.
const GOODBYE: Duration = Duration::from_secs(3);

/// Time limit for webhooks and commands in progress.
const LAST_HOOKS: Duration = Duration::from_secs(5);

/// Time limit for writing the last status.
const LAST_STATUS: Duration = Duration::from_secs(2);

/// Runs the receiver until it is asked to stop.
///
/// # Errors
/// The receiver cannot start or continue; in words for the operator.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    memory::limit();
    let data = DataFolder::open(&settings.data)?;
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).thread_name("receiver");
    let settings = settings.clone();
    block_on(&mut builder, LAST_WAIT, async move {
        // As a task it runs beside the transport on the same threads: in the first one, each update
        // would wake another thread.
        let serving = tokio::spawn(async move { serve(&settings, &data).await });
        serving.await.unwrap_or_else(|end| Err(end.into()))
    })
}

/// Returns how the source is authenticated, for the log.
fn proof(link: &Link, verify: &Verify) -> String {
    match verify {
        Verify::Pins(_) => {
            let pins: Vec<String> = link.pins.iter().map(ToString::to_string).collect();
            format!("which must show a key with {}", pins.join(" or "))
        }
        Verify::Roots => format!(
            "which must show a certificate for {} of an authority trusted by this system",
            link.host
        ),
        Verify::CaFile(path) => format!(
            "which must show a certificate for {} of an authority in {}",
            link.host,
            path.display()
        ),
        Verify::Insecure => "which is NOT VERIFIED".to_owned(),
    }
}

/// Whether the outputs can take these encoded bytes as this update.
fn is_update(seq: u64, encoded: &[u8]) -> Validity {
    let valid = feed::payload::is_update(encoded, seq);
    valid.map_or(Validity::Unknown, Validity::from)
}

async fn serve(settings: &Settings, data: &DataFolder) -> anyhow::Result<()> {
    let stop = signals::stop_token("finishing work in progress, then stopping", |_| 1)?;
    let link = &settings.link;
    let source = link.server();
    let name = settings.name.clone();
    status_file::discard(data.path());
    startup::make_qlog_folder(settings.qlog.as_deref()).map_err(anyhow::Error::msg)?;

    let listener = match settings.http {
        Some(http) => listen::bind(http, "FLEXFEED_HTTP").map_err(anyhow::Error::msg)?,
        None => None,
    };
    let address = listener.as_ref().and_then(|l| l.local_addr().ok());
    let state = data.state();
    let layout = Layout {
        data: data.path(),
        state: &state,
        source: &source,
        delivery_log: settings.outputs.delivery_log.as_deref(),
        json: settings.outputs.json,
        keep: settings.outputs.keep_entries,
        // A wildcard address leads nowhere.
        served: address.filter(|address| !address.ip().is_unspecified()),
        journal: Limits {
            updates: settings.journal.updates,
            bytes: settings.journal.bytes,
        },
        file_interval: settings.outputs.file_interval,
    };
    let (mut outlets, mut channels) = (Vec::new(), Vec::new());
    let (mut readers, mut served) = (Vec::new(), Vec::new());
    for channel in &link.channels {
        let (files, cursor) = ChannelFiles::open(&layout, channel)?;
        info!(
            "channel {channel}: {} continues {}",
            files.feeds().atom_path().display(),
            match cursor {
                Some(cursor) => format!("after update {}", cursor.seq),
                None => beginning(settings.history),
            }
        );
        readers.push((channel.clone(), files.reader()));
        served.push(ServedChannel {
            channel: channel.clone(),
            reader: files.reader(),
            feeds: files.feeds(),
        });
        outlets.push(Outlet::new(channel, files, cursor));
        channels.push((channel.clone(), cursor));
    }
    let identity = Identity {
        name: name.clone(),
        receiver_id: data.receiver_id(),
        source: source.clone(),
    };
    let board = Arc::new(Board::new(identity, &channels));
    let hooks = start_hooks(settings, data, &readers, &board)?;
    let admission = Admission {
        state: state.clone(),
        receiver_id: data.receiver_id(),
        source: source.clone(),
    };
    let newcomer = !admission.is_noted();
    tokio::spawn(admission::keep(Arc::clone(&board), admission));
    let addresses = AddressFile {
        state: state.clone(),
        source: source.clone(),
    };
    let known = addresses.read();
    #[cfg(feature = "fault-injection")]
    let known = match service::faults::Fault::AddressesForgotten.is_injected() {
        true => Vec::new(),
        false => known,
    };
    tokio::spawn(addresses::keep(Arc::clone(&board), addresses));
    let ended = CancellationToken::new();
    let status = status_file::keep(Arc::clone(&board), data.path().to_owned(), ended.clone());
    let status = tokio::spawn(status);

    let ending = CancellationToken::new();
    let site = Arc::new(Site::new(
        data.path(),
        settings.outputs.json,
        served,
        Arc::clone(&board),
        hooks.stats(),
        ending.clone(),
    ));
    let sampling = tokio::spawn(http::sample(Arc::clone(&site)));
    board.set_http(address);
    let answering = listener.map(|listener| tokio::spawn(answer(site, listener)));
    tokio::spawn(leave(Arc::clone(&board), stop.clone()));
    tokio::spawn(memory::keep_trimmed());
    let notified = notify::keep(Arc::clone(&board), stop.clone(), ended.clone());
    let notified = tokio::spawn(notified);

    info!(
        "receiver {name} (id {}) connects to {source}, {}",
        data.receiver_id(),
        proof(link, &settings.verify)
    );
    if settings.network.redundancy == Redundancy::Two && settings.network.amt().is_none() {
        warn!("two legs need AMT relays, which are switched off: there is one leg");
    }
    let config = ReceiverConfig {
        server: source.clone(),
        known,
        verify: settings.verify.clone(),
        token: link.token.as_bytes().to_vec(),
        credential: data.credential().secret(),
        receiver_id: data.receiver_id(),
        name,
        software: concat!("flexfeed-receiver ", env!("CARGO_PKG_VERSION")).to_owned(),
        channels,
        interface: settings.network.interface,
        multicast: settings.network.multicast,
        replicated: settings.network.replicate,
        amt: settings.network.amt().map(|amt| Relays {
            memory: Some(data.amt_path()),
            ..amt
        }),
        redundancy: settings.network.redundancy,
        qlog: settings.qlog.clone(),
        check: Some(is_update),
        verify_updates: true,
        pinned_keys: settings.link.keys.clone(),
    };
    let (transport, mut events) = Transport::start(config, settings.history);
    let end = Loop {
        outlets,
        confirm: &|channel, cursor| transport.confirm(channel, cursor),
        again: &|cursors| {
            let known = board.known().borrow().clone();
            Box::pin(transport.again(cursors, known))
        },
        board: &board,
        batch: layout.journal.batch(),
        backoff: BACKOFF,
        newcomer: newcomer.then(|| data.path()),
        source: &source,
    }
    .run(&mut events, &stop)
    .await;

    // From here on the transport does not wait for a reader.
    drop(events);
    board.leave();
    let (goodbye, hooks_end) = tokio::join!(
        tokio::time::timeout(GOODBYE, transport.shutdown()),
        tokio::time::timeout(LAST_HOOKS, hooks.stop()),
    );
    if goodbye.is_err() {
        warn!(source, "connection not closed in time");
    }
    if hooks_end.is_err() {
        warn!("hook offsets not written in time; the next start repeats the last deliveries");
    }
    // The last status includes the final hook counts.
    ending.cancel();
    if sampling.await.is_err() {
        warn!("last hook status missing in the status file");
    }
    // Answers in progress are finished, within bounds of their own.
    if let Some(answering) = answering
        && answering.await.is_err()
    {
        warn!("HTTP server ended unexpectedly");
    }
    board.ended();
    ended.cancel();
    // A stop that takes no time is reported, too.
    let _ = notified.await;
    if tokio::time::timeout(LAST_STATUS, status).await.is_err() {
        warn!("last status not written in time");
    }
    match end {
        LoopExit::Stopped => {
            info!("stopped; the next start continues from here");
            Ok(())
        }
        LoopExit::Refused(reason) | LoopExit::Failed(reason) => Err(anyhow::Error::msg(reason)),
    }
}

/// Returns the starting point of a channel without a cursor, for a log.
fn beginning(history: Option<u64>) -> String {
    match history {
        None => "with the source's last updates".to_owned(),
        Some(0) => "with new updates".to_owned(),
        Some(u64::MAX) => "with everything that the source keeps".to_owned(),
        Some(updates) => format!("with the source's last {updates} updates"),
    }
}

/// Reports not-ready from the stop request on, while HTTP still answers, so that load balancers can
/// move clients before the receiver is gone.
async fn leave(board: Arc<Board>, stop: CancellationToken) {
    stop.cancelled().await;
    board.leave();
}

async fn answer(site: Arc<Site>, listener: TcpListener) {
    if let Ok(address) = listener.local_addr() {
        info!("feeds, events and status are at http://{address}/");
    }
    http::serve(site, listener).await;
}

/// Starts webhooks and commands, before anything is received, so that they miss nothing.
fn start_hooks(
    settings: &Settings,
    data: &DataFolder,
    tapes: &[(String, Arc<JournalReader>)],
    board: &Board,
) -> anyhow::Result<Hooks> {
    let mut hooks = Hooks::default();
    for webhook in &settings.outputs.webhook {
        let key = webhook
            .secret
            .as_ref()
            .map(|s| SigningKey::new(s.as_bytes()));
        #[cfg(feature = "fault-injection")]
        let key = key.filter(|_| !service::faults::Fault::SignatureOff.is_injected());
        let target = Webhook::new(webhook.url.clone(), key, webhook.timeout);
        let how = hooks::Settings {
            name: webhook.name(),
            channels: webhook.channels.clone(),
            patience: RetryLimits {
                attempts: webhook.attempts,
                max_age: webhook.max_age,
                pauses: Pauses::default(),
            },
            // Keeps each channel's order.
            concurrency: 1,
        };
        let target = target.map_err(anyhow::Error::msg)?;
        hooks.add(data.path(), how, target, tapes, board.messages())?;
    }
    for exec in &settings.outputs.exec {
        let how = hooks::Settings {
            name: exec.name(),
            channels: exec.channels.clone(),
            patience: RetryLimits {
                attempts: exec.attempts,
                max_age: Duration::MAX,
                pauses: Pauses::default(),
            },
            concurrency: exec.concurrency,
        };
        let target = Exec::new(exec.command.clone(), exec.timeout);
        hooks.add(data.path(), how, target, tapes, board.messages())?;
    }
    Ok(hooks)
}
