//! The store as its users see it, on SQLite and on a real PostgreSQL.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod accounts;
mod archive;
mod archived_accounts;
mod audit_log;
mod changes;
mod commands;
mod crash;
mod disk;
mod enrolment;
mod faults;
mod files;
mod histories;
mod leases;
mod migrations;
mod outage;
mod records;
mod retention;
mod rows;
mod samples;
mod settings;
mod signing_eras;
mod signing_keys;
mod site;
mod updates;
mod watching;
