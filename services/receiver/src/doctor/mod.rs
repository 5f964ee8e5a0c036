//! The `doctor` command: finds obstacles between the source and this receiver's outputs.
//!
//! Local checks come first (`machine`, `folder`), then the source (`source`: name, handshake,
//! certificate), then, where that uses up no token, some seconds of reception (`delivery`) with the
//! machine's multicast counters (`network`). Next to a running receiver, its status is read
//! instead: a second connection with its id would disconnect it.

mod delivery;
mod folder;
mod machine;
mod network;
mod relays;
pub mod report;
mod source;

use std::time::Duration;

use flexicast_tokio::receiver::{ReceiverConfig, Redundancy, Verify};

use crate::config::{Loaded, Settings};
use crate::data::DataFolder;
use crate::status::file as status_file;
use report::{Report, Verdict};

/// Time limit for flow packets to arrive.
const LISTEN: Duration = Duration::from_secs(8);

/// Options of the command.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Whether to print JSON.
    pub json: bool,
    /// Whether to enrol if this data folder's receiver is not admitted yet.
    pub join: bool,
    /// Whether the link is derived from the data folder's status, because the settings have none.
    pub no_link: bool,
}

/// Runs all checks and prints each result on standard output at once. Returns whether none failed.
///
/// # Errors
/// The checks cannot begin.
pub fn run(loaded: &Loaded, options: Options) -> anyhow::Result<bool> {
    let heard = delivery::TransportLog::default();
    heard.listen();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut report = Report::new(options.json);
    runtime.block_on(examine(loaded, options, &heard, &mut report));
    runtime.shutdown_timeout(Duration::from_millis(200));
    Ok(report.finish())
}

async fn examine(
    loaded: &Loaded,
    options: Options,
    heard: &delivery::TransportLog,
    report: &mut Report,
) {
    let settings = &loaded.settings;
    for warning in &loaded.warnings {
        report.add(
            "settings",
            Verdict::Warn,
            warning,
            "see 'flexfeed-receiver config check'",
        );
    }
    machine::examine(report);
    let running = folder::examine(settings, report);
    relays::examine(settings, running, report).await;
    let config = source_config(settings);
    let reached = source::examine(settings, &config, options.no_link, report).await;
    if !reached {
        let what = "not tested: the source cannot be reached";
        report.add("delivery", Verdict::Skipped, what, "");
        return;
    }
    if running {
        delivery::beside(settings, report).await;
        return;
    }
    if options.no_link {
        let what = "not tested: no receiver runs here, and no link is given";
        report.add(
            "delivery",
            Verdict::Skipped,
            what,
            "give the link, as to 'run'",
        );
        return;
    }
    if !folder::was_admitted(settings) && !options.join {
        let what = "not tested: the source is not known to have admitted this data folder's \
            receiver, and the first admission counts as a use of the link's token";
        let advice = "run 'doctor --join'; 'run' keeps the id and credential that it makes";
        report.add("delivery", Verdict::Skipped, what, advice);
        return;
    }
    match DataFolder::open(&settings.data) {
        // Locked meanwhile, so that no receiver starts with the same id.
        Ok(data) => delivery::receive(settings, &data, config, heard, report).await,
        Err(error) => report.add("delivery", Verdict::Fail, &error.to_string(), ""),
    }
}

/// Returns the connection settings without the receiver's identity.
fn source_config(settings: &Settings) -> ReceiverConfig {
    ReceiverConfig {
        server: settings.link.server(),
        known: Vec::new(),
        verify: settings.verify.clone(),
        token: Vec::new(),
        credential: [0; 32],
        receiver_id: uuid::Uuid::nil(),
        name: settings.name.clone(),
        software: concat!("flexfeed-receiver ", env!("CARGO_PKG_VERSION"), " (doctor)").to_owned(),
        channels: Vec::new(),
        interface: settings.network.interface,
        multicast: settings.network.multicast,
        replicated: settings.network.replicate,
        amt: settings.network.amt(),
        redundancy: Redundancy::One,
        qlog: None,
        check: None,
        verify_updates: true,
        pinned_keys: settings.link.keys.clone(),
    }
}

/// Returns a link derived from a data folder's last status, for a `doctor` without other settings.
#[must_use]
pub fn link_of(data: &std::path::Path) -> Option<String> {
    let status = status_file::read(data).ok().flatten()?;
    let channels: Vec<String> = status
        .channels
        .iter()
        .map(|channel| format!("ch={}", channel.channel))
        .collect();
    Some(format!(
        "flexfeed://{}?{}",
        status.source,
        channels.join("&")
    ))
}

/// Whether there is something to compare the source's certificate with.
fn verifies(verify: &Verify) -> bool {
    *verify != Verify::Insecure
}
