//! A live channel: updates with a deadline, and messages.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::publications::publish_text;
use super::{Fault, Plan, Stage};
use crate::lab::Multicast;
use crate::waiting::pause;

/// Deadline of the channel's updates, as its setting and as a time.
const DEADLINE: &str = "3s";
const EXPIRES_AFTER: Duration = Duration::from_secs(3);

/// li: a receiver that was away for longer than the deadline gets nothing that expired meanwhile
/// and passes over it; those that stayed, one of them behind a lossy link, got it in time, and what
/// comes afterwards reaches all.
///
/// # Errors
/// One of these does not hold.
pub fn a_live_channel_delivers_nothing_late(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("live", fault).with_port("r2", Multicast::Loss(10));
    plan.channel_settings.push(("deadline", DEADLINE));
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1", "r2", "r3"], "multicast")?;
        stage.grow(20)?;
        let left = stage.settle()?;
        stage.seat_mut("r3")?.kill()?;
        stage.grow(100)?;
        let back = left + 100;
        stage.wait_head(back)?;
        stage.wait_cursor(&["r1", "r2"], back)?;
        pause(EXPIRES_AFTER + Duration::from_secs(1));
        stage.restart_seat("r3")?;
        stage.wait_cursor(&["r3"], back)?;
        stage.wait_rung(&["r3"], "multicast")?;
        stage.grow(10)?;
        let end = stage.settle()?;
        ensure!(end == back + 10, "the feed has {end} updates");

        let late = count(stage, "r3", left + 1, back)?;
        ensure!(late == 0, "r3: {late} updates delivered late");
        for (name, first) in [("r1", left + 1), ("r2", left + 1), ("r3", back + 1)] {
            let (got, all) = (count(stage, name, first, end)?, end - first + 1);
            // On a busy machine one or another may take longer than the deadline.
            ensure!(got * 10 >= all * 9, "{name} got {got} of {all} updates");
        }
        println!("live_late_share 0: 100 updates expired while r3 was away");
        Ok(())
    })
}

/// Returns the number of updates from `first` to `last` that a receiver delivered.
fn count(stage: &Stage, name: &str, first: u64, last: u64) -> Result<u64> {
    let deliveries = stage.seat(name)?.deliveries()?;
    let wanted = deliveries
        .iter()
        .filter(|one| (first..=last).contains(&one.seq));
    Ok(wanted.count() as u64)
}

/// Command by which each receiver keeps the events that its hook gets.
const KEEP: &str = "cat >> \"$HOME/events.jsonl\"; echo >> \"$HOME/events.jsonl\"";
/// Messages that are published, of these lengths in turn.
const MESSAGES: usize = 24;
const LENGTHS: [usize; 4] = [1, 900, 9_000, 65_536];

/// ms: messages published from the command line, up to the longest, reach receivers on the flow,
/// one of them behind a lossy link, and one that is on no flow; none reaches one twice, and their
/// hooks get what was published. A receiver that comes later gets none of them.
///
/// # Errors
/// One of these does not hold.
pub fn messages_reach_all_who_are_there(fault: Option<Fault>) -> Result<()> {
    let mut plan = Plan::new("messages", fault)
        .with_port("r2", Multicast::Loss(1))
        .with_port("r3", Multicast::Cut);
    plan.channel_settings.push(("deadline", "10s"));
    for seat in &mut plan.seats {
        seat.args.extend(["--exec", KEEP]);
    }
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1", "r2"], "multicast")?;
        stage.wait_rung(&["r3"], "unicast")?;
        let end = stage.settle()?;
        for number in 0..MESSAGES {
            publish(stage, number)?;
        }
        stage.grow(10)?;
        stage.wait_cursor(&["r1", "r2", "r3"], end + 10)?;
        // Behind everything that was published: what is not there by then is lost.
        stage.wait("the last message", Duration::from_secs(10), |stage| {
            let last = format!("m{}", MESSAGES - 1);
            Ok(received(stage, "r1")?
                .iter()
                .any(|(id, _)| *id == last)
                .then_some(()))
        })?;
        pause(Duration::from_secs(1));
        // Messages are not repaired: a busy machine may lose one or another.
        for (name, least) in [
            ("r1", MESSAGES * 9 / 10),
            ("r2", MESSAGES / 2),
            ("r3", MESSAGES * 9 / 10),
        ] {
            let got = received(stage, name)?;
            let mut ids: Vec<_> = got.iter().map(|(id, _)| id.as_str()).collect();
            ids.sort_unstable();
            ids.dedup();
            ensure!(ids.len() == got.len(), "{name} got messages twice: {ids:?}");
            let right = got.iter().all(|(id, text)| {
                let number = id.trim_start_matches('m').parse();
                number.is_ok_and(|number| *text == content(number))
            });
            ensure!(right, "{name} got other messages than were published");
            ensure!(
                got.len() >= least,
                "{name} got {} of {MESSAGES} messages",
                got.len()
            );
        }
        stage.seat_mut("r3")?.kill()?;
        publish(stage, MESSAGES)?;
        stage.restart_seat("r3")?;
        stage.grow(1)?;
        stage.wait_cursor(&["r3"], end + 11)?;
        // What came while it was away would come before this one.
        publish(stage, MESSAGES + 1)?;
        let last = format!("m{}", MESSAGES + 1);
        let has = |stage: &Stage, id: &str| {
            let got = received(stage, "r3")?;
            anyhow::Ok(got.iter().any(|(known, _)| known == id))
        };
        stage.wait(
            "a message after its return",
            Duration::from_secs(10),
            |stage| Ok(has(stage, &last)?.then_some(())),
        )?;
        let missed = format!("m{MESSAGES}");
        ensure!(!has(stage, &missed)?, "r3 got a message of before it came");
        Ok(())
    })
}

/// Returns the text of a message.
fn content(number: usize) -> String {
    let length = LENGTHS[number % LENGTHS.len()];
    let letters = (0..length).map(|at| char::from(b'a' + ((at * 7 + number) % 26) as u8));
    letters.collect()
}

/// Publishes a message.
fn publish(stage: &Stage, number: usize) -> Result<()> {
    publish_text(stage, &format!("m{number}"), &content(number))
}

/// Returns the ids and texts of the messages that a receiver's hook got.
fn received(stage: &Stage, name: &str) -> Result<Vec<(String, String)>> {
    let file = stage.seat(name)?.data().join("events.jsonl");
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context("reading what a hook got"),
    };
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let event: serde_json::Value = serde_json::from_str(line)?;
        if event["type"] == "org.flexfeed.message.v1" {
            let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            all.push((text("id"), text("data")));
        }
    }
    Ok(all)
}
