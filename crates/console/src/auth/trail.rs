//! State of a request being answered: its caller, and whether its action was audited. A failure
//! before that is audited at the end, from this.

use std::cell::{Cell, RefCell};
use std::future::Future;

use super::caller::Caller;

tokio::task_local! {
    static TRAIL: AuditTrail;
}

#[derive(Debug, Default)]
struct AuditTrail {
    caller: RefCell<Option<Caller>>,
    is_noted: Cell<bool>,
}

/// State at the end of a request.
#[derive(Debug)]
pub(crate) struct TrailEnd {
    /// The caller, if known.
    pub(crate) caller: Option<Caller>,
    /// Whether something was noted.
    pub(crate) is_noted: bool,
}

/// Follows what answers a request.
pub(crate) async fn follow<T>(answering: impl Future<Output = T>) -> (T, TrailEnd) {
    let whole = async {
        let answer = answering.await;
        let left = TRAIL.with(|trail| TrailEnd {
            caller: trail.caller.take(),
            is_noted: trail.is_noted.get(),
        });
        (answer, left)
    };
    TRAIL.scope(AuditTrail::default(), whole).await
}

/// Sets the caller.
pub(super) fn known(caller: &Caller) {
    // Outside of requests there is no trail.
    let _ = TRAIL.try_with(|trail| trail.caller.replace(Some(caller.clone())));
}

/// Something was noted.
pub(super) fn noted() {
    let _ = TRAIL.try_with(|trail| trail.is_noted.set(true));
}
