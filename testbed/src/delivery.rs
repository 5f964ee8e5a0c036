//! Delivery logs: what a receiver put out, in which order, by which path.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// One line of a delivery log.
#[derive(Debug, Clone, Deserialize)]
pub struct Delivery {
    /// The update's number.
    pub seq: u64,
    /// The entry's id.
    pub id: String,
    /// `flow`, `repaired` or `unicast`.
    pub via: String,
    /// When, Unix time in ms.
    pub at_ms: f64,
    /// Since the update was stored at the source, in ms.
    pub latency_ms: f64,
}

/// Reads a delivery log; a last line without its end (the writer is at it, or was killed) is left
/// out.
///
/// # Errors
/// When the file cannot be read or a complete line is not as agreed.
pub fn read(path: &Path) -> Result<Vec<Delivery>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context(format!("reading {}", path.display())),
    };
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Vec<Delivery>> {
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .enumerate()
        .map(|(index, line)| {
            serde_json::from_str(line).with_context(|| format!("line {}: {line:?}", index + 1))
        })
        .collect()
}

/// Checks that updates `1..=last` are there, each once, in order.
///
/// # Errors
/// Says where the order breaks: a hole, a repetition, or an early end.
pub fn check_once_in_order(deliveries: &[Delivery], last: u64) -> Result<()> {
    let mut expected = 1;
    for (index, delivery) in deliveries.iter().enumerate() {
        if delivery.seq < expected {
            bail!(
                "delivered twice or late: update {} came as delivery {} after update {}",
                delivery.seq,
                index + 1,
                expected - 1
            );
        }
        if delivery.seq > expected {
            bail!(
                "lost or out of order: update {} came as delivery {}, where {expected} was due",
                delivery.seq,
                index + 1
            );
        }
        expected += 1;
    }
    if expected != last + 1 {
        bail!("the log ends with update {}, not {last}", expected - 1);
    }
    Ok(())
}

/// The longest time without a delivery among deliveries after the first of `from` on, in ms.
pub fn longest_gap_ms(deliveries: &[Delivery], from: u64) -> f64 {
    let times: Vec<f64> = deliveries
        .iter()
        .filter(|delivery| delivery.seq >= from)
        .map(|delivery| delivery.at_ms)
        .collect();
    times
        .windows(2)
        .filter_map(|pair| Some(pair.last()? - pair.first()?))
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(seqs: &[u64]) -> Vec<Delivery> {
        let text: String = seqs
            .iter()
            .map(|seq| {
                format!(
                    "{{\"seq\":{seq},\"id\":\"x\",\"via\":\"flow\",\"at_ms\":{seq}.5,\
                     \"latency_ms\":1}}\n"
                )
            })
            .collect();
        parse(&text).unwrap()
    }

    #[test]
    fn holes_repetitions_and_early_ends_are_found() {
        assert!(check_once_in_order(&log(&[1, 2, 3]), 3).is_ok());
        assert!(check_once_in_order(&log(&[1, 3]), 3).is_err());
        assert!(check_once_in_order(&log(&[1, 2, 2, 3]), 3).is_err());
        assert!(check_once_in_order(&log(&[1, 2]), 3).is_err());
        assert!(check_once_in_order(&log(&[2, 3]), 3).is_err());
    }

    #[test]
    fn an_unfinished_line_is_not_read() {
        let text =
            "{\"seq\":1,\"id\":\"x\",\"via\":\"flow\",\"at_ms\":1,\"latency_ms\":1}\n{\"seq\":2";
        assert_eq!(parse(text).unwrap().len(), 1);
        assert!(parse("{\"seq\":2\n").is_err());
    }

    #[test]
    fn the_longest_gap_counts_from_the_given_update() {
        assert_eq!(longest_gap_ms(&log(&[1, 5, 6]), 1), 4.0);
        assert_eq!(longest_gap_ms(&log(&[1, 5, 6]), 5), 1.0);
    }
}
