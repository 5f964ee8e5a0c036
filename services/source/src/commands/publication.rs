//! `publish`.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use feed::message::{MAX_BODY_BYTES, Message};
use feed::parse::MAX_ENTRY_BYTES;
use feed::publication::{Content, FEED_URL, Publication};
use jiff::Timestamp;
use serde_json::json;
use store::{NewPublication, Store};
use uuid::Uuid;

use super::arguments::NewPublication as Arguments;
use super::channel::existing;
use super::{CommandOutput, Failure};
use crate::clock::now_ms;

/// Reads the content, and not much more than is allowed.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let most = MAX_ENTRY_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin().take(most).read_to_end(&mut bytes),
        _ => File::open(file).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    read.map_err(|error| Failure::other(format_args!("cannot read {}: {error}", file.display())))?;
    match bytes.len() > MAX_ENTRY_BYTES {
        true => Err(too_long("entry", file, MAX_ENTRY_BYTES)),
        false => Ok(bytes),
    }
}

fn too_long(what: &str, file: &Path, limit: usize) -> Failure {
    let file = file.display();
    Failure::usage(format_args!(
        "the {what} in {file} is longer than {limit} bytes"
    ))
}

/// Publishes an entry, or a message where the channel is live.
pub(super) async fn answer(
    store: &Store,
    new: &Arguments,
    body: &[u8],
) -> Result<CommandOutput, Failure> {
    let channel = existing(store, &new.channel).await?;
    match channel.settings.deadline_ms {
        Some(_) => send_message(store, new, body).await,
        None => publish_entry(store, new, body).await,
    }
}

async fn send_message(
    store: &Store,
    new: &Arguments,
    body: &[u8],
) -> Result<CommandOutput, Failure> {
    if body.len() > MAX_BODY_BYTES {
        return Err(too_long("message", &new.file, MAX_BODY_BYTES));
    }
    if new.url.is_some() {
        return Err(Failure::usage(format_args!(
            "channel {:?} is live: a message has no --url",
            new.channel
        )));
    }
    let default = || Message::default_content_type(body).to_owned();
    let message = Message {
        id: match &new.id {
            Some(id) => id.clone(),
            None => Uuid::new_v4().to_string(),
        },
        time_ms: u64::try_from(now_ms()).unwrap_or(0),
        content_type: new.content_type.clone().unwrap_or_else(default),
        subject: new.title.clone(),
        body: body.to_owned(),
    };
    message.validate().map_err(Failure::usage)?;
    let sent = store
        .messages()
        .send(&new.channel, &message.id, &message.encode())
        .await?;
    let json = json!({
        "id": message.id,
        "expires_ms": sent.expires_ms,
        "repeated": sent.is_repeat,
    });
    Ok(CommandOutput::new(message.id, json))
}

async fn publish_entry(
    store: &Store,
    new: &Arguments,
    body: &[u8],
) -> Result<CommandOutput, Failure> {
    let content = Content {
        id: new.id.clone(),
        title: new.title.clone(),
        url: new.url.clone(),
        content_type: new.content_type.clone(),
        body: body.to_owned(),
    };
    let default_id = Uuid::new_v4().urn().to_string();
    let publication = Publication::from_content(content, default_id, Timestamp::now());
    let (entry_id, payload) = publication.map_err(Failure::usage)?.into_parts();
    let id = entry_id.clone();
    let stored = NewPublication { entry_id, payload };
    let publications = store.publications();
    let repeated = publications.add(&new.channel, FEED_URL, &[stored]).await?;
    let repeated = repeated.first() == Some(&true);
    let json = json!({"id": id, "repeated": repeated});
    Ok(CommandOutput::new(id, json))
}
