//! A stand-alone AMT gateway: re-emits a group for other multicast programs.
//!
//! `flexfeed-gateway` receives flows through AMT relays ([`amt_tokio::Gateway`]) and sends each
//! packet to the same group and port on an interface of this machine, by default on the loopback
//! interface alone. It needs no privilege.

pub mod cli;
pub mod http;
pub mod out;
pub mod run;
mod silence;
pub mod tunnels;
