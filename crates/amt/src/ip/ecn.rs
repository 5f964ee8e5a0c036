//! Congestion marks of packets that leave a tunnel (RFC 6040 section 4.2, RFC 9601).

/// The values of the ECN field.
const NOT_ECT: u8 = 0;
const ECT1: u8 = 1;
const CE: u8 = 3;

/// Returns the ECN field of an inner packet after decapsulation, by its own header and the field
/// of the outer one; `None` if it has to be dropped, because the tunnel met congestion and the
/// packet's endpoints know no marks.
///
/// A relay that leaves the outer field 0, as flexfeed's does since gateways cannot say whether
/// they look at it, has congestion of the tunnel drop packets.
#[must_use]
pub fn decapsulated_ecn(packet: &[u8], outer: u8) -> Option<u8> {
    let inner = match packet {
        [first, second, ..] if first >> 4 == 6 => (second >> 4) & 3,
        [_, second, ..] => second & 3,
        _ => NOT_ECT,
    };
    match (inner, outer & 3) {
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (_, CE) => Some(CE),
        (CE, _) => Some(CE),
        (_, ECT1) => Some(ECT1),
        (inner, _) => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6040, figure 4; columns: outer Not-ECT, ECT(0), ECT(1), CE.
    #[test]
    fn marks_of_the_tunnel_are_passed_on() {
        let table = [
            (0, [Some(0), Some(0), Some(0), None]),
            (2, [Some(2), Some(2), Some(1), Some(3)]),
            (1, [Some(1), Some(1), Some(1), Some(3)]),
            (3, [Some(3); 4]),
        ];
        for (inner, expected) in table {
            let v4 = [0x45, 0xb8 | inner];
            let v6 = [0x6b, 0x80 | inner << 4 | 0x0f];
            for packet in [v4, v6] {
                let found = [0, 2, 1, 3].map(|outer| decapsulated_ecn(&packet, outer));
                assert_eq!(found, expected, "inner {inner}");
            }
        }
        assert_eq!(decapsulated_ecn(&[], 2), Some(0));
    }
}
