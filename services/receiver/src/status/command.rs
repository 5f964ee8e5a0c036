//! The `status` command.

use std::path::Path;
use std::time::Duration;

use jiff::tz::TimeZone;
use serde_json::{Value, json};
use service::program::Answer;

use super::file;
use super::model::Status;
use super::view::{ProcessState, render};
use crate::board::now_ms;
use crate::data;

/// Age of a status from which on the receiver counts as hung, in ms; it writes every two seconds.
const SILENT_MS: u64 = 10_000;

/// Attempts to read a file that is being overwritten.
const READ_TRIES: u32 = 4;
const READ_PAUSE: Duration = Duration::from_millis(50);

/// State read from a data folder.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Observation {
    /// Status last written by the receiver.
    pub(super) status: Status,
    /// State of the receiver's process.
    pub(super) life: ProcessState,
}

/// Reads the state of a data folder.
///
/// # Errors
/// No receiver has run there, or the folder cannot be read; in words for the operator.
pub(super) fn observe(data: &Path) -> anyhow::Result<Observation> {
    let running = data::is_running(data)?;
    let Some(status) = read(data)? else {
        if running {
            anyhow::bail!(
                "a receiver has just started on {} and has no status yet; try again in a moment",
                data.display()
            );
        }
        anyhow::bail!(
            "no receiver has run on the data folder {}; name the right one with --data DIR or \
             FLEXFEED_DATA",
            data.display()
        );
    };
    let silent = (now_ms() as u64).saturating_sub(status.updated_ms) > SILENT_MS;
    let life = match running {
        false => ProcessState::Ended,
        true if silent => ProcessState::Silent,
        true => ProcessState::Running,
    };
    Ok(Observation { status, life })
}

/// Returns the status of a data folder. As JSON, it is the status file with `"running"` added, and
/// with `"connected"` false if no receiver runs.
///
/// # Errors
/// No receiver has run there, or the folder cannot be read; in words for the operator.
pub fn status(data: &Path, as_json: bool) -> anyhow::Result<Answer> {
    let Observation { status, life } = observe(data)?;
    let running = life != ProcessState::Ended;
    let well = life == ProcessState::Running && status.connected && status.error.is_none();
    let text = if as_json {
        let mut value = serde_json::to_value(&status)?;
        if let Value::Object(members) = &mut value {
            members.insert("running".into(), json!(running));
            members.insert("connected".into(), json!(running && status.connected));
        }
        format!("{value}\n")
    } else {
        render(&status, life, data, now_ms() as u64, &TimeZone::system())
    };
    Ok(Answer { text, well })
}

fn read(data: &Path) -> anyhow::Result<Option<Status>> {
    for _ in 1..READ_TRIES {
        if let Ok(status) = file::read(data) {
            return Ok(status);
        }
        // A command without a runtime that this could block.
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(READ_PAUSE);
    }
    Ok(file::read(data)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::board::{Board, Identity};
    use crate::data::DataFolder;
    use flexicast_tokio::receiver::Event;
    use uuid::Uuid;

    fn connected() -> Status {
        let identity = Identity {
            name: "r1".into(),
            receiver_id: Uuid::from_u128(1),
            source: "h:4433".into(),
        };
        let board = Board::new(identity, &[("lore".into(), None)]);
        board.apply(&Event::Welcome {
            channel: "lore".into(),
            incarnation: Uuid::from_u128(2),
            head: 0,
            first: 1,
            resync: false,
        });
        board.status()
    }

    fn write(data: &Path, status: &Status) {
        std::fs::write(file::path(data), serde_json::to_vec(status).unwrap()).unwrap();
    }

    #[test]
    fn only_a_connected_receiver_without_problems_is_well() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let error = status(data, false).unwrap_err().to_string();
        assert!(error.contains("no receiver has run"), "{error}");

        let lock = DataFolder::open(data).unwrap();
        let error = status(data, false).unwrap_err().to_string();
        assert!(error.contains("just started"), "{error}");
        let mut written = connected();
        write(data, &written);
        let answer = status(data, false).unwrap();
        assert!(answer.well, "{}", answer.text);
        let answer = status(data, true).unwrap();
        let value: Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(
            (&value["running"], &value["connected"]),
            (&json!(true), &json!(true))
        );
        assert_eq!(value["channels"][0]["channel"], "lore");

        written.error = Some("no room".into());
        write(data, &written);
        let answer = status(data, false).unwrap();
        assert!(
            !answer.well && answer.text.contains("Problem: no room"),
            "{}",
            answer.text
        );
        written.error = None;

        written.updated_ms -= 60_000;
        write(data, &written);
        let answer = status(data, false).unwrap();
        assert!(
            !answer.well && answer.text.contains("has not written"),
            "{}",
            answer.text
        );

        drop(lock);
        let answer = status(data, false).unwrap();
        assert!(
            !answer.well && answer.text.contains("NOT RUNNING"),
            "{}",
            answer.text
        );
        let value: Value = serde_json::from_str(&status(data, true).unwrap().text).unwrap();
        assert_eq!(
            (&value["running"], &value["connected"]),
            (&json!(false), &json!(false))
        );
    }

    #[test]
    fn a_damaged_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(file::path(folder.path()), "{\"version\":").unwrap();
        let error = status(folder.path(), true).unwrap_err().to_string();
        assert!(error.contains("status.json"), "{error}");
    }
}
