//! A relay and many gateways in virtual time.

mod lab;
mod limits;
mod membership;
mod protocol;
mod random;
