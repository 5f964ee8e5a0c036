//! Feeds, payloads and lists of feeds.

use std::collections::HashMap;

use feed::detect::detect;
use feed::gap::{Backfill, Clock};
use feed::message::{MAX_ENCODED_BYTES, Message};
use feed::parse::{MAX_ENTRIES, MAX_ENTRY_BYTES, MAX_ID_BYTES, parse};
use feed::payload::{Update, decode, encode};
use feed::publication::{Content, Publication};
use feed::{Entry, Kind};
use jiff::Timestamp;
use uuid::Uuid;

use crate::choice;

const ADDRESS: &str = "https://feeds.example/new.atom";
const INCARNATION: Uuid = Uuid::from_u128(42);

/// A whole document, as a web server may send it: what is read of it travels as an update without
/// loss.
pub fn feed(data: &[u8]) {
    if let Ok(parsed) = parse(data, ADDRESS) {
        match Backfill::of(ADDRESS, &parsed) {
            Some(Backfill::Archive(url)) => assert!(url.starts_with("http"), "{url}"),
            Some(Backfill::PublicInbox(search)) => {
                let times = parsed.entries.iter().filter_map(|e| e.updated);
                for time in times.chain([Timestamp::MIN, Timestamp::MAX]) {
                    let url = search.url(Clock::Sent, time, Some(time), 1);
                    assert!(url.starts_with("https://feeds.example/"), "{url}");
                }
            }
            None => {}
        }
        entries(parsed.entries);
    }
}

/// Entries in an Atom, RSS or RDF document that is otherwise sound: a bad one does not take the one
/// before it along.
pub fn xml(data: &[u8]) {
    let (format, data) = choice(data);
    let text = String::from_utf8_lossy(data);
    let (head, item, tail) = match format % 3 {
        0 => (
            "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:x='urn:x'><title>T</title>",
            "<entry><id>urn:good</id><title>Good</title>\
             <updated>2026-01-01T00:00:00Z</updated></entry>",
            "</feed>",
        ),
        1 => (
            "<rss version='2.0'><channel><title>T</title>",
            "<item><guid>urn:good</guid><title>Good</title></item>",
            "</channel></rss>",
        ),
        _ => (
            "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' \
             xmlns='http://purl.org/rss/1.0/'><channel><title>T</title></channel>",
            "<item rdf:about='urn:good'><title>Good</title><link>urn:good</link></item>",
            "</rdf:RDF>",
        ),
    };
    let document = format!("{head}{item}{text}{item}{tail}");
    let parsed = parse(document.as_bytes(), ADDRESS).expect("the good entry is readable");
    let first = parsed.entries.first().expect("an entry");
    assert_eq!(first.title.as_deref(), Some("Good"));
    entries(parsed.entries);
}

fn entries(entries: Vec<Entry>) {
    assert!(entries.len() <= MAX_ENTRIES);
    let known = HashMap::new();
    for (n, entry) in entries.iter().enumerate() {
        assert!(
            (1..=MAX_ID_BYTES).contains(&entry.id.len()),
            "an id of {} bytes",
            entry.id.len()
        );
        // Declarations that the document made for all its entries come on top of the entry's own
        // text.
        assert!(entry.xml.len() <= 8 * MAX_ENTRY_BYTES);
        let seq = n as u64 + 1;
        let encoded = encode(
            entry,
            Kind::Created,
            ADDRESS,
            INCARNATION,
            seq,
            Timestamp::UNIX_EPOCH,
        );
        let update = decode(&encoded).expect("what is encoded can be decoded");
        // An empty text is none: JSON Feed asks for one where there is no content.
        let mut entry = entry.clone();
        entry.content_text = entry
            .content_text
            .filter(|text| !text.is_empty() || entry.content_html.is_some());
        assert_eq!(
            (&update.entry, update.seq, update.incarnation),
            (&entry, seq, INCARNATION)
        );
        // The entry as it will stand in a feed file can be read there.
        let document = format!(
            "<feed xmlns='http://www.w3.org/2005/Atom'>{}</feed>",
            entry.xml
        );
        let again = parse(document.as_bytes(), ADDRESS).expect("a feed of one entry");
        assert_eq!(again.entries.len(), 1, "{:?}", again.skipped);
    }
    let drafts = detect(entries, &known);
    assert!(drafts.len() <= MAX_ENTRIES);
}

/// An encoded update from a source that may be anything: what is read can be written and read
/// again.
pub fn payload(data: &[u8]) {
    let Ok(update) = decode(data) else { return };
    let again = |u: &Update| {
        decode(&encode(
            &u.entry,
            u.kind,
            &u.feed_url,
            u.incarnation,
            u.seq,
            u.time,
        ))
    };
    // Times are kept to the millisecond, empty texts not at all: so the first round may change the
    // update, the next one may not.
    let once = again(&update).expect("what was decoded can be encoded");
    assert_eq!(
        (&once.entry.id, once.seq, &once.feed_url),
        (&update.entry.id, update.seq, &update.feed_url)
    );
    let twice = again(&once).expect("what was decoded can be encoded");
    assert_eq!(twice, once);
}

/// A message, from a source or as a publisher's event, either of which may be anything: what is
/// read can be encoded and read again.
pub fn message(data: &[u8]) {
    let read = match Message::decode(data) {
        Ok(message) => {
            let event = message.to_cloud_event("lore", INCARNATION, 1).to_string();
            assert!(event.contains("org.flexfeed.message.v1"), "{event}");
            message
        }
        Err(_) => match Message::from_cloud_event(data, 0) {
            Ok(message) => message,
            Err(_) => return,
        },
    };
    let encoded = read.encode();
    assert!(encoded.len() <= MAX_ENCODED_BYTES);
    let again = Message::decode(&encoded).expect("what was read can be encoded");
    assert_eq!(again, read);
}

/// Entries of publishers: a text, an event or a batch, and what a database has of one, each of which
/// may be anything. What is read can be encoded, and is then the entry of its id.
pub fn publication(data: &[u8]) {
    let _ = Publication::decode(data);
    let now = Timestamp::UNIX_EPOCH;
    let (choice, rest) = data.split_first().unwrap_or((&0, &[]));
    let content = Content {
        content_type: match choice % 3 {
            0 => None,
            1 => Some("text/html".to_owned()),
            _ => Some("application/json".to_owned()),
        },
        body: rest.to_owned(),
        ..Content::default()
    };
    let mut read = Publication::from_batch_json(data, now).unwrap_or_default();
    read.extend(Publication::from_event_json(data, now));
    read.extend(Publication::from_content(content, "1".to_owned(), now));
    for publication in read {
        let entry = Publication::decode(publication.encoded()).expect("what was read");
        assert_eq!(entry.id, publication.id());
    }
}

/// A list of feeds, as a user may upload it: what is read can be written and read again.
pub fn opml(data: &[u8]) {
    let Ok(outlines) = feed::opml::read(data) else {
        return;
    };
    assert!(outlines.iter().all(|outline| !outline.url.is_empty()));
    let text = feed::opml::write("all", Timestamp::UNIX_EPOCH, &outlines);
    let again = feed::opml::read(text.as_bytes()).expect("what is written can be read");
    // Names are plain text, and are read as HTML: two that differ only in markup become one.
    assert!(again.len() <= outlines.len());
    assert!(again.is_empty() == outlines.is_empty());
}
