//! A source and a receiver on loopback: the source publishes three updates, the receiver prints
//! them.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use flexicast_tokio::receiver::{Event, Receiver, ReceiverConfig, Verify};
use flexicast_tokio::source::{
    Admission, AdmissionError, Backlog, BoxError, ChannelConfig, Source, SourceConfig,
};
use flexicast_tokio::{Cursor, spki_pin};
use uuid::Uuid;

/// A store in memory.
#[derive(Default)]
struct Memory(Mutex<BTreeMap<u64, Bytes>>);

impl Memory {
    fn insert(&self, seq: u64, update: Bytes) {
        let mut updates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        updates.insert(seq, update);
    }
}

#[async_trait]
impl Backlog for Memory {
    async fn updates(
        &self,
        _channel: &str,
        from: u64,
        limit: usize,
        _max_bytes: usize,
    ) -> Result<Vec<(u64, Bytes)>, BoxError> {
        let updates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = updates.range(from..).take(limit);
        Ok(stored.map(|(seq, bytes)| (*seq, bytes.clone())).collect())
    }

    async fn authorise(&self, request: &Admission) -> Result<(), AdmissionError> {
        println!("source: {} from {} is admitted", request.name, request.from);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
    let (cert, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(&cert, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let pin = spki_pin(made.cert.der()).ok_or("no certificate")?;

    let store = Arc::new(Memory::default());
    // Random and kept in real programs, like the receiver's id and credential.
    let mut config = SourceConfig::new("127.0.0.1:0".parse()?, cert, key, [5; 32]);
    config.channels = vec![ChannelConfig::new("lore", Uuid::from_u128(42))];
    let source = Source::bind(config, store.clone()).await?;
    let (publisher, addr) = (source.handle(), source.local_addr());
    let running = tokio::spawn(source.run());

    let channels = vec![("lore".into(), None)];
    let verify = Verify::Pins(vec![pin]);
    let mut config = ReceiverConfig::new(
        addr.to_string(),
        verify,
        Uuid::from_u128(1),
        [7; 32],
        channels,
    );
    config.name = "example".into();
    let (receiver, mut events) = Receiver::start(config);

    for seq in 1..=3 {
        let update = Bytes::from(format!("update {seq}"));
        // Stored before it is published.
        store.insert(seq, update.clone());
        publisher.publish("lore", seq, update).await;
    }
    while let Some(event) = events.recv().await {
        let Event::Update {
            channel,
            incarnation,
            seq,
            encoded,
            via,
        } = event
        else {
            println!("receiver: {event:?}");
            continue;
        };
        println!("receiver: {channel} {seq}: {encoded:?} by {via}");
        receiver.confirm(&channel, Cursor { incarnation, seq });
        if seq == 3 {
            break;
        }
    }
    receiver.shutdown().await;
    publisher.shutdown().await;
    running.await??;
    Ok(())
}
