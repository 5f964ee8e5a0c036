//! Reader of the test vectors in `docs/amt.md`.

use std::collections::BTreeMap;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/amt.md");

/// Parses hexadecimal digits, with spaces anywhere.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).unwrap_or_else(|| panic!("{c} in {text}")) as u8)
        .collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in {text}");
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Returns all vectors, by name.
pub fn vectors() -> BTreeMap<String, Vec<u8>> {
    let text =
        std::fs::read_to_string(DOCUMENT).unwrap_or_else(|error| panic!("{DOCUMENT}: {error}"));
    let mut vectors = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_end() != "```vector" {
            continue;
        }
        let block: Vec<_> = lines
            .by_ref()
            .take_while(|l| !l.starts_with("```"))
            .collect();
        let name = block[0].strip_prefix("name: ").expect("a name");
        let first = block[1].strip_prefix("hex: ").expect("hexadecimal digits");
        let bytes = hex(&(first.to_owned() + &block[2..].concat()));
        assert!(
            vectors.insert(name.to_owned(), bytes).is_none(),
            "{name} twice"
        );
    }
    vectors
}
