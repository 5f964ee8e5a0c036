//! What is known of a request while it is answered: who asks, and whether it was noted what they did.
//! What fails before anybody could note it is noted at the end, from this.

use std::cell::{Cell, RefCell};
use std::future::Future;

use super::caller::Caller;

tokio::task_local! {
    static TRAIL: Trail;
}

#[derive(Debug, Default)]
struct Trail {
    caller: RefCell<Option<Caller>>,
    is_noted: Cell<bool>,
}

/// What was left at the end.
#[derive(Debug)]
pub(crate) struct Left {
    /// Who asked, if that is known.
    pub(crate) caller: Option<Caller>,
    /// Whether something was noted.
    pub(crate) is_noted: bool,
}

/// Follows what answers a request.
pub(crate) async fn follow<T>(answering: impl Future<Output = T>) -> (T, Left) {
    let whole = async {
        let answer = answering.await;
        let left = TRAIL.with(|trail| Left {
            caller: trail.caller.take(),
            is_noted: trail.is_noted.get(),
        });
        (answer, left)
    };
    TRAIL.scope(Trail::default(), whole).await
}

/// It is known who asks, whatever they may.
pub(super) fn known(caller: &Caller) {
    // Outside of requests nobody follows.
    let _ = TRAIL.try_with(|trail| trail.caller.replace(Some(caller.clone())));
}

/// Something was noted.
pub(super) fn noted() {
    let _ = TRAIL.try_with(|trail| trail.is_noted.set(true));
}
