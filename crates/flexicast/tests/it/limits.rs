//! Holds the limits in section 9 of `docs/protocol.md` to the crate's.

use flexicast::ack::{MAX_RANGES, MAX_REBUILT};
use flexicast::control::{MAX_CHANNELS, MAX_FRAME, MAX_NAME};
use flexicast::merge::{MAX_BUFFERED, WINDOW};
use flexicast::protect::MAX_PACKETS;
use flexicast::source::Limits;
use flexicast::{DEFAULT_UDP_PAYLOAD, MAX_UPDATE};

/// As the document writes it: 1,048,576.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[test]
fn the_document_names_the_limits_of_the_crate() {
    let text = include_str!("../../../../docs/protocol.md");
    let limits = Limits::default();
    let rows = [
        ("body of a control frame", MAX_FRAME as u64),
        ("name, software, token", MAX_NAME as u64),
        ("channels, cursors or capabilities", MAX_CHANNELS as u64),
        ("ranges in a PATH_ACK", MAX_RANGES as u64),
        ("rebuilt ranges in a PATH_ACK", MAX_REBUILT as u64),
        ("encoded update", MAX_UPDATE as u64),
        ("bytes of updates that it holds", MAX_BUFFERED as u64),
        ("how far ahead of the next update", WINDOW),
        ("receivers served", limits.receivers as u64),
        ("receivers with replication", limits.replicas as u64),
        ("control frames of one receiver", limits.control_per_s),
        ("PATH_ACKs of one receiver", limits.acks_per_s),
    ];
    let mut missing = Vec::new();
    for (what, number) in rows {
        let mut lines = text.lines();
        let row = lines.find(|line| line.starts_with(&format!("| {what}")));
        let limit = row.and_then(|row| row.split('|').nth(2)).unwrap_or("");
        let number = grouped(number);
        if !limit.split(' ').any(|word| word == number) {
            missing.push(format!("{what}: {number}, not {limit}"));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    let payload = format!(
        "at most {} bytes by default",
        grouped(DEFAULT_UDP_PAYLOAD as u64)
    );
    assert!(text.contains(&payload), "{payload}");
    assert_eq!(MAX_PACKETS, 1 << 23);
    assert!(text.contains("| packets of one key epoch | 2^23 |"));
}
