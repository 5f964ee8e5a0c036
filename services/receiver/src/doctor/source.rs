//! Checks of the source: name, UDP path, certificate.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use flexicast_tokio::receiver::probe::{Certificate, ProbeResult, probe};
use flexicast_tokio::receiver::{ReceiverConfig, Verify};
use jiff::Timestamp;

use super::report::{Report, Verdict};
use super::verifies;
use crate::board::now_ms;
use crate::config::Settings;
use crate::link::Pin;

/// Time limit for the name resolution.
const LOOKUP_WITHIN: Duration = Duration::from_secs(10);

/// Largest number of addresses that are tried.
const MAX_ADDRESSES: usize = 8;

/// Remaining validity of a certificate below which a warning is due, in seconds.
const SOON: i64 = 14 * 86_400;

/// Checks the source. Returns whether it can be reached and verified. Without a link, it cannot be
/// verified.
pub(super) async fn examine(
    settings: &Settings,
    config: &ReceiverConfig,
    no_link: bool,
    report: &mut Report,
) -> bool {
    let Some(addresses) = resolve(settings, report).await else {
        return false;
    };
    let unverified = ReceiverConfig {
        verify: Verify::Insecure,
        ..config.clone()
    };
    let config = if no_link { &unverified } else { config };
    let mut attempts = Vec::new();
    for address in addresses {
        let config = config.clone();
        attempts.push((
            address,
            tokio::spawn(async move { probe(&config, address).await }),
        ));
    }
    let mut reached = Vec::new();
    let mut failed = Vec::new();
    for (address, attempt) in attempts {
        match attempt.await {
            Ok(Ok(answer)) => reached.push((address, answer)),
            Ok(Err(reason)) => failed.push((address, reason)),
            Err(error) => failed.push((address, error.to_string())),
        }
    }
    for (address, answer) in &reached {
        let from = netio::route_source(address.ip());
        let from = from.map_or_else(|_| String::new(), |from| format!(", from {from}"));
        let ms = answer.took.as_secs_f64() * 1000.0;
        let what = format!("a QUIC handshake with {address} took {ms:.0} ms{from}");
        report.add("udp", Verdict::Ok, &what, "");
    }
    for (address, reason) in &failed {
        // Another address works, so this one only costs time.
        let (verdict, advice) = if reached.is_empty() {
            (Verdict::Fail, advice_for(*address, reason))
        } else {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            let advice =
                format!("another address works; {family} to the source is broken somewhere");
            (Verdict::Warn, advice)
        };
        report.add("udp", verdict, &format!("{address}: {reason}"), &advice);
    }
    let Some((_, answer)) = reached.first() else {
        return false;
    };
    certificate(settings, answer, no_link, report)
}

async fn resolve(settings: &Settings, report: &mut Report) -> Option<Vec<SocketAddr>> {
    let server = settings.link.server();
    let found = tokio::time::timeout(LOOKUP_WITHIN, tokio::net::lookup_host(&server)).await;
    let mut addresses: Vec<SocketAddr> = match found {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => {
            let what = format!("{} is not found: {error}", settings.link.host);
            let advice = "is it spelled as in the link? does this machine's name service work \
                ('getent hosts NAME')?";
            report.add("name", Verdict::Fail, &what, advice);
            return None;
        }
        Err(_) => {
            let advice = "see /etc/resolv.conf, and whether its servers can be reached";
            report.add(
                "name",
                Verdict::Fail,
                "the name service does not answer",
                advice,
            );
            return None;
        }
    };
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(MAX_ADDRESSES);
    if addresses.is_empty() {
        let what = format!("{} has no address", settings.link.host);
        report.add("name", Verdict::Fail, &what, "ask the source's operator");
        return None;
    }
    if settings.link.host.parse::<IpAddr>().is_err() {
        let list: Vec<String> = addresses.iter().map(|a| a.ip().to_string()).collect();
        let what = format!("{} is {}", settings.link.host, list.join(", "));
        report.add("name", Verdict::Ok, &what, "");
    }
    Some(addresses)
}

fn advice_for(address: SocketAddr, reason: &str) -> String {
    if reason.contains("no way to") {
        return "this machine has no route to it, or its firewall blocks it: see 'ip route get' \
            and the rules for output"
            .into();
    }
    format!(
        "does the source run, and does UDP port {} get there and back? Firewalls that pass only \
         TCP are common: ask for UDP port {} to be opened towards {}, or try from another \
         network",
        address.port(),
        address.port(),
        address.ip()
    )
}

/// Checks the source's certificate. Returns whether the source is verified.
fn certificate(
    settings: &Settings,
    answer: &ProbeResult,
    no_link: bool,
    report: &mut Report,
) -> bool {
    let shown = answer.certificate.as_ref().map(|shown| Pin(shown.pin));
    let shown = shown.map_or_else(|| "no readable certificate".into(), |pin| pin.to_string());
    match &answer.verified {
        _ if no_link => {
            let what = format!("the source shows {shown}, which cannot be verified without a link");
            report.add("certificate", Verdict::Skipped, &what, "");
        }
        Ok(()) if !verifies(&settings.verify) => {
            let what = format!("NOT VERIFIED (insecure); the source shows {shown}");
            let advice = "remove --insecure, and use a link with this pin if it is the source's";
            report.add("certificate", Verdict::Warn, &what, advice);
        }
        Ok(()) => {
            let what = match settings.verify {
                Verify::Pins(_) => format!("the source shows the key that the link pins, {shown}"),
                _ => format!("the source proved that it is {}", settings.link.host),
            };
            report.add("certificate", Verdict::Ok, &what, "");
        }
        Err(reason) => {
            let advice = match settings.verify {
                Verify::Pins(_) => {
                    "compare with the pin that the source's operator has; if the source's key was \
                     changed, a new link has it"
                }
                _ => {
                    "ask the source's operator for a link with a pin, or give the authority's \
                     certificate by --ca-file"
                }
            };
            report.add("certificate", Verdict::Fail, reason, advice);
        }
    }
    if let Some(shown) = &answer.certificate {
        validity(shown, &settings.verify, report);
    }
    answer.verified.is_ok()
}

/// Checks the certificate's validity; with a pin, the time does not matter.
fn validity(shown: &Certificate, verify: &Verify, report: &mut Report) {
    let now = (now_ms() / 1000.0) as i64;
    let day = |seconds: i64| {
        Timestamp::from_second(seconds)
            .map_or_else(|_| "an impossible time".to_owned(), |at| at.to_string())
    };
    if shown.not_before > now + 60 {
        let what = format!(
            "this machine's clock is at {}, before the source's certificate is valid ({})",
            day(now),
            day(shown.not_before)
        );
        report.add(
            "clock",
            Verdict::Warn,
            &what,
            "set the clock, for example with timesyncd or chrony",
        );
    }
    if matches!(verify, Verify::Pins(_) | Verify::Insecure) {
        return;
    }
    if shown.not_after < now + SOON && shown.not_after >= now {
        let what = format!("the source's certificate expires {}", day(shown.not_after));
        report.add(
            "certificate",
            Verdict::Warn,
            &what,
            "notify the source's operator",
        );
    }
}
