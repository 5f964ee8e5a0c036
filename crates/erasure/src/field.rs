//! GF(2⁸) with the polynomial x⁸ + x⁴ + x³ + x² + 1 (that of RFC 8681), and the tables by which
//! vector instructions multiply in it.

/// The polynomial without x⁸.
pub(crate) const POLYNOMIAL: u8 = 0x1d;

/// Returns x · `a`.
const fn double(a: u8) -> u8 {
    (a << 1) ^ ((a >> 7) * POLYNOMIAL)
}

const fn product(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut sum) = (a, b, 0);
    while b != 0 {
        sum ^= (b & 1) * a;
        a = double(a);
        b >>= 1;
    }
    sum
}

/// Products of each element with all low nibbles, then with all high ones.
pub(crate) static NIBBLES: [[u8; 32]; 256] = {
    let mut table = [[0; 32]; 256];
    let mut a = 0;
    while a < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[a][nibble] = product(a as u8, nibble as u8);
            table[a][16 + nibble] = product(a as u8, (nibble as u8) << 4);
            nibble += 1;
        }
        a += 1;
    }
    table
};

/// Multiplication by each element as a matrix over GF(2), in the order of the instruction
/// GF2P8AFFINEQB: the row that makes bit i of the product is byte 7 − i.
#[cfg(target_arch = "x86_64")]
pub(crate) static MATRICES: [u64; 256] = {
    let mut table = [0; 256];
    let mut a = 0;
    while a < 256 {
        let mut bit = 0;
        let mut column = a as u8;
        while bit < 8 {
            let mut row = 0;
            while row < 8 {
                table[a] |= ((column >> row & 1) as u64) << (8 * (7 - row) + bit);
                row += 1;
            }
            column = double(column);
            bit += 1;
        }
        a += 1;
    }
    table
};

/// Returns the product of two elements.
pub(crate) fn multiply(a: u8, b: u8) -> u8 {
    let table = &NIBBLES[usize::from(a)];
    table[usize::from(b & 15)] ^ table[16 + usize::from(b >> 4)]
}

static INVERSES: [u8; 256] = {
    let mut table = [0; 256];
    let mut a = 1;
    while a < 256 {
        // a²⁵⁴
        let mut power = product(a as u8, a as u8);
        let mut inverse = power;
        let mut i = 0;
        while i < 6 {
            power = product(power, power);
            inverse = product(inverse, power);
            i += 1;
        }
        table[a] = inverse;
        a += 1;
    }
    table
};

/// Returns the inverse of an element; 0 for 0, which has none.
pub(crate) fn invert(a: u8) -> u8 {
    INVERSES[usize::from(a)]
}
