//! Commands: asked by consoles, taken by one source, finished.

use std::collections::BTreeSet;
use std::time::Duration;

use store::{
    AuditFilter, CommandState, Fence, Holder, LeaseOutcome, NewAudit, NewCommand, Store, StoreError,
};
use uuid::Uuid;

use crate::migrations::Raw;
use crate::site::{Site, on_both};

on_both! {
    a_command_is_asked_taken_and_finished,
    two_takers_get_each_command_once,
    only_the_holder_of_the_lease_takes_commands,
    commands_that_no_source_takes_expire,
    commands_expire_also_where_no_source_is,
    the_queue_has_an_end,
}

fn command(kind: &str) -> NewCommand {
    NewCommand {
        kind: kind.to_owned(),
        asked_by: "ann".to_owned(),
        ..NewCommand::default()
    }
}

async fn lease(opened: &Store, channel: &str) -> Fence {
    opened.channels().open(channel).await.unwrap();
    let holder = Holder {
        id: Uuid::from_u128(1),
        name: "attic".to_owned(),
    };
    let ttl = Duration::from_secs(600);
    match opened.leases().take(channel, &holder, ttl).await.unwrap() {
        LeaseOutcome::Held(lease) => Fence {
            channel: lease.channel,
            fence: lease.fence,
        },
        other => panic!("{other:?}"),
    }
}

async fn a_command_is_asked_taken_and_finished(site: Site) {
    let opened = site.open().await;
    let held = [lease(&opened, "lore").await];
    let records = &opened;
    assert!(records.commands().take(&held, 9).await.unwrap().is_empty());
    let asked = NewCommand {
        receiver: Some(Uuid::from_u128(7)),
        channel: Some("lore".to_owned()),
        url: Some("https://example.org/".to_owned()),
        argument: Some("now\0".repeat(5000)),
        ..command("disconnect")
    };
    let id = records.commands().ask(&asked).await.unwrap();
    let waiting = records.commands().get(id).await.unwrap().unwrap();
    assert_eq!(
        (waiting.state, waiting.taken_ms),
        (CommandState::Queued, None)
    );
    assert!(waiting.asked_ms > 0);
    // A command that was not taken cannot be finished.
    assert!(!records.commands().finish(id, Ok("")).await.unwrap());
    let taken = records.commands().take(&held, 9).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!((taken[0].id, taken[0].state), (id, CommandState::Taken));
    assert_eq!(taken[0].asked.receiver, asked.receiver);
    assert_eq!(taken[0].asked.url, asked.url);
    let argument = taken[0].asked.argument.as_ref().unwrap();
    assert!(argument.len() <= 4096 && argument.starts_with("now\u{fffd}now"));
    assert!(records.commands().take(&held, 9).await.unwrap().is_empty());
    assert!(
        records
            .commands()
            .finish(id, Err("it is not there"))
            .await
            .unwrap()
    );
    assert!(!records.commands().finish(id, Ok("twice")).await.unwrap());
    let done = records.commands().get(id).await.unwrap().unwrap();
    assert_eq!(done.state, CommandState::Failed);
    assert_eq!(done.result.as_deref(), Some("it is not there"));
    assert!(done.done_ms >= done.taken_ms && done.taken_ms >= Some(done.asked_ms));
    let other = records.commands().ask(&command("drain")).await.unwrap();
    records.commands().take(&held, 9).await.unwrap();
    records
        .commands()
        .finish(other, Ok("draining"))
        .await
        .unwrap();
    let all = records.commands().list(None, 9).await.unwrap();
    let states: Vec<_> = all.iter().map(|c| (c.id, c.state)).collect();
    assert_eq!(
        states,
        [(other, CommandState::Done), (id, CommandState::Failed)]
    );
    assert_eq!(
        records.commands().list(Some(other), 9).await.unwrap().len(),
        1
    );
    assert_eq!(records.commands().get(other + 1).await.unwrap(), None);
    let long = NewCommand {
        channel: Some("x".repeat(300)),
        ..command("rekey")
    };
    let error = records.commands().ask(&long).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLong { .. }), "{error:?}");
    // The audit log has what became of both, and nothing of what was only asked.
    let found = ended(&opened, "ann").await;
    assert_eq!(found.len(), 2, "{found:?}");
    let (drained, failed) = (&found[0], &found[1]);
    assert_eq!(
        (&*drained.action, &*drained.target, &*drained.outcome),
        ("source.drain", "", "ok")
    );
    let detail = format!("{{\"command_id\":{other},\"result\":\"draining\"}}");
    assert_eq!(drained.detail, detail);
    assert_eq!(
        (&*failed.action, failed.target.clone(), &*failed.outcome),
        (
            "receiver.disconnect",
            Uuid::from_u128(7).to_string(),
            "it is not there"
        )
    );
}

/// Returns the audit log's entries about finished commands of an actor, the newest first.
async fn ended(opened: &Store, actor: &str) -> Vec<NewAudit> {
    let filter = AuditFilter {
        actor: Some(actor.to_owned()),
        limit: 100,
        ..AuditFilter::default()
    };
    let rows = opened.audit_log().list(&filter).await.unwrap();
    let lines = rows.into_iter().map(|row| row.done);
    lines
        .inspect(|line| assert_eq!(line.via, "source"))
        .collect()
}

async fn two_takers_get_each_command_once(site: Site) {
    let opened = site.open().await;
    let held = lease(&opened, "lore").await;
    let mut asked = BTreeSet::new();
    for _ in 0..60 {
        asked.insert(opened.commands().ask(&command("rekey")).await.unwrap());
    }
    let mut takers = Vec::new();
    for _ in 0..3 {
        let (records, held) = (site.open().await, [held.clone()]);
        takers.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let some = records.commands().take(&held, 7).await.unwrap();
                assert!(some.len() <= 7);
                if some.is_empty() {
                    return mine;
                }
                assert!(some.is_sorted_by_key(|command| command.id));
                mine.extend(some.into_iter().map(|command| command.id));
            }
        }));
    }
    let mut taken = Vec::new();
    for taker in takers {
        taken.extend(taker.await.unwrap());
    }
    // Some may have found the rest in another's hands and have gone; nothing is left.
    taken.extend(
        opened
            .commands()
            .take(&[held], 100)
            .await
            .unwrap()
            .iter()
            .map(|command| command.id),
    );
    assert_eq!(taken.len(), 60);
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), asked);
}

async fn only_the_holder_of_the_lease_takes_commands(site: Site) {
    let opened = site.open().await;
    let (lore, news) = (lease(&opened, "lore").await, lease(&opened, "news").await);
    let records = &opened;
    let of = |channel: &str| NewCommand {
        channel: Some(channel.to_owned()),
        ..command("rekey")
    };
    let first = records.commands().ask(&of("lore")).await.unwrap();
    let second = records.commands().ask(&of("news")).await.unwrap();
    let third = records.commands().ask(&command("drain")).await.unwrap();
    let old = Fence {
        fence: lore.fence - 1,
        ..lore.clone()
    };
    let none = Fence {
        channel: "none".to_owned(),
        fence: 0,
    };
    assert!(records.commands().take(&[], 9).await.unwrap().is_empty());
    let some = records
        .commands()
        .take(&[old.clone(), none], 9)
        .await
        .unwrap();
    assert!(some.is_empty(), "{some:?}");
    let ids = |commands: Vec<store::Command>| -> Vec<i64> {
        commands.into_iter().map(|command| command.id).collect()
    };
    let taken = records.commands().take(&[old, news], 9).await.unwrap();
    assert_eq!(ids(taken), [second, third]);
    let taken = records.commands().take(&[lore], 9).await.unwrap();
    assert_eq!(ids(taken), [first]);
}

async fn commands_that_no_source_takes_expire(site: Site) {
    let opened = site.open().await;
    let held = [lease(&opened, "lore").await];
    let records = &opened;
    let old = records.commands().ask(&command("old")).await.unwrap();
    let lost = records.commands().ask(&command("lost")).await.unwrap();
    let young = records.commands().ask(&command("young")).await.unwrap();
    let mut raw = Raw::to(&site.url).await;
    raw.run(&format!(
        "UPDATE commands SET asked_at = asked_at - 61000 WHERE id = {old};
         UPDATE commands SET state = 'taken', taken_at = asked_at - 601000 WHERE id = {lost}"
    ))
    .await;
    let state = async |id| records.commands().get(id).await.unwrap().unwrap().state;
    // Before anybody has written it down.
    assert_eq!(state(old).await, CommandState::Expired);
    assert_eq!(state(lost).await, CommandState::Expired);
    assert_eq!(state(young).await, CommandState::Queued);
    let taken = records.commands().take(&held, 9).await.unwrap();
    let ids: Vec<_> = taken.iter().map(|command| command.id).collect();
    assert_eq!(ids, [young]);
    assert_eq!(
        raw.count("SELECT COUNT(*) FROM commands WHERE state = 'expired' AND done_at IS NOT NULL")
            .await,
        2
    );
    // Too late.
    assert!(!records.commands().finish(lost, Ok("")).await.unwrap());
    raw.close().await;
    // Once each, also on another look.
    records.commands().take(&held, 9).await.unwrap();
    let mut found = ended(&opened, "ann").await;
    found.sort_by_key(|line| line.action.clone());
    let said: Vec<_> = found
        .iter()
        .map(|line| (&*line.action, &*line.outcome))
        .collect();
    assert_eq!(
        said,
        [
            (
                "command.lost",
                "the source that took it did not say what became of it"
            ),
            ("command.old", "no source took it within a minute"),
        ]
    );
    assert_eq!(found[1].detail, format!("{{\"command_id\":{old}}}"));
}

async fn commands_expire_also_where_no_source_is(site: Site) {
    let opened = site.open().await;
    let records = &opened;
    assert_eq!(records.commands().expire().await.unwrap(), 0);
    let old = records.commands().ask(&command("old")).await.unwrap();
    let young = records.commands().ask(&command("young")).await.unwrap();
    let mut raw = Raw::to(&site.url).await;
    raw.run(&format!(
        "UPDATE commands SET asked_at = asked_at - 61000 WHERE id = {old}"
    ))
    .await;
    raw.close().await;
    assert_eq!(records.commands().expire().await.unwrap(), 1);
    assert_eq!(records.commands().expire().await.unwrap(), 0, "once");
    let found = ended(&opened, "ann").await;
    let said: Vec<_> = found.iter().map(|line| &*line.outcome).collect();
    assert_eq!(said, ["no source took it within a minute"]);
    let waiting = records.commands().get(young).await.unwrap().unwrap();
    assert_eq!(waiting.state, CommandState::Queued);
}

async fn the_queue_has_an_end(site: Site) {
    let opened = site.open().await;
    let records = &opened;
    let first = records.commands().ask(&command("first")).await.unwrap();
    let mut raw = Raw::to(&site.url).await;
    let mut rows = String::new();
    for _ in 1..1000 {
        rows.push_str("('x', 'ann', (SELECT MAX(asked_at) FROM commands), 'queued'),");
    }
    rows.pop();
    raw.run(&format!(
        "INSERT INTO commands (kind, asked_by, asked_at, state) VALUES {rows}"
    ))
    .await;
    let error = records.commands().ask(&command("more")).await.unwrap_err();
    assert!(
        matches!(error, StoreError::TooMany { limit: 1000, .. }),
        "{error:?}"
    );
    raw.run(&format!(
        "UPDATE commands SET asked_at = asked_at - 61000 WHERE id > {first}"
    ))
    .await;
    records.commands().ask(&command("more")).await.unwrap();
    raw.close().await;
}
