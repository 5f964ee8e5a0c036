//! Equations of missing packets, solved as far as they go after each change.

use crate::MAX_UNKNOWNS;
use crate::field::{invert, multiply};
use crate::kernel::Kernel;
use crate::symbol::Symbol;

/// Missing packet.
#[derive(Debug, Clone, Copy)]
struct Unknown {
    pn: u64,
    /// Count of unknowns when this one was added.
    since: u64,
}

/// Equation: the unknowns by these coefficients add up to the symbol. The coefficient at the pivot
/// is 1, and no other row has one there.
#[derive(Debug)]
struct Row {
    pivot: usize,
    coefficients: [u8; MAX_UNKNOWNS],
    symbol: Symbol,
}

impl Row {
    fn add(&mut self, kernel: Kernel, factor: u8, other: &Row) {
        for (to, from) in self.coefficients.iter_mut().zip(&other.coefficients) {
            *to ^= multiply(factor, *from);
        }
        self.symbol.add(kernel, factor, &other.symbol);
    }
}

/// Whether an equation says anything new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Insertion {
    /// Kept, or solved.
    New,
    /// Follows from the others.
    Redundant,
    /// Contradicts the others.
    Contradiction,
}

/// Linear system of at most [`MAX_UNKNOWNS`] missing packets, in reduced row echelon form.
#[derive(Debug)]
pub(crate) struct System {
    pub(crate) kernel: Kernel,
    unknowns: [Option<Unknown>; MAX_UNKNOWNS],
    rows: Vec<Row>,
    /// Number of unknowns that were ever added.
    added: u64,
}

impl System {
    pub(crate) fn new(kernel: Kernel) -> Self {
        System {
            kernel,
            unknowns: [None; MAX_UNKNOWNS],
            rows: Vec::new(),
            added: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.unknowns = [None; MAX_UNKNOWNS];
        self.rows.clear();
    }

    /// Returns the numbers of missing packets and of equations of them.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.unknowns.iter().flatten().count(), self.rows.len())
    }

    fn column(&self, pn: u64) -> Option<usize> {
        let is_pn = |unknown: &Option<Unknown>| unknown.is_some_and(|unknown| unknown.pn == pn);
        self.unknowns.iter().position(is_pn)
    }

    /// Adds an equation: these packets, with coefficients that are not 0, add up to `symbol`. There
    /// are at most [`MAX_UNKNOWNS`]; the oldest of others make room.
    pub(crate) fn insert(&mut self, terms: &[(u64, u8)], symbol: Symbol) -> Insertion {
        let mut coefficients = [0; MAX_UNKNOWNS];
        for (pn, coefficient) in terms {
            let column = self.column(*pn).or_else(|| self.add_unknown(*pn, terms));
            let Some(column) = column else {
                return Insertion::Redundant;
            };
            coefficients[column] = *coefficient;
        }
        let insertion = self.insert_row(coefficients, symbol);
        self.drop_unused();
        insertion
    }

    /// Returns the column of another unknown. `None` only if the equation alone has too many.
    fn add_unknown(&mut self, pn: u64, terms: &[(u64, u8)]) -> Option<usize> {
        let column = self.unknowns.iter().position(Option::is_none);
        let column = column.or_else(|| {
            let others = self.unknowns.iter().enumerate().filter_map(|(i, unknown)| {
                let unknown = unknown.as_ref()?;
                let is_needed = terms.iter().any(|(pn, _)| *pn == unknown.pn);
                (!is_needed).then_some((unknown.since, i))
            });
            let (_, oldest) = others.min()?;
            self.forget(oldest);
            Some(oldest)
        })?;
        let since = self.added;
        self.added += 1;
        self.unknowns[column] = Some(Unknown { pn, since });
        Some(column)
    }

    /// Drops an unknown, with one equation and no more.
    fn forget(&mut self, column: usize) {
        let rows = &self.rows;
        let row = rows.iter().position(|row| row.pivot == column);
        let row = row.or_else(|| rows.iter().position(|row| row.coefficients[column] != 0));
        if let Some(row) = row {
            let dropped = self.rows.swap_remove(row);
            let inverse = invert(dropped.coefficients[column]);
            for row in &mut self.rows {
                let factor = multiply(row.coefficients[column], inverse);
                if factor != 0 {
                    row.add(self.kernel, factor, &dropped);
                }
            }
        }
        self.unknowns[column] = None;
    }

    fn insert_row(&mut self, coefficients: [u8; MAX_UNKNOWNS], symbol: Symbol) -> Insertion {
        let mut row = Row {
            pivot: 0,
            coefficients,
            symbol,
        };
        for other in &self.rows {
            let factor = row.coefficients[other.pivot];
            if factor != 0 {
                row.add(self.kernel, factor, other);
            }
        }
        let Some(pivot) = row.coefficients.iter().position(|c| *c != 0) else {
            return if row.symbol.is_zero() {
                Insertion::Redundant
            } else {
                Insertion::Contradiction
            };
        };
        row.pivot = pivot;
        let inverse = invert(row.coefficients[pivot]);
        for coefficient in &mut row.coefficients {
            *coefficient = multiply(*coefficient, inverse);
        }
        row.symbol.scale(self.kernel, inverse);
        for other in &mut self.rows {
            let factor = other.coefficients[pivot];
            if factor != 0 {
                other.add(self.kernel, factor, &row);
            }
        }
        self.rows.push(row);
        Insertion::New
    }

    /// Puts in a packet that is not missing any more. The equations cannot contradict it: one that
    /// they determine is not among the unknowns.
    pub(crate) fn substitute(&mut self, pn: u64, symbol: &Symbol) {
        let Some(column) = self.column(pn) else {
            return;
        };
        for row in &mut self.rows {
            let factor = std::mem::take(&mut row.coefficients[column]);
            if factor != 0 {
                row.symbol.add(self.kernel, factor, symbol);
            }
        }
        self.unknowns[column] = None;
        if let Some(row) = self.rows.iter().position(|row| row.pivot == column) {
            let row = self.rows.swap_remove(row);
            self.insert_row(row.coefficients, row.symbol);
        }
        self.drop_unused();
    }

    /// Frees the columns that no equation has.
    fn drop_unused(&mut self) {
        for (column, unknown) in self.unknowns.iter_mut().enumerate() {
            if self.rows.iter().all(|row| row.coefficients[column] == 0) {
                *unknown = None;
            }
        }
    }

    /// Takes out a packet that the equations determine.
    pub(crate) fn take_solved(&mut self) -> Option<(u64, Symbol)> {
        let is_solved = |row: &Row| row.coefficients.iter().filter(|c| **c != 0).count() == 1;
        let row = self.rows.iter().position(is_solved)?;
        let row = self.rows.swap_remove(row);
        let unknown = self.unknowns[row.pivot].take()?;
        Some((unknown.pn, row.symbol))
    }
}
