//! `key …`.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use signing::{Endorsement, Signer, VerifyingKey};
use store::{ENDORSEMENT_LEN, KeyStanding, SigningKeyRow, Store};

use super::arguments::Key;
use super::table::{Column, table_or, whole, words};
use super::{CommandOutput, Failure, when};
use zeroize::Zeroizing;

use crate::config::Config;
use crate::data::{PrivateFile, signing_key};

const COLUMNS: [Column; 3] = [
    whole("PUBLIC KEY"),
    whole("SIGNS SINCE (UTC)"),
    words("STATE", 12),
];

pub(super) async fn answer(
    config: &Config,
    store: &Store,
    action: &Key,
) -> Result<CommandOutput, Failure> {
    let file = signing_key::file(&config.data, config.signing_key.as_deref());
    match action {
        Key::Show => show(store, &file).await,
        Key::Vouch => vouch(store, &file).await,
        Key::Rotate { out, lost } => rotate(store, &file, out.as_deref(), *lost).await,
    }
}

/// Returns the key that signs updates now.
fn current(rows: &[SigningKeyRow]) -> Option<VerifyingKey> {
    let row = rows.iter().rfind(|row| row.begun_ms.is_some());
    row.map(|row| VerifyingKey(row.key))
}

async fn show(store: &Store, file: &Path) -> Result<CommandOutput, Failure> {
    let own = load(file)?.map(|signer| signer.key());
    let rows = store.signing_keys().list().await?;
    let current = current(&rows);
    let state = |row: &SigningKeyRow| match row.begun_ms {
        _ if Some(VerifyingKey(row.key)) == current => "signs",
        Some(_) => "replaced",
        None => "not used yet",
    };
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                VerifyingKey(row.key).to_string(),
                row.begun_ms.map(when::shown).unwrap_or_default(),
                state(row).to_owned(),
            ]
        })
        .collect();
    let keys: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "key": VerifyingKey(row.key).to_string(),
                "key_id": VerifyingKey(row.key).id().to_string(),
                "created_ms": row.created_ms,
                "begun_ms": row.begun_ms,
                "state": state(row),
            })
        })
        .collect();
    let shown = file.display();
    let mut text = match own {
        Some(own) => format!("{own}\n  in {shown}, key id {}\n", own.id()),
        None => format!("There is no {shown}: the source makes it at its first start.\n"),
    };
    if let Some(own) = own
        && !KeyStanding::of(&own.0, &rows).may_sign()
    {
        text.push_str(
            "\nTHIS KEY SIGNS NOTHING: the database has another one (see the list). A source with \
             it publishes nothing.\n",
        );
    }
    let list = table_or(&COLUMNS, &lines, "No update is signed yet.");
    let _ = write!(text, "\n{list}");
    let json = json!({
        "file": file,
        "key": own.map(|own| own.to_string()),
        "key_id": own.map(|own| own.id().to_string()),
        "keys": keys,
    });
    Ok(CommandOutput::new(text, json))
}

async fn rotate(
    store: &Store,
    file: &Path,
    out: Option<&Path>,
    lost: bool,
) -> Result<CommandOutput, Failure> {
    let rows = store.signing_keys().list().await?;
    let own = match load(file) {
        Err(_) if lost => None,
        own => own?,
    };
    let usable = own.filter(|own| KeyStanding::of(&own.key().0, &rows).may_sign());
    let known: Vec<_> = store.signing_keys().known().await?;
    let known: Vec<_> = known.into_iter().map(VerifyingKey).collect();
    let (new, seed) = signing_key::generate()?;
    // The new key vouches for all that signed before it.
    let mut endorsements: Vec<_> = known.iter().map(|key| new.endorse(*key)).collect();
    match &usable {
        Some(_) if lost => {
            return Err(Failure::usage(format_args!(
                "--lost: {} is the key that signs updates; rotate it without --lost, so that \
                 receivers that pin it follow",
                file.display()
            )));
        }
        Some(old) => {
            if !known.contains(&old.key()) {
                endorsements.push(new.endorse(old.key()));
            }
            endorsements.push(old.endorse(new.key()));
        }
        None if lost => {}
        None => {
            return Err(Failure::other(format_args!(
                "{} is not the key that signs updates, so it cannot vouch for another one: put \
                 that file there (or name it with --signing-key); if it is lost, repeat the \
                 command with --lost",
                file.display()
            )));
        }
    }
    let before = usable.as_ref().map(Signer::key).or(current(&rows));
    let to = out.unwrap_or(file);
    let unwritable = |error: std::io::Error| {
        Failure::other(format_args!(
            "cannot write {}: {error}; nothing changed. Where the file comes from elsewhere, such \
             as a Secret, write the new key to another one with --out FILE",
            to.display()
        ))
    };
    let written = PrivateFile::write(to, &*seed).map_err(unwritable)?;
    if out.is_none() {
        keep_old(file)?;
    }
    // In this order: a key that no source has does no harm, a source with a key that the database
    // does not know publishes nothing.
    let keys = store.signing_keys();
    if let Some(old) = usable.filter(|old| rows.iter().all(|row| row.key != old.key().0)) {
        keys.add(&old.key().0, &[]).await?;
    }
    let stored: Vec<_> = endorsements.iter().map(stored).collect();
    keys.add(&new.key().0, &stored).await?;
    written.replace().map_err(unwritable)?;
    let (key, shown) = (new.key(), to.display());
    let next = match out {
        Some(_) => {
            "Give it to all sources on this database as their --signing-key, and restart them."
        }
        None => {
            "Restart the source to sign with it; other sources on this database need the same file."
        }
    };
    let consequence = match (before, lost) {
        (None, true) if !known.is_empty() => {
            "Receivers that pin an earlier key stop (auth-failed) until they get a new link."
                .to_owned()
        }
        (None, _) => "No update is signed yet.".to_owned(),
        (Some(before), false) => format!(
            "Receivers that pin {before} follow by themselves; new links pin the new key once a \
             source signs with it."
        ),
        (Some(before), true) => {
            format!("Receivers that pin {before} stop (auth-failed) until they get a new link.")
        }
    };
    let text = format!("New signing key {key} in {shown}.\n{next}\n{consequence}");
    let json = json!({
        "key": key.to_string(),
        "key_id": key.id().to_string(),
        "file": to,
        "before": before.map(|before| before.to_string()),
        "vouched_for": !lost,
    });
    Ok(CommandOutput::new(text, json).about(key))
}

/// Vouches for all keys that signed what is kept, so that receivers that pin this one take it.
async fn vouch(store: &Store, file: &Path) -> Result<CommandOutput, Failure> {
    let rows = store.signing_keys().list().await?;
    let own = load(file)?.filter(|own| rows.iter().any(|row| row.key == own.key().0));
    let own = own.filter(|own| KeyStanding::of(&own.key().0, &rows).may_sign());
    let Some(own) = own else {
        return Err(Failure::other(format_args!(
            "{} is not the key that signs updates: nothing that it vouches for counts",
            file.display()
        )));
    };
    let is_new = |key: &VerifyingKey| {
        let known = own.endorse(*key);
        let mut all = rows.iter().flat_map(|row| &row.endorsements);
        *key != own.key() && !all.any(|one| *one == stored(&known))
    };
    let known = store.signing_keys().known().await?.into_iter();
    let keys: Vec<_> = known.map(VerifyingKey).filter(is_new).collect();
    let endorsements: Vec<_> = keys.iter().map(|key| stored(&own.endorse(*key))).collect();
    store
        .signing_keys()
        .endorse(&own.key().0, &endorsements)
        .await?;
    let texts: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let text = match texts.is_empty() {
        true => format!(
            "{} vouches for all keys that signed updates already.",
            own.key()
        ),
        false => format!(
            "{} vouches for:\n  {}\nReceivers are notified at the source's next start.",
            own.key(),
            texts.join("\n  ")
        ),
    };
    let json = json!({"key": own.key().to_string(), "vouched_for": texts});
    Ok(CommandOutput {
        changes_nothing: texts.is_empty(),
        ..CommandOutput::new(text, json).about(own.key())
    })
}

/// Keeps the file of a key that is replaced: a database that is restored from before may need it.
fn keep_old(file: &Path) -> Result<(), Failure> {
    let old = match std::fs::read(file) {
        Ok(old) => Zeroizing::new(old),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            let shown = file.display();
            return Err(Failure::other(format_args!("cannot read {shown}: {error}")));
        }
    };
    let mut beside = file.as_os_str().to_owned();
    beside.push(".old");
    let kept = PrivateFile::write(Path::new(&beside), &old).and_then(PrivateFile::replace);
    kept.map_err(|error| {
        Failure::other(format_args!(
            "cannot write {}: {error}",
            Path::new(&beside).display()
        ))
    })
}

fn load(file: &Path) -> Result<Option<Signer>, Failure> {
    signing_key::load(file).map_err(|error| Failure::other(format_args!("{error:#}")))
}

/// Returns an endorsement as it is stored: signer, subject, signature.
fn stored(endorsement: &Endorsement) -> [u8; ENDORSEMENT_LEN] {
    let mut stored = [0; ENDORSEMENT_LEN];
    stored[..32].copy_from_slice(&endorsement.signer.0);
    stored[32..64].copy_from_slice(&endorsement.subject.0);
    stored[64..].copy_from_slice(&endorsement.signature);
    stored
}
