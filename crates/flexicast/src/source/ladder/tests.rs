//! Moves on the ladder, without a flow or a connection.

use super::*;

const FLOW_INDEX: u64 = 3;
const EPOCH: u64 = 1;

fn path(rung: Rung) -> PathId {
    PathId::new(FLOW_INDEX, rung)
}

/// A receiver that holds the current key, and listens natively and through a relay.
fn listening(now: Instant) -> Ladder {
    let mut ladder = Ladder::new(now);
    ladder.key.send(EPOCH);
    ladder.key.confirm(EPOCH);
    ladder.listen_natively();
    ladder.listen_by_relay();
    ladder
}

fn promote(ladder: &mut Ladder, rung: Rung, now: Instant) {
    let accepted = ladder.prove(path(rung), rung, EPOCH, now);
    assert!(matches!(accepted, ProofOutcome::Accepted { .. }));
    let proof = ladder.valid_proof(now).unwrap();
    ladder.promote(proof, 10, now);
    assert_eq!(ladder.rung(), rung);
}

fn fall_back(ladder: &mut Ladder, cause: Cause, now: Instant) -> Option<Duration> {
    let fall_back = ladder.fall_back(cause, now, || 1.0).unwrap();
    fall_back.backoff_until.map(|until| until - now)
}

#[test]
fn the_first_short_membership_is_no_flapping() {
    let mut now = Instant::now();
    let mut ladder = listening(now);
    let mut delays = Vec::new();
    for _ in 0..4 {
        promote(&mut ladder, Rung::Multicast, now);
        now += Duration::from_secs(1);
        let delay = fall_back(&mut ladder, Cause::AckTimeout, now);
        delays.push(delay.map_or(0, |d| d.as_secs()));
        now += delay.unwrap_or_default();
    }
    assert_eq!(delays, [0, 1, 2, 4]);
    promote(&mut ladder, Rung::Multicast, now);
    now += FLAP;
    assert_eq!(fall_back(&mut ladder, Cause::AckTimeout, now), None);
}

#[test]
fn a_member_that_blocks_the_flow_backs_off_at_once() {
    let now = Instant::now();
    let mut ladder = listening(now);
    promote(&mut ladder, Rung::Amt, now);
    let delay = fall_back(&mut ladder, Cause::TooSlow, now);
    assert_eq!(delay, Some(EVICTED));
    assert!(ladder.is_paused());
    let again = ladder.prove(path(Rung::Amt), Rung::Amt, EPOCH, now);
    assert_eq!(again, ProofOutcome::Ignored);
    let running = ladder.end_backoff(Rung::Amt, true, now);
    assert_eq!(running, BackoffEnd::Running);
    let later = now + EVICTED;
    let over = ladder.end_backoff(Rung::Amt, true, later);
    assert_eq!(over, BackoffEnd::Over);
    assert!(!ladder.is_paused());
    promote(&mut ladder, Rung::Amt, later);
}

#[test]
fn the_back_off_of_another_rung_ends_no_pause() {
    let mut now = Instant::now();
    let mut ladder = listening(now);
    promote(&mut ladder, Rung::Multicast, now);
    fall_back(&mut ladder, Cause::AckTimeout, now);
    promote(&mut ladder, Rung::Multicast, now);
    let native = fall_back(&mut ladder, Cause::AckTimeout, now).unwrap();
    promote(&mut ladder, Rung::Amt, now);
    let delay = fall_back(&mut ladder, Cause::TooSlow, now).unwrap();
    assert!(native < delay && ladder.is_paused());
    let over = ladder.end_backoff(Rung::Multicast, true, now + native);
    assert_eq!(
        over,
        BackoffEnd::Running,
        "no FC_RUNG tells the receiver to return"
    );
    assert!(ladder.is_paused() && !ladder.is_backing_off(Rung::Multicast, now + native));
    now += delay;
    for rung in [Rung::Multicast, Rung::Amt] {
        let early = ladder.prove(path(rung), rung, EPOCH, now);
        assert_eq!(early, ProofOutcome::Ignored, "{rung} while it is paused");
    }
    let over = ladder.end_backoff(Rung::Amt, true, now);
    assert_eq!(over, BackoffEnd::Over);
    assert!(!ladder.is_paused());
    promote(&mut ladder, Rung::Multicast, now);
}

#[test]
fn an_evicted_member_returns_only_when_its_unicast_path_keeps_up() {
    let mut now = Instant::now();
    let mut ladder = listening(now);
    promote(&mut ladder, Rung::Multicast, now);
    fall_back(&mut ladder, Cause::LossTooHigh, now);
    assert!(!ladder.is_paused(), "another rung may lose less");
    for _ in 0..3 {
        now += EVICTED;
        let end = ladder.end_backoff(Rung::Multicast, false, now);
        assert_eq!(end, BackoffEnd::Extended(now + EVICTED));
        let proof = ladder.prove(path(Rung::Multicast), Rung::Multicast, EPOCH, now);
        assert_eq!(proof, ProofOutcome::Ignored);
    }
    now += EVICTED;
    let end = ladder.end_backoff(Rung::Multicast, true, now);
    assert_eq!(end, BackoffEnd::Over);
    promote(&mut ladder, Rung::Multicast, now);
}

#[test]
fn evictions_count_as_flaps_however_long_the_membership_was() {
    let mut now = Instant::now();
    let mut ladder = listening(now);
    let mut delays = Vec::new();
    for _ in 0..3 {
        promote(&mut ladder, Rung::Multicast, now);
        now += FLAP * 10;
        let delay = fall_back(&mut ladder, Cause::TooSlow, now).unwrap();
        delays.push(delay);
        now += delay;
        ladder.end_backoff(Rung::Multicast, true, now);
    }
    assert_eq!(delays, [EVICTED, EVICTED * 2, EVICTED * 4]);
}

#[test]
fn only_a_better_rung_is_proved_and_the_cut_stays() {
    let now = Instant::now();
    let mut ladder = listening(now);
    promote(&mut ladder, Rung::Amt, now);
    let same = ladder.prove(path(Rung::Amt), Rung::Amt, EPOCH, now);
    assert_eq!(same, ProofOutcome::Member);
    ladder.prove(path(Rung::Multicast), Rung::Multicast, EPOCH, now);
    let proof = ladder.valid_proof(now).unwrap();
    ladder.promote(proof, 99, now);
    assert_eq!(ladder.membership().unwrap().cut_head, 10);
    let worse = ladder.prove(path(Rung::Amt), Rung::Amt, EPOCH, now);
    assert_eq!(worse, ProofOutcome::Ignored);
}

#[test]
fn proofs_need_the_current_key_and_expire() {
    let now = Instant::now();
    let mut ladder = listening(now);
    let native = path(Rung::Multicast);
    let old_key = ladder.prove(native, Rung::Multicast, EPOCH + 1, now);
    assert_eq!(old_key, ProofOutcome::Ignored);
    ladder.prove(native, Rung::Multicast, EPOCH, now);
    assert!(ladder.valid_proof(now + PROVED / 2).is_some());
    assert!(ladder.valid_proof(now + PROVED).is_none());
}

#[test]
fn unproved_replication_ends_as_a_failure() {
    let now = Instant::now();
    let mut ladder = listening(now);
    let until = ladder.start_replication(now).unwrap();
    assert_eq!(ladder.start_replication(now), None, "no longer trial");
    assert!(ladder.is_replicated() && !ladder.expire_replication(now));
    assert!(ladder.expire_replication(until));
    assert!(!ladder.is_replicated() && ladder.is_backing_off(Rung::Replicated, until));
    assert!(!ladder.expire_replication(until), "counted once");
}

#[test]
fn an_abandoned_trial_counts_at_its_deadline() {
    let now = Instant::now();
    let mut ladder = listening(now);
    let until = ladder.start_replication(now).unwrap();
    ladder.stop_listening(Some(Rung::Replicated));
    assert!(!ladder.is_replicated());
    assert!(ladder.expire_replication(until));
    assert!(ladder.is_backing_off(Rung::Replicated, until));
}

#[test]
fn proved_replication_lasts_longer_and_then_for_the_membership() {
    let now = Instant::now();
    let mut ladder = listening(now);
    ladder.start_replication(now);
    let copies = path(Rung::Replicated);
    let proved = ladder.prove(copies, Rung::Replicated, EPOCH, now);
    let trial_until = Some(now + REPLICATION_PROVED);
    assert_eq!(proved, ProofOutcome::Accepted { trial_until });
    promote(&mut ladder, Rung::Replicated, now);
    let later = now + REPLICATION_PROVED;
    assert!(!ladder.expire_replication(later) && ladder.is_replicated());
    promote(&mut ladder, Rung::Amt, later);
    assert!(!ladder.is_replicated());
}

#[test]
fn a_lost_relay_explains_the_silence_before_it_once() {
    let now = Instant::now();
    let mut ladder = listening(now);
    promote(&mut ladder, Rung::Amt, now);
    fall_back(&mut ladder, Cause::AckTimeout, now);
    assert!(ladder.lose_relay(path(Rung::Amt)));
    assert_eq!(ladder.cause(), Some(Cause::RelayLost));
    assert!(!ladder.lose_relay(path(Rung::Amt)));
}

#[test]
fn forged_packets_keep_a_receiver_off_for_half_a_minute_at_most() {
    let mut now = Instant::now();
    let mut ladder = listening(now);
    let mut delays = Vec::new();
    for _ in 0..9 {
        promote(&mut ladder, Rung::Multicast, now);
        now += Duration::from_secs(1);
        let delay = fall_back(&mut ladder, Cause::Forged, now).unwrap_or_default();
        delays.push(delay.as_secs());
        now += delay;
    }
    assert_eq!(delays, [0, 1, 2, 4, 8, 16, 30, 30, 30]);
}
