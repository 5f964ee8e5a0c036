//! The `verify` command: proves the journals of a data folder, offline.
//!
//! The keys are those of the journal's lineage. Only a key from elsewhere, by `--key`, proves
//! something against a writer of the data folder.

use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};

use flexicast::signing::{Forgery, KeyId, SIGNED, VerifyingKey};
use service::peer_text::plain;
use service::progress::Progress;
use uuid::Uuid;

use crate::durable::FileError;
use crate::journal::{self, Broken, Found, Kind, LineageFile, Record};

/// Failures of a channel that are listed one by one.
const MAX_LISTED: usize = 50;

/// Conditions beyond the journal's own lineage.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Keys that are accepted; any that the source announced if there are none.
    pub keys: Vec<VerifyingKey>,
    /// Whether an update without a signature is a failure.
    pub require_signed: bool,
}

/// Reason for which an update is not proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Unproved {
    #[error(transparent)]
    Forgery(#[from] Forgery),
    #[error("its key {0} is none of those given by --key")]
    Key(KeyId),
    #[error(
        "the journal has no keys for its incarnation: start this version of the receiver once, so \
         that the source announces them"
    )]
    NoLineage,
    #[error("it is not signed")]
    Unsigned,
    #[error("it is not signed, although the source signed updates before it")]
    NotAnyMore,
}

/// Verdict on an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Verified,
    /// Not signed, and before the first update that the source signed.
    Early,
    /// Not signed, and without anything known of the source's keys.
    Keyless,
    /// Not signed, although the source signed: received by a version that takes no signatures, or
    /// stripped.
    Bare,
    Failed(Unproved),
}

/// Counts of the updates of one incarnation of a channel.
#[derive(Debug, Default)]
struct Tally {
    incarnation: Uuid,
    first: u64,
    last: u64,
    verified: u64,
    early: u64,
    keyless: u64,
    bare: u64,
    failed: u64,
}

/// Findings about the journal of a channel.
#[derive(Debug, Default)]
struct Findings {
    /// By incarnation, in the order of the journal.
    tallies: Vec<Tally>,
    failures: Vec<String>,
    /// Failures, also those that are not listed.
    failed: u64,
    notes: Vec<String>,
}

/// Proves the journals of a data folder. Returns the findings as text, and whether nothing failed.
/// Blocks for the disk.
///
/// # Errors
/// There is no journal, or it cannot be read.
pub fn verify(data: &Path, rules: &Rules) -> Result<(String, bool), FileError> {
    let mut text = String::new();
    let mut failed = 0;
    let mut signed = 0;
    let mut progress = Progress::new("verifying");
    for channel in journal::channels(data)? {
        let findings = verify_channel(data, &channel, rules, &mut progress)?;
        failed += findings.failed;
        signed += findings.tallies.iter().map(|t| t.verified).sum::<u64>();
        findings.write(&channel, &mut text);
    }
    if text.is_empty() {
        failed += u64::from(rules.require_signed);
        text = format!(
            "There is no channel in {}.\n",
            data.join("journal").display()
        );
    }
    let keys = match rules.keys.is_empty() {
        true => {
            "the keys that the source announced to this receiver, as its data folder has them; \
                 --key KEY names them from elsewhere"
                .to_owned()
        }
        false => {
            let ids: Vec<_> = rules.keys.iter().map(|key| key.id().to_string()).collect();
            format!("the given keys ({})", ids.join(", "))
        }
    };
    let result = match failed {
        0 => format!("No failure. {signed} updates are proved"),
        _ => format!("{failed} FAILED. {signed} updates are proved"),
    };
    put(&mut text, format_args!("{result} by {keys}."));
    Ok((text, failed == 0))
}

fn verify_channel(
    data: &Path,
    channel: &str,
    rules: &Rules,
    progress: &mut Progress,
) -> Result<Findings, FileError> {
    let mut findings = Findings::default();
    let folder = journal::folder(data, channel);
    let (mut keys, damaged) = Keys::open(&folder)?;
    damaged.into_iter().for_each(|reason| findings.fail(reason));
    let paths = journal::list(&folder)?;
    let mut updates: u64 = 0;
    // Position after the file before.
    let mut end = None;
    for (number, path) in paths.iter().enumerate() {
        let is_last = number + 1 == paths.len();
        keys.is_fresh = false;
        let positions = journal::scan(path, |offset, found| {
            let place = || format!("{}, byte {offset}", path.display());
            match found {
                Found::Record(record) => {
                    let Kind::Update { .. } = record.header.kind else {
                        return;
                    };
                    updates += 1;
                    let verdict = keys.judge(channel, &record, rules);
                    findings.count(&record, verdict);
                    if let Verdict::Failed(reason) = verdict {
                        let seq = record.header.seq;
                        findings.fail(format!("update {seq} ({}): {reason}", place()));
                    }
                }
                // A kill leaves that, and a receiver that is writing.
                Found::Broken {
                    reason: Broken::CutOff,
                    bytes,
                    ..
                } if is_last => findings.notes.push(format!(
                    "{}: the last record is not complete, {bytes} bytes were not read; the \
                     receiver drops it at its next start, and the source sends it again",
                    place()
                )),
                Found::Broken {
                    reason,
                    header,
                    bytes,
                } => {
                    let whose = header.map(|header| format!(" (update {}?)", header.seq));
                    findings.fail(format!(
                        "{}{}: {reason}; {bytes} bytes were not read",
                        place(),
                        whose.unwrap_or_default()
                    ));
                }
            }
            progress.show(|| {
                let (file, all) = (number + 1, paths.len());
                let channel = plain(channel);
                Some(format!(
                    "{channel}: {updates} updates, file {file} of {all}"
                ))
            });
        })?;
        if let (Some(end), Some(positions)) = (end, &positions)
            && end < positions.start
        {
            findings.fail(format!(
                "records {end} to {} are missing before {}",
                positions.start - 1,
                path.display()
            ));
        }
        // The oldest files leave while this runs: one that is gone has none before it.
        end = positions.map(|positions| positions.end.max(end.unwrap_or_default()));
    }
    let verified = findings.tallies.iter().any(|tally| tally.verified > 0);
    if rules.require_signed && findings.failed == 0 && !verified {
        findings.fail("no update is verified".into());
    }
    Ok(findings)
}

/// Keys of a channel.
struct Keys {
    folder: PathBuf,
    lineages: LineageFile,
    /// Whether they were read after the present file of the journal.
    is_fresh: bool,
}

impl Keys {
    /// Reads those of the journal in `folder`. Also returns what is wrong with damaged ones.
    fn open(folder: &Path) -> Result<(Self, Option<String>), FileError> {
        let (lineages, damaged) = LineageFile::open(folder)?;
        let keys = Self {
            folder: folder.to_owned(),
            lineages,
            is_fresh: false,
        };
        Ok((keys, damaged))
    }

    /// Judges an update. Before a failure it reads the keys again: a receiver that runs stores new
    /// ones, each before the updates that it signed.
    fn judge(&mut self, channel: &str, record: &Record, rules: &Rules) -> Verdict {
        let verdict = judge(channel, record, &self.lineages, rules);
        if self.is_fresh || !matches!(verdict, Verdict::Failed(_)) {
            return verdict;
        }
        self.is_fresh = true;
        match LineageFile::open(&self.folder) {
            Ok((lineages, None)) => {
                self.lineages = lineages;
                judge(channel, record, &self.lineages, rules)
            }
            _ => verdict,
        }
    }
}

fn judge(channel: &str, record: &Record, lineages: &LineageFile, rules: &Rules) -> Verdict {
    let seq = record.header.seq;
    let lineage = lineages.of(record.header.incarnation);
    let lineage = lineage.and_then(|lineage| Some((lineage, lineage.eras().first()?.first)));
    let era = lineage.and_then(|(lineage, _)| lineage.era_of(seq));
    if record.encoded.first() != Some(&SIGNED) {
        return match lineage {
            _ if rules.require_signed => Verdict::Failed(Unproved::Unsigned),
            None => Verdict::Keyless,
            Some((_, first)) if seq < first => Verdict::Early,
            Some(_) if era.is_some() => Verdict::Bare,
            Some(_) => Verdict::Failed(Unproved::NotAnyMore),
        };
    }
    let Some((lineage, _)) = lineage else {
        return Verdict::Failed(Unproved::NoLineage);
    };
    if let Some(era) = era
        && !rules.keys.is_empty()
        && !rules.keys.contains(&era.key)
    {
        return Verdict::Failed(Unproved::Key(era.key.id()));
    }
    match lineage.verify(channel, seq, &record.encoded) {
        Ok(()) => Verdict::Verified,
        Err(forgery) => Verdict::Failed(forgery.into()),
    }
}

impl Findings {
    fn fail(&mut self, reason: String) {
        self.failed += 1;
        if self.failures.len() < MAX_LISTED {
            self.failures.push(reason);
        }
    }

    fn count(&mut self, record: &Record, verdict: Verdict) {
        let (incarnation, seq) = (record.header.incarnation, record.header.seq);
        let known = self.tallies.last().map(|tally| tally.incarnation);
        if known != Some(incarnation) {
            self.tallies.push(Tally {
                incarnation,
                first: seq,
                ..Tally::default()
            });
        }
        let Some(tally) = self.tallies.last_mut() else {
            return;
        };
        tally.last = seq;
        let count = match verdict {
            Verdict::Verified => &mut tally.verified,
            Verdict::Early => &mut tally.early,
            Verdict::Keyless => &mut tally.keyless,
            Verdict::Bare => &mut tally.bare,
            Verdict::Failed(_) => &mut tally.failed,
        };
        *count += 1;
    }

    fn write(&self, channel: &str, text: &mut String) {
        let channel = plain(channel);
        if self.tallies.is_empty() {
            put(text, format_args!("{channel}: no update"));
        }
        for tally in &self.tallies {
            let Tally {
                incarnation,
                first,
                last,
                verified,
                early,
                keyless,
                bare,
                failed,
            } = tally;
            put(
                text,
                format_args!(
                    "{channel}, incarnation {incarnation}, updates {first} to {last}: {verified} \
                     verified, {} unsigned, {failed} failed",
                    early + keyless + bare
                ),
            );
            for (count, why) in [
                (early, ": stored before the source signed"),
                (keyless, ": nothing is known of the source's keys"),
                (
                    bare,
                    " although the source signed: received by a version that takes no signatures, \
                     or changed since",
                ),
            ] {
                if *count > 0 {
                    put(text, format_args!("  {count} unsigned{why}"));
                }
            }
        }
        for failure in &self.failures {
            put(text, format_args!("  FAILED: {failure}"));
        }
        let rest = self.failed.saturating_sub(self.failures.len() as u64);
        if rest > 0 {
            put(text, format_args!("  and {rest} more"));
        }
        for note in &self.notes {
            put(text, format_args!("  {note}"));
        }
    }
}

fn put(text: &mut String, line: impl Display) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests;
