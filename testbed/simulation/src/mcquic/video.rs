//! Video in the place of the paper's trace, which is not public.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Frames of a second.
const FRAMES_PER_S: u64 = 30;
/// Bytes of a frame, at least, in the middle and at most.
const SIZES: (f64, f64, f64) = (1_000.0, 2_500.0, 12_500.0);
/// Spread of their logarithms.
const SPREAD: f64 = 0.8;

/// Returns the times and sizes of the frames of a call: 30 in a second, of 1,000 to 12,500 bytes
/// (log-normal, and cut off there).
#[must_use]
pub fn video(span: Duration, seed: u64) -> Vec<(Duration, usize)> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let frames = (span.as_secs_f64() * FRAMES_PER_S as f64) as u64;
    let frame = |n: u64| {
        // The sum of twelve uniform numbers, less six, is nearly normal.
        let normal: f64 = (0..12).map(|_| rng.random_range(0.0..1.0)).sum::<f64>() - 6.0;
        let (least, middle, most) = SIZES;
        let size = (middle * (normal * SPREAD).exp()).clamp(least, most);
        let at = Duration::from_secs_f64(n as f64 / FRAMES_PER_S as f64);
        (at, size as usize)
    };
    (0..frames).map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_sizes_of_the_paper() {
        let frames = video(Duration::from_secs(300), 1);
        assert_eq!(frames.len(), 9_000);
        let sizes: Vec<usize> = frames.iter().map(|(_, size)| *size).collect();
        assert_eq!(sizes.iter().min(), Some(&1_000));
        assert!(sizes.iter().max() > Some(&12_000));
        assert_eq!(frames, video(Duration::from_secs(300), 1));
    }
}
