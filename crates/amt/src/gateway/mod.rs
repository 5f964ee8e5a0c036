//! The gateway: finds a relay, asks it for groups and takes what it sends (RFC 7450, section 5.2).
