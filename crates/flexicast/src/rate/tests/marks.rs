//! ECN marks of congestion.

use super::*;

/// The newest packet that an acknowledgement with marks covers may be one that rate control does
/// not know, such as a probe of a size.
#[test]
fn marks_count_whatever_the_newest_packet_is() {
    for (policy, members) in [
        (RatePolicy::TcpFriendly, 1),
        (RatePolicy::TcpFriendly, MEMBERS),
        (RatePolicy::CubicMin, MEMBERS),
    ] {
        let mut rounds = Rounds::new(config(policy), members);
        rounds.run(10, nothing);
        let path = |rounds: &Rounds| match policy {
            RatePolicy::CubicMin => rounds.controller.members[&0].rate,
            _ => rounds.controller.shared_rate(),
        };
        let mark = |rounds: &mut Rounds| {
            let probe = rounds.pn;
            rounds.pn += 1;
            for member in 0..members {
                rounds.controller.on_marked(member, 1, probe, rounds.now);
            }
        };
        let before = path(&rounds);
        mark(&mut rounds);
        let after = path(&rounds);
        assert!(after <= 0.75 * before, "{policy:?}, {members} members");
        // What was sent before the reduction asks for no other one.
        mark(&mut rounds);
        assert_eq!(path(&rounds), after, "{policy:?}, {members} members");
    }
}
