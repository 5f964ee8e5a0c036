//! Multiplication of whole symbols by one element, by the widest instructions that the processor
//! has. The only unsafe code of the crate: loads and stores of vectors, calls of functions that
//! need instructions which were detected, and views of blocks as bytes.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use crate::field::MATRICES;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::field::NIBBLES;
use crate::field::POLYNOMIAL;

/// Length of a block in bytes: as many as fit the registers beside a table.
pub(crate) const BLOCK: usize = 256;

/// Piece of a symbol that is added up in registers. No vector load is split between cache lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Block(pub(crate) [u8; BLOCK]);

/// Symbol to be added, and its factor.
pub(crate) type Term<'a> = (u8, &'a [Block]);

impl Block {
    pub(crate) const ZERO: Self = Block([0; BLOCK]);
}

/// Returns the bytes of blocks, one block behind the other.
pub(crate) fn bytes_of(blocks: &[Block]) -> &[u8] {
    // SAFETY: a block is its 256 bytes and has no padding.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), size_of_val(blocks)) }
}

/// The same, to be written.
pub(crate) fn bytes_of_mut(blocks: &mut [Block]) -> &mut [u8] {
    // SAFETY: a block is its 256 bytes, whichever they are, and has no padding.
    unsafe { std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), size_of_val(blocks)) }
}

/// Instructions by which symbols are multiplied. All give the same bytes. A value other than
/// [`Kernel::PORTABLE`] is proof that the processor has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel(Instructions);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Ssse3,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Gfni,
    #[cfg(target_arch = "x86_64")]
    Gfni512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Kernel {
    /// No instructions beyond those that programs are compiled for.
    pub const PORTABLE: Self = Kernel(Instructions::Portable);

    /// Returns the kernels that this processor can run, the fastest last.
    pub fn available() -> impl Iterator<Item = Self> {
        let found = [
            Some(Instructions::Portable),
            #[cfg(target_arch = "x86_64")]
            is_x86_feature_detected!("ssse3").then_some(Instructions::Ssse3),
            #[cfg(target_arch = "x86_64")]
            is_x86_feature_detected!("avx2").then_some(Instructions::Avx2),
            #[cfg(target_arch = "x86_64")]
            (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni"))
                .then_some(Instructions::Gfni),
            #[cfg(target_arch = "x86_64")]
            (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("gfni"))
                .then_some(Instructions::Gfni512),
            #[cfg(target_arch = "aarch64")]
            std::arch::is_aarch64_feature_detected!("neon").then_some(Instructions::Neon),
        ];
        found.into_iter().flatten().map(Kernel)
    }

    /// Returns the fastest kernel of this processor.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().last().unwrap_or(Self::PORTABLE)
    }

    /// Returns the name of the instructions.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Instructions::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Instructions::Ssse3 => "SSSE3",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Gfni => "GFNI, AVX2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Gfni512 => "GFNI, AVX-512",
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => "NEON",
        }
    }

    /// Adds each term to `sum`, as far as it reaches.
    pub(crate) fn multiply_add(self, sum: &mut [Block], terms: &[Term<'_>]) {
        // Two look-ups for 16 bytes cost more than their sum.
        let is_sum = terms.iter().all(|(factor, _)| *factor == 1);
        match self.0 {
            Instructions::Portable => multiply_add_portable(sum, terms),
            #[cfg(target_arch = "x86_64")]
            Instructions::Ssse3 if is_sum => multiply_add_portable(sum, terms),
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon if is_sum => multiply_add_portable(sum, terms),
            // SAFETY: `available` made this value where it detected the instructions.
            #[cfg(target_arch = "x86_64")]
            Instructions::Ssse3 => unsafe { multiply_add_ssse3(sum, terms) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { multiply_add_avx2(sum, terms) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Instructions::Gfni => unsafe { multiply_add_gfni(sum, terms) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Instructions::Gfni512 => unsafe { multiply_add_gfni512(sum, terms) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => unsafe { multiply_add_neon(sum, terms) },
        }
    }
}

/// Bit by bit of the factor, with as many bytes at once as the compiler's vectors hold.
fn multiply_add_portable(sum: &mut [Block], terms: &[Term<'_>]) {
    for (factor, source) in terms {
        for (sum, source) in sum.iter_mut().zip(*source) {
            let mut power = source.0;
            let bits = if *factor == 1 { 1 } else { 8 };
            for bit in 0..bits {
                let mask = 0_u8.wrapping_sub(factor >> bit & 1);
                for (sum, power) in sum.0.iter_mut().zip(&mut power) {
                    *sum ^= *power & mask;
                    *power = (*power << 1) ^ (0_u8.wrapping_sub(*power >> 7) & POLYNOMIAL);
                }
            }
        }
    }
}

/// The product with a byte is the sum of those with its nibbles, each looked up by a shuffle.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
fn multiply_add_ssse3(sum: &mut [Block], terms: &[Term<'_>]) {
    let nibble = _mm_set1_epi8(15);
    for (i, sum) in sum.iter_mut().enumerate() {
        for at in (0..BLOCK).step_by(128) {
            // SAFETY: a block has 256 bytes, twice eight vectors; no alignment is needed.
            unsafe {
                let to = sum.0.as_mut_ptr().add(at).cast::<__m128i>();
                let mut sums = [nibble; 8];
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm_loadu_si128(to.add(j));
                }
                for (factor, source) in terms {
                    let Some(source) = source.get(i) else {
                        continue;
                    };
                    let from = source.0.as_ptr().add(at).cast::<__m128i>();
                    let table = NIBBLES[usize::from(*factor)].as_ptr().cast::<__m128i>();
                    let (low, high) = (_mm_loadu_si128(table), _mm_loadu_si128(table.add(1)));
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let x = _mm_loadu_si128(from.add(j));
                        let l = _mm_shuffle_epi8(low, _mm_and_si128(x, nibble));
                        let x = _mm_and_si128(_mm_srli_epi16::<4>(x), nibble);
                        let product = _mm_xor_si128(l, _mm_shuffle_epi8(high, x));
                        *sum = _mm_xor_si128(*sum, product);
                    }
                }
                for (j, sum) in sums.iter().enumerate() {
                    _mm_storeu_si128(to.add(j), *sum);
                }
            }
        }
    }
}

/// As with SSSE3, on twice as many bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_add_avx2(sum: &mut [Block], terms: &[Term<'_>]) {
    let nibble = _mm256_set1_epi8(15);
    for (i, sum) in sum.iter_mut().enumerate() {
        let to = sum.0.as_mut_ptr().cast::<__m256i>();
        // SAFETY: a block has 256 bytes, eight vectors, and a table 32; no alignment is needed.
        unsafe {
            let mut sums = [nibble; 8];
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_loadu_si256(to.add(j));
            }
            for (factor, source) in terms {
                let Some(source) = source.get(i) else {
                    continue;
                };
                let from = source.0.as_ptr().cast::<__m256i>();
                let table = NIBBLES[usize::from(*factor)].as_ptr().cast::<__m128i>();
                let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(table));
                let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(1)));
                for (j, sum) in sums.iter_mut().enumerate() {
                    let x = _mm256_loadu_si256(from.add(j));
                    let l = _mm256_shuffle_epi8(low, _mm256_and_si256(x, nibble));
                    let x = _mm256_and_si256(_mm256_srli_epi16::<4>(x), nibble);
                    let product = _mm256_xor_si256(l, _mm256_shuffle_epi8(high, x));
                    *sum = _mm256_xor_si256(*sum, product);
                }
            }
            for (j, sum) in sums.iter().enumerate() {
                _mm256_storeu_si256(to.add(j), *sum);
            }
        }
    }
}

/// One instruction multiplies 32 bytes by a matrix. (GF2P8MULB would be of no use: its polynomial
/// is that of AES.)
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,gfni")]
fn multiply_add_gfni(sum: &mut [Block], terms: &[Term<'_>]) {
    for (i, sum) in sum.iter_mut().enumerate() {
        let to = sum.0.as_mut_ptr().cast::<__m256i>();
        // SAFETY: a block has 256 bytes, eight vectors; no alignment is needed.
        unsafe {
            let mut sums = [_mm256_setzero_si256(); 8];
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_loadu_si256(to.add(j));
            }
            for (factor, source) in terms {
                let Some(source) = source.get(i) else {
                    continue;
                };
                let from = source.0.as_ptr().cast::<__m256i>();
                let matrix = _mm256_set1_epi64x(MATRICES[usize::from(*factor)].cast_signed());
                for (j, sum) in sums.iter_mut().enumerate() {
                    let x = _mm256_loadu_si256(from.add(j));
                    let product = _mm256_gf2p8affine_epi64_epi8::<0>(x, matrix);
                    *sum = _mm256_xor_si256(*sum, product);
                }
            }
            for (j, sum) in sums.iter().enumerate() {
                _mm256_storeu_si256(to.add(j), *sum);
            }
        }
    }
}

/// The same with 64 bytes at once.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,gfni")]
fn multiply_add_gfni512(sum: &mut [Block], terms: &[Term<'_>]) {
    for (i, sum) in sum.iter_mut().enumerate() {
        let to = sum.0.as_mut_ptr().cast::<__m512i>();
        // SAFETY: a block has 256 bytes, four vectors; no alignment is needed.
        unsafe {
            let mut sums = [_mm512_setzero_si512(); 4];
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_loadu_si512(to.add(j));
            }
            for (factor, source) in terms {
                let Some(source) = source.get(i) else {
                    continue;
                };
                let from = source.0.as_ptr().cast::<__m512i>();
                let matrix = _mm512_set1_epi64(MATRICES[usize::from(*factor)].cast_signed());
                for (j, sum) in sums.iter_mut().enumerate() {
                    let x = _mm512_loadu_si512(from.add(j));
                    let product = _mm512_gf2p8affine_epi64_epi8::<0>(x, matrix);
                    *sum = _mm512_xor_si512(*sum, product);
                }
            }
            for (j, sum) in sums.iter().enumerate() {
                _mm512_storeu_si512(to.add(j), *sum);
            }
        }
    }
}

/// As with SSSE3.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn multiply_add_neon(sum: &mut [Block], terms: &[Term<'_>]) {
    let nibble = vdupq_n_u8(15);
    for (i, sum) in sum.iter_mut().enumerate() {
        for at in (0..BLOCK).step_by(128) {
            // SAFETY: a block has 256 bytes, twice eight vectors, and a table 32.
            unsafe {
                let to = sum.0.as_mut_ptr().add(at);
                let mut sums = [nibble; 8];
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = vld1q_u8(to.add(16 * j));
                }
                for (factor, source) in terms {
                    let Some(source) = source.get(i) else {
                        continue;
                    };
                    let from = source.0.as_ptr().add(at);
                    let table = NIBBLES[usize::from(*factor)].as_ptr();
                    let (low, high) = (vld1q_u8(table), vld1q_u8(table.add(16)));
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let x = vld1q_u8(from.add(16 * j));
                        let l = vqtbl1q_u8(low, vandq_u8(x, nibble));
                        let product = veorq_u8(l, vqtbl1q_u8(high, vshrq_n_u8::<4>(x)));
                        *sum = veorq_u8(*sum, product);
                    }
                }
                for (j, sum) in sums.iter().enumerate() {
                    vst1q_u8(to.add(16 * j), *sum);
                }
            }
        }
    }
}
