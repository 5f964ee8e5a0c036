//! Erasure coding of a flow (protocol.md section 5.6): which repair symbols a source sends, and
//! when.

mod config;

pub use config::{FecConfig, FecError, FecPolicy};
pub use erasure::Scheme as FecScheme;
