//! Bounds of what is given about a feed.

use url::Url;

use crate::api::problem::Problem;

/// The longest address of a feed, in bytes.
pub(in crate::api) const MAX_URL: usize = 2_048;

/// The longest title that an operator gives, in characters.
const MAX_TITLE: usize = 200;

/// Bounds of the time between two polls, in milliseconds. Shorter ones can be set at the source.
const INTERVALS: std::ops::RangeInclusive<i64> = 1_000..=86_400_000;

/// Returns a feed's address as it is shown, and as it is fetched from.
pub(super) fn read_address(given: &str) -> Result<(String, String), Problem> {
    let wrong =
        |what: &str| Problem::invalid("url", format!("{what}; write it as https://host/path"));
    let given = given.trim();
    if given.len() > MAX_URL {
        return Err(wrong("an address has at most 2048 bytes"));
    }
    let mut url = Url::parse(given).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("only http and https can be fetched"));
    }
    url.set_fragment(None);
    let mut shown = url.clone();
    // These fail only for addresses without a host, and http(s) ones have one.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    // Escapes can make it longer.
    if url.as_str().len() > MAX_URL {
        return Err(wrong("an address has at most 2048 bytes"));
    }
    Ok((shown.into(), url.into()))
}

pub(super) fn check_intervals(min: Option<i64>, max: Option<i64>) -> Result<(), Problem> {
    for (field, given) in [("min_interval_ms", min), ("max_interval_ms", max)] {
        if given.is_some_and(|given| !INTERVALS.contains(&given)) {
            return Err(Problem::invalid(field, "is from a second to a day"));
        }
    }
    match (min, max) {
        (Some(min), Some(max)) if min > max => Err(Problem::invalid(
            "min_interval_ms",
            "is longer than max_interval_ms",
        )),
        _ => Ok(()),
    }
}

pub(super) fn check_title(title: Option<&str>) -> Result<Option<String>, Problem> {
    let title = title.map(str::trim).filter(|title| !title.is_empty());
    match title {
        Some(title) if title.chars().count() > MAX_TITLE => Err(Problem::invalid(
            "title",
            format!("has at most {MAX_TITLE} characters"),
        )),
        title => Ok(title.map(str::to_owned)),
    }
}
