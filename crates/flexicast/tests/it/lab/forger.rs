//! Packets of a flow that its source did not send.

use flexicast::FlowId;
use flexicast::protect::{Algorithm, FlowSecret, HEADER_LEN, OVERHEAD, PacketKey, SECRET_LEN};

use super::Lab;

impl Lab {
    /// The flow of a lab with this seed.
    pub fn flow_id(seed: u64) -> FlowId {
        FlowId(seed.to_be_bytes())
    }

    /// The flow's next packet number.
    pub fn next_pn(&self) -> u64 {
        self.source.flow(0).unwrap().next_pn()
    }

    /// Returns a packet of the flow, made by a holder of its first epoch's key.
    pub fn forge(&self, seed: u64, pn: u64, wrong_phase: bool, frames: &[u8]) -> Vec<u8> {
        let sequence = self.source.flow(0).unwrap().epoch().sequence;
        let secret = FlowSecret::from([seed as u8; SECRET_LEN]);
        seal(
            seed,
            &secret,
            pn,
            (sequence & 1 == 1) != wrong_phase,
            frames,
        )
    }
}

/// A packet of the flow of a lab with this seed, under any key.
pub fn seal(seed: u64, secret: &FlowSecret, pn: u64, phase: bool, frames: &[u8]) -> Vec<u8> {
    let mut key = PacketKey::new(Algorithm::Aes128Gcm, secret).unwrap();
    let mut packet = vec![0; frames.len() + OVERHEAD];
    let end = HEADER_LEN + frames.len();
    packet[HEADER_LEN..end].copy_from_slice(frames);
    key.seal(Lab::flow_id(seed), pn, phase, &mut packet, end)
        .unwrap();
    packet
}
