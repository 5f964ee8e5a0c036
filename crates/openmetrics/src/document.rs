//! The document that lists a program's metrics: a table with the rows
//! ``| `name` | type | labels | meaning |``.

use std::collections::BTreeMap;

use crate::{Family, Kind};

/// Cells of a row.
type Row<'a> = [&'a str; 4];

/// Returns the name by which a family is queried.
fn asked(name: &str, kind: Kind) -> String {
    match kind {
        Kind::Counter => format!("{name}_total"),
        Kind::Info => format!("{name}_info"),
        Kind::Gauge | Kind::Histogram => name.to_owned(),
    }
}

/// Returns the rows that describe these families.
pub fn table(families: &BTreeMap<String, Family>) -> Vec<String> {
    let row = |(name, family): (&String, &Family)| {
        let labels: Vec<String> = family.labels().iter().map(|l| format!("`{l}`")).collect();
        format!(
            "| `{}` | {} | {} | {} |",
            asked(name, family.kind),
            family.kind.word(),
            labels.join(", "),
            family.help.trim_end_matches('.')
        )
    };
    families.iter().map(row).collect()
}

/// Returns the differences between a document and the families. Only rows of names that begin with
/// `prefix` count. Every family must have samples, which show its labels.
pub fn differences(
    document: &str,
    prefix: &str,
    families: &BTreeMap<String, Family>,
) -> Vec<String> {
    let beginning = format!("| `{prefix}");
    let mut written: BTreeMap<&str, Row<'_>> = BTreeMap::new();
    let mut found = Vec::new();
    for line in document.lines().filter(|line| line.starts_with(&beginning)) {
        let cells = line.trim_matches('|').split(" | ").map(str::trim);
        match <Row<'_>>::try_from(cells.collect::<Vec<_>>()) {
            Ok(row) => {
                if written.insert(row[0].trim_matches('`'), row).is_some() {
                    found.push(format!("twice in the document: {line}"));
                }
            }
            Err(_) => found.push(format!("not four cells: {line}")),
        }
    }
    for ((name, family), row) in families.iter().zip(table(families)) {
        if family.samples.is_empty() {
            found.push(format!("no samples, so the labels are not known: {name}"));
        }
        match written.remove(asked(name, family.kind).as_str()) {
            None => found.push(format!("not in the document: {row}")),
            Some(cells) if format!("| {} |", cells.join(" | ")) != row => {
                let cells = cells.join(" | ");
                found.push(format!(
                    "the document has:\n  | {cells} |\ninstead of:\n  {row}"
                ));
            }
            Some(_) => {}
        }
    }
    found.extend(
        written
            .keys()
            .map(|name| format!("not in the program: {name}")),
    );
    found
}
