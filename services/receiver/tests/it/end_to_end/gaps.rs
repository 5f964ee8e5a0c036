//! Missing updates and other numberings.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_new_store_and_a_gap_are_reported_and_survived() {
    let mut site = Site::start().await;
    let home = Home::new(site.link());
    let running = home.start();
    running.wait_for("connected to the source");
    site.publish(1).await;
    site.publish(2).await;
    home.cursor(2).await;
    stop(running);

    // Away for longer than the source keeps updates.
    for seq in 3..=9 {
        site.publish(seq).await;
    }
    site.stop().await;
    site.forget_before(7);
    site.again().await;
    let running = home.start();
    running.wait_for("first=3 last=6");
    let status = home.cursor(9).await;
    let channel = &status["channels"][0];
    assert_eq!(channel["missing"], 4);
    assert_eq!(
        (&channel["gaps"][0]["from"], &channel["gaps"][0]["to"]),
        (&Value::from(3), &Value::from(6))
    );
    home.entries(&[9, 8, 7, 2, 1]).await;

    // Another store, with other entries under the same numbers.
    site.stop().await;
    site.replace_store();
    site.again().await;
    running.wait_for("numbering restarted");
    for seq in 1..=3 {
        site.publish(seq).await;
    }
    let status = home.cursor(3).await;
    assert_eq!(
        status["channels"][0]["incarnation"],
        site.incarnation.to_string()
    );
    stop(running);
    // Entries 1 and 2 came again, as new versions; none is there twice.
    assert_eq!(entries(&home.data()), [3, 2, 1, 9, 8, 7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_at_the_end_is_announced_once() {
    let mut site = Site::start().await;
    let home = Home::new(site.link());
    let running = home.start();
    running.wait_for("connected to the source");
    site.publish(1).await;
    home.cursor(1).await;
    stop(running);
    for seq in 2..=6 {
        site.publish(seq).await;
    }
    site.stop().await;
    site.forget_before(6);
    site.again().await;
    let mut running = home.start();
    running.wait_for("first=2 last=5");
    // The cursor is past the gap as soon as it can be: nothing is asked for twice.
    home.until("a cursor after the gap", |status| {
        status["channels"][0]["cursor"].as_u64() >= Some(5)
    })
    .await;
    running.signal(program::Signal::KILL);
    running.exit_code();
    let running = home.start();
    // Of this process, not the last word of the one before.
    let pid = running.id();
    let again = |status: &Value| status["pid"] == pid && status["channels"][0]["cursor"] == 6;
    let status = home.until("the next life", again).await;
    assert_eq!(status["channels"][0]["missing"], 0, "{status}");
    stop(running);
    assert_eq!(entries(&home.data()), [6, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_backup_at_the_source_is_followed_again() {
    let mut site = Site::start().await;
    let home = Home::new(site.link());
    let running = home.start();
    running.wait_for("connected to the source");
    for seq in 1..=8 {
        site.publish(seq).await;
    }
    home.cursor(8).await;

    // The same incarnation, but numbers that the receiver has come again.
    site.stop().await;
    site.restore(5);
    site.again().await;
    let line = running.wait_for("restored from an older backup");
    assert!(line.contains("WARN") && line.contains("is at 8"), "{line}");
    site.publish(6).await;
    site.publish(7).await;
    let status = home.cursor(7).await;
    assert_eq!(status["channels"][0]["head"], 7);
    assert_eq!(home.logged()[..8], in_order(8));
    assert!(home.logged()[8..].ends_with(&[6, 7]), "{:?}", home.logged());
    stop(running);
    let entries = entries(&home.data());
    assert_eq!(entries[..2], [7, 6]);
    let mut each = entries.clone();
    each.sort_unstable();
    assert_eq!(each, in_order(8), "{entries:?}");

    // The present position survives a restart.
    let running = home.start();
    home.cursor(7).await;
    site.publish(8).await;
    home.cursor(8).await;
    stop(running);
}
