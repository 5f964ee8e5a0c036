//! `token …`.

use std::collections::BTreeSet;
use std::path::Path;

use data_encoding::BASE64URL_NOPAD;
use serde_json::json;
use signing::VerifyingKey;
use store::Store;

use super::arguments::{NewToken, Token};
use super::link;
use super::table::{Column, number, table_or, whole, words};
use super::{CommandOutput, Failure, rows, when};
use crate::clock::now_ms;
use crate::config::Config;
use crate::data;
use crate::data::enrolment::{self, MAX_LINK, token_hash};

const COLUMNS: [Column; 6] = [
    number("ID"),
    words("LABEL", 12),
    whole("STATE"),
    whole("USED"),
    words("EXPIRES (UTC)", 16),
    words("CHANNELS", 8),
];

pub(super) async fn answer(
    config: &Config,
    store: &Store,
    action: &Token,
) -> Result<CommandOutput, Failure> {
    match action {
        Token::Create(new) => create(config, store, new).await,
        Token::List => list(store).await,
        Token::Revoke { id } => revoke(store, *id).await,
    }
}

async fn create(config: &Config, store: &Store, new: &NewToken) -> Result<CommandOutput, Failure> {
    let now = now_ms();
    let expires_ms = new.expires.map(|later| later.from(now));
    if expires_ms.is_some_and(|then| then <= now) {
        return Err(Failure::usage("--expires: that time is past"));
    }
    let known = store.channels().list().await?;
    let active: Vec<String> = known
        .iter()
        .filter(|row| row.active)
        .map(|row| row.channel.name.clone())
        .collect();
    if let Some(unknown) = new.channels.iter().find(|name| !active.contains(name)) {
        return Err(Failure::other(format_args!(
            "there is no channel {unknown:?}; there are: {}",
            none_or(&active)
        )));
    }
    let channels = match new.channels.is_empty() {
        true => &active,
        false => &new.channels,
    };
    if channels.is_empty() {
        return Err(Failure::other(
            "there is no channel yet that a receiver could get: add one with `flexfeed-source \
             channel add NAME`, and a feed with `flexfeed-source feed add NAME URL`",
        ));
    }
    let source = link::source_address(config)?;
    let key = store.signing_keys().pinnable(channels).await?;
    let key = key.map(VerifyingKey);
    let with = |token: &str| enrolment::link(token, &source.address, &source.pins, key, channels);
    if let Some(file) = &new.link_file
        && let Some((token, kept)) = still_good(store, file, new).await?
    {
        let link = with(&token);
        let shown = file.display();
        let text = if link == kept {
            format!("{shown} has a link that is still good.")
        } else {
            check_length(&link)?;
            link::keep(file, &link)?;
            format!(
                "{shown} has a link whose token is still good; it was updated. Receivers that \
                 are admitted need it only if they are started with it again."
            )
        };
        let json = json!({"token": null, "link": link, "run": run_line(&link), "file": file});
        return Ok(CommandOutput {
            changes_nothing: true,
            ..CommandOutput::new(text, json)
        });
    }
    let token = BASE64URL_NOPAD.encode(&data::random()?);
    let link = with(&token);
    check_length(&link)?;
    let row = store
        .tokens()
        .add(&store::NewToken {
            hash: token_hash(token.as_bytes()),
            label: new.label.clone(),
            limit: new.limit,
            expires_ms,
            public: new.public,
            channels: new.channels.clone(),
        })
        .await?;
    let run = run_line(&link);
    let doubt = source.doubt.map(|doubt| format!("Note: {doubt}.\n\n"));
    let doubt = doubt.unwrap_or_default();
    let terms = format!("Token {} {}", row.id, terms(&row));
    let text = match &new.link_file {
        Some(file) => {
            link::keep(file, &link)?;
            let file = file.display();
            format!("{terms}. Its link is in {file}; anyone who has it can subscribe.\n\n{doubt}")
        }
        None => format!(
            "{terms}. This link is shown only now; anyone who has it can subscribe:\n\n  {link}\n\n\
             Run a receiver:\n\n  {run}\n\n{doubt}"
        ),
    };
    let token = rows::token(&row);
    let json = json!({"token": token, "link": link, "run": run, "file": new.link_file});
    Ok(CommandOutput::new(text, json).about(row.id))
}

fn run_line(link: &str) -> String {
    format!("flexfeed-receiver '{link}'")
}

fn check_length(link: &str) -> Result<(), Failure> {
    if link.len() > MAX_LINK {
        return Err(Failure::other(format_args!(
            "the link would be longer than the {MAX_LINK} bytes that receivers read: name fewer \
             channels with --channel"
        )));
    }
    Ok(())
}

/// Returns the token and the link in a file, if the token is still valid and admits to the
/// requested channels. Address, pins and the list of all channels may have changed since.
async fn still_good(
    store: &Store,
    file: &Path,
    new: &NewToken,
) -> Result<Option<(String, String)>, Failure> {
    let Some((token, link)) = link::kept(file)? else {
        return Ok(None);
    };
    let valid = store.tokens().valid(&token_hash(token.as_bytes())).await?;
    let names = |channels: &[String]| channels.iter().cloned().collect::<BTreeSet<_>>();
    let good = valid.is_some_and(|row| names(&row.channels) == names(&new.channels));
    Ok(good.then_some((token, link)))
}

/// Returns the token's conditions, in words.
fn terms(row: &store::TokenRow) -> String {
    let many = match (row.public, row.limit) {
        (true, _) => "is public, for any number of receivers".to_owned(),
        (false, None) => "admits any number of receivers".to_owned(),
        (false, Some(1)) => "admits one receiver".to_owned(),
        (false, Some(limit)) => format!("admits {limit} receivers"),
    };
    match row.expires_ms {
        Some(then) => format!("{many}, until {} UTC", when::shown(then)),
        None => many,
    }
}

fn none_or(names: &[String]) -> String {
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    }
}

async fn list(store: &Store) -> Result<CommandOutput, Failure> {
    let tokens = store.tokens().list().await?;
    let lines: Vec<Vec<String>> = tokens
        .iter()
        .map(|row| {
            let limit = match (row.public, row.limit) {
                (true, _) => format!("{}, public", row.uses),
                (false, Some(limit)) => format!("{} of {limit}", row.uses),
                (false, None) => row.uses.to_string(),
            };
            vec![
                row.id.to_string(),
                row.label.clone(),
                rows::token_state(row).to_owned(),
                limit,
                row.expires_ms.map_or("never".to_owned(), when::shown),
                match row.channels.is_empty() {
                    true => "all".to_owned(),
                    false => row.channels.join(","),
                },
            ]
        })
        .collect();
    let none = "There is no token: make one with `flexfeed-source token create`.";
    let text = table_or(&COLUMNS, &lines, none);
    let tokens: Vec<_> = tokens.iter().map(rows::token).collect();
    Ok(CommandOutput::new(text, json!({"tokens": tokens})))
}

async fn revoke(store: &Store, id: i64) -> Result<CommandOutput, Failure> {
    if !store.tokens().revoke(id).await? {
        return Err(Failure::other(format_args!(
            "there is no token {id}: `flexfeed-source token list` shows them"
        )));
    }
    let tokens = store.tokens().list().await?;
    let token = tokens.iter().find(|row| row.id == id).map(rows::token);
    let text = format!(
        "Token {id} is revoked. Receivers that enrolled with it stay: revoke those with \
         `flexfeed-source receiver revoke`."
    );
    Ok(CommandOutput::new(text, json!({"token": token})))
}
