//! The status as text.

use std::fmt::Write;

use super::model::{GroupName, Status};
use service::peer_text::plain;

/// Returns the status for people.
pub(super) fn render(status: &Status) -> String {
    let mut out = head(status).join("\n");
    let _ = writeln!(out);
    for (title, lines) in [("GROUPS", groups(status)), ("GATEWAYS", gateways(status))] {
        if !lines.is_empty() {
            // Writing to a string does not fail.
            let _ = writeln!(out, "\n{title}");
            for line in lines {
                let _ = writeln!(out, "  {line}");
            }
        }
    }
    out
}

/// Returns the lines above the tables.
pub(super) fn head(status: &Status) -> Vec<String> {
    let draining = match status.draining {
        true => ", about to stop: takes no new gateways",
        false => "",
    };
    let packets = &status.packets;
    let mut lines = vec![
        format!(
            "flexfeed-relay {} at {}, up {}{draining}",
            plain(&status.version),
            plain(&status.listen.join(", ")),
            time(status.uptime_s)
        ),
        format!(
            "{} of {} gateways, {} groups",
            status.gateways.count, status.gateways.max, status.groups.count
        ),
        format!(
            "in {} packets ({}/s), out {} ({}/s, {})",
            packets.received,
            packets.in_per_second,
            packets.sent,
            packets.out_per_second,
            bits(packets.out_bits_per_second)
        ),
    ];
    if status.groups.missing > 0 {
        lines.push(format!(
            "{} groups cannot be joined; the log says why",
            status.groups.missing
        ));
    }
    if status.not_capturing {
        lines.push("nothing is captured: the interface is down or gone".to_owned());
    }
    let lost = status.lost.iter().filter(|(_, count)| **count > 0);
    let lost: Vec<String> = lost
        .map(|(reason, count)| format!("{} {count}", plain(reason)))
        .collect();
    if !lost.is_empty() {
        lines.push(format!("lost: {}", lost.join(", ")));
    }
    let dropped = status.messages_dropped.iter();
    let dropped: Vec<String> = dropped
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{} {count}", plain(reason)))
        .collect();
    if !dropped.is_empty() {
        lines.push(format!("messages dropped: {}", dropped.join(", ")));
    }
    lines
}

/// Returns a line for each group.
pub(super) fn groups(status: &Status) -> Vec<String> {
    let mut lines: Vec<String> = status
        .groups
        .list
        .iter()
        .map(|group| format!("{}  {} gateways", name(&group.name), group.gateways))
        .collect();
    more(&mut lines, status.groups.count);
    lines
}

/// Returns a line for each gateway.
pub(super) fn gateways(status: &Status) -> Vec<String> {
    let mut lines: Vec<String> = status
        .gateways
        .list
        .iter()
        .map(|gateway| {
            let groups: Vec<String> = gateway.groups.iter().map(name).collect();
            format!(
                "{}  for {}, {} packets ({}/s, {}), MTU {}: {}",
                plain(&gateway.address),
                time(gateway.age_s),
                gateway.packets,
                gateway.packets_per_second,
                bits(gateway.bits_per_second),
                gateway.mtu,
                groups.join(", ")
            )
        })
        .collect();
    more(&mut lines, status.gateways.count);
    lines
}

fn more(lines: &mut Vec<String>, count: usize) {
    let rest = count.saturating_sub(lines.len());
    if rest > 0 {
        lines.push(format!("and {rest} more"));
    }
}

fn name(name: &GroupName) -> String {
    match &name.source {
        Some(source) => format!("{} from {}", plain(&name.group), plain(source)),
        None => format!("{} from any source", plain(&name.group)),
    }
}

fn time(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

fn bits(rate: f64) -> String {
    match rate {
        rate if rate >= 1e9 => format!("{:.2} Gbit/s", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.1} Mbit/s", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.0} kbit/s", rate / 1e3),
        rate => format!("{rate:.0} bit/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(time(59), "59 s");
        assert_eq!(time(3599), "59 min");
        assert_eq!(time(7260), "2 h 1 min");
        assert_eq!(time(90_000), "1 d 1 h");
        assert_eq!(bits(999.0), "999 bit/s");
        assert_eq!(bits(1.5e6), "1.5 Mbit/s");
        assert_eq!(bits(2e9), "2.00 Gbit/s");
    }
}
