//! TinyMT32, the pseudorandom number generator of RFC 8682.

const MAT1: u32 = 0x8f70_11ee;
const MAT2: u32 = 0xfc78_ff1f;
const TMAT: u32 = 0x3793_fdff;

/// Generator with its 127 bits of state.
#[derive(Debug, Clone)]
pub(crate) struct TinyMt32([u32; 4]);

impl TinyMt32 {
    pub(crate) fn new(seed: u32) -> Self {
        let mut state = [seed, MAT1, MAT2, TMAT];
        for i in 1..8_u32 {
            let before = state[(i - 1) as usize & 3];
            let mixed = (before ^ before >> 30).wrapping_mul(1_812_433_253);
            state[i as usize & 3] ^= i.wrapping_add(mixed);
        }
        let mut generator = TinyMt32(state);
        for _ in 0..8 {
            generator.step();
        }
        generator
    }

    fn step(&mut self) {
        let [a, b, c, d] = self.0;
        let mut x = (a & 0x7fff_ffff) ^ b ^ c;
        x ^= x << 1;
        let y = d ^ d >> 1 ^ x;
        let odd = 0_u32.wrapping_sub(y & 1);
        self.0 = [b, c ^ odd & MAT1, x ^ y << 10 ^ odd & MAT2, y];
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u32 {
        self.step();
        let [a, _, c, d] = self.0;
        let sum = a.wrapping_add(c >> 8);
        d ^ sum ^ 0_u32.wrapping_sub(sum & 1) & TMAT
    }
}
