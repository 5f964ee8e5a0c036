//! What the engine is told from outside, without a thread that answers.
#![allow(clippy::unwrap_used)]

use super::*;

/// An engine whose thread does not come to its turn.
fn stuck() -> (Engine, std::sync::mpsc::Receiver<oneshot::Sender<View>>) {
    let (views, waiting) = sync_channel(VIEWS);
    let engine = Engine {
        views,
        orders: Arc::default(),
        waker: Poller::new().unwrap().waker(),
        counters: Arc::default(),
        thread: std::sync::Mutex::new(None),
        ended: tokio::sync::watch::channel(false).1,
    };
    (engine, waiting)
}

#[tokio::test]
async fn orders_reach_a_thread_however_many_look_at_it() {
    let (engine, waiting) = stuck();
    for _ in 0..VIEWS {
        let (answer, _) = oneshot::channel();
        engine.views.try_send(answer).unwrap();
    }
    assert!(engine.view().await.is_none());
    engine.drain();
    engine.stop();
    assert!(engine.orders.drain.load(Ordering::Acquire));
    assert!(engine.orders.stop.load(Ordering::Acquire));
    drop(waiting);
}

#[tokio::test]
async fn a_thread_is_alive_if_it_turns() {
    let (engine, _waiting) = stuck();
    assert!(!engine.is_alive(Duration::from_millis(20)).await);
    let orders = Arc::clone(&engine.orders);
    let turning = std::thread::spawn(move || {
        while !orders.stop.load(Ordering::Acquire) {
            orders.turns.fetch_add(1, Ordering::Release);
            std::thread::yield_now();
        }
    });
    assert!(engine.is_alive(Duration::from_secs(20)).await);
    engine.stop();
    turning.join().unwrap();
}
