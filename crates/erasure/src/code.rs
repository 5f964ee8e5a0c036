//! Schemes: the coefficients of repair symbols.

use crate::MAX_SPAN;
use crate::field::invert;
use crate::tinymt::TinyMt32;

/// Density with which no coefficient is 0.
pub const DENSE: u8 = 15;

/// Fields of a repair symbol that select its coefficients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Seed or row, by which repair symbols of one window differ.
    pub key: u16,
    /// Share of coefficients that are not 0, less one, in sixteenths: 0 to [`DENSE`].
    pub density: u8,
}

/// Coefficients of a linear code over GF(2⁸). Both ends know them from a repair symbol's header.
pub trait Code: Sync {
    /// Returns the number of keys; valid ones are below.
    fn keys(&self) -> u32;

    /// Returns the density that a source uses by default.
    fn usual_density(&self) -> u8;

    /// Whether repair symbols can have these parameters.
    fn takes(&self, parameters: Parameters) -> bool;

    /// Writes the coefficient of each packet number of a window, from the first one on, whether the
    /// window has that packet or not. There are at most [`MAX_SPAN`].
    fn write_coefficients(&self, parameters: Parameters, coefficients: &mut [u8]);
}

/// Scheme of a repair symbol, as negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// [`Xor`].
    Xor,
    /// [`ReedSolomon`].
    ReedSolomon,
    /// [`Rlc`].
    Rlc,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Self; 3] = [Self::Xor, Self::ReedSolomon, Self::Rlc];

    /// Returns the scheme's number on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Xor => 1,
            Self::ReedSolomon => 2,
            Self::Rlc => 3,
        }
    }

    /// Returns the scheme with a number, if it is known.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|scheme| scheme.number() == number)
    }

    /// Returns the scheme's coefficients.
    #[must_use]
    pub fn code(self) -> &'static dyn Code {
        match self {
            Self::Xor => &Xor,
            Self::ReedSolomon => &ReedSolomon,
            Self::Rlc => &Rlc,
        }
    }
}

/// The sum of all packets: rebuilds one packet of a window.
#[derive(Debug, Clone, Copy)]
pub struct Xor;

impl Code for Xor {
    fn keys(&self) -> u32 {
        1
    }

    fn usual_density(&self) -> u8 {
        0
    }

    fn takes(&self, parameters: Parameters) -> bool {
        parameters.key == 0 && parameters.density == 0
    }

    fn write_coefficients(&self, _: Parameters, coefficients: &mut [u8]) {
        coefficients.fill(1);
    }
}

/// Systematic Reed–Solomon code, shortened and by its Cauchy matrix: any n repair symbols of one
/// window with different keys rebuild any n of its packets.
#[derive(Debug, Clone, Copy)]
pub struct ReedSolomon;

impl Code for ReedSolomon {
    fn keys(&self) -> u32 {
        MAX_SPAN as u32
    }

    fn usual_density(&self) -> u8 {
        0
    }

    fn takes(&self, parameters: Parameters) -> bool {
        u32::from(parameters.key) < self.keys() && parameters.density == 0
    }

    fn write_coefficients(&self, parameters: Parameters, coefficients: &mut [u8]) {
        // Rows are the elements from 128 on, columns those below: no sum of both is 0.
        let row = 0x80 | parameters.key.to_be_bytes()[1];
        for (column, coefficient) in (0..0x80).zip(coefficients) {
            *coefficient = invert(row ^ column);
        }
    }
}

/// Random linear code with a sliding window over GF(2⁸) (RFC 8681): n repair symbols of windows
/// that overlap rebuild n packets with a probability of 0.996, and n + 1 nearly always.
#[derive(Debug, Clone, Copy)]
pub struct Rlc;

impl Code for Rlc {
    fn keys(&self) -> u32 {
        1 << 16
    }

    fn usual_density(&self) -> u8 {
        DENSE
    }

    fn takes(&self, parameters: Parameters) -> bool {
        parameters.density <= DENSE
    }

    /// As RFC 8681 generates coding coefficients.
    fn write_coefficients(&self, parameters: Parameters, coefficients: &mut [u8]) {
        let mut generator = TinyMt32::new(parameters.key.into());
        for coefficient in coefficients {
            *coefficient = 0;
            if parameters.density < DENSE && (generator.next() & 15) > parameters.density.into() {
                continue;
            }
            while *coefficient == 0 {
                *coefficient = (generator.next() & 0xff) as u8;
            }
        }
    }
}
