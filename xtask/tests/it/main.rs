//! `./dev` and its steps on made-up machines: what they call, what they print, how they end.

#![allow(clippy::unwrap_used)]

mod commands;
mod machine;
mod needs;
mod steps;
