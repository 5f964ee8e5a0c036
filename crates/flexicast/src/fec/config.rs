//! Settings of a flow's erasure coding.

use std::fmt;
use std::str::FromStr;

use erasure::{DEFAULT_SPAN, Scheme};

/// Packet numbers that a window spans.
pub(crate) const SPAN: usize = 112;

/// When a flow sends repair symbols.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FecPolicy {
    /// While members lose packets, as many as cost less than the unicast repairs that they save.
    #[default]
    Adaptive,
    /// One behind each burst.
    Tail,
    /// So many behind each `packets` packets, and behind each burst.
    Proactive {
        /// Repair symbols.
        symbols: u8,
        /// Packets.
        packets: u8,
    },
    /// As many as the member needs that reports the most losses (Listing 1 of MCQUIC).
    Reactive,
}

/// Path of a flow's repair symbols.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SymbolPath {
    /// The flow: one packet for all members.
    #[default]
    Flow,
    /// The unicast path of each member: a burst of losses on the flow does not reach them.
    Unicast,
}

/// Erasure coding of a flow.
///
/// The text form is that of [`FecPolicy`], then the scheme, if it is not RLC, and then `unicast`
/// for symbols by that path: `adaptive`, `tail,xor`, `proactive:2/20,reed-solomon,unicast`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FecConfig {
    /// When repair symbols are sent.
    pub policy: FecPolicy,
    /// Code of the repair symbols.
    pub scheme: Scheme,
    /// Path of the repair symbols.
    pub path: SymbolPath,
}

impl FecConfig {
    /// Returns what receivers need to know of it.
    #[must_use]
    pub fn parameters(&self) -> FecParameters {
        FecParameters {
            scheme: self.scheme.number(),
            span: SPAN as u8,
        }
    }
}

/// Repair symbols of a flow, as FC_ANNOUNCE tells receivers of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FecParameters {
    /// Number of the code (protocol.md section 5.6).
    pub scheme: u8,
    /// Maximum number of packet numbers that a window spans.
    pub span: u8,
}

impl Default for FecConfig {
    fn default() -> Self {
        FecConfig {
            policy: FecPolicy::default(),
            scheme: Scheme::Rlc,
            path: SymbolPath::default(),
        }
    }
}

/// Text that is no erasure coding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FecError {
    /// Unknown policy.
    #[error("FEC policy {0:?}: expected adaptive, tail, reactive or proactive:SYMBOLS/PACKETS")]
    Policy(String),
    /// Numbers that no proactive policy has.
    #[error("FEC ratio {0:?}: expected SYMBOLS/PACKETS, up to {DEFAULT_SPAN}, no more symbols")]
    Ratio(String),
    /// Unknown code.
    #[error("FEC code {0:?}: expected rlc, reed-solomon or xor, then unicast or nothing")]
    Scheme(String),
}

impl fmt::Display for FecPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FecPolicy::Adaptive => f.write_str("adaptive"),
            FecPolicy::Tail => f.write_str("tail"),
            FecPolicy::Reactive => f.write_str("reactive"),
            FecPolicy::Proactive { symbols, packets } => {
                write!(f, "proactive:{symbols}/{packets}")
            }
        }
    }
}

impl FromStr for FecPolicy {
    type Err = FecError;

    fn from_str(text: &str) -> Result<Self, FecError> {
        match text {
            "adaptive" => Ok(FecPolicy::Adaptive),
            "tail" => Ok(FecPolicy::Tail),
            "reactive" => Ok(FecPolicy::Reactive),
            _ => {
                let ratio = text.strip_prefix("proactive:");
                let ratio = ratio.ok_or_else(|| FecError::Policy(text.to_owned()))?;
                parse_ratio(ratio).ok_or_else(|| FecError::Ratio(ratio.to_owned()))
            }
        }
    }
}

fn parse_ratio(ratio: &str) -> Option<FecPolicy> {
    let (symbols, packets) = ratio.split_once('/')?;
    let (symbols, packets) = (symbols.parse().ok()?, packets.parse().ok()?);
    let is_valid = 0 < symbols && symbols <= packets && usize::from(packets) <= DEFAULT_SPAN;
    is_valid.then_some(FecPolicy::Proactive { symbols, packets })
}

impl fmt::Display for FecConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.policy)?;
        match self.scheme {
            Scheme::Rlc => {}
            Scheme::ReedSolomon => f.write_str(",reed-solomon")?,
            Scheme::Xor => f.write_str(",xor")?,
        }
        match self.path {
            SymbolPath::Flow => Ok(()),
            SymbolPath::Unicast => f.write_str(",unicast"),
        }
    }
}

impl FromStr for FecConfig {
    type Err = FecError;

    fn from_str(text: &str) -> Result<Self, FecError> {
        let (text, path) = match text.strip_suffix(",unicast") {
            Some(rest) => (rest, SymbolPath::Unicast),
            None => (text, SymbolPath::Flow),
        };
        let (policy, scheme) = text.split_once(',').unwrap_or((text, "rlc"));
        let scheme = match scheme {
            "rlc" => Scheme::Rlc,
            "reed-solomon" => Scheme::ReedSolomon,
            "xor" => Scheme::Xor,
            other => return Err(FecError::Scheme(other.to_owned())),
        };
        Ok(FecConfig {
            policy: policy.parse()?,
            scheme,
            path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_read_back() {
        let texts = [
            "adaptive",
            "tail,xor",
            "reactive",
            "proactive:2/20,reed-solomon",
            "proactive:1/64",
            "adaptive,unicast",
            "tail,xor,unicast",
        ];
        for text in texts {
            let config: FecConfig = text.parse().unwrap();
            assert_eq!(config.to_string(), text);
        }
        assert_eq!("adaptive,rlc".parse(), Ok(FecConfig::default()));
    }

    #[test]
    fn invalid_settings_are_named() {
        let refused = [
            ("", "FEC policy"),
            ("proactive", "FEC policy"),
            ("proactive:0/4", "FEC ratio"),
            ("proactive:5/4", "FEC ratio"),
            ("proactive:1/65", "FEC ratio"),
            ("proactive:1", "FEC ratio"),
            ("tail,ldpc", "FEC code"),
            ("tail,unicast,xor", "FEC code"),
            ("unicast", "FEC policy"),
        ];
        for (text, error) in refused {
            let refused = text.parse::<FecConfig>().unwrap_err().to_string();
            assert!(refused.starts_with(error), "{text}: {refused}");
        }
    }
}
