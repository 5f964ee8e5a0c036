//! Repair symbols on the wire.

use octets::{BufferTooShortError, Octets, OctetsMut};

use crate::code::{Parameters, Scheme};
use crate::symbol::LENGTH;
use crate::{MAX_REPAIR_HEADER, MAX_SPAN, MAX_SYMBOL};

/// Highest packet number of a flow.
pub(crate) const MAX_PACKET_NUMBER: u64 = (1 << 62) - 1;
/// Bit of the span's byte that says that a mask follows.
const GAPS: u8 = 0x80;

/// Packets that a repair symbol combines: some of at most [`MAX_SPAN`] successive packet numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    first: u64,
    /// Bit i stands for packet number first + i. The lowest is set.
    mask: u128,
}

impl Window {
    /// Returns the window of these packets, in ascending order; `None` if there are none, or they
    /// span too many packet numbers.
    #[must_use]
    pub fn of(packets: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut packets = packets.into_iter();
        let first = packets.next()?;
        let mut mask = 1;
        for pn in packets {
            let position = u32::try_from(pn.checked_sub(first)?).ok()?;
            mask |= 1_u128.checked_shl(position)?;
        }
        Some(Window { first, mask })
    }

    /// Returns the window of `span` successive packet numbers from `first` on: 1 to [`MAX_SPAN`].
    pub(crate) fn dense(first: u64, span: usize) -> Self {
        let mask = u128::MAX >> (MAX_SPAN - span);
        Window { first, mask }
    }

    /// Returns the window of packets before `next`: bit i stands for packet next − 1 − i.
    pub(crate) fn before(next: u64, mask: u128) -> Option<Self> {
        let span = MAX_SPAN as u32 - mask.leading_zeros();
        let first = next.checked_sub(span.into())?;
        let mask = mask.reverse_bits().checked_shr(mask.leading_zeros())?;
        Some(Window { first, mask })
    }

    /// Returns the lowest packet number.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the highest packet number.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.first + (self.span() as u64 - 1)
    }

    /// Whether the window has this packet.
    #[must_use]
    pub fn contains(&self, pn: u64) -> bool {
        let position = pn
            .checked_sub(self.first)
            .and_then(|at| u32::try_from(at).ok());
        position.is_some_and(|at| self.mask.checked_shr(at).unwrap_or(0) & 1 == 1)
    }

    /// Returns the number of packet numbers from the first to the last one.
    #[must_use]
    pub fn span(&self) -> usize {
        MAX_SPAN - self.mask.leading_zeros() as usize
    }

    /// Returns the packet numbers, in ascending order.
    pub fn packets(&self) -> impl Iterator<Item = u64> + use<> {
        let Window { first, mask } = *self;
        (0..MAX_SPAN as u64)
            .filter(move |i| mask >> i & 1 == 1)
            .map(move |i| first + i)
    }

    /// Returns the position of a packet of the window, which selects its coefficient.
    pub(crate) fn position(&self, pn: u64) -> usize {
        (pn - self.first) as usize
    }

    fn has_gaps(&self) -> bool {
        self.mask.count_ones() as usize != self.span()
    }
}

/// Everything of a repair symbol but the symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepairHeader {
    /// Scheme.
    pub scheme: Scheme,
    /// Selection of the coefficients.
    pub parameters: Parameters,
    /// Packets that are combined.
    pub window: Window,
}

/// Reason why bytes are no repair symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The bytes end within the header.
    #[error("repair symbol: cut off")]
    Cut,
    /// This version knows no such scheme.
    #[error("repair symbol: scheme {0} is unknown")]
    Scheme(u8),
    /// The scheme has no such coefficients.
    #[error("repair symbol: {0:?} are none of its scheme")]
    Parameters(Parameters),
    /// The window's ends are not in it, or it goes beyond all packet numbers.
    #[error("repair symbol: invalid window")]
    Window,
    /// The symbol is too short for any packet, or too long.
    #[error("repair symbol: {0} bytes")]
    Length(usize),
}

impl From<BufferTooShortError> for HeaderError {
    fn from(_: BufferTooShortError) -> Self {
        HeaderError::Cut
    }
}

impl RepairHeader {
    /// Appends the header.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let mut buffer = [0; MAX_REPAIR_HEADER];
        let mut bytes = OctetsMut::with_slice(&mut buffer);
        if self.put(&mut bytes).is_ok() {
            let len = bytes.off();
            out.extend_from_slice(&buffer[..len]);
        }
    }

    fn put(&self, bytes: &mut OctetsMut<'_>) -> Result<(), BufferTooShortError> {
        let window = &self.window;
        bytes.put_u8(self.scheme.number() << 4 | self.parameters.density)?;
        bytes.put_u16(self.parameters.key)?;
        bytes.put_varint(window.first)?;
        let span = (window.span() - 1) as u8;
        if !window.has_gaps() {
            bytes.put_u8(span)?;
            return Ok(());
        }
        bytes.put_u8(GAPS | span)?;
        bytes.put_bytes(&window.mask.to_le_bytes()[..window.span().div_ceil(8)])
    }

    /// Returns the header of a repair symbol, and the symbol.
    ///
    /// # Errors
    /// When the bytes are no repair symbol, or one of an unknown scheme.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let mut header = Octets::with_slice(bytes);
        let first = header.get_u8()?;
        let scheme = Scheme::from_number(first >> 4).ok_or(HeaderError::Scheme(first >> 4))?;
        let parameters = Parameters {
            density: first & 15,
            key: header.get_u16()?,
        };
        if !scheme.code().takes(parameters) {
            return Err(HeaderError::Parameters(parameters));
        }
        let first = header.get_varint()?;
        let span = header.get_u8()?;
        let (has_gaps, span) = (span & GAPS != 0, usize::from(span & !GAPS) + 1);
        let mut window = Window::dense(first, span);
        if has_gaps {
            let mut le = [0; MAX_SPAN / 8];
            let written = header.get_bytes(span.div_ceil(8))?;
            le[..written.len()].copy_from_slice(written.buf());
            window.mask = u128::from_le_bytes(le);
        }
        let is_valid = window.mask & 1 == 1 && window.span() == span;
        if !is_valid || first > MAX_PACKET_NUMBER - (span as u64 - 1) {
            return Err(HeaderError::Window);
        }
        let symbol = bytes.get(header.off()..).unwrap_or_default();
        if !(LENGTH + 1..=MAX_SYMBOL).contains(&symbol.len()) {
            return Err(HeaderError::Length(symbol.len()));
        }
        let header = RepairHeader {
            scheme,
            parameters,
            window,
        };
        Ok((header, symbol))
    }
}
