//! The test vector of messages in `docs/protocol.md`.

use std::collections::HashMap;

use feed::message::Message;
use serde_json::Value;
use uuid::Uuid;

const PROTOCOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");

const INCARNATION: Uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);

/// Returns the fields of the vector `name`; section 1 of the document says how they are written.
fn vector(name: &str) -> HashMap<String, String> {
    let text = std::fs::read_to_string(PROTOCOL).unwrap();
    let from = text.find(&format!("```vector\nname: {name}\n")).unwrap();
    let mut fields: Vec<(String, String)> = Vec::new();
    let lines = text[from..].lines().skip(1);
    for line in lines.take_while(|line| !line.starts_with("```")) {
        if let Some(more) = line.strip_prefix(' ') {
            fields.last_mut().unwrap().1.push_str(more.trim());
        } else {
            let (key, value) = line.split_once(':').unwrap();
            fields.push((key.to_owned(), value.trim().to_owned()));
        }
    }
    fields.into_iter().collect()
}

#[test]
fn the_vector_of_a_message_matches() {
    let vector = vector("encoded-message");
    let message = Message {
        id: vector["id"].clone(),
        time_ms: vector["time"].parse().unwrap(),
        content_type: vector["content-type"].clone(),
        subject: Some(vector["subject"].clone()),
        body: vector["body"].clone().into_bytes(),
    };
    let bytes = data_encoding::HEXLOWER.decode(vector["hex"].as_bytes());
    let bytes = bytes.unwrap();
    assert_eq!(message.encode(), bytes);
    assert_eq!(Message::decode(&bytes).unwrap(), message);
    let event: Value = serde_json::from_str(&vector["event"]).unwrap();
    assert_eq!(message.to_cloud_event("lore", INCARNATION, 9), event);
}
