//! Symbols in blocks, ended by zeros.

use crate::MAX_SYMBOL;
use crate::kernel::{BLOCK, Block, Kernel, Term, bytes_of, bytes_of_mut};

/// Length of the field with a packet's length, in bytes.
pub(crate) const LENGTH: usize = 2;

/// Number of blocks of the longest symbol.
const BLOCKS: usize = MAX_SYMBOL.div_ceil(BLOCK);

/// Source symbol, or a combination of some. Beyond its length a symbol is zero.
#[derive(Debug, Clone, Default)]
pub(crate) struct Symbol {
    len: usize,
    /// None, or [`BLOCKS`], so that a buffer that is used again need not grow. What follows `len`
    /// in a block is zero; the blocks behind may be anything.
    blocks: Vec<Block>,
}

impl Symbol {
    /// Returns the place of a packet that [`Symbol::set_written`] makes a source symbol of.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.buffer()[LENGTH..MAX_SYMBOL]
    }

    fn buffer(&mut self) -> &mut [u8] {
        if self.blocks.is_empty() {
            self.blocks.resize(BLOCKS, Block::ZERO);
        }
        bytes_of_mut(&mut self.blocks)
    }

    /// Becomes the source symbol of the first `len` bytes of [`Symbol::room`].
    pub(crate) fn set_written(&mut self, len: usize) {
        let length = (len as u16).to_be_bytes();
        self.buffer()[..LENGTH].copy_from_slice(&length);
        self.end(LENGTH + len);
    }

    /// Becomes the source symbol of a packet of at most [`crate::MAX_PACKET`] bytes.
    pub(crate) fn set_packet(&mut self, packet: &[u8]) {
        self.room()[..packet.len()].copy_from_slice(packet);
        self.set_written(packet.len());
    }

    /// Becomes these bytes, at most [`MAX_SYMBOL`].
    pub(crate) fn set_bytes(&mut self, bytes: &[u8]) {
        self.buffer()[..bytes.len()].copy_from_slice(bytes);
        self.end(bytes.len());
    }

    /// Ends behind `len` bytes that were written.
    fn end(&mut self, len: usize) {
        self.len = len;
        self.buffer()[len..len.next_multiple_of(BLOCK)].fill(0);
    }

    /// Becomes zero.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Becomes at least so long, by zeros.
    fn grow(&mut self, len: usize) {
        if len > self.len {
            let end = self.len.next_multiple_of(BLOCK);
            let all = len.next_multiple_of(BLOCK);
            self.buffer()[end..all].fill(0);
            self.len = len;
        }
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds `factor` · `other`, and becomes as long.
    pub(crate) fn add(&mut self, kernel: Kernel, factor: u8, other: &Symbol) {
        self.grow(other.len);
        let sum = &mut self.blocks[..other.blocks().len()];
        kernel.multiply_add(sum, &[(factor, other.blocks())]);
    }

    /// Adds all these symbols, multiplied by their factors, and becomes as long as the longest.
    pub(crate) fn add_all<'a>(
        &mut self,
        kernel: Kernel,
        terms: impl Iterator<Item = (u8, &'a Symbol)>,
    ) {
        let mut len = 0;
        let blocks = |(factor, other): (u8, &'a Symbol)| {
            len = len.max(other.len);
            (factor, other.blocks())
        };
        let mut all: Vec<Term<'_>> = Vec::with_capacity(terms.size_hint().1.unwrap_or(0));
        all.extend(terms.map(blocks));
        self.grow(len);
        kernel.multiply_add(&mut self.blocks[..len.div_ceil(BLOCK)], &all);
    }

    fn blocks(&self) -> &[Block] {
        &self.blocks[..self.len.div_ceil(BLOCK)]
    }

    /// Multiplies by `factor`, which is not 0.
    pub(crate) fn scale(&mut self, kernel: Kernel, factor: u8) {
        if factor != 1 {
            let before = self.clone();
            // x + (f + 1) · x = f · x
            self.add(kernel, factor ^ 1, &before);
        }
    }

    /// Whether a symbol that [`Symbol::set_packet`] made is that of `packet`.
    pub(crate) fn is_packet(&self, packet: &[u8]) -> bool {
        self.bytes().get(LENGTH..) == Some(packet)
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.blocks.iter().all(|block| *block == Block::ZERO)
    }

    /// Returns all bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytes_of(&self.blocks)[..self.len]
    }

    /// Returns the packet of a source symbol; `None` if its length is 0 or more than the symbol
    /// has, or anything but zeros follows.
    pub(crate) fn packet(&self) -> Option<&[u8]> {
        let (length, rest) = self.bytes().split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes(*length));
        let (packet, padding) = rest.split_at_checked(length)?;
        let is_valid = length > 0 && padding.iter().all(|byte| *byte == 0);
        is_valid.then_some(packet)
    }
}
