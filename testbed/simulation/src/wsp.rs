//! Space-filling designs by the WSP algorithm (Wootton, Sergent, Phan-Tan-Luu), as Santiago,
//! Claeys-Bruno and Sergent describe it ("Construction of space-filling designs using WSP algorithm
//! for high dimensional spaces", 2012).
//!
//! Of many random points, it keeps some such that no two are closer than a least distance, and
//! every point that it drops is closer than that to one it kept: few experiments fill the space
//! evenly.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Candidates for each point of a design.
const CANDIDATES: usize = 20;
/// Steps of the search for the least distance.
const STEPS: usize = 40;

/// Point in the unit cube.
pub type Point = Vec<f64>;

/// Points of a design.
#[derive(Debug, Clone, PartialEq)]
pub struct Design {
    /// Points, each nearest to the one before of those that were left.
    pub points: Vec<Point>,
    /// Least distance of two of them.
    pub distance: f64,
}

/// Returns a design of `count` points with so many coordinates, from 0 to 1 each. The same seed
/// gives the same one.
///
/// The least distance is searched for so that as few points as possible are kept, but not fewer
/// than `count`; the first `count` of them are returned.
#[must_use]
pub fn design(dimensions: usize, count: usize, seed: u64) -> Design {
    let mut rng = SmallRng::seed_from_u64(seed);
    let candidates: Vec<Point> = (0..CANDIDATES * count)
        .map(|_| (0..dimensions).map(|_| rng.random::<f64>()).collect())
        .collect();
    let (mut least, mut most) = (0.0, (dimensions as f64).sqrt());
    let mut best = select(&candidates, least);
    for _ in 0..STEPS {
        let distance = f64::midpoint(least, most);
        let chosen = select(&candidates, distance);
        if chosen.len() < count {
            most = distance;
            continue;
        }
        least = distance;
        if chosen.len() <= best.len() {
            best = chosen;
        }
    }
    best.truncate(count);
    let points: Vec<Point> = best.iter().map(|at| candidates[*at].clone()).collect();
    let distance = least_distance(&points);
    Design { points, distance }
}

/// Returns the candidates that the algorithm keeps with this least distance, in its order.
fn select(candidates: &[Point], distance: f64) -> Vec<usize> {
    let centre = vec![0.5; candidates.first().map_or(0, Vec::len)];
    let limit = distance * distance;
    let mut left: Vec<usize> = (0..candidates.len()).collect();
    let mut seed = nearest(candidates, &left, &centre);
    let mut chosen = Vec::new();
    while let Some(point) = seed {
        chosen.push(point);
        let origin = &candidates[point];
        left.retain(|at| *at != point && square(&candidates[*at], origin) >= limit);
        seed = nearest(candidates, &left, origin);
    }
    chosen
}

fn nearest(candidates: &[Point], left: &[usize], to: &[f64]) -> Option<usize> {
    let distance = |at: &usize| square(&candidates[*at], to);
    left.iter()
        .copied()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

/// Returns the square of the distance of two points.
fn square(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// Returns the least distance of two of these points; infinite where there are no two.
#[must_use]
pub fn least_distance(points: &[Point]) -> f64 {
    let pairs = points
        .iter()
        .enumerate()
        .flat_map(|(at, one)| points[at + 1..].iter().map(|other| square(one, other)));
    pairs.fold(f64::INFINITY, f64::min).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(dimensions: usize, count: usize, seed: u64) -> Vec<Point> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let point = |_| (0..dimensions).map(|_| rng.random::<f64>()).collect();
        (0..count).map(point).collect()
    }

    /// By hand: from the centre to the nearest that is left, whatever is too near dropped.
    #[test]
    fn points_are_chosen_in_the_order_of_the_algorithm() {
        let line: Vec<Point> = [0.1, 0.52, 0.7, 0.58, 0.95, 0.64].map(|x| vec![x]).to_vec();
        assert_eq!(select(&line, 0.1), [1, 5, 4, 0]);
        assert_eq!(select(&line, 0.4), [1, 0, 4]);
        assert_eq!(select(&line, 0.0), [1, 3, 5, 2, 4, 0]);
        assert_eq!(select(&line, 2.0), [1]);
        assert_eq!(select(&[], 0.1), [] as [usize; 0]);
    }

    /// No two kept points are too near, and none that was dropped would have had room.
    #[test]
    fn kept_points_are_apart_and_leave_no_hole() {
        for dimensions in 1..=5 {
            let candidates = random(dimensions, 1_500, dimensions as u64);
            let distance = 0.25;
            let chosen = select(&candidates, distance);
            let points: Vec<Point> = chosen.iter().map(|at| candidates[*at].clone()).collect();
            assert!(least_distance(&points) >= distance, "{dimensions}");
            let has_room = |at: &Point| points.iter().all(|p| square(at, p).sqrt() >= distance);
            let missed = candidates.iter().filter(|at| has_room(at)).count();
            assert_eq!(missed, 0, "{dimensions} dimensions");
        }
    }

    /// Against as many random points: farther apart, and every place is nearer to one.
    #[test]
    fn designs_fill_the_space_better_than_random_points() {
        for dimensions in [2, 3, 5] {
            let design = design(dimensions, 100, 7);
            assert_eq!(design.points.len(), 100);
            assert_eq!(design.distance, least_distance(&design.points));
            let inside = |point: &Point| point.iter().all(|x| (0.0..1.0).contains(x));
            assert!(design.points.iter().all(inside));
            let others = random(dimensions, 100, 8);
            let apart = least_distance(&others);
            assert!(
                design.distance > 2.0 * apart,
                "{dimensions}: {} and {apart}",
                design.distance
            );
            let places = random(dimensions, 5_000, 9);
            let hole = |points: &[Point]| {
                let near = |at: &Point| {
                    let each = points.iter().map(|point| square(at, point));
                    each.fold(f64::INFINITY, f64::min)
                };
                places.iter().map(near).fold(0.0, f64::max).sqrt()
            };
            let (ours, theirs) = (hole(&design.points), hole(&others));
            assert!(ours < theirs, "{dimensions}: {ours} and {theirs}");
            // Each eighth of each axis has points.
            for axis in 0..dimensions {
                for eighth in 0..8 {
                    let within = |point: &&Point| (point[axis] * 8.0) as usize == eighth;
                    let points = design.points.iter().filter(within).count();
                    assert!(points >= 3, "{dimensions}, axis {axis}, {eighth}: {points}");
                }
            }
        }
    }

    #[test]
    fn a_seed_decides_the_design() {
        assert_eq!(design(3, 40, 1), design(3, 40, 1));
        assert_ne!(design(3, 40, 1).points, design(3, 40, 2).points);
        assert_eq!(design(2, 0, 1).points, [] as [Point; 0]);
    }
}
