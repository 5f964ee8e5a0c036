//! Runs in virtual time, on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

/// Plays all cells, and returns the results in their order.
///
/// # Errors
/// When one of them fails.
pub fn play_all<C: Sync, T: Send>(
    name: &str,
    cells: &[C],
    play: impl Fn(&C) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(cells.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(at) else { break };
                    let result = play(cell);
                    let mut results = results.lock().unwrap_or_else(|it| it.into_inner());
                    results.push((at, result));
                    eprintln!("{name}: {} of {} runs", results.len(), cells.len());
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|it| it.into_inner());
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    #[test]
    fn results_come_in_order() {
        let cells: Vec<u64> = (0..100).collect();
        let doubled = play_all("test", &cells, |n| Ok(n * 2)).unwrap();
        assert_eq!(doubled, cells.iter().map(|n| n * 2).collect::<Vec<_>>());
        let failing = play_all("test", &cells, |n| {
            ensure!(*n != 50, "fifty");
            Ok(())
        });
        assert!(failing.is_err());
    }
}
