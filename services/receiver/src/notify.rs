//! Readiness, status and stop notifications for systemd.
//!
//! A receiver is ready when its folder, outputs and HTTP are there, not when the source admits it:
//! systemd must not end a receiver because the source is away for a while. The connection is in the
//! status line, and in `/readyz`.

use std::sync::Arc;

use service::peer_text::plain;
use service::systemd;
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::status::model::Status;

/// Longest status line, in characters.
const MAX_LINE: usize = 200;

/// Reports readiness, then the status until `done`, and the stop once `stop` is cancelled.
pub async fn keep(board: Arc<Board>, stop: CancellationToken, done: CancellationToken) {
    systemd::keep(
        || line(&board.status()),
        // Sent by the runtime that does all the work, so a hung runtime misses its watchdog.
        async || true,
        "finishing work in progress",
        stop,
        done,
    )
    .await;
}

/// Returns the status in a line.
fn line(status: &Status) -> String {
    let source = plain(&status.source);
    let mut line = match (&status.error, status.connected) {
        (Some(error), _) => plain(error),
        (None, false) => format!("connecting to {source}"),
        (None, true) => {
            let channels = status.channels.iter().map(|channel| {
                let behind = match channel.head.saturating_sub(channel.cursor) {
                    0 => String::new(),
                    behind => format!(", {behind} behind"),
                };
                format!("{} by {}{behind}", channel.channel, channel.rung)
            });
            let channels: Vec<String> = channels.collect();
            format!("connected to {source}: {}", plain(&channels.join("; ")))
        }
    };
    if line.chars().count() > MAX_LINE {
        line = line.chars().take(MAX_LINE).collect();
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Identity;
    use flexicast_tokio::receiver::Event;
    use uuid::Uuid;

    #[test]
    fn the_status_line_shows_connection_and_failures() {
        let identity = Identity {
            name: "r1".into(),
            receiver_id: Uuid::from_u128(1),
            source: "h:4433".into(),
        };
        let board = Board::new(identity, &[("lore".into(), None)]);
        assert_eq!(line(&board.status()), "connecting to h:4433");
        board.apply(&Event::Welcome {
            channel: "lore".into(),
            incarnation: Uuid::from_u128(2),
            head: 7,
            first: 1,
            resync: false,
        });
        assert_eq!(
            line(&board.status()),
            "connected to h:4433: lore by unicast, 7 behind"
        );
        board.storage_failed("lore", format!("disk\n full {}", "x".repeat(400)));
        let line = line(&board.status());
        assert!(line.starts_with("disk  full"), "{line}");
        assert_eq!(line.chars().count(), MAX_LINE + 1);
    }
}
