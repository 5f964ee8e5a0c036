//! The field, its kernels, and the generator of coefficients.

use super::Random;
use crate::field::{invert, multiply};
use crate::kernel::{BLOCK, Block, Kernel};
use crate::tinymt::TinyMt32;
use crate::{Parameters, Scheme};

/// RFC 8682 figure 2: the first numbers with seed 1.
const TINYMT32: [u32; 50] = [
    2545341989, 981918433, 3715302833, 2387538352, 3591001365, 3820442102, 2114400566, 2196103051,
    2783359912, 764534509, 643179475, 1822416315, 881558334, 4207026366, 3690273640, 3240535687,
    2921447122, 3984931427, 4092394160, 44209675, 2188315343, 2908663843, 1834519336, 3774670961,
    3019990707, 4065554902, 1239765502, 4035716197, 3412127188, 552822483, 161364450, 353727785,
    140085994, 149132008, 2547770827, 4064042525, 4078297538, 2057335507, 622384752, 2041665899,
    2193913817, 1080849512, 33160901, 662956935, 642999063, 3384709977, 1723175122, 3866752252,
    521822317, 2292524454,
];

/// RFC 8681 appendix A: the first numbers of 8 bits with seed 1.
const RAND256: [u8; 50] = [
    37, 225, 177, 176, 21, 246, 54, 139, 168, 237, 211, 187, 62, 190, 104, 135, 210, 99, 176, 11,
    207, 35, 40, 113, 179, 214, 254, 101, 212, 211, 226, 41, 234, 232, 203, 29, 194, 211, 112, 107,
    217, 104, 197, 135, 23, 89, 210, 252, 109, 166,
];

/// RFC 8681 appendix A: the first numbers of 4 bits with seed 1.
const RAND16: [u32; 50] = [
    5, 1, 1, 0, 5, 6, 6, 11, 8, 13, 3, 11, 14, 14, 8, 7, 2, 3, 0, 11, 15, 3, 8, 1, 3, 6, 14, 5, 4,
    3, 2, 9, 10, 8, 11, 13, 2, 3, 0, 11, 9, 8, 5, 7, 7, 9, 2, 12, 13, 6,
];

/// Multiplication as polynomials, by long division.
fn product(a: u8, b: u8) -> u8 {
    let shifted = (0..8).map(|bit| (u16::from(b >> bit) & 1) * (u16::from(a) << bit));
    let mut product = shifted.fold(0, |sum, x| sum ^ x);
    for bit in (8..15).rev() {
        product ^= (product >> bit & 1) * (0x11d << (bit - 8));
    }
    product as u8
}

#[test]
fn products_are_those_of_polynomials() {
    for a in 0..=255 {
        for b in 0..=255 {
            assert_eq!(multiply(a, b), product(a, b), "{a} · {b}");
        }
        assert_eq!(multiply(a, invert(a)), u8::from(a != 0), "1 / {a}");
    }
}

/// The powers of 2, as they are listed for this field wherever it is used.
#[test]
fn powers_of_two_are_the_known_ones() {
    let powers: Vec<u8> = std::iter::successors(Some(1), |x| Some(multiply(2, *x)))
        .take(256)
        .collect();
    let known = [
        1, 2, 4, 8, 16, 32, 64, 128, 29, 58, 116, 232, 205, 135, 19, 38, 76,
    ];
    assert_eq!(powers[..17], known);
    assert_eq!(powers[255], 1);
    assert!(!powers[1..255].contains(&1));
}

#[test]
fn numbers_are_those_of_rfc_8682() {
    let mut generator = TinyMt32::new(1);
    assert_eq!(TINYMT32.map(|_| generator.next()), TINYMT32);
}

#[test]
fn coefficients_are_those_of_rfc_8681() {
    let mut generator = TinyMt32::new(1);
    assert_eq!(RAND16.map(|_| generator.next() & 15), RAND16);

    let code = Scheme::Rlc.code();
    let coefficients = |density| {
        let mut coefficients = [0; 50];
        code.write_coefficients(Parameters { key: 1, density }, &mut coefficients);
        coefficients
    };
    assert_eq!(coefficients(15), RAND256);
    // Each number of 4 bits that is at most the density is followed by a coefficient.
    let mut numbers = TINYMT32.into_iter();
    let sparse: Vec<u8> = std::iter::from_fn(|| {
        let take = numbers.next()? & 15 <= 7;
        Some(if take {
            (numbers.next()? & 255) as u8
        } else {
            0
        })
    })
    .collect();
    assert_eq!(sparse[..10], [225, 176, 246, 139, 0, 0, 187, 0, 0, 0]);
    assert_eq!(coefficients(7)[..sparse.len()], sparse);
}

/// Density d has d + 1 sixteenths of coefficients that are not 0.
#[test]
#[cfg_attr(miri, ignore)]
fn density_is_a_share() {
    for density in 0..=15 {
        let mut nonzero = 0;
        for key in 0..500 {
            let mut coefficients = [0; 100];
            let parameters = Parameters { key, density };
            Scheme::Rlc
                .code()
                .write_coefficients(parameters, &mut coefficients);
            nonzero += coefficients.iter().filter(|c| **c != 0).count();
        }
        let share = nonzero as f64 / 50_000.0;
        let wanted = f64::from(density + 1) / 16.0;
        assert!((share - wanted).abs() < 0.01, "{density}: {share}");
    }
}

#[test]
fn kernels_give_the_same_bytes() {
    // An interpreter gets a few of the elements.
    let step = if cfg!(miri) { 127 } else { 1 };
    let mut random = Random(1);
    let mut kernels = 0;
    for kernel in Kernel::available() {
        kernels += 1;
        for factor in (0..=255_u8).step_by(step) {
            for (len, lens) in [(0, [1, 0]), (1, [0, 1]), (1, [1, 2]), (3, [2, 3])] {
                let mut block = || Block(random.bytes(BLOCK).try_into().unwrap());
                let mut sum: Vec<Block> = (0..len).map(|_| block()).collect();
                let sources = lens.map(|len| (0..len).map(|_| block()).collect::<Vec<_>>());
                let factors = [factor, factor.rotate_left(3) ^ 1];
                let mut expected = sum.clone();
                for (source, factor) in sources.iter().zip(factors) {
                    for (sum, source) in expected.iter_mut().zip(source) {
                        for (sum, source) in sum.0.iter_mut().zip(source.0) {
                            *sum ^= product(factor, source);
                        }
                    }
                }
                let terms = [(factors[0], &sources[0][..]), (factors[1], &sources[1])];
                kernel.multiply_add(&mut sum, &terms);
                assert_eq!(sum, expected, "{kernel:?} by {factors:?}");
            }
        }
    }
    assert!(kernels >= 1 && Kernel::available().any(|kernel| kernel == Kernel::detect()));
}

/// An element times all others, in every kernel.
#[test]
fn kernels_multiply_all_elements() {
    let source = [Block(std::array::from_fn(|i| i as u8))];
    for kernel in Kernel::available() {
        for factor in [0, 1, 2, 3, 29, 128, 254, 255] {
            let mut sum = [Block::ZERO];
            kernel.multiply_add(&mut sum, &[(factor, &source)]);
            let products = sum[0].0.into_iter();
            assert!(
                products.eq((0..=255).map(|x| product(factor, x))),
                "{kernel:?}"
            );
        }
    }
}
