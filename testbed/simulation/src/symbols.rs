//! An observer of repair symbols: each has to be the combination of what its packets were, all of
//! one key epoch. The field's arithmetic is its own.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use erasure::{MAX_SPAN, RepairHeader};

use crate::violation::{BrokenPromise, Promise, broken};

/// Packets that are remembered.
const KEPT: usize = 2 * MAX_SPAN;
/// x^8 + x^4 + x^3 + x^2 + 1, without its first term.
const POLYNOMIAL: u8 = 0x1d;

static PRODUCTS: LazyLock<Vec<[u8; 256]>> = LazyLock::new(|| {
    let row = |a: u8| std::array::from_fn(|b| multiply(a, b as u8));
    (0..=255).map(row).collect()
});

fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b > 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        let carries = a & 0x80 != 0;
        a <<= 1;
        if carries {
            a ^= POLYNOMIAL;
        }
        b >>= 1;
    }
    product
}

/// Newest packets of a flow.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// Epoch and frames of each.
    sent: BTreeMap<u64, (usize, Vec<u8>)>,
}

impl Symbols {
    /// A packet leaves the source.
    pub(crate) fn note_sent(&mut self, pn: u64, epoch: usize, frames: &[u8]) {
        self.sent.insert(pn, (epoch, frames.to_vec()));
        if self.sent.len() > KEPT {
            self.sent.pop_first();
        }
    }

    /// A repair symbol leaves the source, in a packet of this epoch.
    pub(crate) fn check(&self, epoch: usize, bytes: &[u8]) -> Result<(), BrokenPromise> {
        let (header, symbol) = match RepairHeader::parse(bytes) {
            Ok(parsed) => parsed,
            Err(error) => return broken(Promise::Flow, format!("a repair symbol: {error}")),
        };
        let (window, mut coefficients) = (&header.window, [0; MAX_SPAN]);
        let code = header.scheme.code();
        code.write_coefficients(header.parameters, &mut coefficients[..window.span()]);
        let mut sum = vec![0; symbol.len()];
        for pn in window.packets() {
            let Some((of, frames)) = self.sent.get(&pn) else {
                return broken(
                    Promise::Flow,
                    format!("a repair symbol combines packet {pn}, which was not sent lately"),
                );
            };
            if *of != epoch {
                return broken(
                    Promise::Secrecy,
                    format!(
                        "a repair symbol of key epoch {epoch} combines packet {pn} of epoch {of}"
                    ),
                );
            }
            let products = &PRODUCTS[usize::from(coefficients[(pn - window.first()) as usize])];
            let len = (frames.len() as u16).to_be_bytes();
            for (sum, byte) in sum.iter_mut().zip(len.iter().chain(frames)) {
                *sum ^= products[usize::from(*byte)];
            }
            if frames.len() + len.len() > symbol.len() {
                return broken(
                    Promise::Flow,
                    format!("a repair symbol is shorter than that of packet {pn}"),
                );
            }
        }
        if sum != symbol {
            return broken(
                Promise::Flow,
                format!("a repair symbol of {window:?} is another combination"),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use erasure::{Encoder, Scheme};

    use super::*;

    #[test]
    fn wrong_symbols_are_noticed() {
        for scheme in Scheme::ALL {
            let (mut symbols, mut encoder) = (Symbols::default(), Encoder::new(scheme, 64));
            for pn in 7..10 {
                let frames = vec![pn as u8; 9 + pn as usize];
                symbols.note_sent(pn, 1, &frames);
                encoder.push(pn, &frames).unwrap();
            }
            let mut symbol = Vec::new();
            encoder.repair(&mut symbol);
            assert!(symbols.check(1, &symbol).is_ok());
            let across = symbols.check(2, &symbol).unwrap_err();
            assert_eq!(across.promise, Promise::Secrecy);
            let last = symbol.len() - 1;
            symbol[last] ^= 1;
            assert_eq!(
                symbols.check(1, &symbol).unwrap_err().promise,
                Promise::Flow
            );
            symbol.pop();
            assert!(symbols.check(1, &symbol).is_err());
        }
    }
}
