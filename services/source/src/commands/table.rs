//! Tables for people, no wider than a terminal of 80 columns.

use super::text::{cut, plain};

/// Largest width of a line, in characters.
pub(super) const WIDTH: usize = 80;

/// Spaces between two columns.
const GAP: usize = 2;

/// A column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub title: &'static str,
    /// Whether it is aligned to the right, as numbers are.
    pub right: bool,
    /// Minimum width when the table is too wide; 0 never to cut.
    pub least: usize,
}

/// Returns a column of texts that may be cut.
pub(super) const fn words(title: &'static str, least: usize) -> Column {
    Column {
        title,
        right: false,
        least,
    }
}

/// Returns a column of texts that are shown whole.
pub(super) const fn whole(title: &'static str) -> Column {
    words(title, 0)
}

/// Returns a column of numbers.
pub(super) const fn number(title: &'static str) -> Column {
    Column {
        title,
        right: true,
        least: 0,
    }
}

/// Returns a table, or `none` if it has no rows.
pub(super) fn table_or(columns: &[Column], rows: &[Vec<String>], none: &str) -> String {
    match rows.is_empty() {
        true => none.to_owned(),
        false => table(columns, rows),
    }
}

/// Returns the lines of a table; the widest columns are cut first.
pub(super) fn table(columns: &[Column], rows: &[Vec<String>]) -> String {
    let titles = columns.iter().map(|c| c.title.to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(titles)
        .chain(
            rows.iter()
                .map(|row| row.iter().map(|cell| plain(cell)).collect()),
        )
        .collect();
    let mut widths: Vec<usize> = (0..columns.len())
        .map(|at| {
            rows.iter()
                .filter_map(|row| row.get(at))
                .map(|cell| cell.chars().count())
                .max()
        })
        .map(Option::unwrap_or_default)
        .collect();
    let gaps = GAP * columns.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > WIDTH {
        let widest = widths
            .iter_mut()
            .zip(columns)
            .filter(|(width, column)| column.least > 0 && **width > column.least)
            .max_by_key(|(width, _)| **width);
        match widest {
            Some((width, _)) => *width -= 1,
            None => break,
        }
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for ((cell, width), column) in row.iter().zip(&widths).zip(columns) {
            if !line.is_empty() {
                line.push_str(&" ".repeat(GAP));
            }
            let cell = cut(cell, *width);
            let blank = " ".repeat(width.saturating_sub(cell.chars().count()));
            match column.right {
                true => line.extend([blank, cell]),
                false => line.extend([cell, blank]),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit() {
        const COLUMNS: [Column; 3] = [number("ID"), words("URL", 20), words("WHAT", 10)];
        let row = |id: &str, url: &str, what: &str| [id, url, what].map(str::to_owned).to_vec();
        let small = table(&COLUMNS, &[row("7", "http://a/", "ok")]);
        assert_eq!(small, "ID  URL        WHAT\n 7  http://a/  ok\n");
        let long = "x".repeat(300);
        let wide = table(
            &COLUMNS,
            &[row("7", &long, "ok"), row("8", "a\x1b[31m\n", &long)],
        );
        for line in wide.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
            assert!(!line.contains('\x1b'), "{line}");
        }
        assert_eq!(wide.lines().count(), 3, "{wide}");
        assert!(wide.contains("xx…"), "{wide}");
        assert_eq!(table(&COLUMNS, &[]), "ID  URL  WHAT\n");
    }
}
