//! A relay and many gateways in virtual time.

mod lab;
mod membership;
mod protocol;
mod random;
