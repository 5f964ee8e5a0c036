//! Updates with a deadline.

use std::time::Duration;

use super::*;

/// Updates that expired while the receiver was away are journalled as expired, passed over by it,
/// and not delivered; what is still wanted comes at once.
#[tokio::test(flavor = "multi_thread")]
async fn what_expired_is_passed_over_and_the_rest_comes_at_once() {
    let mut site = Site::start().await;
    site.stop().await;
    site.sign_from(1);
    site.again().await;
    let home = Home::new(site.link());
    let running = home.start();
    running.wait_for("connected to the source");
    site.lifetime = Some(Duration::from_secs(600));
    site.publish(1).await;
    home.cursor(1).await;
    counted(&home, 1, 0).await;
    stop(running);

    site.lifetime = Some(Duration::from_millis(1));
    for seq in 2..=9 {
        site.publish(seq).await;
    }
    site.lifetime = Some(Duration::from_secs(600));
    site.publish(10).await;
    site.lifetime = None;
    site.publish(11).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let running = home.start();
    let status = home.cursor(11).await;
    let missing = &status["channels"][0]["missing"];
    assert_eq!(missing, 0, "expired updates are no gap");
    counted(&home, 1, 8).await;
    home.entries(&[11, 10, 1]).await;
    assert_eq!(home.logged(), [1, 10, 11]);
    stop(running);

    // The cursor is behind them: they are neither asked for nor counted again.
    let running = home.start();
    site.publish(12).await;
    home.cursor(12).await;
    site.lifetime = Some(Duration::from_secs(600));
    site.publish(13).await;
    counted(&home, 1, 0).await;
    stop(running);
}

/// Waits until so many updates of this run are counted as live, and as expired.
async fn counted(home: &Home, live: u64, expired: u64) {
    let what = format!("{live} live, {expired} expired");
    home.until(&what, |status| {
        let channel = &status["channels"][0];
        channel["live"] == live && channel["expired"] == expired
    })
    .await;
}
