//! The AMT gateway over UDP sockets and tokio, and the discovery of relays by DNS.
