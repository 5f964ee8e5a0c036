//! The flexfeed AMT relay: brings multicast to networks without it (RFC 7450).
