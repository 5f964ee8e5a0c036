//! The source's end.

use crate::code::{Parameters, Scheme};
use crate::kernel::Kernel;
use crate::repair::{MAX_PACKET_NUMBER, RepairHeader, Window};
use crate::ring::Ring;
use crate::symbol::{LENGTH, Symbol};
use crate::{MAX_PACKET, MAX_REPAIR_HEADER, MAX_SPAN};

/// Reason why a packet cannot be protected: it is a gap in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The packet is empty, or longer than [`MAX_PACKET`].
    #[error("packet to protect: {0} bytes")]
    Length(usize),
    /// The packet number is not above those before, or there is none such.
    #[error("packet to protect: number {0} is out of order")]
    Order(u64),
}

/// Window of a flow's newest packets, from which repair symbols are made.
///
/// With RLC, repair symbols can be asked for at any time. The guarantee of XOR and Reed–Solomon
/// holds for repair symbols of one window: a source that sends by blocks calls [`Encoder::clear`]
/// before the first packet of each.
#[derive(Debug)]
pub struct Encoder {
    scheme: Scheme,
    density: u8,
    span: usize,
    kernel: Kernel,
    packets: Ring,
    /// Packet number behind the last packet.
    next: u64,
    /// Packets of the window: bit i stands for packet number next − 1 − i.
    mask: u128,
    /// Key of the next repair symbol.
    key: u16,
    /// Number of repair symbols made since the window last changed.
    made: u32,
    /// Buffer of the last repair symbol.
    sum: Symbol,
}

impl Encoder {
    /// Returns an encoder without packets. A window spans at most `span` packet numbers, which is
    /// taken for [`MAX_SPAN`] if larger and for 1 if 0.
    #[must_use]
    pub fn new(scheme: Scheme, span: usize) -> Self {
        let span = span.clamp(1, MAX_SPAN);
        Encoder {
            scheme,
            density: scheme.code().usual_density(),
            span,
            kernel: Kernel::detect(),
            packets: Ring::new(span),
            next: 0,
            mask: 0,
            key: 0,
            made: 0,
            sum: Symbol::default(),
        }
    }

    /// Sets the density of RLC's coefficients; no other scheme has one. Values that are none are
    /// ignored.
    #[must_use]
    pub fn with_density(mut self, density: u8) -> Self {
        let parameters = Parameters { key: 0, density };
        if self.scheme.code().takes(parameters) {
            self.density = density;
        }
        self
    }

    /// Sets the instructions by which symbols are multiplied, the fastest by default.
    #[must_use]
    pub fn with_kernel(self, kernel: Kernel) -> Self {
        Encoder { kernel, ..self }
    }

    /// Adds a packet by its plaintext; packets that its number leaves behind go. Packet numbers
    /// ascend, also across [`Encoder::clear`].
    ///
    /// # Errors
    /// When the packet cannot be protected.
    pub fn push(&mut self, pn: u64, plaintext: &[u8]) -> Result<(), SourceError> {
        let len = plaintext.len();
        let copy = |room: &mut [u8]| {
            if let Some(room) = room.get_mut(..len) {
                room.copy_from_slice(plaintext);
            }
            len
        };
        self.push_with(pn, copy).map(|_| ())
    }

    /// Adds a packet whose plaintext `write` writes in place: to [`MAX_PACKET`] bytes, whatever
    /// they are before. It returns how many it wrote, and the call these. A caller that seals from
    /// here into another buffer saves the copy of [`Encoder::push`].
    ///
    /// # Errors
    /// When the packet cannot be protected.
    pub fn push_with(
        &mut self,
        pn: u64,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<&[u8], SourceError> {
        if pn < self.next || pn > MAX_PACKET_NUMBER {
            return Err(SourceError::Order(pn));
        }
        self.skip_to(pn);
        let mut len = 0;
        let symbol = self.packets.hold(pn, |symbol| {
            len = write(symbol.room());
            let is_valid = (1..=MAX_PACKET).contains(&len);
            if is_valid {
                symbol.set_written(len);
            }
            is_valid
        });
        let symbol = symbol.ok_or(SourceError::Length(len))?;
        self.mask |= 1;
        Ok(&symbol.bytes()[LENGTH..])
    }

    /// Moves the window so that it ends with `pn`, which is not in it yet.
    fn skip_to(&mut self, pn: u64) {
        let shift = u32::try_from(pn + 1 - self.next).unwrap_or(u32::MAX);
        let all = u128::MAX >> (MAX_SPAN - self.span);
        self.mask = self.mask.checked_shl(shift).unwrap_or(0) & all;
        self.next = pn + 1;
        self.made = 0;
    }

    /// Drops the packets below `pn`, which no member needs any more.
    pub fn settle(&mut self, pn: u64) {
        let kept = u32::try_from(self.next.saturating_sub(pn)).unwrap_or(u32::MAX);
        let mask = self.mask & !u128::MAX.checked_shl(kept).unwrap_or(0);
        if mask != self.mask {
            self.mask = mask;
            self.made = 0;
        }
    }

    /// Drops all packets: at each switch to another key epoch, and where a block ends.
    pub fn clear(&mut self) {
        self.settle(self.next);
        // A row of a code that has few belongs to a block; seeds go on.
        if self.scheme != Scheme::Rlc {
            self.key = 0;
        }
    }

    /// Returns the packets that the next repair symbol would combine.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        Window::before(self.next, self.mask)
    }

    /// Returns the packets of a window, in ascending order.
    fn sources(&self, window: Window) -> impl Iterator<Item = (u64, &Symbol)> {
        let numbers = window.first()..self.next;
        numbers.filter_map(|pn| Some((pn, self.packets.find(pn)?)))
    }

    /// Returns the length of the next repair symbol in bytes, with its header at its longest;
    /// `None` if there would be none.
    #[must_use]
    pub fn repair_len(&self) -> Option<usize> {
        let is_exhausted = self.made >= self.scheme.code().keys();
        let sources = self.sources(self.window()?);
        let longest = sources.map(|(_, symbol)| symbol.len()).max()?;
        (!is_exhausted).then_some(MAX_REPAIR_HEADER + longest)
    }

    /// Appends a repair symbol of the window, with its header, and returns what it combines. `None`
    /// if the window is empty, or all that its scheme can say about it was said.
    pub fn repair(&mut self, out: &mut Vec<u8>) -> Option<Window> {
        let code = self.scheme.code();
        let window = self.window()?;
        if self.made >= code.keys() {
            return None;
        }
        let parameters = Parameters {
            key: self.key,
            density: self.density,
        };
        let header = RepairHeader {
            scheme: self.scheme,
            parameters,
            window,
        };
        header.append_to(out);
        let mut sum = std::mem::take(&mut self.sum);
        sum.clear();
        let mut coefficients = [0; MAX_SPAN];
        code.write_coefficients(parameters, &mut coefficients[..window.span()]);
        let terms = self.sources(window).map(|(pn, symbol)| {
            let coefficient = coefficients[window.position(pn)];
            (coefficient, symbol)
        });
        sum.add_all(self.kernel, terms);
        out.extend_from_slice(sum.bytes());

        self.sum = sum;
        let next = (u32::from(self.key) + 1) % code.keys();
        self.key = next as u16;
        self.made += 1;
        Some(window)
    }
}
