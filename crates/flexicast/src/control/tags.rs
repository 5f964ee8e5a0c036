//! FC_TAG_KEY: the key of a receiver's tags (protocol.md section 4.14).

use super::flow::{flow, put_flow, put_secret, secret};
use crate::FlowId;
use crate::protect::FlowSecret;
use crate::wire::{Reader, WireError};

/// FC_TAG_KEY: number and key of a receiver's tags in a flow whose packets are authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagKey {
    /// The flow.
    pub flow: FlowId,
    /// Number of the receiver in packets of tags.
    pub receiver: u32,
    /// Its key.
    pub secret: FlowSecret,
}

impl TagKey {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_flow(out, self.flow);
        out.extend_from_slice(&self.receiver.to_be_bytes());
        put_secret(out, &self.secret);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "FC_TAG_KEY";
        Ok(TagKey {
            flow: flow(r, WHAT)?,
            receiver: u32::from_be_bytes(r.array()?),
            secret: secret(r, WHAT)?,
        })
    }
}
