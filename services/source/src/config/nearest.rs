//! What somebody may have meant.

/// The known word that is most like this one, if one is like it at all.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likely = (word.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= likely)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters have to be put in, taken out or replaced (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut fresh = vec![left];
        for (above, to) in row.iter().skip(1).zip(&b) {
            let replaced = diagonal + usize::from(from != *to);
            left = replaced.min(above + 1).min(left + 1);
            diagonal = *above;
            fresh.push(left);
        }
        row = fresh;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_guessed_and_the_rest_is_not() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("rate", "rate", 0),
            ("rtae", "rate", 2),
            ("kitten", "sitting", 3),
            ("ähnlich", "ahnlich", 1),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
        let known = ["rate", "retention", "retention_age", "group"];
        assert_eq!(nearest("retension", known), Some("retention"));
        assert_eq!(nearest("rates", known), Some("rate"));
        assert_eq!(nearest("groups", known), Some("group"));
        assert_eq!(nearest("something", known), None);
        assert_eq!(nearest("", known), None);
    }
}
