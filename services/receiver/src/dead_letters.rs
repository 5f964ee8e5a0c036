//! The `dead-letters` command: lists and retries updates whose delivery to a webhook or command
//! finally failed.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use jiff::Timestamp;
use serde_json::Value;

use crate::board::now_ms;
use crate::config::{self, Settings};
use crate::data::DataFolder;
use crate::durable::{FileError, replace, sync_folder_of};
use crate::hooks::Event;
use crate::hooks::dead::{Letter, path, read};
use crate::hooks::exec::Exec;

use crate::hooks::webhook::Webhook;
use crate::hooks::{SigningKey, Target, Verdict};
use service::peer_text::plain;

/// Extension of the files of dead letters.
const ENDING: &str = ".jsonl";

/// Lists the letters of one hook or of all, the oldest first: a line each, or as JSON, with the
/// events.
///
/// # Errors
/// A file cannot be read, or the hook has no letters.
pub fn list(data: &Path, hook: Option<&str>, as_json: bool) -> anyhow::Result<String> {
    let mut out = String::new();
    let mut garbled = 0;
    for hook in hooks(data, hook)? {
        garbled += read(data, &hook, |letter| {
            if as_json {
                // A value read as JSON can be written as JSON.
                let line = serde_json::to_string(&letter).unwrap_or_default();
                out.push_str(&line);
                out.push('\n');
                return;
            }
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "{}  {} {} update {}, after {} attempts: {}",
                time(letter.given_up_ms),
                plain(&letter.hook),
                plain(&letter.channel),
                letter.seq,
                letter.attempts,
                plain(&letter.reason)
            );
        })?;
    }
    if as_json {
        return Ok(out);
    }
    if out.is_empty() {
        out.push_str("There are no dead letters.\n");
    }
    if garbled > 0 {
        let _ = writeln!(out, "{garbled} lines of the files are not letters.");
    }
    Ok(out)
}

/// Returns the hook, or all that have letters.
fn hooks(data: &Path, hook: Option<&str>) -> anyhow::Result<Vec<String>> {
    let folder = data.join("dead-letters");
    let mut known = Vec::new();
    // The folder is made with the first letter.
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((hook, rest)) = name.split_once(ENDING)
            && (rest.is_empty() || rest.starts_with('.'))
            && !hook.is_empty()
            && !hook.starts_with('.')
        {
            known.push(hook.to_owned());
        }
    }
    known.sort();
    known.dedup();
    match hook {
        None => Ok(known),
        Some(hook) if known.iter().any(|one| one == hook) => Ok(vec![hook.to_owned()]),
        Some(hook) if known.is_empty() => {
            bail!(
                "{hook} has no dead letters in {}, nor has any other",
                folder.display()
            )
        }
        Some(hook) => bail!(
            "{hook} has no dead letters; these have: {}",
            known.join(", ")
        ),
    }
}

fn time(at_ms: u64) -> String {
    let at = i64::try_from(at_ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(
        || "an impossible time".into(),
        |at| at.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
    )
}

/// Outcome of a retry.
#[derive(Debug, PartialEq, Eq)]
pub struct RetryReport {
    /// Number of letters delivered.
    pub taken: usize,
    /// Letters kept: number of the update, and the reason.
    pub kept: Vec<(u64, String)>,
}

/// Retries each letter of a hook, in order. Delivered letters are removed, the others kept. A kill
/// in the middle keeps all of them, so some may be delivered twice.
///
/// # Errors
/// The hook or its letters do not exist, or a receiver runs on the data folder.
pub fn retry(settings: &Settings, hook: &str) -> anyhow::Result<RetryReport> {
    // The running receiver may be writing new ones.
    let data = DataFolder::open(&settings.data).context(
        "dead letters are retried while the receiver does not run: stop it; nothing is lost \
         meanwhile",
    )?;
    hooks(data.path(), Some(hook))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let webhook = settings
        .outputs
        .webhook
        .iter()
        .find(|webhook| webhook.name() == hook);
    let mut exec = settings.outputs.exec.iter();
    let exec = exec.find(|exec| exec.name() == hook);
    match (webhook, exec) {
        (Some(webhook), _) => {
            let key = webhook
                .secret
                .as_ref()
                .map(|s| SigningKey::new(s.as_bytes()));
            let target = Webhook::new(webhook.url.clone(), key, webhook.timeout);
            let target = target.map_err(anyhow::Error::msg)?;
            runtime.block_on(retry_by(data.path(), hook, &target))
        }
        (None, Some(exec)) => {
            let target = Exec::new(exec.command.clone(), exec.timeout);
            runtime.block_on(retry_by(data.path(), hook, &target))
        }
        (None, None) => {
            let webhooks = settings.outputs.webhook.iter().map(config::Webhook::name);
            let known = webhooks.chain(settings.outputs.exec.iter().map(config::Exec::name));
            let known: Vec<String> = known.collect();
            bail!(
                "the settings have no webhook or command {hook}; they have: {}",
                known.join(", ")
            )
        }
    }
}

async fn retry_by(data: &Path, hook: &str, target: &impl Target) -> anyhow::Result<RetryReport> {
    let mut letters = Vec::new();
    let garbled = read(data, hook, |letter| letters.push(letter))?;
    if garbled > 0 {
        bail!(
            "{garbled} lines of {} or its older files are not letters; remove them first",
            path(data, hook).display()
        );
    }
    let mut taken = 0;
    let mut kept: Vec<Letter> = Vec::new();
    let mut over = false;
    for mut letter in letters {
        if over {
            kept.push(letter);
            continue;
        }
        let attempt = letter.attempts.saturating_add(1);
        let verdict = match event_of(&letter) {
            Some(event) => target.attempt(&event, attempt).await,
            None => Verdict::Again {
                reason: "dead letter: no event to deliver".into(),
                after: None,
            },
        };
        let reason = match verdict {
            Verdict::Done => {
                taken += 1;
                continue;
            }
            Verdict::Again { reason, .. } => reason,
            // A hook that disabled itself gets no further attempts.
            Verdict::Disable { reason } => {
                over = true;
                reason
            }
        };
        letter.attempts = attempt;
        letter.given_up_ms = now_ms() as u64;
        letter.reason = reason;
        kept.push(letter);
    }
    write(data, hook, &kept)?;
    let kept = kept.into_iter().map(|letter| (letter.seq, letter.reason));
    Ok(RetryReport {
        taken,
        kept: kept.collect(),
    })
}

fn event_of(letter: &Letter) -> Option<Event> {
    let text = |name: &str| letter.event.get(name).and_then(Value::as_str);
    Some(Event {
        channel: letter.channel.clone(),
        seq: letter.seq,
        kind: text("type")?.to_owned(),
        source: text("source")?.to_owned(),
        id: text("id")?.to_owned(),
        time: text("time")?.to_owned(),
        subject: text("subject").unwrap_or_default().to_owned(),
        data: letter.event.get("data")?.clone(),
        body: None,
        json: serde_json::to_vec(&letter.event).ok()?,
    })
}

/// Replaces the letters of the hook: first the newest file, then the others are removed. In between
/// some letters exist twice, but each at least once.
fn write(data: &Path, hook: &str, letters: &[Letter]) -> anyhow::Result<()> {
    let newest = path(data, hook);
    let mut lines = Vec::new();
    for letter in letters {
        serde_json::to_writer(&mut lines, letter)?;
        lines.push(b'\n');
    }
    replace(&newest, &lines)?;
    for file in others(&newest) {
        fs::remove_file(&file).map_err(FileError::of("remove", &file))?;
    }
    if letters.is_empty() {
        fs::remove_file(&newest).map_err(FileError::of("remove", &newest))?;
    }
    Ok(sync_folder_of(&newest)?)
}

/// Returns the older files of the hook.
fn others(newest: &Path) -> Vec<PathBuf> {
    let name = newest
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let folder = newest.parent().map(fs::read_dir);
    let entries = folder.into_iter().flatten().flatten().flatten();
    entries
        .filter(|entry| {
            let file = entry.file_name().to_string_lossy().into_owned();
            let rest = file
                .strip_prefix(&name)
                .and_then(|rest| rest.strip_prefix('.'));
            rest.is_some_and(|number| {
                !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
            })
        })
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Mutex;
    use uuid::Uuid;

    fn letter(seq: u64) -> String {
        let letter = Letter {
            hook: "search".into(),
            channel: "lore".into(),
            incarnation: Uuid::from_u128(1),
            seq,
            received_ms: 1000,
            given_up_ms: 1_757_073_600_000,
            attempts: 20,
            reason: "503\u{1b}".into(),
            event: serde_json::json!({
                "type": "t", "source": "s", "id": format!("i/{seq}"), "time": "x",
                "data": {"id": "e"}
            }),
        };
        format!("{}\n", serde_json::to_string(&letter).unwrap())
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let newest = path(folder.path(), "search");
        fs::create_dir(newest.parent().unwrap()).unwrap();
        fs::write(newest.with_extension("jsonl.1"), letter(1) + &letter(2)).unwrap();
        fs::write(&newest, letter(3) + &letter(4)).unwrap();
        folder
    }

    /// Accepts even updates, and none from the one called the end on.
    struct Even {
        end: u64,
        asked: Mutex<Vec<(u64, u32)>>,
    }

    impl Target for Even {
        const KIND: &'static str = "webhook";

        async fn attempt(&self, event: &Event, attempt: u32) -> Verdict {
            self.asked.lock().unwrap().push((event.seq, attempt));
            match event.seq {
                seq if seq == self.end => Verdict::Disable {
                    reason: "410".into(),
                },
                seq if seq % 2 == 0 => Verdict::Done,
                _ => Verdict::Again {
                    reason: "odd".into(),
                    after: None,
                },
            }
        }
    }

    fn even(end: u64) -> Even {
        Even {
            end,
            asked: Mutex::default(),
        }
    }

    #[test]
    fn letters_are_listed() {
        let folder = folder();
        let data = folder.path();
        let text = list(data, None, false).unwrap();
        assert_eq!(text.lines().count(), 4);
        assert!(
            text.starts_with(
                "2025-09-05 12:00:00Z  search lore update 1, after 20 attempts: 503 \n"
            ),
            "{text}"
        );
        let json = list(data, Some("search"), true).unwrap();
        let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&first["seq"], &first["event"]["id"]),
            (&1.into(), &"i/1".into())
        );
        let error = list(data, Some("other"), false).unwrap_err().to_string();
        assert!(error.contains("these have: search"), "{error}");
        let empty = tempfile::tempdir().unwrap();
        assert!(
            list(empty.path(), None, false)
                .unwrap()
                .contains("no dead letters")
        );
        assert!(list(empty.path(), Some("x"), false).is_err());
    }

    #[tokio::test]
    async fn delivered_letters_go_and_the_rest_stays_in_order() {
        let folder = folder();
        let data = folder.path();
        let target = even(0);
        let retried = retry_by(data, "search", &target).await.unwrap();
        assert_eq!(retried.taken, 2);
        assert_eq!(retried.kept, [(1, "odd".into()), (3, "odd".into())]);
        assert_eq!(
            *target.asked.lock().unwrap(),
            [(1, 21), (2, 21), (3, 21), (4, 21)]
        );
        let mut left = Vec::new();
        read(data, "search", |letter| {
            left.push((letter.seq, letter.attempts, letter.reason))
        })
        .unwrap();
        assert_eq!(left, [(1, 21, "odd".into()), (3, 21, "odd".into())]);

        // A hook that disables itself is not sent the rest.
        let retried = retry_by(data, "search", &even(1)).await.unwrap();
        assert_eq!(retried.kept, [(1, "410".into()), (3, "odd".into())]);

        fs::write(path(data, "search"), letter(2)).unwrap();
        let retried = retry_by(data, "search", &even(0)).await.unwrap();
        assert_eq!(
            retried,
            RetryReport {
                taken: 1,
                kept: Vec::new()
            }
        );
        assert_eq!(fs::read_dir(data.join("dead-letters")).unwrap().count(), 0);

        fs::write(path(data, "search"), "garbage\n").unwrap();
        assert!(retry_by(data, "search", &even(0)).await.is_err());
        assert!(path(data, "search").exists());
    }
}
