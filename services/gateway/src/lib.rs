//! A stand-alone AMT gateway: re-emits a group for other multicast programs.
