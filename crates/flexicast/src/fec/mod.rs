//! Erasure coding of a flow (protocol.md section 5.6): which repair symbols a source sends, and
//! when.

mod config;
mod demand;
mod scheduler;

pub use config::{FecConfig, FecError, FecParameters, FecPolicy, SymbolPath};
pub(crate) use demand::MemberLoss;
pub use erasure::Scheme as FecScheme;
pub(crate) use scheduler::{Expected, RESERVE, Scheduler, Served};
