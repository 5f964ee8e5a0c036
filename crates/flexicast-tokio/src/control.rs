//! Bytes of the control stream that wait to be sent. They hold keys and tokens, so they are erased
//! as soon as they are gone.

use std::collections::VecDeque;

use zeroize::{Zeroize, Zeroizing};

/// The outgoing end of the control stream.
#[derive(Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Zeroizing<Vec<u8>>>,
    /// Bytes of the first piece that were sent.
    sent: usize,
    len: usize,
}

impl Outbox {
    /// Takes over what the state machine said; it is not copied.
    pub(crate) fn push(&mut self, bytes: Zeroizing<Vec<u8>>) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.pieces.push_back(bytes);
        }
    }

    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The next bytes to send; `None` when nothing waits.
    pub(crate) fn front(&self) -> Option<&[u8]> {
        self.pieces.front().and_then(|piece| piece.get(self.sent..))
    }

    /// The first `n` bytes of [`Outbox::front`] were sent: they are erased.
    pub(crate) fn advance(&mut self, n: usize) {
        let Some(piece) = self.pieces.front_mut() else {
            return;
        };
        let end = (self.sent + n).min(piece.len());
        piece[self.sent..end].zeroize();
        self.len -= end - self.sent;
        self.sent = end;
        if self.sent == piece.len() {
            self.pieces.pop_front();
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_secrets_are_erased_at_once() {
        let mut outbox = Outbox::default();
        outbox.push(Zeroizing::new(vec![7; 10]));
        outbox.push(Zeroizing::new(Vec::new()));
        outbox.push(Zeroizing::new(vec![9; 3]));
        assert_eq!(outbox.len(), 13);
        outbox.advance(4);
        assert_eq!(outbox.front(), Some(&[7; 6][..]));
        assert_eq!(outbox.pieces[0][..4], [0; 4], "erased while the rest waits");
        outbox.advance(6);
        assert_eq!((outbox.front(), outbox.len()), (Some(&[9; 3][..]), 3));
        outbox.advance(3);
        assert_eq!((outbox.front(), outbox.len()), (None, 0));
    }
}
