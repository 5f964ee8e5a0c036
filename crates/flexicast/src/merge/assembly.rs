//! The bytes of one update that is not whole yet, by the path that brought them.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::streams::StreamSignature;
use crate::Via;
use crate::range::RangeSet;

/// Bytes that follow each other are kept together up to this length.
const CHUNK: usize = 1 << 16;
/// Memory of a chunk beside its bytes.
pub(super) const CHUNK_OVERHEAD: usize = 128;
/// Separate ranges of an update that are taken from the flow. The packets of the longest update
/// make fewer, whichever of them are lost.
const MAX_RANGES: usize = 1024;

/// Memory of an update that nobody holds any more, for one that grows: fresh memory would have to
/// come from the system and be cleared, packet by packet.
#[derive(Debug, Default)]
pub(super) struct Spare(Vec<u8>);

impl Spare {
    /// A spare is at most so many times as large as the memory in whose place it comes.
    const LARGER: usize = 4;

    /// Keeps the memory of `bytes` if this is all that holds it.
    pub(super) fn reclaim(&mut self, bytes: Bytes) {
        if let Ok(bytes) = bytes.try_into_mut()
            && bytes.capacity() <= CHUNK
        {
            self.0 = bytes.into();
        }
    }

    /// Moves `chunk` here if the memory fits `wanted` bytes. Returns whether it did.
    fn replace(&mut self, chunk: &mut Vec<u8>, wanted: usize) -> bool {
        let fits = wanted..=wanted * Self::LARGER;
        if !fits.contains(&self.0.capacity()) {
            return false;
        }
        let mut larger = std::mem::take(&mut self.0);
        larger.clear();
        larger.extend_from_slice(chunk);
        *chunk = larger;
        true
    }
}

/// Bytes from one path. Memory is used for what has come, wherever in the update it belongs.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    have: RangeSet,
    chunks: BTreeMap<u64, Vec<u8>>,
    /// Bytes in all chunks.
    bytes: usize,
}

impl Pieces {
    /// Keeps what is new of `data`, and calls `added` with each range of that.
    fn insert(
        &mut self,
        offset: u64,
        data: &[u8],
        spare: &mut Spare,
        mut added: impl FnMut(Range<u64>),
    ) {
        let (chunks, bytes) = (&mut self.chunks, &mut self.bytes);
        let range = offset..offset + data.len() as u64;
        self.have.insert_with(range, |new| {
            let part = &data[(new.start - offset) as usize..(new.end - offset) as usize];
            *bytes += part.len();
            let mut last = chunks.iter_mut().next_back();
            if last.as_ref().is_some_and(|(start, _)| **start >= new.start) {
                last = chunks.range_mut(..new.start).next_back();
            }
            match last {
                Some((start, chunk))
                    if start + chunk.len() as u64 == new.start
                        && chunk.len() + part.len() <= CHUNK =>
                {
                    grow(chunk, part.len(), spare);
                    chunk.extend_from_slice(part);
                }
                _ => drop(chunks.insert(new.start, part.to_vec())),
            }
            added(new);
        });
    }

    /// Whether `data` is the same where bytes of it are known.
    fn agrees(&self, offset: u64, data: &[u8]) -> bool {
        // Mostly bytes come in order.
        if self.have.max().is_none_or(|last| last < offset) {
            return true;
        }
        let end = offset + data.len() as u64;
        let known = self.chunks.range(..end).rev();
        known
            .take_while(|(start, chunk)| *start + chunk.len() as u64 > offset)
            .all(|(start, chunk)| {
                let (from, to) = (offset.max(*start), end.min(start + chunk.len() as u64));
                chunk[(from - start) as usize..(to - start) as usize]
                    == data[(from - offset) as usize..(to - offset) as usize]
            })
    }

    fn truncate(&mut self, end: u64) {
        self.have.remove_from(end);
        drop(self.chunks.split_off(&end));
        if let Some((start, last)) = self.chunks.iter_mut().next_back() {
            last.truncate((end - start) as usize);
        }
        self.bytes = self.chunks.values().map(Vec::len).sum();
    }

    /// Memory that these bytes take.
    fn memory(&self) -> usize {
        self.bytes + self.chunks.len() * CHUNK_OVERHEAD
    }

    /// Takes the bytes out if one chunk has all `total` of them.
    fn take_whole(&mut self, total: usize) -> Option<Vec<u8>> {
        let first = self.chunks.first_entry()?;
        if *first.key() != 0 || first.get().len() != total {
            return None;
        }
        let mut whole = first.remove();
        whole.shrink_to_fit();
        Some(whole)
    }

    fn copy_to(&self, whole: &mut [u8]) {
        for (start, chunk) in &self.chunks {
            let start = *start as usize;
            if let Some(part) = whole.get_mut(start..start + chunk.len()) {
                part.copy_from_slice(chunk);
            }
        }
    }
}

/// Makes room for `more` bytes: twice as much as before, but no more than a chunk may have. The
/// memory of a full one can then be used for the next one as it is.
fn grow(chunk: &mut Vec<u8>, more: usize, spare: &mut Spare) {
    let needed = chunk.len() + more;
    if needed > chunk.capacity() {
        let wanted = (chunk.capacity() * 2).min(CHUNK).max(needed);
        if !spare.replace(chunk, wanted) {
            chunk.reserve_exact(wanted - chunk.len());
        }
    }
}

/// Memory that updates take, by the path that brought them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) flow: usize,
    pub(super) unicast: usize,
    /// Those of the flow's that no header vouches for.
    pub(super) early: usize,
}

#[derive(Debug, Default)]
pub(super) struct Assembly {
    flow: Pieces,
    unicast: Pieces,
    /// Bytes of the flow that came before the header of a signed update: true ones that overtook
    /// it, or a forger's. Those that come later count before them.
    early: Pieces,
    /// Verified header of a signed update.
    header: Option<Box<[u8]>>,
    /// Signature of the whole update that the flow brought, not verified.
    pub(super) stream_signature: Option<Box<StreamSignature>>,
    /// Whether one of them did not verify.
    pub(super) stream_refused: bool,
    total: Option<u64>,
    /// The unicast path said how long it is.
    certain: bool,
    /// Its flow bytes were dropped, and no others are taken.
    pub(super) no_flow: bool,
    /// Hash of the whole update that was found to be invalid.
    pub(super) refused: Option<u64>,
    /// Bytes that the flow brought first, and the unicast path.
    from_flow: u64,
    from_unicast: u64,
}

impl Assembly {
    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            flow: self.flow.memory() + self.early.memory() + self.signature_memory(),
            unicast: self.unicast.bytes,
            early: self.early.memory(),
        }
    }

    /// Memory of the signature.
    fn signature_memory(&self) -> usize {
        self.stream_signature.as_ref().map_or(0, |_| CHUNK_OVERHEAD)
    }

    fn max(&self) -> Option<u64> {
        self.flow.have.max().max(self.unicast.have.max())
    }

    /// Whether an end, or bytes up to `end`, contradict what is known of the length.
    pub(super) fn disputes_length(&self, end: u64, total: Option<u64>) -> bool {
        let beyond = |total: u64| self.max().is_some_and(|max| max >= total);
        match (total, self.total) {
            (Some(total), Some(known)) => total != known || end > known,
            (Some(total), None) => beyond(total),
            (None, Some(known)) => end > known,
            (None, None) => false,
        }
    }

    /// Whether one more separate range would be too many.
    pub(super) fn is_scattered(&self, range: &Range<u64>) -> bool {
        let near = range.start.saturating_sub(1)..range.end.saturating_add(1);
        let have = &self.flow.have;
        have.len() >= MAX_RANGES && have.gaps(near.clone()).next() == Some(near)
    }

    /// Takes bytes of a flow packet. Returns whether they agree with what is here.
    pub(super) fn add_flow(
        &mut self,
        offset: u64,
        data: &[u8],
        total: Option<u64>,
        spare: &mut Spare,
    ) -> bool {
        let end = offset + data.len() as u64;
        if self.disputes_length(end, total)
            || !self.flow.agrees(offset, data)
            || !self.unicast.agrees(offset, data)
        {
            return false;
        }
        self.total = self.total.or(total);
        for new in self.unicast.have.gaps(offset..end) {
            let part = &data[(new.start - offset) as usize..(new.end - offset) as usize];
            let from_flow = &mut self.from_flow;
            let count = |added: Range<u64>| *from_flow += added.end - added.start;
            self.flow.insert(new.start, part, spare, count);
        }
        true
    }

    /// Whether the length of a signed update is known for certain, by its verified header or by the
    /// unicast path, which has brought the header as well.
    pub(super) fn is_headed(&self) -> bool {
        let begins = self.unicast.chunks.get(&0);
        let header = begins.and_then(|begins| signing::header_len(begins));
        let has = |length: usize| {
            let header = length.min(signing::MAX_HEADER) as u64;
            self.unicast.have.contains_range(0..header)
        };
        self.header.is_some() || self.is_certain() || (self.certain && header.is_some_and(has))
    }

    /// Takes the verified header of a signed update of `total` bytes. What came before it and lies
    /// beyond that is dropped. Returns whether this agrees with what the unicast path brought.
    pub(super) fn take_header(&mut self, header: &[u8], total: u64) -> bool {
        if self.certain && self.total != Some(total) {
            return false;
        }
        self.header = Some(header.into());
        self.total = Some(total);
        self.early.truncate(total);
        true
    }

    /// Returns the verified header.
    pub(super) fn header(&self) -> Option<&[u8]> {
        self.header.as_deref()
    }

    /// Whether bytes, or a length that they state, contradict the known length.
    pub(super) fn is_beyond(&self, end: u64, total: Option<u64>) -> bool {
        let differs = |known| end > known || total.is_some_and(|total| total != known);
        self.total.is_some_and(differs)
    }

    /// Takes bytes of the flow that came before the header.
    pub(super) fn add_early(&mut self, offset: u64, data: &[u8], spare: &mut Spare) {
        let from_flow = &mut self.from_flow;
        let count = |added: Range<u64>| *from_flow += added.end - added.start;
        self.early.insert(offset, data, spare, count);
    }

    /// Memory of bytes that came before the header.
    pub(super) fn early(&self) -> usize {
        self.early.memory()
    }

    /// Drops what came before the header.
    pub(super) fn drop_early(&mut self) {
        self.early = Pieces::default();
    }

    /// Returns the update's length, if it is known.
    pub(super) fn length(&self) -> Option<usize> {
        let total = self.total.filter(|_| self.is_headed());
        total.map(|total| total as usize)
    }

    /// Whether nothing is known of the update.
    pub(super) fn is_empty(&self) -> bool {
        let sizes = self.sizes();
        let has_bytes = sizes.flow + sizes.unicast > 0;
        !(has_bytes || self.no_flow || self.header.is_some() || self.total.is_some())
    }

    /// Whether the update is whole only with what came before the header.
    pub(super) fn leans_on_early(&self) -> bool {
        let lacks = |gap: Range<u64>| self.flow.have.gaps(gap).next().is_some();
        let total = self.total.unwrap_or(0);
        !self.early.have.is_empty() && self.unicast.have.gaps(0..total).any(lacks)
    }

    /// Takes bytes of the unicast path. Returns whether they agree with what is here; where they
    /// do not, all flow bytes are dropped.
    pub(super) fn add_unicast(
        &mut self,
        offset: u64,
        data: &[u8],
        total: u64,
        spare: &mut Spare,
    ) -> bool {
        let end = offset + data.len() as u64;
        if end > total {
            // The reader of the stream has refused this before.
            return true;
        }
        let is_same = !self.certain || self.total == Some(total);
        let is_same = is_same && self.unicast.agrees(offset, data);
        let agrees = is_same
            && self.total.is_none_or(|known| known == total)
            && self.max().is_none_or(|max| max < total)
            && self.flow.agrees(offset, data);
        if !agrees {
            self.drop_flow();
        }
        if !is_same {
            // Another source has signed the update since: it is not spliced.
            (self.unicast, self.from_unicast) = (Pieces::default(), 0);
        }
        (self.total, self.certain) = (Some(total), true);
        self.early.truncate(total);
        let (flow, from_unicast) = (&self.flow.have, &mut self.from_unicast);
        self.unicast.insert(offset, data, spare, |new| {
            let first = flow.gaps(new).map(|gap| gap.end - gap.start);
            *from_unicast += first.sum::<u64>();
        });
        agrees
    }

    /// Drops the bytes that the flow brought.
    pub(super) fn drop_flow(&mut self) {
        (self.flow, self.early) = (Pieces::default(), Pieces::default());
        (self.header, self.stream_signature) = (None, None);
        self.total = self.total.filter(|_| self.certain);
        self.from_flow = 0;
    }

    pub(super) fn is_whole(&self) -> bool {
        self.total.is_some_and(|total| {
            let (flow, early) = (&self.flow.have, &self.early.have);
            let has = |gap: Range<u64>| {
                flow.contains_range(gap.clone())
                    || (!early.is_empty() && flow.gaps(gap).all(|gap| early.contains_range(gap)))
            };
            (self.flow.bytes + self.unicast.bytes + self.early.bytes) as u64 >= total
                && self.unicast.have.gaps(0..total).all(has)
        })
    }

    /// Returns the whole update. Bytes that lie together move into it, so that nothing else may be
    /// done with this part but to drop them, unless early ones are among them.
    pub(super) fn assemble(&mut self) -> Bytes {
        let total = self.total.unwrap_or(0) as usize;
        let together = self.unicast.take_whole(total);
        if let Some(whole) = together.or_else(|| self.flow.take_whole(total)) {
            return whole.into();
        }
        let mut whole = vec![0; total];
        self.early.copy_to(&mut whole);
        self.flow.copy_to(&mut whole);
        self.unicast.copy_to(&mut whole);
        whole.into()
    }

    /// Takes back what [`assemble`](Self::assemble) returned, as bytes of the flow.
    pub(super) fn restore(&mut self, whole: &[u8], spare: &mut Spare) {
        self.flow = Pieces::default();
        self.flow.insert(0, whole, spare, |_| {});
    }

    /// The range from the first to the last byte that the unicast path has not brought. The end
    /// that the flow states does not count.
    pub(super) fn missing(&self) -> Option<Range<u64>> {
        if self.is_certain() {
            return None;
        }
        let total = self.total.filter(|_| self.certain);
        let mut gaps = self.unicast.have.gaps(0..total.unwrap_or(u64::MAX));
        let first = gaps.next()?;
        Some(first.start..gaps.last().map_or(first.end, |last| last.end))
    }

    pub(super) fn via(&self) -> Via {
        match (self.from_flow, self.from_unicast) {
            (0, _) if self.certain => Via::Unicast,
            (_, 0) => Via::Flow,
            _ => Via::Repaired,
        }
    }

    /// Whether the unicast path brought any of it.
    pub(super) fn has_unicast(&self) -> bool {
        !self.unicast.have.is_empty()
    }

    /// Bytes that the unicast path brought.
    pub(super) fn unicast_bytes(&self) -> usize {
        self.unicast.bytes
    }

    /// Whether the unicast path brought all of it.
    pub(super) fn is_certain(&self) -> bool {
        let total = self.total.filter(|_| self.certain);
        total.is_some_and(|total| self.unicast.have.contains_range(0..total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory is for what came, and not for where it belongs.
    #[test]
    fn a_part_takes_memory_for_its_bytes() {
        let (mut part, mut spare) = (Assembly::default(), Spare::default());
        for n in 0..100 {
            assert!(part.add_flow(n * 40_000, b"x", None, &mut spare));
        }
        assert_eq!(part.sizes().flow, 100 * (1 + CHUNK_OVERHEAD));
        // The order in which bytes come makes no difference to what they are.
        let all: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let (mut part, mut spare) = (Assembly::default(), Spare::default());
        for (n, data) in all.chunks(1000).enumerate().rev() {
            assert!(!part.is_whole());
            let offset = n as u64 * 1000;
            let total = (n == 199).then_some(200_000);
            match n % 3 {
                0 => assert!(part.add_unicast(offset, data, 200_000, &mut spare)),
                _ => assert!(part.add_flow(offset, data, total, &mut spare)),
            }
        }
        assert!(part.is_whole() && !part.is_certain());
        assert_eq!((part.assemble(), part.via()), (all.into(), Via::Repaired));
    }

    #[test]
    fn bytes_that_lie_together_are_not_copied() {
        let (mut part, mut spare) = (Assembly::default(), Spare::default());
        part.add_flow(0, b"whole", Some(5), &mut spare);
        let at = part.flow.chunks[&0].as_ptr();
        assert_eq!(part.assemble().as_ptr(), at);
        // A full chunk has no more memory than it needs, however it grew.
        let (mut part, mut spare) = (Assembly::default(), Spare::default());
        for n in 0..64 {
            part.add_flow(n << 10, &[n as u8; 1 << 10], None, &mut spare);
        }
        let chunk = &part.flow.chunks[&0];
        assert_eq!((chunk.len(), chunk.capacity()), (CHUNK, CHUNK));
    }

    #[test]
    fn memory_that_nobody_holds_is_used_again() {
        let mut spare = Spare::default();
        let old = Bytes::from(vec![1; 4096]);
        let (at, held) = (old.as_ptr(), old.clone());
        spare.reclaim(old);
        assert_eq!(spare.0.capacity(), 0, "somebody holds it");
        spare.reclaim(held);
        let mut part = Assembly::default();
        part.add_flow(0, &[2; 1024], None, &mut spare);
        part.add_flow(1024, &[3; 1024], Some(2048), &mut spare);
        assert_eq!(part.flow.chunks[&0].as_ptr(), at);
        let whole = part.assemble();
        assert_eq!(whole[..], [[2; 1024], [3; 1024]].concat());
        // As much as no chunk has is no spare, and much more than is needed is none here.
        for size in [CHUNK / 4, CHUNK + 1] {
            spare.reclaim(vec![0; size].into());
            assert_eq!(spare.0.capacity(), CHUNK / 4);
        }
        part = Assembly::default();
        part.add_flow(0, &[2; 1024], None, &mut spare);
        part.add_flow(1024, &[3; 1024], None, &mut spare);
        assert_eq!(part.flow.chunks[&0].capacity(), 2048);
    }

    #[test]
    fn separate_ranges_are_bounded() {
        let (mut part, mut spare) = (Assembly::default(), Spare::default());
        for n in 0..MAX_RANGES as u64 {
            assert!(!part.is_scattered(&(n * 4..n * 4 + 1)));
            part.add_flow(n * 4, b"x", None, &mut spare);
        }
        assert!(part.is_scattered(&(9000..9001)));
        assert!(part.is_scattered(&(10..11)), "between two");
        assert!(!part.is_scattered(&(1..2)), "it grows a range");
    }
}
