//! The document of results: its tables are between markers, and the charts beside it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::chart::{Chart, draw};

/// `benchmarks.md` in a folder.
pub struct Document {
    folder: PathBuf,
    text: String,
}

impl Document {
    /// Reads it.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open(folder: &Path) -> Result<Document> {
        let path = folder.join("benchmarks.md");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        Ok(Document {
            folder: folder.to_owned(),
            text,
        })
    }

    /// Replaces the table between two markers, and writes the document.
    ///
    /// # Errors
    /// When the markers are missing, or the document cannot be written.
    pub fn set_table(&mut self, name: &str, rows: &[Vec<String>]) -> Result<()> {
        self.set(name, &table(rows))
    }

    /// Draws charts into `benchmarks/NAME.svg` and shows them between the markers of `NAME.svg`.
    ///
    /// # Errors
    /// When the markers are missing, or a file cannot be written.
    pub fn draw(&mut self, name: &str, charts: &[Chart]) -> Result<()> {
        let folder = self.folder.join("benchmarks");
        std::fs::create_dir_all(&folder)?;
        let file = format!("{name}.svg");
        draw(&folder.join(&file), charts)?;
        let title = charts.first().map_or("", |chart| &chart.title);
        self.set(&file, &format!("![{title}](benchmarks/{file})\n"))
    }

    fn set(&mut self, name: &str, with: &str) -> Result<()> {
        self.text = replace(&self.text, name, with)
            .with_context(|| format!("benchmarks.md has no markers of {name}"))?;
        std::fs::write(self.folder.join("benchmarks.md"), &self.text)?;
        Ok(())
    }
}

/// Returns a table whose first row is the head.
fn table(rows: &[Vec<String>]) -> String {
    let mut out = String::new();
    for (row, number) in rows.iter().zip(0..) {
        out.push_str(&format!("| {} |\n", row.join(" | ")));
        if number == 0 {
            out.push_str(&format!("|{}\n", "---|".repeat(row.len())));
        }
    }
    out
}

/// Replaces what is between the markers of a name.
fn replace(text: &str, name: &str, with: &str) -> Option<String> {
    let (begin, end) = (
        format!("<!-- {name} -->\n"),
        format!("<!-- end of {name} -->"),
    );
    let start = text.find(&begin)? + begin.len();
    let stop = start + text.get(start..)?.find(&end)?;
    Some(format!("{}{with}{}", &text[..start], &text[stop..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_replaced_between_their_markers() {
        let text = "a\n<!-- t -->\nold\n<!-- end of t -->\nb\n";
        let rows = [vec!["n".into(), "x".into()], vec!["1".into(), "2".into()]];
        let table = table(&rows);
        assert_eq!(table, "| n | x |\n|---|---|\n| 1 | 2 |\n");
        let new = replace(text, "t", &table).unwrap();
        assert_eq!(
            new,
            "a\n<!-- t -->\n| n | x |\n|---|---|\n| 1 | 2 |\n<!-- end of t -->\nb\n"
        );
        assert_eq!(replace(&new, "t", &table), Some(new.clone()));
        assert_eq!(replace(text, "other", ""), None);
    }
}
