//! The newest symbols by packet number.

use crate::symbol::Symbol;

/// Place of one symbol. Its buffer stays when the symbol goes.
#[derive(Debug, Clone, Default)]
struct Place {
    pn: Option<u64>,
    symbol: Symbol,
}

/// Symbols, each in the place that its packet number has modulo the number of places. The one that
/// was there goes, whichever is newer: a number far ahead, which may be forged, costs one symbol.
#[derive(Debug)]
pub(crate) struct Ring {
    /// A power of two.
    places: Vec<Place>,
}

impl Ring {
    /// Returns a ring that holds any `count` successive packets.
    pub(crate) fn new(count: usize) -> Self {
        Ring {
            places: vec![Place::default(); count.next_power_of_two()],
        }
    }

    fn index(&self, pn: u64) -> usize {
        pn as usize & (self.places.len() - 1)
    }

    /// Returns the symbol of a packet.
    pub(crate) fn find(&self, pn: u64) -> Option<&Symbol> {
        let place = &self.places[self.index(pn)];
        (place.pn == Some(pn)).then_some(&place.symbol)
    }

    /// Makes room for a symbol, which `write` writes, or says that there is none; returns it.
    pub(crate) fn hold(
        &mut self,
        pn: u64,
        write: impl FnOnce(&mut Symbol) -> bool,
    ) -> Option<&Symbol> {
        let index = self.index(pn);
        let place = &mut self.places[index];
        place.pn = write(&mut place.symbol).then_some(pn);
        self.find(pn)
    }

    /// Drops all symbols.
    pub(crate) fn clear(&mut self) {
        for place in &mut self.places {
            place.pn = None;
        }
    }

    /// Returns the number of symbols.
    pub(crate) fn len(&self) -> usize {
        self.places
            .iter()
            .filter(|place| place.pn.is_some())
            .count()
    }
}
