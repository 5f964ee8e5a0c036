//! Intake of the unicast streams.

use super::{Receiver, ReceiverEvent};
use crate::WireError;
use crate::merge::MAX_BUFFERED;
use crate::unicast::{Piece, StreamReader};

/// Bytes of updates out of order from the unicast path that a receiver holds; a source sends what
/// is next before it sends so much else.
const MAX_HELD: usize = MAX_BUFFERED * 2 + crate::MAX_UPDATE;

/// Updates of a channel of which a part has come, whichever path brought it.
const MAX_PARTS: usize = 65_536;

impl Receiver {
    /// Takes bytes of the server-initiated unicast stream `stream`; `fin` is its end.
    ///
    /// # Errors
    ///
    /// The source violates the protocol: close the connection.
    pub fn on_unicast(&mut self, stream: u64, bytes: &[u8], fin: bool) -> Result<(), WireError> {
        let reader = self.streams.entry(stream).or_default();
        reader.push(bytes);
        let mut pieces = Vec::new();
        let read = loop {
            match reader.next_piece() {
                Ok(Some(piece)) => pieces.push(piece),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if !self.take_pieces(pieces)? {
            return Ok(());
        }
        read?;
        let may_end = |reader: StreamReader| reader.may_end();
        if fin && !self.streams.remove(&stream).is_some_and(may_end) {
            return Err(WireError::invalid(
                "unicast stream",
                "an end inside an item",
            ));
        }
        Ok(())
    }

    /// Takes pieces of one stream, whose signatures are checked together. Returns whether to read
    /// on.
    fn take_pieces(&mut self, pieces: Vec<Piece>) -> Result<bool, WireError> {
        let number = match pieces.first() {
            Some(Piece::Range { header, .. }) => header.channel,
            Some(Piece::Update { channel, .. }) => *channel,
            None => return Ok(true),
        };
        let Some(channel) = self.channels.iter_mut().find(|c| c.number == Some(number)) else {
            return Err(WireError::invalid(
                "unicast stream",
                "a channel that WELCOME did not name",
            ));
        };
        let updates: Vec<(u64, &[u8])> = pieces.iter().filter_map(Piece::update).collect();
        let mut verdicts = channel.merge.verify_together(&updates).into_iter();
        for piece in pieces {
            let seq = piece.seq();
            channel.stats.head = channel.stats.head.max(seq);
            let awaited = seq == channel.merge.next();
            match piece {
                Piece::Range { header, data } => {
                    channel
                        .merge
                        .add_unicast(seq, header.offset, &data, header.total);
                }
                Piece::Update { data, .. } => {
                    let verdict = verdicts.next().flatten();
                    channel.merge.add_whole(seq, &data, verdict);
                }
            }
            if let Some(failure) = channel.merge.failure() {
                // The owner ends the connection; until then there is nothing to read on for.
                self.events.push_back(ReceiverEvent::AuthenticationFailed {
                    channel: channel.name.clone(),
                    failure,
                });
                return Ok(false);
            }
            let parts = channel.merge.partial_updates();
            let is_crowded = channel.merge.buffered_unicast() > MAX_HELD || parts > MAX_PARTS;
            if !awaited && is_crowded {
                return Err(WireError::invalid(
                    "unicast stream",
                    "more updates out of order than a receiver holds",
                ));
            }
        }
        Ok(true)
    }
}
