//! Things that happen at ticks of a run.

/// Things that happen at a tick, within a bounded number of them.
#[derive(Debug)]
pub(crate) struct Agenda<T> {
    slots: Vec<Vec<T>>,
}

impl<T> Agenda<T> {
    pub(crate) fn new(ahead: usize) -> Self {
        Agenda {
            slots: (0..ahead).map(|_| Vec::new()).collect(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = Vec::new());
    }

    pub(crate) fn slot(&mut self, tick: u64) -> &mut Vec<T> {
        let at = tick as usize % self.slots.len();
        &mut self.slots[at]
    }

    pub(crate) fn push(&mut self, tick: u64, what: T) {
        self.slot(tick).push(what);
    }

    pub(crate) fn take(&mut self, tick: u64) -> Vec<T> {
        std::mem::take(self.slot(tick))
    }
}
