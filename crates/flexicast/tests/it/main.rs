//! Integration tests, one program: the crate against its document, and both ends in virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod absence;
mod acks;
mod conversation;
mod copies_of_a_receiver;
mod document;
mod erased;
mod feedback;
mod forgery;
mod held;
mod hostile;
mod lab;
mod ladder;
mod lag;
mod limits;
mod needs;
mod offer;
mod overdue;
mod pair;
mod pmtu;
mod rate;
mod recorded;
mod shared_repairs;
mod signed;
mod vectors;
