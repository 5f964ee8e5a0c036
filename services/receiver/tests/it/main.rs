//! Integration tests, one program: the receiver against a source in this process.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cli;
mod doctor;
mod end_to_end;
mod enrolment;
mod history;
mod hook_server;
mod outputs;
mod program;
mod site;
mod terminal;
mod watch;
