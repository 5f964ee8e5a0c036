//! CPU time of reading a feed document, beside feed-rs, which is an independent reader of the same
//! formats.

use anyhow::{Context, Result, ensure};
use feed::parse::parse;
use testbed::lore::{Book, Origin, WINDOW};

use crate::cpu::Stopwatch;
use crate::figures::{Figures, median};

/// All figures of this file.
pub const NAMES: [&str; 6] = [
    "parse_us_per_kb",
    "parse_feed_rs_us_per_kb",
    "parse_vs_feed_rs",
    "parse_large_us_per_kb",
    "parse_large_feed_rs_us_per_kb",
    "parse_large_vs_feed_rs",
];

const ADDRESS: &str = "https://lore.example/all/new.atom";

/// Windows of the generator's feed in the large document, some 3.5 MB.
const LARGE: u64 = 14;

/// Measures what is asked for.
///
/// # Errors
/// When the two readers do not find the same entries.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let [own, other, ratio, large_own, large_other, large_ratio] = NAMES;
    for (names, windows, runs) in [
        ([own, other, ratio], 1, 51),
        ([large_own, large_other, large_ratio], LARGE, 11),
    ] {
        if !figures.wants(&names) {
            continue;
        }
        let document = document(windows)?;
        let kb = document.len() as f64 / 1024.0;
        let (ours, theirs) = read(&document, runs)?;
        eprintln!("reading: {kb:.0} KB, {ours:.0} and {theirs:.0} µs");
        figures.take(names[0], ours / kb, "µs/KB");
        figures.take(names[1], theirs / kb, "µs/KB");
        figures.take(names[2], ours / theirs, "ratio");
    }
    Ok(())
}

/// A feed in lore's shape, with the entries of so many windows.
fn document(windows: u64) -> Result<Vec<u8>> {
    let mut document = String::new();
    for seed in 0..windows {
        let mut book = Book::open(Origin::Generated(seed), WINDOW as u32, 0, None)?;
        let text = String::from_utf8(book.give_out()?)?;
        let (head, rest) = text
            .split_once("<entry>")
            .context("a feed without entries")?;
        let (entries, _) = rest
            .rsplit_once("</feed>")
            .context("a feed without an end")?;
        if document.is_empty() {
            document.push_str(head);
        }
        document.push_str("<entry>");
        document.push_str(entries);
    }
    document.push_str("</feed>");
    Ok(document.into_bytes())
}

/// The median times of both readers in µs, run by run in turns.
fn read(document: &[u8], runs: usize) -> Result<(f64, f64)> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for run in 0..=runs {
        let mut own = Stopwatch::new();
        let feed = own.time(|| parse(document, ADDRESS))?;
        let mut other = Stopwatch::new();
        let reference = other.time(|| feed_rs::parser::parse(document))?;
        ensure!(feed.skipped.is_empty(), "passed over: {:?}", feed.skipped);
        let same = feed.entries.iter().map(|e| &e.id);
        ensure!(
            same.eq(reference.entries.iter().map(|e| &e.id)),
            "the two readers find other entries: {} and {}",
            feed.entries.len(),
            reference.entries.len()
        );
        let whole = |entry: &feed::Entry| {
            entry.content_html.is_some() && entry.updated.is_some() && !entry.xml.is_empty()
        };
        ensure!(feed.entries.iter().all(whole), "an entry lacks a field");
        // The first one warms the caches.
        if run > 0 {
            ours.push(own.total().as_secs_f64() * 1e6);
            theirs.push(other.total().as_secs_f64() * 1e6);
        }
    }
    Ok((median(ours), median(theirs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_readers_find_the_same_entries() {
        let one = document(1).unwrap();
        let three = document(3).unwrap();
        assert!(three.len() > 2 * one.len());
        read(&one, 1).unwrap();
        read(&three, 1).unwrap();
        let cut = [&one[..one.len() / 2], b"</content></entry></feed>"].concat();
        assert!(read(&cut, 1).is_err());
    }
}
