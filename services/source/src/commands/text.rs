//! Texts for a terminal.

use crate::config::FeedAddress;

/// Returns a text from outside without control characters, which move the cursor, set colours or
/// turn the direction of writing.
pub(super) fn plain(text: &str) -> String {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
            || matches!(c, '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .map(|c| if odd(c) { '\u{fffd}' } else { c })
        .collect()
}

/// Returns a count with its noun: "1 feed", "2 feeds".
pub(super) fn count(number: impl TryInto<u64>, what: &str) -> String {
    match number.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {what}"),
        number => {
            // entry, entries
            let (stem, end) = match what.strip_suffix('y') {
                Some(stem) => (stem, "ies"),
                None => (what, "s"),
            };
            format!("{number} {stem}{end}")
        }
    }
}

/// Returns at most `most` characters, with … in place of the rest.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Returns lines of at most `most` characters, broken at spaces.
pub(super) fn wrap(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else {
            break;
        };
        let length = line.chars().count();
        if length > 0 && length + 1 + word.chars().count() > most {
            lines.push(word.to_owned());
        } else {
            if length > 0 {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// Returns an address without its password, also if it is malformed.
pub(super) fn hidden(url: &str) -> String {
    match FeedAddress::parse(url) {
        Ok(address) => address.shown,
        Err(_) if url.contains('@') => "(an address that cannot be read)".to_owned(),
        Err(_) => url.to_owned(),
    }
}
