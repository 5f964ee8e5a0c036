//! Losses that turn out to be none.

use super::*;

#[test]
fn losses_that_were_none_are_taken_back() {
    for (policy, members) in [
        (RatePolicy::TcpFriendly, 1),
        (RatePolicy::TcpFriendly, MEMBERS),
        (RatePolicy::CubicMin, MEMBERS),
    ] {
        let mut rounds = Rounds::new(config(policy), members);
        let path = |rounds: &Rounds| match policy {
            RatePolicy::CubicMin => rounds.controller.members[&0].rate,
            _ => rounds.controller.rate,
        };
        rounds.run(10, nothing);
        let before = path(&rounds);
        let sent = rounds.send(rounds.window());
        let late: Vec<u64> = sent.clone().filter(|pn| pn % 2 == 0).collect();
        for member in 0..members {
            rounds.report(member, sent.clone(), |pn| member == 0 && pn % 2 == 0);
        }
        assert!(
            path(&rounds) <= 0.75 * before,
            "{policy:?}, {members} members"
        );
        assert!(rounds.controller.member_loss(0) > 0.0);
        rounds.controller.on_spurious_loss(0, &late, rounds.now);
        assert_eq!(rounds.controller.member_loss(0), 0.0);
        assert_eq!(rounds.run(5, nothing), []);
        assert!(path(&rounds) >= before, "{policy:?}, {members} members");
    }
}

/// A flow of which member 0 meets congestion of its own; returns the packets that it lost.
fn with_own_congestion() -> (Rounds, Vec<u64>) {
    let mut rounds = Rounds::friendly(MEMBERS);
    rounds.run(10, nothing);
    let lost = lose(&mut rounds, 2);
    assert!(own_window(&rounds).is_some());
    (rounds, lost)
}

/// Member 0 loses one of so many packets of a round trip; the others lose nothing.
fn lose(rounds: &mut Rounds, one_in: u64) -> Vec<u64> {
    let sent = rounds.send(rounds.window());
    let is_lost = |member, pn: u64| member == 0 && pn.is_multiple_of(one_in);
    for member in rounds.members.clone() {
        rounds.report(member, sent.clone(), |pn| is_lost(member, pn));
    }
    sent.filter(|pn| is_lost(0, *pn)).collect()
}

/// The window of the controller of member 0's own, while it has one.
fn own_window(rounds: &Rounds) -> Option<f64> {
    let Estimator::History(history) = &rounds.controller.members[&0].estimator else {
        return None;
    };
    let congestion = history.congestion.as_ref()?;
    Some(congestion.controller.cubic.window())
}

#[test]
fn a_members_congestion_ends_only_with_the_losses_that_it_began_with() {
    let (mut rounds, first) = with_own_congestion();
    let before = own_window(&rounds);
    let late = lose(&mut rounds, 5);
    assert!(own_window(&rounds) < before);
    rounds.controller.on_spurious_loss(0, &late, rounds.now);
    assert_eq!(own_window(&rounds), before, "only what that event did");
    let (mut other, same) = with_own_congestion();
    assert_eq!(first, same);
    other.controller.on_spurious_loss(0, &first, other.now);
    assert_eq!(own_window(&other), None);
}

#[test]
fn marks_are_no_losses_that_may_turn_out_to_be_none() {
    let (mut rounds, lost) = with_own_congestion();
    let before = own_window(&rounds);
    assert_eq!(lose(&mut rounds, u64::MAX), []);
    let newest = rounds.pn - 1;
    rounds.controller.on_marked(0, 3, newest, rounds.now);
    let marked = own_window(&rounds);
    assert!(marked < before);
    rounds.controller.on_spurious_loss(0, &lost, rounds.now);
    assert_eq!(own_window(&rounds), marked);
}

#[test]
fn packets_that_were_never_counted_take_no_losses_back() {
    let mut rounds = Rounds::friendly(MEMBERS);
    // Numbers of probes.
    let probes: Vec<u64> = (rounds.pn..rounds.pn + 50).collect();
    rounds.pn += 50;
    rounds.run(3, nothing);
    let lost = lose(&mut rounds, 5);
    let loss = rounds.controller.member_loss(0);
    assert!(loss > 0.0);
    rounds.controller.on_spurious_loss(0, &probes, rounds.now);
    assert_eq!(rounds.controller.member_loss(0), loss);
    rounds.controller.on_spurious_loss(0, &lost, rounds.now);
    assert_eq!(rounds.controller.member_loss(0), 0.0);
}
