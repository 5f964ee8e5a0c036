//! FC_FEEDBACK: the key of a receiver's feedback packets (protocol.md section 4.10).

use super::flow::{flow, put_flow, put_secret, secret};
use crate::FlowId;
use crate::protect::FlowSecret;
use crate::wire::{BufMutExt, Reader, WireError};

/// FC_FEEDBACK: address and key of a receiver's feedback packets for a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedbackKey {
    /// The flow.
    pub flow: FlowId,
    /// Grows with each FC_FEEDBACK for this flow and receiver.
    pub sequence: u64,
    /// The feedback ID, in the place of a packet's Flow ID.
    pub id: FlowId,
    /// The secret that the keys are derived from.
    pub secret: FlowSecret,
    /// The AEAD, as a TLS cipher-suite number.
    pub algorithm: u64,
}

impl FeedbackKey {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.put_varint(self.sequence);
        out.extend_from_slice(&self.id.0);
        put_secret(out, &self.secret);
        out.extend_from_slice(&self.algorithm.to_be_bytes());
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_FEEDBACK";
        Ok(FeedbackKey {
            flow: flow(r, WHAT)?,
            sequence: r.varint()?,
            id: FlowId(r.array()?),
            secret: secret(r, WHAT)?,
            algorithm: r.u64()?,
        })
    }
}
