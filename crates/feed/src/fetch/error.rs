//! Why a poll brought nothing.

use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;

/// Why a poll brought nothing. Every message names the address, without credentials.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The configured address cannot be fetched at all.
    #[error("the feed address {url:?} cannot be used: {why}")]
    Address {
        /// As configured, without credentials.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The HTTP client cannot be made.
    #[error("the HTTP client cannot be set up: {0}")]
    Client(String),
    /// The address leads into a network that feeds may not reach.
    #[error(
        "{url} is refused: {}; allow private addresses for this feed if it is meant",
        not_public(host, *address)
    )]
    Private {
        /// The address, perhaps of a redirect.
        url: String,
        /// Its host.
        host: String,
        /// What the host is or resolves to.
        address: IpAddr,
    },
    /// No connection, no name, no TLS, or the connection broke.
    #[error("{url} cannot be fetched: {why}")]
    Transport {
        /// The address.
        url: String,
        /// The chain of causes.
        why: String,
    },
    /// [`super::FetchConfig::timeout`] or [`super::FetchConfig::connect_timeout`] passed.
    #[error("{url} did not answer completely in {:.1} s", after.as_secs_f64())]
    Timeout {
        /// The feed's address.
        url: String,
        /// The time that passed.
        after: Duration,
    },
    /// A redirect too many, or to nowhere.
    #[error("{url} redirects {why}")]
    Redirect {
        /// The address that redirects.
        url: String,
        /// What is wrong with that.
        why: String,
    },
    /// Status 410: the feed is gone for good, and asking again is not wanted.
    #[error("{url} answered 410: it is gone for good")]
    Gone {
        /// The address.
        url: String,
    },
    /// Any other status but 200 and 304.
    #[error("{url} answered {status}{}{}", about(seen.as_deref()), retry(*retry_after))]
    Status {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What the server asked to be waited (429 and 503), at most a day.
        retry_after: Option<Duration>,
        /// What the body seems to be, if there is one.
        seen: Option<String>,
        /// The body looks like a bot check.
        challenge: bool,
    },
    /// The document is larger than [`super::FetchConfig::max_bytes`].
    #[error("{url} is larger than {limit} bytes")]
    TooLarge {
        /// The address.
        url: String,
        /// The limit in bytes.
        limit: usize,
    },
}

impl FetchError {
    /// What the server asked to be waited before the next poll.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the server answered with a bot check.
    #[must_use]
    pub fn is_challenge(&self) -> bool {
        matches!(
            self,
            Self::Status {
                challenge: true,
                ..
            }
        )
    }
}

/// Why a host may not be fetched from. One that is given as an address is not named twice.
pub(super) fn not_public(host: &str, address: IpAddr) -> String {
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    if literal.parse() == Ok(address) {
        format!("{address} is not a public address")
    } else {
        format!("{host} is {address}, which is not a public address")
    }
}

fn about(seen: Option<&str>) -> String {
    seen.map(|s| format!(" with {s}")).unwrap_or_default()
}

fn retry(after: Option<Duration>) -> String {
    after
        .map(|a| format!("; it asks to wait {} s", a.as_secs()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_named_once() {
        let address = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(
            not_public("127.0.0.1", address),
            "127.0.0.1 is not a public address"
        );
        assert_eq!(
            not_public("[::1]", IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16])),
            "::1 is not a public address"
        );
        assert_eq!(
            not_public("localhost", address),
            "localhost is 127.0.0.1, which is not a public address"
        );
    }
}
