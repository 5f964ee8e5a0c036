//! `publish`.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use feed::message::{MAX_BODY_BYTES, Message};
use serde_json::json;
use store::Store;
use uuid::Uuid;

use super::arguments::Publication;
use super::channel::existing;
use super::{CommandOutput, Failure};
use crate::clock::now_ms;

/// Reads the message, and checks it before the database is opened.
pub(super) fn read(new: &Publication) -> Result<Message, Failure> {
    let body = body(&new.file)?;
    let default = || Message::default_content_type(&body).to_owned();
    let message = Message {
        id: match &new.id {
            Some(id) => id.clone(),
            None => Uuid::new_v4().to_string(),
        },
        time_ms: u64::try_from(now_ms()).unwrap_or(0),
        content_type: new.content_type.clone().unwrap_or_else(default),
        subject: new.subject.clone(),
        body,
    };
    message.validate().map_err(Failure::usage)?;
    Ok(message)
}

/// Reads a body, and not much more than is allowed.
fn body(file: &Path) -> Result<Vec<u8>, Failure> {
    let most = MAX_BODY_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin().take(most).read_to_end(&mut bytes),
        _ => File::open(file).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    read.map_err(|error| Failure::other(format_args!("cannot read {}: {error}", file.display())))?;
    if bytes.len() > MAX_BODY_BYTES {
        return Err(Failure::usage(format_args!(
            "the message in {} is longer than {MAX_BODY_BYTES} bytes",
            file.display()
        )));
    }
    Ok(bytes)
}

pub(super) async fn answer(
    store: &Store,
    channel: &str,
    message: &Message,
) -> Result<CommandOutput, Failure> {
    existing(store, channel).await?;
    let sent = store
        .messages()
        .send(channel, &message.id, &message.encode())
        .await?;
    let json = json!({
        "id": message.id,
        "expires_ms": sent.expires_ms,
        "repeated": sent.is_repeat,
    });
    Ok(CommandOutput::new(message.id.clone(), json))
}
