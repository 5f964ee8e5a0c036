//! Garbage, wrong credentials and pages that are no feed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::checks::{check_all_by_flow, check_moves, check_outputs};
use super::{Fault, PATIENCE, Plan, SSM_GROUP, Stage};
use crate::lab::Node;

const ALL: [&str; 3] = ["r1", "r2", "r3"];

/// f: bad inputs do not disturb well-behaved peers, each is answered by a clear message, and
/// nothing panics.
///
/// # Errors
/// One of these does not hold.
pub fn bad_input_disturbs_nothing(fault: Option<Fault>) -> Result<()> {
    Stage::play(Plan::new("bad-input", fault), |stage| {
        stage.wait_rung(&ALL, "multicast")?;
        let before = stage.settle()?;
        stage.set_rate(5.0)?;

        garbage(stage)?;
        let link = stage.link()?;
        refused(stage, "stranger", &with_token(&link)?, &["token"])?;
        refused(stage, "doubter", &with_pin(&link)?, &["pin", "certificate"])?;
        stage.set_rate(0.0)?;
        stage.settle()?;
        not_a_feed(stage)?;

        stage.grow(10)?;
        stage.settle()?;
        check_outputs(stage, &ALL)?;
        let status = stage.source_status_now()?;
        for name in ALL {
            check_moves(name, &status.moves_of(name), &[("multicast", &["joined"])])?;
            check_all_by_flow(name, &stage.seat(name)?.deliveries()?, before)?;
        }
        ensure!(
            status.receivers.len() == ALL.len(),
            "the source lists receivers that it should have refused: {:?}",
            status.receivers
        );
        Ok(())
    })
}

/// Noise to the QUIC port from a stranger, and to the group from a stranger and from the source's
/// own address, which is as far as a forger can come.
fn garbage(stage: &mut Stage) -> Result<()> {
    let flow = stage
        .source_status_now()?
        .flow
        .context("the source has no flow")?
        .id;
    let stranger = stage.add_node("mallory")?;
    let source = stage.source_node().clone();
    let quic = format!("{}:4433", source.address());
    let flow = ["--flow", &flow];
    probe(stage, &stranger, &quic, &[])?;
    probe(stage, &stranger, &quic, &flow)?;
    probe(stage, &stranger, SSM_GROUP, &flow)?;
    probe(stage, &source, SSM_GROUP, &flow)?;
    for name in ALL {
        stage.wait(
            &format!("{name} to count what is invalid"),
            PATIENCE,
            |stage| {
                let channel = stage.seat(name)?.channel()?;
                Ok(channel
                    .filter(|channel| channel.flow_invalid > 0)
                    .map(|_| ()))
            },
        )?;
    }
    // Deliveries go on after it.
    let head = stage.source_status_now()?.head;
    stage.wait_cursor(&ALL, head + 3)
}

fn probe(stage: &Stage, from: &Node, to: &str, more: &[&str]) -> Result<()> {
    let output = from
        .command(&stage.bins().probe)?
        .args(["garbage", "--to", to, "--count", "300"])
        .args(more)
        .output()
        .context("starting flexfeed-probe")?;
    ensure!(
        output.status.success(),
        "sending garbage from {} to {to}: {}",
        from.name(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Starts a receiver that must not get in, and waits until it says why, in its status or by ending
/// with status 1; its log then has one of these words.
fn refused(stage: &mut Stage, name: &str, link: &str, words: &[&str]) -> Result<()> {
    let node = stage.add_node(name)?;
    let mut seat = stage.make_seat(node, link)?;
    let what = format!("{name} to say why it is not let in");
    let waited = stage.wait(&what, PATIENCE, |_| {
        let ended = seat.running()?.ended()?;
        if let Some(status) = ended {
            ensure!(
                status.code() == Some(1),
                "{name} ended with {status}, not with exit code 1"
            );
            return Ok(Some(()));
        }
        let failed = seat.status()?.is_some_and(|status| status.error.is_some());
        Ok(failed.then_some(()))
    });
    waited.with_context(|| seat.describe())?;
    // Its status may be a moment before its log.
    let what = format!("{name}'s log to name one of {words:?}");
    let named = stage.wait(&what, PATIENCE, |_| {
        let log = seat.running()?.log_text()?.to_lowercase();
        Ok(words.iter().any(|word| log.contains(word)).then_some(()))
    });
    named.with_context(|| seat.describe())?;
    let outputs = seat.atom_file();
    ensure!(
        !outputs.exists() || seat.read_atom()?.is_empty(),
        "{name} got entries without being let in"
    );
    if seat.running()?.ended()?.is_none() {
        seat.running()?.terminate(Duration::from_secs(20))?;
    }
    Ok(())
}

/// A bot-check page and noise, both with status 200, in place of the feed.
fn not_a_feed(stage: &mut Stage) -> Result<()> {
    let head = stage.source_status_now()?.head;
    for (mode, states) in [
        ("html", ["challenged", "not-a-feed"]),
        ("garbage", ["not-a-feed", "error"]),
    ] {
        stage.set_mode(mode)?;
        let detail = stage.wait(
            &format!("the source to notice that {mode} is no feed"),
            PATIENCE,
            |stage| {
                let feed = stage.source_status().map(|status| status.feed);
                let noticed = feed.filter(|feed| states.contains(&feed.state.as_str()));
                Ok(noticed.map(|feed| feed.detail.unwrap_or_default()))
            },
        )?;
        ensure!(
            !detail.is_empty(),
            "the source does not say what is wrong with {mode}"
        );
    }
    stage.set_mode("feed")?;
    stage.wait("the source to read the feed again", PATIENCE, |stage| {
        let feed = stage.source_status().map(|status| status.feed);
        let good = feed.is_some_and(|feed| matches!(feed.state.as_str(), "ok" | "not-modified"));
        Ok(good.then_some(()))
    })?;
    let later = stage.source_status_now()?.head;
    ensure!(
        later == head,
        "updates {} to {later} came from what is no feed",
        head + 1
    );
    Ok(())
}

/// The link with another token of the same form.
fn with_token(link: &str) -> Result<String> {
    let (token, rest) = link
        .strip_prefix("flexfeed://")
        .and_then(|rest| rest.split_once('@'))
        .context("the link has no token")?;
    Ok(format!("flexfeed://{}@{rest}", turned(token)))
}

/// The link with another pin of the same form.
fn with_pin(link: &str) -> Result<String> {
    let (before, rest) = link.split_once("sha256:").context("the link has no pin")?;
    let end = rest.find('&').unwrap_or(rest.len());
    let (pin, after) = rest.split_at(end);
    Ok(format!("{before}sha256:{}{after}", turned(pin)))
}

/// Other text of the same length and alphabet: the first half's letters and digits move on by one.
///
/// The end stays, because the last character of unpadded Base64 does not have all values.
fn turned(text: &str) -> String {
    let half = text.len() / 2;
    text.char_indices()
        .map(|(at, character)| match character {
            _ if at >= half => character,
            'a'..='y' | 'A'..='Y' | '0'..='8' => {
                char::from_u32(u32::from(character) + 1).unwrap_or(character)
            }
            'z' => 'a',
            'Z' => 'A',
            '9' => '0',
            other => other,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_links_have_the_form_of_right_ones() {
        let link = "flexfeed://aZ9-_q@10.0.0.1:4433?pin=sha256:AbCdEf&ch=lore";
        assert_eq!(
            with_token(link).unwrap(),
            "flexfeed://bA0-_q@10.0.0.1:4433?pin=sha256:AbCdEf&ch=lore"
        );
        assert_eq!(
            with_pin(link).unwrap(),
            "flexfeed://aZ9-_q@10.0.0.1:4433?pin=sha256:BcDdEf&ch=lore"
        );
    }
}
