//! Which relays to try, and in what order (RFC 8777).
