//! Leases of channels: one publishing process at a time, with a number that grows at each change.

use uuid::Uuid;

/// A process that publishes, or would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Of its own for each place that a process can run in.
    pub id: Uuid,
    /// Display name, such as the host's name.
    pub name: String,
}

/// The right to publish a channel for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The channel.
    pub channel: String,
    /// Grows whenever the lease is granted: what an older holder still tries to append with
    /// its smaller number is refused. It begins with the time at which the channel was made or
    /// restored, so that a lease on a database that was replaced does not fit the new one.
    pub fence: u64,
}

/// The answer to who asks for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// The lease is held by the caller.
    Held(Lease),
    /// Another holder has it.
    Other {
        /// Display name of the holder.
        name: String,
        /// For how long yet, if it is not renewed.
        for_ms: i64,
    },
}

/// A lease that has not expired, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// Display name of the holder.
    pub name: String,
    /// For how long yet, if it is not renewed.
    pub for_ms: i64,
    /// See [`Lease::fence`].
    pub fence: u64,
}
