//! Authentication of single flow packets by their source, with the types of MCQUIC (protocol.md
//! section 5.5).
//!
//! All receivers of a flow hold its key, so a packet that opens may be any of theirs. A flow that
//! authenticates its packets proves the source's hand: by a *signature* behind each packet, or by a
//! *tag* for each receiver, in packets of their own. Signatures cost the same for any number of
//! receivers, tags less for few ([`PacketAuthentication`]). Signed updates (section 7.5) need
//! neither: they protect what receivers hand on, this protects what a flow's packets do to its
//! members.
//!
//! [`Sealer`] is the source's end of a flow, [`Opener`] a receiver's. MCQUIC's third type, a
//! signature of a whole stream once it is complete, proves what receivers hand on and nothing else:
//! [`PacketSigner::sign_stream`], verified by [`crate::merge`].

mod opener;
mod sealer;
mod signature;
mod tags;
#[cfg(test)]
mod tests;

pub use opener::{HELD_BYTES, HELD_PACKETS, Held, KNOWN_TAGS, Opener, Verdict};
pub use sealer::Sealer;
pub(crate) use signature::split_signature;
pub use signature::{PacketSigner, PublicKey, SIGNATURE_LEN};
pub use tags::{PACKET_TAG_LEN, TagKey, Tags, put_tags};

use crate::FlowId;
use crate::protect::{FlowSecret, KeyError};

/// Receivers that get tags at most, unless another number is chosen: more cost the source less than
/// signatures up to some ten times as many (benchmarks.md), but each takes 20 bytes a packet.
pub const TAGS_UP_TO: usize = 30;
/// The most receivers that get tags, whatever is configured: beyond, packets are signed. The tags
/// of so many take more than twice what the packet takes itself.
pub const MAX_TAGGED: usize = 128;

/// Type of authentication of a flow's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketAuthentication {
    /// An Ed25519 signature behind each packet (MCQUIC's `MC_A`).
    Signature,
    /// A tag for each receiver, in packets of their own (`MC_Y`).
    Tags,
    /// An Ed25519 signature behind each update, of the update alone (`MC_S`).
    Stream,
    /// Tags for up to so many receivers, signatures with more.
    Auto {
        /// The most receivers that get tags.
        tags_up_to: usize,
    },
}

impl PacketAuthentication {
    /// Returns the most receivers that get tags.
    fn tags_up_to(self) -> usize {
        match self {
            PacketAuthentication::Signature | PacketAuthentication::Stream => 0,
            PacketAuthentication::Tags => MAX_TAGGED,
            PacketAuthentication::Auto { tags_up_to } => tags_up_to.min(MAX_TAGGED),
        }
    }
}

/// Configuration of a flow whose packets are authenticated.
#[derive(Debug, Clone)]
pub struct AuthenticationConfig {
    /// The type.
    pub packets: PacketAuthentication,
    /// Secret of the source that the flow's signing key and all tag keys are derived from: fresh
    /// random for every flow, and given to no receiver.
    pub secret: FlowSecret,
}

impl AuthenticationConfig {
    /// Returns the flow's signing key.
    ///
    /// # Errors
    /// The cryptographic library refuses it.
    pub fn signer(&self) -> Result<PacketSigner, KeyError> {
        PacketSigner::new(&self.secret.derive(b"flexfeed packet signature", b"")?)
    }
}

/// Parts of a flow that the source authenticates, with what receivers need for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowAuthentication {
    /// Each packet.
    Packets(AuthenticationParameters),
    /// Each update as a whole, by this key.
    Streams(PublicKey),
}

/// Parameters of a flow whose packets are authenticated, as receivers need them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthenticationParameters {
    /// In the place of the Flow ID in packets of tags.
    pub tag_flow: FlowId,
    /// Key of the signatures.
    pub key: PublicKey,
}
