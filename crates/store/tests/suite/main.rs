//! The store as its users see it, on SQLite and on a real PostgreSQL.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod archive;
mod crash;
mod disk;
mod enrolment;
mod files;
mod leases;
mod migrations;
mod outage;
mod retention;
mod settings;
mod site;
mod updates;
