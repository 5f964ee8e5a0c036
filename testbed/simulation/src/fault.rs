//! Switches that break a promise on purpose, to show that a run notices.

/// Injected fault: a test-only switch of the transport, or a fault of the world around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The source repairs nothing that the flow lost.
    RepairOff,
    /// Receivers hand on what arrives twice.
    DedupeOff,
    /// The store answers with bytes that were not published.
    StoreCorrupts,
    /// The owner of the source never has a secret for the next epoch.
    NoRekey,
    /// A private channel is configured as one that is not.
    NotPrivate,
    /// Departed receivers get the keys.
    SpyGetsKey,
    /// The source is not notified that an address is not validated.
    NotToldOfAddresses,
    /// The owner of the source never says that a connection is gone.
    NeverClosed,
    /// Hosts look at their deadlines and do not handle them.
    DeafTimers,
    /// A piece of a reliable stream gets lost.
    LossyStreams,
    /// Packets that came through a relay are taken for native ones.
    RelayedIsNative,
    /// A gateway that has lost its relay never looks for another.
    NoOtherRelay,
    /// Receivers take whatever is whole for an update.
    FlowBelieved,
    /// Receivers take packets that the source did not authenticate.
    PacketsBelieved,
    /// Repair symbols combine packets of several key epochs.
    WindowAcrossEpochs,
    /// Chance that does not come from the seed.
    Dice,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 16] = [
        Fault::RepairOff,
        Fault::DedupeOff,
        Fault::StoreCorrupts,
        Fault::NoRekey,
        Fault::NotPrivate,
        Fault::SpyGetsKey,
        Fault::NotToldOfAddresses,
        Fault::NeverClosed,
        Fault::DeafTimers,
        Fault::LossyStreams,
        Fault::RelayedIsNative,
        Fault::NoOtherRelay,
        Fault::FlowBelieved,
        Fault::PacketsBelieved,
        Fault::WindowAcrossEpochs,
        Fault::Dice,
    ];
}
