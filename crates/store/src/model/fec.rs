//! Erasure coding of a channel's flow, as it is set.

use std::str::FromStr;

use thiserror::Error;

const OFF: &str = "off";
/// End of the text of repair symbols on the receivers' own connections.
const UNICAST: &str = ",unicast";

/// Most packets of a ratio, as the transport has it.
const MAX_PACKETS: u8 = 64;

/// Erasure coding of a channel's flow: `off`, or a policy, a code and a path in the text form of
/// the transport (protocol.md section 5.6), such as `adaptive`, `tail,xor` or
/// `proactive:2/20,reed-solomon,unicast`. Equal settings have the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FecSetting(String);

/// Text that is no erasure coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "is none of off, adaptive, tail, reactive and proactive:SYMBOLS/PACKETS (at most {MAX_PACKETS} \
     packets), nor one of the last four with ,rlc or ,reed-solomon or ,xor, and with ,unicast last"
)]
pub struct FecSettingError;

impl FecSetting {
    /// Returns the text, in the database and for people.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the policy and code for the transport; `None` for a flow without repair symbols.
    pub fn coding(&self) -> Option<&str> {
        (self.0 != OFF).then_some(&self.0)
    }
}

impl Default for FecSetting {
    fn default() -> Self {
        Self("adaptive".to_owned())
    }
}

impl FromStr for FecSetting {
    type Err = FecSettingError;

    fn from_str(text: &str) -> Result<Self, FecSettingError> {
        let text = text.trim();
        if text == OFF {
            return Ok(Self(text.to_owned()));
        }
        let (coding, path) = match text.strip_suffix(UNICAST) {
            Some(coding) => (coding, UNICAST),
            None => (text, ""),
        };
        let (policy, code) = coding.split_once(',').unwrap_or((coding, "rlc"));
        let is_policy = match policy.strip_prefix("proactive:") {
            Some(ratio) => is_ratio(ratio),
            None => matches!(policy, "adaptive" | "tail" | "reactive"),
        };
        match code {
            "rlc" if is_policy => Ok(Self(format!("{policy}{path}"))),
            "reed-solomon" | "xor" if is_policy => Ok(Self(text.to_owned())),
            _ => Err(FecSettingError),
        }
    }
}

/// Whether the text is a ratio, without signs and leading zeros.
fn is_ratio(text: &str) -> bool {
    let Some((symbols, packets)) = text.split_once('/') else {
        return false;
    };
    match (symbols.parse::<u8>(), packets.parse::<u8>()) {
        (Ok(symbols @ 1..), Ok(packets @ ..=MAX_PACKETS)) if symbols <= packets => {
            text == format!("{symbols}/{packets}")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn equal_settings_have_the_same_text() {
        let text = |text: &str| text.parse::<FecSetting>().unwrap().as_str().to_owned();
        for same in [
            "off",
            "adaptive",
            "tail,xor",
            "proactive:64/64,reed-solomon",
            "adaptive,unicast",
            "tail,xor,unicast",
        ] {
            assert_eq!(text(same), same);
        }
        assert_eq!(text("tail,rlc,unicast"), "tail,unicast");
        assert_eq!(text(" reactive,rlc"), "reactive");
        assert_eq!(text("adaptive,rlc"), FecSetting::default().as_str());
        assert_eq!(text("off").parse::<FecSetting>().unwrap().coding(), None);
        assert_eq!(FecSetting::default().coding(), Some("adaptive"));
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in [
            "",
            "on",
            "off,xor",
            "off,unicast",
            "unicast",
            "tail,unicast,xor",
            "tail,unicast,unicast",
            "tail,",
            "tail,ldpc",
            "tail,xor,rlc",
            "proactive",
            "proactive:1",
            "proactive:0/4",
            "proactive:5/4",
            "proactive:1/65",
            "proactive:01/4",
            "proactive:+1/4",
            "proactive:1/4/4",
        ] {
            assert_eq!(bad.parse::<FecSetting>(), Err(FecSettingError), "{bad}");
        }
    }
}
