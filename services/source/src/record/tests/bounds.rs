//! What waits to be written is bounded.

use store::{Fence, MoveRow};
use uuid::Uuid;

use super::CHANNEL;
use crate::metrics::RecordMetrics;
use crate::record::outbox::Outbox;

#[test]
fn what_finds_no_room_is_counted_and_the_oldest_goes() {
    let metrics = RecordMetrics::default();
    let outbox = Outbox::new(metrics.clone());
    for n in 0..100_010 {
        outbox.step(
            n,
            MoveRow {
                id: 0,
                at_ms: i64::try_from(n).unwrap(),
                receiver: Uuid::nil(),
                name: String::new(),
                channel: CHANNEL.into(),
                from: "unicast".into(),
                to: "multicast".into(),
                cause: "joined".into(),
                change: 0,
            },
        );
    }
    assert_eq!(metrics.counted("moves"), (10, 0));
    assert!(outbox.take().is_none(), "no lease to write by");
    outbox.set_fences(vec![Fence {
        channel: CHANNEL.into(),
        fence: 1,
    }]);
    let batch = outbox.take().unwrap();
    assert_eq!(batch.moves[0].at_ms, 10);
    assert!(batch.moves.len() < 10_000, "written in parts");
}
