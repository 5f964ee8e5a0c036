//! Records for the console, and operators' commands by the database.

use flexicast_tokio::receiver::Event;
use kit::wait::on_tokio::until_some;
use store::{CommandState, NewCommand, ReceiverEdit, Store};

use crate::receiving::{Listening, configuration};
use crate::running::{Feed, Running, source};

/// Asks something of the source and waits for what comes of it.
async fn ask(database: &Store, command: NewCommand) -> (CommandState, String) {
    let records = &database;
    let id = records.commands().ask(&command).await.unwrap();
    until_some(&format!("{command:?}"), async || {
        let command = records.commands().get(id).await.unwrap().unwrap();
        let is_over = !matches!(command.state, CommandState::Queued | CommandState::Taken);
        is_over.then(|| (command.state, command.result.unwrap_or_default()))
    })
    .await
}

fn command(kind: &str) -> NewCommand {
    NewCommand {
        kind: kind.into(),
        asked_by: "an operator".into(),
        ..NewCommand::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_and_direct_a_source_by_its_database() {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(3);
    let mut program = source(folder.path(), &feed);
    program.args(["--public-address", "192.168.7.7:4433"]);
    let running = Running::start(program);
    let path = folder.path().join("flexfeed.db");
    let database = store::open_file(&path).await.unwrap();
    let records = &database;
    let info = until_some("what it says about itself", async || {
        records.records().snapshot().await.unwrap().info
    })
    .await;
    assert_eq!(info.public_address, ["192.168.7.7:4433"]);
    assert!(info.warnings[0].contains("private"), "{info:?}");
    let of_it = info.warnings.iter().filter(|w| w.contains("192.168.7.7"));
    assert_eq!(of_it.count(), 1, "{info:?}");
    // By this word the console knows what to say beside a link.
    assert!(info.warnings[0].starts_with("public-address: "), "{info:?}");
    assert!(info.pins.len() == 1 && !info.draining && info.started_ms > 0);

    // The address in the link leads nowhere here.
    let mut config = configuration(folder.path());
    let log = running.log();
    let port = log.split("on UDP ").nth(1).unwrap();
    config.server = port.split(',').next().unwrap().to_owned();
    let receiver = config.receiver_id;
    let mut listening = Listening::start(config);
    let third = |event: &Event| matches!(event, Event::Update { seq: 3, .. }).then_some(());
    listening.until("all updates", third).await;
    let state = until_some("its place", async || {
        let states = records.records().snapshot().await.unwrap().states;
        let its = states.into_iter().find(|row| row.receiver == receiver);
        its.filter(|row| row.connected && row.cursor == Some(3))
    })
    .await;
    assert_eq!(
        (state.rung.as_str(), state.channel.as_str()),
        ("unicast", "lore")
    );

    // Disconnected, it comes back by itself.
    let mut disconnect = command("disconnect");
    disconnect.receiver = Some(receiver);
    let (state, result) = ask(&database, disconnect.clone()).await;
    assert_eq!(state, CommandState::Done, "{result}");
    until_some("another connection", async || {
        let sessions = records
            .records()
            .sessions(receiver, None, 10)
            .await
            .unwrap();
        // A stalled machine may lose one more.
        let is_back = sessions.len() >= 2 && sessions[0].ended_ms.is_none();
        is_back.then_some(())
    })
    .await;
    until_some("the end of the first one", async || {
        let sessions = records
            .records()
            .sessions(receiver, None, 10)
            .await
            .unwrap();
        let mut causes = sessions.iter().filter_map(|row| row.end_cause.as_ref());
        causes.any(|cause| cause.contains("operator")).then_some(())
    })
    .await;
    disconnect.receiver = Some(uuid::Uuid::new_v4());
    let (state, result) = ask(&database, disconnect).await;
    assert_eq!(state, CommandState::Failed);
    assert!(result.contains("not connected"), "{result}");

    // Held: the source says so of it.
    let edit = ReceiverEdit {
        label: Some("Rack 4".into()),
        tags: Some(vec!["paris".into(), "lab".into()]),
        held: Some(true),
    };
    records.receivers().edit(receiver, &edit).await.unwrap();
    until_some("it is held", async || {
        let states = records.records().snapshot().await.unwrap().states;
        let its = states.into_iter().find(|row| row.receiver == receiver)?;
        (its.cause == "held").then_some(())
    })
    .await;

    let list = |arguments: &[&str]| {
        let mut command = crate::running::program();
        command.args(arguments).arg("--data").arg(folder.path());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let shown = list(&["receiver", "list"]);
    assert!(shown.contains("Rack 4 (r1)  held   paris,lab"), "{shown}");
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
    let shown = list(&["receiver", "list", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let its = &shown["receivers"][0];
    assert_eq!(
        (&its["label"], &its["held"]),
        (&"Rack 4".into(), &true.into())
    );
    assert_eq!(its["tags"], serde_json::json!(["paris", "lab"]));

    // The feed: at once, and then not any more.
    let mut refresh = command("refresh-feed");
    refresh.channel = Some("lore".into());
    refresh.url = Some(feed.url.clone());
    let (state, result) = ask(&database, refresh.clone()).await;
    assert_eq!(state, CommandState::Done, "{result}");
    assert!(result.starts_with("ok"), "{result}");
    assert!(
        records
            .feeds()
            .set_paused("lore", &feed.url, true)
            .await
            .unwrap()
    );
    until_some("it is paused", async || {
        let page = running.page("/status.json").1;
        page.contains("paused by an operator").then_some(())
    })
    .await;
    let shown = list(&["feed", "list"]);
    assert!(shown.contains("  paused  "), "{shown}");
    let shown = list(&["feed", "list", "--json"]);
    assert!(shown.contains("\"paused\": true"), "{shown}");
    feed.grow(1);
    let (state, result) = ask(&database, refresh).await;
    assert_eq!(state, CommandState::Failed, "{result}");
    assert!(result.contains("paused by an operator"), "{result}");
    assert!(!running.page("/status.json").1.contains("\"head\":4,"));
    assert!(
        records
            .feeds()
            .set_paused("lore", &feed.url, false)
            .await
            .unwrap()
    );
    let fourth = |event: &Event| matches!(event, Event::Update { seq: 4, .. }).then_some(());
    listening.until("the fourth", fourth).await;

    // This channel has no flow, and commands for unknown targets fail.
    let mut rekey = command("rekey");
    rekey.channel = Some("lore".into());
    let (state, result) = ask(&database, rekey).await;
    assert!(
        state == CommandState::Done || result.contains("no flow"),
        "{result}"
    );
    let (state, result) = ask(&database, command("dance")).await;
    assert_eq!(state, CommandState::Failed);
    assert!(result.contains("dance"), "{result}");
    let metrics = running.page("/metrics").1;
    let line = "flexfeed_source_commands_total{kind=\"disconnect\",result=\"done\"} 1";
    assert!(metrics.contains(line), "{metrics}");

    let (state, result) = ask(&database, command("drain")).await;
    assert_eq!(state, CommandState::Done, "{result}");
    let (status, log, _) = running.end();
    assert_eq!(status.code(), Some(0), "{log}");
    let after = records.records().snapshot().await.unwrap();
    assert!(
        after.states.iter().all(|row| !row.connected),
        "{:?}",
        after.states
    );
    assert!(after.info.unwrap().draining);
    let sessions = records
        .records()
        .sessions(receiver, None, 10)
        .await
        .unwrap();
    assert!(
        sessions.iter().all(|row| row.ended_ms.is_some()),
        "{sessions:?}"
    );
    database.close().await;
}
