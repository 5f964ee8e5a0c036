//! Recorded documents, taken apart at their entries and otherwise left as they are.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// An Atom document: what is before the entries, the entries, what is after them.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Everything before the first entry.
    pub head: String,
    /// The entries as they were written, newest first as in the document, each with its id.
    pub entries: Vec<(String, String)>,
    /// Everything after the last entry.
    pub tail: String,
}

impl Recorded {
    /// Reads a document from a file.
    ///
    /// # Errors
    /// When it cannot be read, has no entries, or one without an id.
    pub fn read(path: &Path) -> Result<Recorded> {
        let bytes = std::fs::read(path)
            .with_context(|| format!("reading the recorded feed {}", path.display()))?;
        Recorded::parse(&String::from_utf8_lossy(&bytes))
            .with_context(|| format!("{} is not a usable Atom document", path.display()))
    }

    /// Takes a document apart.
    ///
    /// # Errors
    /// When it has no entries, or one without an id.
    pub fn parse(text: &str) -> Result<Recorded> {
        let start = text.find("<entry").context("it has no <entry>")?;
        let end = text
            .rfind("</entry>")
            .map(|at| at + "</entry>".len())
            .context("it has no </entry>")?;
        ensure!(
            start < end,
            "its first entry begins after the last one ends"
        );
        let (before, tail) = text.split_at(end);
        let (head, middle) = before.split_at(start);
        let entries = middle
            .split_inclusive("</entry>")
            .map(|xml| Ok((entry_id(xml)?, xml.to_owned())))
            .collect::<Result<Vec<_>>>()?;
        Ok(Recorded {
            head: head.to_owned(),
            entries,
            tail: tail.to_owned(),
        })
    }
}

fn entry_id(xml: &str) -> Result<String> {
    let (_, rest) = xml.split_once("<id>").context("an entry has no <id>")?;
    let (id, _) = rest.split_once("</id>").context("an <id> has no end")?;
    ensure!(!id.contains('<'), "an <id> holds markup");
    Ok(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_make_up_the_document() {
        let text =
            "<feed><id>f</id><entry><id>b</id></entry>\n<entry><id> a </id></entry></feed>\n";
        let parts = Recorded::parse(text).unwrap();
        let ids: Vec<&str> = parts.entries.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["b", "a"]);
        let middle: String = parts.entries.iter().map(|(_, xml)| xml.as_str()).collect();
        assert_eq!(format!("{}{middle}{}", parts.head, parts.tail), text);
    }

    #[test]
    fn documents_without_usable_entries_are_refused() {
        assert!(Recorded::parse("<feed></feed>").is_err());
        assert!(Recorded::parse("</entry><entry>").is_err());
        assert!(Recorded::parse("<feed><entry></entry></feed>").is_err());
    }
}
