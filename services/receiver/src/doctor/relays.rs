//! Whether the AMT relays that are known here answer, and why AMT does not work otherwise.

use std::time::Duration;

use flexicast_tokio::receiver::RelayName;

use super::report::{Report, Verdict};
use crate::config::Settings;
use crate::status::file as status_file;

/// A relay has so long to answer.
const WITHIN: Duration = Duration::from_secs(2);

/// Asks each configured relay for a Query (RFC 7450), which costs it nothing, and tells what a running
/// receiver says of its relays.
pub(super) async fn examine(settings: &Settings, running: bool, report: &mut Report) {
    let Some(relays) = &settings.amt else {
        let what = "not tested, for relays are not to be used (no_amt)";
        report.add("relay", Verdict::Skipped, what, "");
        return;
    };
    if running && let Some(status) = status_file::read(&settings.data).ok().flatten() {
        for channel in &status.channels {
            let name = &channel.channel;
            match (&channel.relay, &channel.relay_detail) {
                (Some(relay), _) => {
                    let what = format!("the running receiver has the relay {relay} for {name}");
                    report.add("relay", Verdict::Ok, &what, "");
                }
                (None, Some(why)) => {
                    let what = format!("the running receiver has no relay for {name}: {why}");
                    let rung = &channel.rung;
                    let advice = format!(
                        "{name} comes by {rung} meanwhile; the source's operator knows whether it has relays, and --relay names others"
                    );
                    // Where multicast works, nobody looks for a relay.
                    let verdict = match channel.rung.as_str() {
                        "multicast" => Verdict::Skipped,
                        _ => Verdict::Warn,
                    };
                    report.add("relay", verdict, &what, &advice);
                }
                (None, None) => {}
            }
        }
    }
    let anycast = relays.anycast.then_some(RelayName::Anycast);
    let mut asked = 0;
    for name in relays.configured.iter().cloned().chain(anycast) {
        asked += 1;
        match amt_tokio::probe(&name, false, WITHIN).await {
            Ok(answer) if answer.limited => report.add(
                "relay",
                Verdict::Warn,
                &format!(
                    "{name} answers from {}, but takes no further receivers",
                    answer.relay
                ),
                "name another one beside it with --relay",
            ),
            Ok(answer) => {
                let took = answer.took.as_secs_f64() * 1e3;
                let what = format!("{name} answers from {} within {took:.0} ms", answer.relay);
                report.add("relay", Verdict::Ok, &what, "");
            }
            Err(error) => report.add(
                "relay",
                Verdict::Warn,
                &error.to_string(),
                "a firewall must let UDP to the relay's port out, and its answers in",
            ),
        }
    }
    if asked == 0 && !running {
        let what =
            "none is configured; those that the source tells of are tried once the receiver runs";
        report.add("relay", Verdict::Skipped, what, "");
    }
}
