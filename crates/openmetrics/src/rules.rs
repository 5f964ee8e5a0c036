//! Rules within a family, and naming conventions.

use std::collections::BTreeMap;

use crate::{Family, Kind, Sample};

/// Units that are not base units.
const NOT_BASE: [&str; 12] = [
    "ms",
    "milliseconds",
    "us",
    "microseconds",
    "ns",
    "nanoseconds",
    "minutes",
    "hours",
    "bits",
    "kilobytes",
    "megabytes",
    "percent",
];

/// Largest plausible number of samples of one family in a small installation.
const MANY: usize = 500;

pub(crate) fn check(name: &str, family: &Family) -> Result<(), String> {
    if name.chars().any(|c| c.is_ascii_uppercase()) {
        return Err("names are in small letters".into());
    }
    if let Some(unit) = name.split('_').find(|part| NOT_BASE.contains(part)) {
        return Err(format!("{unit} is no base unit"));
    }
    for suffix in ["_total", "_count", "_sum", "_bucket", "_info", "_created"] {
        if name.ends_with(suffix) {
            return Err(format!("a family's name does not end with {suffix}"));
        }
    }
    if family.help.trim_end_matches('.').trim().is_empty() {
        return Err("its # HELP says nothing".into());
    }
    match &family.unit {
        Some(unit) if !name.ends_with(&format!("_{unit}")) => {
            return Err(format!("its name does not end with its unit {unit}"));
        }
        None if ["seconds", "bytes"].iter().any(|unit| name.ends_with(unit)) => {
            return Err("its name ends with a unit, and it has no # UNIT".into());
        }
        _ => {}
    }
    if family.samples.len() > MANY {
        return Err(format!("{} samples", family.samples.len()));
    }
    let counts = family.kind != Kind::Gauge;
    if let Some(sample) = family
        .samples
        .iter()
        .find(|s| counts && (s.value.is_nan() || s.value < 0.0))
    {
        return Err(format!("{} is no count", sample.value));
    }
    let info = |sample: &Sample| family.kind == Kind::Info && sample.value != 1.0;
    if family.samples.iter().any(info) {
        return Err("the value of an info is 1".into());
    }
    match family.kind {
        Kind::Histogram => histogram(family),
        _ => Ok(()),
    }
}

/// Checks that buckets are in order and cumulative, and that the last has all.
fn histogram(family: &Family) -> Result<(), String> {
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<&Sample>> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        labels.remove("le");
        series.entry(labels).or_default().push(sample);
    }
    for samples in series.values() {
        let mut last = (f64::NEG_INFINITY, 0.0);
        for bucket in samples.iter().filter(|sample| sample.suffix == "_bucket") {
            let le = bucket.labels.get("le").map(String::as_str);
            let bound = match le {
                Some("+Inf") => f64::INFINITY,
                le => le
                    .and_then(|le| le.parse().ok())
                    .ok_or("a bucket without le")?,
            };
            if bound <= last.0 || bucket.value < last.1 {
                return Err("its buckets are not in order".into());
            }
            last = (bound, bucket.value);
        }
        let one = |suffix: &str| samples.iter().find(|sample| sample.suffix == suffix);
        match (one("_count"), one("_sum")) {
            (Some(count), Some(_)) if last == (f64::INFINITY, count.value) => {}
            _ => {
                return Err(
                    "its last bucket is not +Inf with the count, or a sum is missing".into(),
                );
            }
        }
    }
    Ok(())
}
