//! Automatic Multicast Tunneling (RFC 7450) without input or output: codecs, gateway and relay state machines, discovery (RFC 8777).
