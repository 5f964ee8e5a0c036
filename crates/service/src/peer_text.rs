//! Text of peers made fit for a log line, a status or a terminal.

/// Maximum length of the result, in characters.
const MAX: usize = 500;

/// Returns the text on one line, without control characters (a terminal would obey them), and not
/// longer than 500 characters.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(MAX)
        .map(|c| {
            if c.is_control() || is_direction(c) {
                ' '
            } else {
                c
            }
        })
        .collect();
    if text.chars().nth(MAX).is_some() {
        out.push('…');
    }
    out
}

/// Whether a character reorders the text around it on a screen.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_without_control_characters() {
        assert_eq!(plain("a\n\u{1b}[2J\u{202e}b é"), "a  [2J b é");
        let long = plain(&"é".repeat(1000));
        assert_eq!(long.chars().count(), MAX + 1);
        assert!(long.ends_with('…'));
        assert_eq!(plain(&"x".repeat(MAX)).len(), MAX);
    }
}
