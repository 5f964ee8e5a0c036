//! A feed becomes updates, and the updates become an Atom file.

use std::collections::HashMap;
use std::error::Error;

use feed::atom::{AtomFile, FeedMeta, KEEP};
use feed::detect::detect;
use feed::parse::parse;
use feed::payload::{decode, encode};
use jiff::Timestamp;
use uuid::Uuid;

const ADDRESS: &str = "https://example.org/feed.xml";

const FEED: &str = "<rss version='2.0'><channel><title>News</title>\
    <item><guid>2</guid><title>Two</title><link>/two</link></item>\
    <item><guid>1</guid><title>One & only</title><link>/one</link></item></channel></rss>";

fn main() -> Result<(), Box<dyn Error>> {
    // The source: entries that are not known yet, oldest first, each encoded once.
    let parsed = parse(FEED.as_bytes(), ADDRESS)?;
    let incarnation = Uuid::new_v4();
    let updates = detect(parsed.entries, &HashMap::new());
    let encoded = updates.iter().zip(1..).map(|(update, seq)| {
        let now = Timestamp::now();
        encode(&update.entry, update.kind, ADDRESS, incarnation, seq, now)
    });

    // The receiver: a file of the last entries, newest first.
    let path = std::env::temp_dir().join("flexfeed-feed-example.xml");
    let meta = FeedMeta::for_channel("source.example.org:4433", "news");
    let mut file = AtomFile::open(&path, meta, KEEP)?;
    for bytes in encoded {
        let update = decode(&bytes)?;
        println!(
            "{}: {:?}, {} bytes",
            update.seq,
            update.entry.title,
            bytes.len()
        );
        file.upsert(&update);
    }
    file.write()?;
    println!("{}", std::fs::read_to_string(&path)?);
    std::fs::remove_file(&path)?;
    Ok(())
}
