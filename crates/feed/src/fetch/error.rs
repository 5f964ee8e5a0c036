//! Errors of a poll.

use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;

/// Failure of a poll. Every message names the address, without credentials.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Configured address that cannot be fetched at all.
    #[error("the feed address {url:?} cannot be used: {why}")]
    Address {
        /// Address as configured, without credentials.
        url: String,
        /// Defect of the address.
        why: String,
    },
    /// Failure to make the HTTP client.
    #[error("the HTTP client cannot be set up: {0}")]
    Client(String),
    /// Address in a network that feeds may not reach.
    #[error(
        "{url} is refused: {}; allow private addresses for this feed if it is meant",
        not_public(host, *address)
    )]
    Private {
        /// Address, perhaps of a redirect.
        url: String,
        /// Host of the address.
        host: String,
        /// IP address that the host is or resolves to.
        address: IpAddr,
    },
    /// Failed connection, name resolution or TLS, or a broken connection.
    #[error("{url} cannot be fetched: {why}")]
    Transport {
        /// The address.
        url: String,
        /// Chain of causes.
        why: String,
    },
    /// [`super::FetchConfig::timeout`] or [`super::FetchConfig::connect_timeout`] expired.
    #[error("{url} did not answer completely in {:.1} s", after.as_secs_f64())]
    Timeout {
        /// The feed's address.
        url: String,
        /// Time that passed.
        after: Duration,
    },
    /// One redirect too many, or an invalid one.
    #[error("{url} redirects {why}")]
    Redirect {
        /// Address that redirects.
        url: String,
        /// Defect of the redirect.
        why: String,
    },
    /// Status 410: the feed is permanently gone, and no further polls are wanted.
    #[error("{url} answered 410: it is gone for good")]
    Gone {
        /// The address.
        url: String,
    },
    /// Any status other than 200 and 304.
    #[error("{url} answered {status}{}{}", about(seen.as_deref()), retry(*retry_after))]
    Status {
        /// The address.
        url: String,
        /// HTTP status.
        status: u16,
        /// Wait that the server asked for (429 and 503), at most a day.
        retry_after: Option<Duration>,
        /// Apparent kind of the body, if there is one.
        seen: Option<String>,
        /// Whether the body looks like a bot check.
        challenge: bool,
    },
    /// Document larger than [`super::FetchConfig::max_bytes`].
    #[error("{url} is larger than {limit} bytes")]
    TooLarge {
        /// The address.
        url: String,
        /// Limit in bytes.
        limit: usize,
    },
}

impl FetchError {
    /// Returns the wait that the server asked for before the next poll.
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

/// Returns the reason why a host may not be fetched from. A host that is an address is not named
/// twice.
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
