//! Parts of a source's work that are timed.

/// A part of a source's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Taking updates.
    Publish,
    /// Making packets of the flow.
    Packets,
    /// Reading acknowledgements.
    Acks,
    /// Reading cursors and windows.
    Frames,
    /// Timers.
    Timers,
    /// Handing out what goes by unicast.
    Unicast,
}

impl Part {
    /// All parts.
    pub const ALL: [Part; 6] = [
        Part::Publish,
        Part::Packets,
        Part::Acks,
        Part::Frames,
        Part::Timers,
        Part::Unicast,
    ];
}

/// A clock for parts of a source's work.
pub trait Meter {
    /// Does a piece of work.
    fn time<T>(&mut self, part: Part, work: impl FnOnce() -> T) -> T;
}

/// No clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMeter;

impl Meter for NoMeter {
    fn time<T>(&mut self, _part: Part, work: impl FnOnce() -> T) -> T {
        work()
    }
}
