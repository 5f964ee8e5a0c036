//! Receivers that operators keep on their own connections.

use store::StoreError;

use super::context::Context;
use super::supervisor::answer;

/// Has the transport keep those there that the database says, and no others.
pub(super) async fn hold(context: &Context) -> Result<(), StoreError> {
    let held = answer(context.store.receivers().held()).await?;
    context.handle.hold(held.into_iter().collect()).await;
    Ok(())
}
