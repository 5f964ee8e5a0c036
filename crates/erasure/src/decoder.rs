//! The receiver's end.

use std::collections::VecDeque;

use crate::kernel::Kernel;
use crate::repair::{HeaderError, MAX_PACKET_NUMBER, RepairHeader, Window};
use crate::ring::Ring;
use crate::symbol::Symbol;
use crate::system::{Insertion, System};
use crate::{MAX_EVENTS, MAX_PACKET, MAX_SPAN, MAX_UNKNOWNS};

/// Effect of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// The packet is held.
    New,
    /// The packet is held already, with the same bytes.
    Repeat,
    /// The packet was held already, rebuilt with other bytes, which it replaces.
    Contradiction,
    /// The packet belongs to an older key epoch, or cannot have been protected.
    Refused,
}

/// Effect of a repair symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gain {
    /// At least one packet less is missing than without it, at once or when others arrive.
    New,
    /// Nothing is missing that the repair symbol could rebuild.
    Redundant,
}

/// Reason why a repair symbol is of no use. The decoder is as before but for unknowns that made
/// room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RepairError {
    /// The bytes are no repair symbol.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The window spans more packet numbers than this flow's windows may.
    #[error("repair symbol: spans {0} packet numbers")]
    Span(usize),
    /// The window reaches into an older key epoch.
    #[error("repair symbol: packet {0} belongs to an older key epoch")]
    Epoch(u64),
    /// A packet of the window is longer than the symbol.
    #[error("repair symbol: shorter than packet {0}")]
    Short(u64),
    /// More than [`MAX_UNKNOWNS`] packets of the window are missing.
    #[error("repair symbol: too many packets are missing")]
    Unknowns,
    /// The symbol contradicts packets or other repair symbols.
    #[error("repair symbol: contradicts other packets")]
    Contradiction,
}

/// Result of packets and repair symbols together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A packet that did not arrive, or so long ago that it is no longer held.
    Rebuilt {
        /// Packet number.
        pn: u64,
        /// Plaintext.
        packet: Vec<u8>,
    },
    /// The bytes of a missing packet were determined, and are those of no packet. They are dropped,
    /// and the packet is missing as before.
    Invalid {
        /// Packet number.
        pn: u64,
    },
}

/// Newest packets of a flow and equations of the missing ones.
#[derive(Debug)]
pub struct Decoder {
    span: usize,
    /// First packet number of the key epoch.
    first: u64,
    held: Ring,
    system: System,
    events: VecDeque<Event>,
}

impl Decoder {
    /// Returns a decoder for a key epoch that begins with packet number `first`. Windows span at
    /// most `span` packet numbers, which is taken for [`MAX_SPAN`] if larger and for 1 if 0; at
    /// least twice as many packets are held.
    #[must_use]
    pub fn new(span: usize, first: u64) -> Self {
        let span = span.clamp(1, MAX_SPAN);
        Decoder {
            span,
            first,
            held: Ring::new(2 * span),
            system: System::new(Kernel::detect()),
            events: VecDeque::new(),
        }
    }

    /// Sets the instructions by which symbols are multiplied, the fastest by default.
    #[must_use]
    pub fn with_kernel(mut self, kernel: Kernel) -> Self {
        self.system.kernel = kernel;
        self
    }

    /// Begins another key epoch with packet number `first`: drops everything held, and refuses
    /// packets and windows below. Events that wait stay.
    pub fn begin_epoch(&mut self, first: u64) {
        self.first = first;
        self.system.clear();
        self.held.clear();
    }

    /// Takes the plaintext of a packet that arrived.
    pub fn on_packet(&mut self, pn: u64, plaintext: &[u8]) -> Intake {
        let is_length = (1..=MAX_PACKET).contains(&plaintext.len());
        if !is_length || pn < self.first || pn > MAX_PACKET_NUMBER {
            return Intake::Refused;
        }
        let intake = match self.held.find(pn) {
            None => Intake::New,
            Some(symbol) if symbol.is_packet(plaintext) => return Intake::Repeat,
            Some(_) => Intake::Contradiction,
        };
        if let Some(symbol) = hold(&mut self.held, pn, plaintext) {
            self.system.substitute(pn, symbol);
        }
        self.take_solved();
        intake
    }

    /// Takes a repair symbol with its header.
    ///
    /// # Errors
    /// When the repair symbol is of no use, now or later.
    pub fn on_repair(&mut self, bytes: &[u8]) -> Result<Gain, RepairError> {
        let (header, symbol) = RepairHeader::parse(bytes)?;
        let window = header.window;
        if window.span() > self.span {
            return Err(RepairError::Span(window.span()));
        }
        if window.first() < self.first {
            return Err(RepairError::Epoch(window.first()));
        }
        if window.packets().all(|pn| self.held.find(pn).is_some()) {
            return Ok(Gain::Redundant);
        }
        let mut coefficients = [0; MAX_SPAN];
        let code = header.scheme.code();
        code.write_coefficients(header.parameters, &mut coefficients[..window.span()]);
        let terms = self.missing(&window, &coefficients, symbol.len())?;
        if terms.is_empty() {
            return Ok(Gain::Redundant);
        }
        let mut sum = Symbol::default();
        sum.set_bytes(symbol);
        let known = window.packets().filter_map(|pn| {
            let symbol = self.held.find(pn)?;
            Some((coefficients[window.position(pn)], symbol))
        });
        sum.add_all(self.system.kernel, known);
        let gain = match self.system.insert(&terms, sum) {
            Insertion::New => Gain::New,
            Insertion::Redundant => Gain::Redundant,
            Insertion::Contradiction => return Err(RepairError::Contradiction),
        };
        self.take_solved();
        Ok(gain)
    }

    /// Returns the missing packets of a window with their coefficients.
    fn missing(
        &self,
        window: &Window,
        coefficients: &[u8; MAX_SPAN],
        len: usize,
    ) -> Result<Vec<(u64, u8)>, RepairError> {
        let mut terms = Vec::with_capacity(MAX_UNKNOWNS);
        for pn in window.packets() {
            let coefficient = coefficients[window.position(pn)];
            match self.held.find(pn) {
                Some(symbol) if symbol.len() > len => return Err(RepairError::Short(pn)),
                Some(_) => {}
                None if coefficient == 0 => {}
                None if terms.len() == MAX_UNKNOWNS => return Err(RepairError::Unknowns),
                None => terms.push((pn, coefficient)),
            }
        }
        Ok(terms)
    }

    fn take_solved(&mut self) {
        while let Some((pn, symbol)) = self.system.take_solved() {
            let Some(packet) = symbol.packet().map(<[u8]>::to_vec) else {
                self.tell(Event::Invalid { pn });
                continue;
            };
            hold(&mut self.held, pn, &packet);
            self.tell(Event::Rebuilt { pn, packet });
        }
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the number of packets held, at most [`crate::MAX_HELD`].
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns the number of missing packets that there are equations of, and the number of
    /// equations: each at most [`MAX_UNKNOWNS`], and no more equations than packets.
    #[must_use]
    pub fn unknowns(&self) -> (usize, usize) {
        self.system.size()
    }
}

fn hold<'a>(held: &'a mut Ring, pn: u64, packet: &[u8]) -> Option<&'a Symbol> {
    held.hold(pn, |symbol| {
        symbol.set_packet(packet);
        true
    })
}
