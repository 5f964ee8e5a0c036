//! Receive buffers: one batch for all receivers that run on a thread, whose loops read one at a
//! time.

use std::cell::RefCell;

use netio::RecvBatch;

thread_local! {
    static BATCH: RefCell<RecvBatch> = RefCell::new(RecvBatch::new());
}

/// Calls `read` with the buffers of this thread.
pub(super) fn with_batch<T>(read: impl FnOnce(&mut RecvBatch) -> T) -> T {
    BATCH.with(|batch| match batch.try_borrow_mut() {
        Ok(mut batch) => read(&mut batch),
        // Within another call: not in use yet, and no reason to fail.
        Err(_) => read(&mut RecvBatch::new()),
    })
}
