//! Checks of the known AMT relays.

use std::time::Duration;

use flexicast_tokio::receiver::RelayName;

use super::report::{Report, Verdict};
use crate::config::Settings;
use crate::status::file as status_file;
use crate::status::model::{Channel, Status};

/// Time limit for the answer of a relay.
const WITHIN: Duration = Duration::from_secs(2);

/// Requests a Query (RFC 7450) from each configured relay, which leaves no state there, and reports
/// the relay status of a running receiver.
pub(super) async fn examine(settings: &Settings, running: bool, report: &mut Report) {
    let Some(relays) = settings.network.amt() else {
        let what = "not tested: relays are disabled (no_amt)";
        report.add("relay", Verdict::Skipped, what, "");
        return;
    };
    if running && let Some(status) = status_file::read(&settings.data).ok().flatten() {
        for channel in &status.channels {
            if let Some((verdict, what, advice)) = of_channel(channel) {
                report.add("relay", verdict, &what, &advice);
            }
        }
    }
    let anycast = relays.anycast.then_some(RelayName::Anycast);
    // Relays announced by a source while the receiver ran.
    let last = match running {
        true => Vec::new(),
        false => last_used(&status_file::read(&settings.data).ok().flatten()),
    };
    let mut asked: Vec<RelayName> = Vec::new();
    for name in relays.configured.into_iter().chain(anycast).chain(last) {
        if asked.contains(&name) {
            continue;
        }
        asked.push(name.clone());
        match amt_tokio::probe(&name, false, WITHIN).await {
            Ok(answer) if answer.limited => report.add(
                "relay",
                Verdict::Warn,
                &format!(
                    "{name} answers from {}, but takes no further receivers",
                    answer.relay
                ),
                "name another one as well with --relay",
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
                "a firewall must allow UDP to the relay's port, and its answers",
            ),
        }
    }
    if asked.is_empty() && !running {
        let what =
            "none is configured; those announced by the source are tried once the receiver runs";
        report.add("relay", Verdict::Skipped, what, "");
    }
}

/// Returns the relays that channels had when the receiver ended.
fn last_used(status: &Option<Status>) -> Vec<RelayName> {
    let channels = status.iter().flat_map(|status| &status.channels);
    let relays = channels.flat_map(|channel| {
        let legs = channel.legs.iter().filter_map(|leg| leg.relay);
        legs.chain(channel.relay)
    });
    let mut relays: Vec<_> = relays.collect();
    relays.sort();
    relays.dedup();
    relays.into_iter().map(RelayName::Address).collect()
}

/// Returns verdict, finding and advice for the relay of a running receiver's channel.
fn of_channel(channel: &Channel) -> Option<(Verdict, String, String)> {
    let name = &channel.channel;
    let elsewhere = format!(
        "{name} comes by {} meanwhile; the source's operator knows whether it has relays that \
         work, and --relay names others",
        channel.rung
    );
    match (&channel.relay, &channel.relay_detail, channel.rung.as_str()) {
        (Some(relay), _, "multicast" | "amt") => {
            let what = format!("the running receiver has the relay {relay} for {name}");
            Some((Verdict::Ok, what, String::new()))
        }
        (Some(relay), ..) => {
            let what = format!(
                "the relay {relay} answers the running receiver, but no packets of {name} come \
                 through it"
            );
            Some((Verdict::Warn, what, elsewhere))
        }
        (None, Some(why), rung) => {
            let what = format!("the running receiver has no relay for {name}: {why}");
            // A channel on native multicast needs no relay.
            let verdict = match rung {
                "multicast" => Verdict::Skipped,
                _ => Verdict::Warn,
            };
            Some((verdict, what, elsewhere))
        }
        (None, None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn channel(rung: &str, relay: Option<&str>, why: Option<&str>) -> Channel {
        Channel {
            channel: "lore".to_owned(),
            rung: rung.to_owned(),
            relay: relay.map(|relay| relay.parse().unwrap()),
            relay_detail: why.map(str::to_owned),
            ..Channel::default()
        }
    }

    #[test]
    fn a_relay_without_packets_is_reported() {
        let relay = Some("192.0.2.1:2268");
        for (rung, relay, why, verdict, said) in [
            ("amt", relay, None, Verdict::Ok, "has the relay"),
            ("multicast", relay, None, Verdict::Ok, "has the relay"),
            (
                "unicast",
                relay,
                Some("x"),
                Verdict::Warn,
                "no packets of lore",
            ),
            (
                "replicated",
                relay,
                None,
                Verdict::Warn,
                "no packets of lore",
            ),
            (
                "unicast",
                None,
                Some("why"),
                Verdict::Warn,
                "no relay for lore: why",
            ),
            ("multicast", None, Some("why"), Verdict::Skipped, "no relay"),
        ] {
            let (is, what, _) = of_channel(&channel(rung, relay, why)).unwrap();
            assert!(is == verdict && what.contains(said), "{rung}: {what}");
        }
        assert!(of_channel(&channel("unicast", None, None)).is_none());
    }

    #[test]
    fn relays_of_the_last_run_are_listed_once() {
        let status = Status {
            channels: vec![
                channel("amt", Some("192.0.2.1:2268"), None),
                channel("amt", Some("192.0.2.1:2268"), None),
                channel("unicast", None, None),
            ],
            ..Status::default()
        };
        let relays = last_used(&Some(status));
        assert_eq!(relays, ["192.0.2.1:2268".parse().unwrap()]);
        assert!(last_used(&None).is_empty());
    }
}
