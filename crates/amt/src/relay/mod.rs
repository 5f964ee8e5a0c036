//! The relay: tells gateways apart without state, and serves those that proved their address (RFC 7450, section 5.3).
