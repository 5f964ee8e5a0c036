//! Suggestions for mistyped names.

/// Returns the name among `known` that is closest to `wrong`, if one is close enough.
#[must_use]
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (wrong.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|name| (distance(wrong, name), name))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Returns the number of insertions, deletions, replacements and swaps between two names.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX - 1);
            let above = rows.last().map_or(&[][..], Vec::as_slice);
            let mut least = (at(above, j) + usize::from(x != y))
                .min(at(above, j + 1) + 1)
                .min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped && let Some(before) = rows.get(i - 1) {
                least = least.min(at(before, j - 1) + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows.last().and_then(|row| row.last()).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested_and_others_are_not() {
        let known = ["data", "interface", "link_file", "log_level"];
        let of = |wrong| nearest(wrong, known);
        assert_eq!(of("intreface"), Some("interface"));
        assert_eq!(of("dta"), Some("data"));
        assert_eq!(of("linkfile"), Some("link_file"));
        assert_eq!(of("log_lvel"), Some("log_level"));
        assert_eq!(of("colour"), None);
        assert_eq!(of(""), None);
        assert_eq!(distance("abcd", "abdc"), 1);
        assert_eq!(distance("", "xyz"), 3);
    }
}
