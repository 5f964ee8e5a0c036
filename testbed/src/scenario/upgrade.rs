//! Two versions of flexfeed with one another, and one in the place of the other.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use flexfeed_receiver::link::Link;
use kit::postgres::Postgres;

use super::checks::check_outputs;
use super::{Fault, Plan, Stage};
use crate::lab::Multicast;

/// The folder with the programs of an earlier version.
pub const PREVIOUS: &str = "FLEXFEED_PREVIOUS";

const DATABASE: &str = "upgrade";

/// Database of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceDatabase {
    /// In its own file.
    Sqlite,
    /// In a server.
    Postgresql,
}

/// The programs of an earlier version, if there are any: those in the folder that
/// `FLEXFEED_PREVIOUS` names.
pub fn previous() -> Option<PathBuf> {
    let folder = std::env::var_os(PREVIOUS)?;
    (!folder.is_empty()).then(|| folder.into())
}

/// up1: receivers of an earlier version are served by this one's source, by multicast, where they
/// verify its signatures, and by unicast, fall back and return; one of them is replaced by this
/// version in the same data folder. None misses an update or gets one twice.
///
/// # Errors
/// When one of these does not hold.
pub fn older_receivers_are_served(previous: &Path, fault: Option<Fault>) -> Result<()> {
    let older = previous.join("flexfeed-receiver");
    let mut plan = Plan::new("older-receivers", fault).with_port("r3", Multicast::Cut);
    for name in ["r2", "r3"] {
        plan = plan.with_seat(name, |seat| seat.program = Some(older.clone()));
    }
    let verifies = does_verify(&older)?;
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1"], "multicast")?;
        stage.wait_rung(&["r2"], if verifies { "multicast" } else { "unicast" })?;
        stage.wait_rung(&["r3"], "unicast")?;
        stage.set_rate(3.0)?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&["r1", "r2", "r3"], head + 4)?;
        if verifies {
            cut_and_repair(stage, "r2")?;
        }

        stage.replace_seat("r2")?;
        stage.wait_rung(&["r2"], "multicast")?;
        stage.replace_seat("r3")?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&["r2", "r3"], head + 4)?;
        finish(stage)
    })
}

/// up2: receivers of this version and of an earlier one at an earlier version's source; then the
/// source is replaced by this version with the same data folder and database, while the feed goes
/// on. No receiver misses an update, gets one twice, or enrols again.
///
/// # Errors
/// One of these does not hold.
pub fn an_older_source_is_replaced(
    previous: &Path,
    kept: SourceDatabase,
    fault: Option<Fault>,
) -> Result<()> {
    let server = match kept {
        SourceDatabase::Sqlite => None,
        SourceDatabase::Postgresql => Some(Postgres::start().context("starting PostgreSQL")?),
    };
    let older = previous.join("flexfeed-receiver");
    let verifies = does_verify(&older)?;
    let mut plan = Plan::new("older-source", fault)
        .with_port("r3", Multicast::Cut)
        .with_seat("r2", |seat| seat.program = Some(older.clone()));
    plan.source = Some(previous.join("flexfeed-source"));
    if let Some(server) = &server {
        server.create(DATABASE)?;
        plan.database = Some(server.socket_url_of(DATABASE));
    }
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1", "r2"], "multicast")?;
        stage.set_rate(3.0)?;
        let head = stage.source_status_now()?.head;
        stage.wait_cursor(&["r1", "r2", "r3"], head + 4)?;
        cut_and_repair(stage, "r1")?;

        let link = without_key(&stage.link()?)?;
        let before = stage.source_status_now()?.head;
        stage.replace_source()?;
        let head = stage.source_status_now()?.head;
        ensure!(
            head >= before,
            "the source had {before} updates before it was replaced, and {head} after"
        );
        let after = without_key(&stage.link()?)?;
        ensure!(after == link, "the enrolment link is another one");
        stage.wait_cursor(&["r1", "r2", "r3"], head + 4)?;
        stage.wait_rung(&["r1"], "multicast")?;
        stage.wait_rung(&["r2"], if verifies { "multicast" } else { "unicast" })?;
        finish(stage)
    })
}

/// Whether a receiver verifies signed updates, by a text that only those programs have. Others get
/// no flow of a channel that is signed.
fn does_verify(program: &Path) -> Result<bool> {
    const TEXT: &[u8] = b"eras out of order";
    let bytes = std::fs::read(program).with_context(|| program.display().to_string())?;
    Ok(bytes.windows(TEXT.len()).any(|window| window == TEXT))
}

/// A receiver that is on the flow loses multicast, and has it again.
fn cut_and_repair(stage: &mut Stage, name: &str) -> Result<()> {
    stage.set_multicast(name, Multicast::Cut)?;
    stage.wait_rung(&[name], "unicast")?;
    let head = stage.source_status_now()?.head;
    stage.wait_cursor(&[name], head + 3)?;
    stage.set_multicast(name, Multicast::Open)?;
    stage.wait_rung(&[name], "multicast")
}

fn finish(stage: &mut Stage) -> Result<()> {
    stage.set_rate(0.0)?;
    stage.settle()?;
    check_outputs(stage, &["r1", "r2", "r3"])
}

/// Returns a link without the key that signs updates: older sources do not pin it.
fn without_key(link: &str) -> Result<Link> {
    let (mut link, _) = Link::parse(link)?;
    link.keys.clear();
    Ok(link)
}
