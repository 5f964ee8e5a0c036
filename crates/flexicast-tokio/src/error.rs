//! Errors of setting up a source or a receiver.

use std::io;
use std::path::PathBuf;

/// A source or receiver could not be set up, or its socket failed for good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The QUIC library refused its configuration.
    #[error("the QUIC library refused its configuration: {0}")]
    Quic(#[source] QuicError),
    /// A certificate or key cannot be used.
    #[error("cannot use {} as {what}: it must be a readable PEM file, and a key must be that of \
        its certificate ({error})", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Certificate, private key or authorities.
        what: &'static str,
        /// Error of the TLS library.
        error: String,
    },
    /// The TLS library cannot be set up.
    #[error("the TLS library cannot be set up")]
    Tls,
    /// The source has stopped.
    #[error("the source has stopped")]
    Stopped,
    /// A socket operation failed.
    #[error("{what}: {error}")]
    Io {
        /// The attempted operation, with its address.
        what: String,
        /// The system's answer.
        error: io::Error,
    },
    /// The flow's key could not be made.
    #[error(transparent)]
    Key(#[from] flexicast::protect::KeyError),
    /// A message was not sent.
    #[error("the message was not sent: {0}")]
    Message(#[from] flexicast::source::MessageError),
    /// Two channels with one name.
    #[error("two channels are called {0:?}; each needs a name of its own")]
    TwoChannels(String),
    /// The system gave no random bytes.
    #[error("the system gave no random bytes")]
    Entropy,
}

/// An error of the QUIC library, whose type is no part of this crate's interface.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct QuicError(Box<dyn std::error::Error + Send + Sync>);

impl Error {
    pub(crate) fn quic(error: quiche::Error) -> Self {
        Error::Quic(QuicError(error.into()))
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |error| Error::Io { what, error }
    }
}
