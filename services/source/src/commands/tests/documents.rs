//! Commands in the documentation parse.

use std::path::Path;

use super::*;

const OPERATIONS: &str = include_str!("../../../../../docs/operations.md");
const README: &str = include_str!("../../../../../README.md");

/// The words of a line as a shell takes them: quotes hold words together.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = None;
    for c in line.chars() {
        match (quoted, c) {
            (Some(quote), c) if c == quote => quoted = None,
            (None, '\'' | '"') => quoted = Some(c),
            (None, ' ') => words.push(String::new()),
            (_, c) => {
                if let Some(word) = words.last_mut() {
                    word.push(c);
                }
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The lines of a document that run the program.
fn lines(document: &str) -> Vec<&str> {
    let run = |line: &&str| line.starts_with("    flexfeed-source ");
    let lines = document.lines().filter(run);
    lines
        .map(|line| line.split(" #").next().unwrap_or(line).trim())
        .collect()
}

#[test]
fn every_command_line_in_the_documents_is_understood() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("source.toml");
    std::fs::write(&file, example()).unwrap();
    let found = [lines(OPERATIONS), lines(README)].concat();
    assert!(found.len() > 20, "{found:?}");
    for line in found {
        let line = line.replace("/etc/flexfeed/source.toml", file.to_str().unwrap());
        let words = words(&line);
        let matches = arguments::command().try_get_matches_from(&words);
        let matches = matches.unwrap_or_else(|error| panic!("{line}: {error}"));
        let read = Invocation::read(&matches, &Environment::default());
        read.unwrap_or_else(|mistakes| panic!("{line}: {mistakes:?}"));
    }
    for command in [
        "token create",
        "token list",
        "token revoke",
        "channel add",
        "channel set",
        "channel remove",
        "feed add",
        "feed list",
        "feed remove",
        "feed check",
        "feed import",
        "feed export",
        "receiver list",
        "receiver revoke",
        "receiver forget",
        "gap list",
        "backup",
        "restore",
        "config check",
        "config show",
        "health",
    ] {
        let line = format!("flexfeed-source {command}");
        assert!(OPERATIONS.contains(&line), "no example of {command}");
        assert!(
            OPERATIONS.contains(&format!("`{command}`")),
            "no answer of {command}"
        );
    }
}

/// The configuration file of the document.
fn example() -> &'static str {
    let block = OPERATIONS.split("```toml\n").nth(1).unwrap();
    block.split("```").next().unwrap()
}

#[test]
fn the_configuration_file_in_the_document_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("source.toml");
    std::fs::write(&file, example()).unwrap();
    let config = run(&["--config", file.to_str().unwrap()]);
    // Its address is the document's.
    let mut others = config.warnings.iter();
    let other = others.find(|warning| !warning.contains("a name for documentation"));
    assert_eq!(other, None);
    let feeds: Vec<_> = config
        .channels
        .iter()
        .map(|c| (c.name.as_str(), c.feeds.len()))
        .collect();
    assert_eq!(feeds, [("lore", 1), ("news", 2)]);
    assert!(config.channels[1].private && config.channels[1].feeds[1].polls.local);
}

#[test]
fn the_metrics_in_the_documents_are_there() {
    let list = include_str!("../../../../../docs/metrics.md");
    let of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut seen = 0;
    for (at, _) in OPERATIONS.match_indices("flexfeed_source_") {
        let rest = &OPERATIONS[at..];
        let end = rest.find(|c| !of_a_name(c)).unwrap_or(rest.len());
        let name = &rest[..end];
        assert!(list.contains(&format!("| `{name}` |")), "{name}");
        seen += 1;
    }
    assert!(seen > 2);
}

/// The text of all source files below a folder, with the lines of each text in one.
fn code(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text.push_str(&code(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            let mut continued = false;
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let line = if continued { line.trim_start() } else { line };
                let part = line.strip_suffix('\\');
                continued = part.is_some();
                text.push_str(part.unwrap_or(line));
                if !continued {
                    text.push('\n');
                }
            }
        }
    }
    text
}

#[test]
fn the_log_lines_in_the_document_are_in_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "src",
        "../../crates/feed/src",
        "../../crates/flexicast-tokio/src/source",
        "../../crates/service/src",
    ];
    let code: String = folders
        .iter()
        .map(|folder| code(&root.join(folder)))
        .collect();
    let section = OPERATIONS
        .split("## Troubleshooting: log messages")
        .nth(1)
        .unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let lines: Vec<&str> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    assert!(lines.len() > 15, "{lines:?}");
    for line in lines {
        for part in line
            .split('…')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            assert!(
                code.contains(part),
                "{part:?} of {line:?} is nowhere in the code"
            );
        }
    }
}
