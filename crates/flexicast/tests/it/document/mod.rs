//! Reads the test vectors out of `docs/protocol.md` (its section 1 says how they are written) and
//! the recording alongside it.

pub mod authentication;
pub mod erasure;
pub mod frames;
pub mod packet;

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;

fn hex(text: &str) -> Vec<u8> {
    HEXLOWER
        .decode(text.replace(' ', "").as_bytes())
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// One vector's fields.
pub struct Vector {
    fields: BTreeMap<String, String>,
}

impl Vector {
    pub fn text(&self, key: &str) -> &str {
        self.fields
            .get(key)
            .unwrap_or_else(|| panic!("no \"{key}\" in the vector {}", self.fields["name"]))
    }

    /// Value of a field that not every vector of its kind has.
    pub fn optional(&self, key: &str) -> Option<&str> {
        self.fields.get(key).map(String::as_str)
    }

    pub fn bytes(&self, key: &str) -> Vec<u8> {
        hex(self.text(key))
    }

    pub fn optional_bytes(&self, key: &str) -> Option<Vec<u8>> {
        self.optional(key).map(hex)
    }

    pub fn hex(&self) -> Vec<u8> {
        self.bytes("hex")
    }
}

const PROTOCOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
/// The recorded flow.
pub const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/vectors/recorded-flow.md"
);

/// All vectors of the protocol's document, by name.
pub fn vectors() -> BTreeMap<String, Vector> {
    read(PROTOCOL)
}

/// All vectors of the recorded flow, by name; those of events are in order.
pub fn recorded() -> BTreeMap<String, Vector> {
    read(RECORDING)
}

fn read(path: &str) -> BTreeMap<String, Vector> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut out = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_end() != "```vector" {
            continue;
        }
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in lines.by_ref().take_while(|line| !line.starts_with("```")) {
            if let Some(more) = line.strip_prefix(' ') {
                fields.last_mut().unwrap().1.push_str(more.trim());
            } else {
                let (key, value) = line.split_once(':').expect("key: value");
                fields.push((key.to_owned(), value.trim().to_owned()));
            }
        }
        let vector = Vector {
            fields: fields.into_iter().collect(),
        };
        let name = vector.text("name").to_owned();
        assert!(out.insert(name.clone(), vector).is_none(), "{name} twice");
    }
    out
}

/// The bytes of one vector.
pub fn named(name: &str) -> Vec<u8> {
    vectors()[name].hex()
}
