//! Variables with the prefix of a program that are meant for another one or come from Kubernetes,
//! and the user's name.

/// Prefixes of the programs that have one of their own.
const OTHER_PROGRAMS: [&str; 3] = ["FLEXFEED_RELAY_", "FLEXFEED_GATEWAY_", "FLEXFEED_CONSOLE_"];

/// Whether a variable is meant for the program with this prefix, mistyped or not: it is no setting
/// of another program, perhaps from a shared file, and none that Kubernetes gives to each container
/// for each Service, such as `FLEXFEED_SOURCE_SERVICE_HOST` or
/// `FLEXFEED_SOURCE_PORT=udp://10.0.0.1:4433`.
pub fn is_meant_for(prefix: &str, name: &str, value: &str) -> bool {
    let mut others = OTHER_PROGRAMS.iter().filter(|own| **own != prefix);
    let for_others = others.any(|own| name.starts_with(own));
    name.starts_with(prefix) && !for_others && !is_of_kubernetes(name, value)
}

/// Whether Kubernetes sets a variable of this name and value in each container, for a Service.
pub fn is_of_kubernetes(name: &str, value: &str) -> bool {
    let address = ["tcp://", "udp://", "sctp://"];
    let holds_address = address.iter().any(|scheme| value.starts_with(scheme));
    if name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT") {
        return true;
    }
    if name.ends_with("_PORT") && holds_address {
        return true;
    }
    // NAME_PORT_4433_UDP, possibly followed by _PROTO, _PORT or _ADDR.
    let Some((_, rest)) = name.split_once("_PORT_") else {
        return false;
    };
    let mut words = rest.split('_');
    let number = words.next().is_some_and(|n| n.parse::<u16>().is_ok());
    let protocol = words.next();
    number && protocol.is_some_and(|p| matches!(p, "TCP" | "UDP" | "SCTP"))
}

/// Returns the user name of the process; empty if the environment has none, as in most containers.
pub fn user() -> String {
    let named = ["USER", "LOGNAME"].into_iter().map(std::env::var);
    let mut named = named.flatten().filter(|name| !name.is_empty());
    named.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_others_are_no_typing_errors() {
        let is_of_others = |name, value| !is_meant_for("FLEXFEED_", name, value);
        for (name, value) in [
            ("FLEXFEED_RELAY_UDP_PORTS", "4434"),
            ("FLEXFEED_GATEWAY_FLOW", "x"),
            ("FLEXFEED_CONSOLE_LISTEN", "x"),
            ("FLEXFEED_SOURCE_SERVICE_HOST", "10.0.0.1"),
            ("FLEXFEED_SOURCE_SERVICE_PORT", "4433"),
            ("FLEXFEED_SOURCE_SERVICE_PORT_QUIC", "4433"),
            ("FLEXFEED_SOURCE_PORT", "udp://10.0.0.1:4433"),
            ("FLEXFEED_PORT", "tcp://10.0.0.1:80"),
            ("FLEXFEED_SOURCE_PORT_4433_UDP", "udp://10.0.0.1:4433"),
            ("FLEXFEED_SOURCE_PORT_4433_UDP_PROTO", "udp"),
            ("FLEXFEED_SOURCE_PORT_80_TCP_ADDR", "10.0.0.1"),
        ] {
            assert!(is_of_others(name, value), "{name}");
        }
        for (name, value) in [
            ("FLEXFEED_LISTN", "[::]:4433"),
            ("FLEXFEED_RELAY", "relay.example"),
            ("FLEXFEED_SOURCE_PORT", "4433"),
            ("FLEXFEED_PORT_X_UDP", "4433"),
            ("FLEXFEED_PORT_4433_QUIC", "4433"),
        ] {
            assert!(!is_of_others(name, value), "{name}");
        }
        let relay = |name, value| is_meant_for("FLEXFEED_RELAY_", name, value);
        assert!(relay("FLEXFEED_RELAY_LISTNE", ":1"));
        assert!(!relay("FLEXFEED_RELAY_SERVICE_HOST", "10.0.0.1"));
        assert!(!relay("FLEXFEED_LISTNE", ":1"));
        let general = |name| is_meant_for("FLEXFEED_", name, ":1");
        assert!(general("FLEXFEED_LISTNE") && !general("FLEXFEED_RELAY_LISTNE"));
    }
}
