use proptest::prelude::*;

use super::signed::MAX_CLEARED;
use super::*;
use crate::Via;

fn pop(merge: &mut Merge) -> Option<Delivered> {
    match merge.pop()? {
        Output::Update(update) => Some(update),
        other => panic!("{other:?}"),
    }
}

#[test]
fn removed_updates_are_skipped_and_present_ones_are_not() {
    let mut merge = Merge::new(1, None);
    for seq in [3, 7] {
        merge.add_flow(seq, 0, b"x", Some(1));
    }
    merge.add_flow(4, 0, b"part", Some(9));
    assert!(merge.pass_over(2..6));
    assert_eq!(merge.pop(), None, "1 may still come");
    merge.add_unicast(1, 0, b"x", 1);
    let got: Vec<_> = std::iter::from_fn(|| merge.pop())
        .map(|o| match o {
            Output::Update(u) => (u.seq, u.seq),
            Output::Gap { from, to } | Output::Expired { from, to, .. } => (from, to),
        })
        .collect();
    assert_eq!(got, [(1, 1), (2, 2), (3, 3), (4, 5)]);
    merge.add_unicast(6, 0, b"x", 1);
    assert_eq!(std::iter::from_fn(|| merge.pop()).count(), 2);
    assert_eq!(
        (merge.next(), merge.buffered(), merge.gone.len()),
        (8, 0, 0)
    );
}

/// Byte 0 is the length, so that a part of it is none.
fn update(seq: u64, len: usize) -> Vec<u8> {
    let bytes = (1..len).map(|i| (i as u64 * 31 + seq) as u8);
    std::iter::once(len as u8).chain(bytes).collect()
}

proptest! {
    /// Pieces of several updates in any order, by both ways, with overlaps and repetitions: each
    /// update leaves once, whole and in order.
    #[test]
    fn once_whole_and_in_order(
        pieces in prop::collection::vec((1u64..6, 0usize..40, 1usize..30, any::<bool>()), 0..200),
        len in 1usize..40,
    ) {
        let mut merge = Merge::new(1, None);
        let mut got = Vec::new();
        let last: Vec<_> = (1..6).map(|seq| (seq, 0, len, true)).collect();
        for (seq, offset, n, unicast) in pieces.into_iter().chain(last) {
            let whole = update(seq, len);
            let start = offset.min(len - 1);
            let end = (start + n).min(len);
            let piece = &whole[start..end];
            if unicast {
                merge.add_unicast(seq, start as u64, piece, len as u64);
            } else {
                let total = (end == len).then_some(len as u64);
                merge.add_flow(seq, start as u64, piece, total);
            }
            got.extend(std::iter::from_fn(|| pop(&mut merge)));
        }
        prop_assert_eq!(got.iter().map(|d| d.seq).collect::<Vec<_>>(), vec![1, 2, 3, 4, 5]);
        prop_assert!(got.iter().all(|d| d.encoded == update(d.seq, len)));
        prop_assert_eq!((merge.buffered(), merge.stats.mismatches), (0, 0));
    }

    /// Whatever a forger with the group key sends first, what the source says on the unicast path
    /// is what is delivered.
    #[test]
    fn unicast_wins(
        forged in prop::collection::vec(
            (0u64..50, prop::collection::vec(any::<u8>(), 1..30), any::<bool>()),
            0..10,
        ),
        len in 1usize..40,
    ) {
        let mut merge = Merge::new(1, None);
        for (offset, data, fin) in forged {
            merge.add_flow(1, offset, &data, fin.then_some(offset + data.len() as u64));
            // A forgery that is whole at once is delivered: until source authentication is on,
            // docs/security.md says so.
            if pop(&mut merge).is_some() { return Ok(()); }
        }
        let right = update(1, len);
        merge.add_unicast(1, 0, &right, len as u64);
        prop_assert_eq!(pop(&mut merge).map(|d| d.encoded), Some(right.into()));
    }
}

#[test]
fn contradictions_are_counted() {
    let mut merge = Merge::new(1, None);
    merge.add_flow(1, 0, b"xx", None);
    merge.add_unicast(1, 0, b"abcd", 4);
    assert_eq!(
        pop(&mut merge).map(|d| (d.encoded, d.via)),
        Some(("abcd".into(), Via::Unicast))
    );
    assert_eq!(merge.stats.mismatches, 1);
    merge.add_unicast(1, 0, b"abcd", 4);
    assert_eq!((pop(&mut merge), merge.stats.duplicates), (None, 1));
}

/// Ranges asked for together are taken together: they are acknowledged, and not sent again.
#[test]
fn a_packet_that_fills_the_merge_is_taken_whole() {
    let mut merge = Merge::new(1, None);
    let mut seq = 2;
    while merge.buffered() + MAX_UPDATE < MAX_BUFFERED {
        merge.add_flow(seq, 0, &vec![0; MAX_UPDATE - 1000], None);
        seq += 1;
    }
    let room = (MAX_BUFFERED - merge.buffered()) as u64;
    assert!(merge.accepts(seq, 0..room, false) && merge.accepts(seq + 1, 0..1, true));
    merge.add_flow(seq, 0, &vec![0; room as usize], None);
    merge.add_flow(seq + 1, 0, b"x", Some(1));
    assert!(merge.whole.contains_key(&(seq + 1)));
    assert!(!merge.accepts(seq + 2, 0..1, true));
}

/// Only a forger fills the memory with what is far ahead: it makes room for what is near,
/// counted as a contradiction, and is had by the unicast path.
#[test]
fn updates_far_ahead_make_room_for_near_ones() {
    let mut merge = asking();
    let mut seq = 3000;
    let body = vec![0; MAX_UPDATE - 1000];
    while merge.accepts(seq, 0..body.len() as u64, false) {
        merge.add_flow(seq, 0, &body, None);
        seq += 1;
    }
    assert!(merge.held() < MAX_BUFFERED + MAX_UPDATE);
    for seq in 1..200 {
        let right = update(seq, 100);
        assert!(merge.accepts(seq, 0..100, true));
        merge.add_flow(seq, 0, &right, Some(100));
        assert_eq!(pop(&mut merge).map(|d| d.via), Some(Via::Flow));
    }
    assert_eq!((merge.stats.mismatches, merge.stats.refetched), (1, 1));
    assert_eq!(
        found(&mut merge),
        [(seq - 1, NeedReason::Contradicted, false)]
    );
    assert!(
        merge.accepts(seq - 1, 0..100, true),
        "its bytes are asked for"
    );
    // Bytes of the unicast path stay, and give way to nothing.
    let mut merge = asking();
    for seq in 2..11 {
        merge.add_unicast(seq, 0, &body, MAX_UPDATE as u64);
    }
    assert!(!merge.accepts(1, 0..9, false) && merge.is_crowded(1));
    assert_eq!(
        (merge.buffered(), merge.stats.refetched),
        (9 * body.len(), 0)
    );
}

/// The source cannot be asked: true bytes that a forged end keeps out are not acknowledged,
/// and the repair shows that all of it has to be fetched again.
#[test]
fn a_forged_end_is_overruled() {
    let mut merge = Merge::new(1, None);
    let right = update(1, 1000);
    merge.add_flow(1, 0, &right[..100], None);
    merge.add_flow(1, 150, b"x", Some(151));
    assert!(!merge.accepts(1, 100..1000, true));
    merge.add_unicast(1, 100, &right[100..], 1000);
    assert_eq!(merge.pop(), None);
    assert_eq!(found(&mut merge), [(1, NeedReason::Contradicted, false)]);
    merge.disconnected();
    merge.add_unicast(1, 0, &right[..100], 1000);
    assert_eq!(pop(&mut merge).map(|d| d.encoded), Some(right.into()));
}

#[test]
fn memory_is_bounded_against_the_flow() {
    let mut merge = Merge::new(1, None);
    assert!(!merge.accepts(1 + WINDOW, 0..1, false), "too far ahead");
    assert!(
        !merge.accepts(1, MAX_UPDATE as u64..MAX_UPDATE as u64 + 1, false),
        "too long"
    );
    // Memory is counted by bytes received, wherever they belong.
    let far = MAX_UPDATE as u64 - 1;
    for seq in 1..WINDOW {
        assert!(merge.accepts(seq, far..far + 1, false));
        merge.add_flow(seq, far, b"x", None);
    }
    assert!(merge.buffered() < 1 << 20);
    // Ranges are not the same as bytes.
    let mut at = 0;
    while merge.accepts(1, at..at + 1, false) {
        merge.add_flow(1, at, b"x", None);
        at += 2;
        assert!(at < 10_000);
    }
}

fn is_valid(seq: u64, bytes: &[u8]) -> Validity {
    (!bytes.is_empty() && bytes == update(seq, bytes.len())).into()
}

/// A merge at a source that answers.
fn asking() -> Merge {
    let mut merge = Merge::new(1, Some(is_valid));
    merge.set_source_answers(true);
    merge
}

fn found(merge: &mut Merge) -> Vec<(u64, NeedReason, bool)> {
    let all = std::iter::from_fn(|| merge.pop_distrust());
    all.map(|d| (d.seq, d.reason, d.handed)).collect()
}

fn need(seq: u64, range: Range<u64>, reason: NeedReason) -> Option<MissingRange> {
    Some(MissingRange { seq, range, reason })
}

/// Ten forged bytes before the true ones: nothing of the flow is believed, and the unicast
/// path brings the update.
#[test]
fn forged_bytes_ahead_of_the_true_ones_lose_nothing() {
    let (mut merge, right) = (asking(), update(1, 100));
    merge.add_flow(1, 0, &[0xee; 10], None);
    assert!(merge.accepts(1, 0..100, true));
    merge.add_flow(1, 0, &right, Some(100));
    assert_eq!(merge.pop(), None);
    assert_eq!(found(&mut merge), [(1, NeedReason::Contradicted, false)]);
    let whole = need(1, 0..u64::MAX, NeedReason::Contradicted);
    assert_eq!((merge.pop_need(), merge.pop_need()), (whole, None));
    // The forger goes on: it is acknowledged, since the source was asked, and not taken.
    assert!(merge.accepts(1, 0..100, true));
    merge.add_flow(1, 0, &[0xee; 100], Some(100));
    assert_eq!((merge.pop(), merge.buffered()), (None, 0));
    merge.add_unicast(1, 0, &right, 100);
    let got = pop(&mut merge).map(|d| (d.encoded, d.via));
    assert_eq!(got, Some((right.into(), Via::Unicast)));
    assert_eq!((merge.stats.mismatches, merge.stats.refetched), (1, 1));
}

#[test]
fn whole_but_invalid_updates_are_requested_again() {
    let mut merge = asking();
    merge.add_flow(2, 0, b"garbage", Some(7));
    assert_eq!(found(&mut merge), [(2, NeedReason::Invalid, false)]);
    let whole = need(2, 0..u64::MAX, NeedReason::Invalid);
    assert_eq!(merge.pop_need(), whole);
    // A half that the unicast path brought stays, and only the rest is asked for.
    let right = update(1, 100);
    merge.add_unicast(1, 0, &right[..50], 100);
    merge.add_flow(1, 50, &[0xee; 50], None);
    assert_eq!(found(&mut merge), [(1, NeedReason::Invalid, false)]);
    let rest = need(1, 50..100, NeedReason::Invalid);
    assert_eq!(merge.pop_need(), rest);
    merge.add_unicast(1, 50, &right[50..], 100);
    assert_eq!(pop(&mut merge).map(|d| d.encoded), Some(right.into()));
}

/// Bytes of the unicast path are the source's own, whatever the application thinks of them.
#[test]
fn updates_of_the_unicast_path_are_delivered_unchecked() {
    let mut merge = asking();
    merge.add_unicast(1, 0, b"garbage", 7);
    merge.add_unicast(2, 0, b"", 0);
    merge.add_flow(3, 0, b"bage", None);
    merge.add_unicast(3, 0, b"bage", 4);
    assert_eq!(std::iter::from_fn(|| pop(&mut merge)).count(), 3);
    assert_eq!((found(&mut merge), merge.pop_need()), (vec![], None));
}

/// A whole forgery that waits for its turn, and the true packet: the unicast path decides.
#[test]
fn a_whole_forgery_that_waits_is_contradicted_by_the_true_one() {
    let mut merge = asking();
    merge.check = None;
    for (first, second) in [(b"forged", b"genuine".as_slice()), (b"wrong!", b"right!")] {
        let seq = merge.next() + 2;
        merge.add_flow(seq, 0, first, Some(6));
        merge.add_flow(seq, 0, second, Some(second.len() as u64));
        let again = need(seq, 0..u64::MAX, NeedReason::Contradicted);
        assert_eq!(merge.pop_need(), again);
        for seq in seq - 2..=seq {
            merge.add_unicast(seq, 0, second, second.len() as u64);
            assert_eq!(
                pop(&mut merge).map(|d| d.encoded.to_vec()),
                Some(second.to_vec())
            );
        }
    }
    assert_eq!(merge.buffered(), 0);
    // One that was handed on cannot be had back, but is noticed, by either path, and once.
    merge.add_flow(7, 0, b"forged", Some(6));
    assert!(pop(&mut merge).is_some());
    found(&mut merge);
    merge.add_flow(7, 0, b"gen", None);
    merge.add_unicast(7, 0, b"genuine", 7);
    assert_eq!(found(&mut merge), [(7, NeedReason::Contradicted, true)]);
    assert_eq!(merge.stats.mismatches, 4);
}

#[test]
fn delivered_updates_are_remembered_within_bounds() {
    let mut merge = asking();
    merge.check = None;
    for seq in 1..2000 {
        merge.add_flow(seq, 0, &[7; 10], Some(10));
    }
    assert_eq!(merge.handed.size(), (256, 2560));
    assert_eq!(std::iter::from_fn(|| pop(&mut merge)).count(), 1999);
    merge.add_flow(1, 0, b"x", None);
    assert_eq!(merge.stats.mismatches, 0, "too long ago");
    merge.add_flow(2000, 0, &vec![7; MAX_UPDATE], Some(MAX_UPDATE as u64));
    assert_eq!(merge.handed.size(), (0, 0));
}

/// Flow bytes end with the connection; the next one's cursor is that of the last update that
/// was handed out.
#[test]
fn bytes_of_the_flow_end_with_their_connection() {
    let mut merge = asking();
    merge.add_unicast(1, 0, &update(1, 9), 9);
    merge.add_flow(2, 0, &update(2, 9), Some(9));
    assert!(merge.pass_over(3..4));
    merge.add_unicast(4, 0, &update(4, 9), 9);
    merge.add_flow(6, 0, &update(6, 9), Some(9));
    merge.add_unicast(7, 0, &update(7, 9), 9);
    merge.add_unicast(8, 0, &update(8, 9)[..4], 9);
    merge.add_flow(8, 4, &update(8, 9)[4..7], None);
    merge.add_flow(9, 0, &update(9, 9)[..4], None);
    assert_eq!(
        (merge.next(), merge.held()),
        (5, 56 + 2 * assembly::CHUNK_OVERHEAD)
    );
    merge.disconnected();
    assert_eq!((merge.next(), merge.held()), (2, 31), "1, 4, 7, some of 8");
    assert_eq!(pop(&mut merge).map(|d| d.seq), Some(1));
    for seq in [2, 5, 6, 8, 9] {
        merge.add_unicast(seq, 0, &update(seq, 9), 9);
    }
    let got: Vec<_> = std::iter::from_fn(|| merge.pop())
        .map(|o| match o {
            Output::Update(u) => (u.seq, u.via),
            Output::Gap { from, .. } | Output::Expired { from, .. } => (from, Via::Flow),
        })
        .collect();
    let unicast = |seq| (seq, Via::Unicast);
    let gap = (3, Via::Flow);
    assert_eq!(got[..3], [unicast(2), gap, unicast(4)]);
    assert_eq!(got[3..], [5, 6, 7, 8, 9].map(unicast));
    assert_eq!((merge.held(), merge.stats.mismatches), (0, 0));
}

/// Requests are for what delivery waits for, and what is close behind it.
#[test]
fn few_requests_are_open() {
    let mut merge = asking();
    for seq in 1..1000 {
        merge.add_flow(seq, 0, b"garbage", Some(7));
    }
    let asked = |merge: &mut Merge| std::iter::from_fn(|| merge.pop_need()).count() as u64;
    assert_eq!(asked(&mut merge), NEED_AHEAD);
    merge.add_unicast(1, 0, b"", 0);
    merge.add_unicast(2, 0, b"", 0);
    assert_eq!(asked(&mut merge), 2);
    merge.disconnected();
    assert_eq!(asked(&mut merge), 0);
}

/// An update that the application has not taken yet can be replaced by the true one.
#[test]
fn a_forgery_that_is_ready_is_replaced() {
    let mut merge = asking();
    merge.check = None;
    for (seq, bytes) in [(1, "a"), (2, "forged"), (3, "c"), (4, "d")] {
        merge.add_flow(seq, 0, bytes.as_bytes(), Some(bytes.len() as u64));
    }
    assert_eq!(pop(&mut merge).map(|d| d.seq), Some(1));
    merge.add_unicast(2, 0, b"true", 4);
    let got: Vec<_> = std::iter::from_fn(|| pop(&mut merge)).collect();
    let got: Vec<_> = got.iter().map(|d| (d.seq, &d.encoded[..])).collect();
    assert_eq!(got, [(2, &b"true"[..]), (3, b"c"), (4, b"d")]);
    assert_eq!(found(&mut merge), [(2, NeedReason::Contradicted, false)]);
    assert_eq!((merge.held(), merge.next()), (0, 5));
}

/// An update that the unicast path brought all of is the source's, though the flow was faster with
/// some of it.
#[test]
fn updates_completed_by_the_unicast_path_are_trusted() {
    let mut merge = asking();
    let right = update(2, 10);
    merge.add_flow(2, 0, &right[..4], None);
    merge.add_unicast(2, 0, &right[..9], 10);
    merge.add_unicast(2, 9, &right[9..], 10);
    merge.add_flow(2, 0, b"forged", None);
    assert_eq!(found(&mut merge), []);
    assert_eq!(merge.stats.mismatches, 1);
    merge.disconnected();
    merge.add_unicast(1, 0, b"", 0);
    merge.disconnected();
    let got: Vec<_> = std::iter::from_fn(|| pop(&mut merge)).collect();
    let got: Vec<_> = got.iter().map(|d| (d.seq, d.via, d.certain)).collect();
    assert_eq!(got, [(1, Via::Unicast, true), (2, Via::Repaired, true)]);
}

/// An update that this version cannot judge is taken; one refused wrongly is cleared by the source.
#[test]
fn an_update_of_a_later_version_is_no_forgery() {
    let mut merge = asking();
    merge.check = Some(|_, bytes| match bytes {
        b"later" => Validity::Unknown,
        _ => Validity::Invalid,
    });
    merge.add_flow(1, 0, b"later", Some(5));
    assert_eq!(pop(&mut merge).map(|d| d.via), Some(Via::Flow));
    assert_eq!((found(&mut merge), merge.pop_need()), (vec![], None));
    for seq in 2..9 {
        merge.add_flow(seq, 0, b"odd", Some(3));
        let asked = merge.pop_need().is_some();
        assert_eq!(asked, seq - 2 < MAX_CLEARED);
        if asked {
            merge.add_unicast(seq, 0, b"odd", 3);
        }
        assert!(pop(&mut merge).is_some());
    }
    assert_eq!(
        (merge.stats.cleared, merge.stats.mismatches),
        (MAX_CLEARED, 0)
    );
    // The next connection may be to another version.
    merge.disconnected();
    merge.add_flow(9, 0, b"odd", Some(3));
    assert!(merge.pop_need().is_some());
    merge.add_unicast(9, 0, b"even", 4);
    assert_eq!(merge.stats.cleared, MAX_CLEARED, "that one was a forgery");
}

/// With a source that does not answer NEED, the flow is not believed until the update has
/// come.
#[test]
fn without_an_answering_source_the_flow_is_not_believed_until_the_update_is_past() {
    let mut merge = asking();
    merge.set_source_answers(false);
    merge.add_flow(3, 0, b"garbage", Some(7));
    assert_eq!(found(&mut merge), [(3, NeedReason::Invalid, false)]);
    assert_eq!(merge.pop_need(), None);
    merge.disconnected();
    for seq in 1..=3 {
        // Those of update 3 are not acknowledged.
        assert_eq!(merge.accepts(seq, 0..9, true), seq < 3);
        merge.add_flow(seq, 0, &update(seq, 9), Some(9));
    }
    merge.add_unicast(3, 0, &update(3, 9), 9);
    assert!(merge.accepts(4, 0..9, true));
    merge.add_flow(4, 0, &update(4, 9), Some(9));
    let all = std::iter::from_fn(|| pop(&mut merge));
    assert_eq!(all.map(|d| d.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

proptest! {
    /// Whatever a forger sends by the flow, among the true bytes: what the source sends when
    /// it is asked makes every update whole and true.
    #[test]
    fn nothing_forged_is_lost_for_ever(
        packets in prop::collection::vec(
            (1u64..6, 0usize..40, 1usize..30, any::<bool>(), any::<bool>()),
            0..60,
        ),
        len in 1usize..40,
    ) {
        let mut merge = asking();
        for (seq, offset, n, forged, fin) in packets {
            let whole = update(seq, len);
            let start = offset.min(len - 1);
            let end = (start + n).min(len);
            let bytes = if forged { vec![0xee; n] } else { whole[start..end].to_vec() };
            let last = start + bytes.len();
            let ends = if forged { fin } else { end == len };
            let range = start as u64..last as u64;
            if merge.accepts(seq, range, ends) {
                merge.add_flow(seq, start as u64, &bytes, ends.then_some(last as u64));
            }
        }
        // All true packets arrive and are acknowledged: nothing else is repaired.
        for seq in 1..6 {
            let whole = update(seq, len);
            prop_assert!(merge.accepts(seq, 0..len as u64, true));
            merge.add_flow(seq, 0, &whole, Some(len as u64));
        }
        while let Some(MissingRange { seq, range, .. }) = merge.pop_need() {
            let whole = update(seq, len);
            let range = range.start as usize..range.end.min(len as u64) as usize;
            merge.add_unicast(seq, range.start as u64, &whole[range], len as u64);
        }
        let got: Vec<_> = std::iter::from_fn(|| pop(&mut merge)).collect();
        prop_assert_eq!(got.iter().map(|d| d.seq).collect::<Vec<_>>(), vec![1, 2, 3, 4, 5]);
        prop_assert!(got.iter().all(|d| d.encoded == update(d.seq, len)));
        prop_assert_eq!(merge.held(), 0);
    }
}

/// A merge whose source signs, and the whole signed updates 1 and 2, of 3,133 bytes each.
fn signed() -> (Merge, [Vec<u8>; 2]) {
    let signer = signing::Signer::from_seed(&[1; 32]).unwrap();
    let incarnation = uuid::Uuid::from_u128(7);
    let era = signing::Era {
        first: 1,
        last: None,
        incarnation,
        key: signer.key(),
    };
    let mut merge = Merge::new(1, None);
    merge.set_source_answers(true);
    merge.set_signatures(Some(Signatures {
        channel: "lore".into(),
        lineage: signing::Lineage::new(vec![era]).unwrap(),
        required: false,
    }));
    let updates = [1, 2].map(|seq| {
        let statement = signing::Statement {
            channel: "lore",
            incarnation,
            seq,
            deadline_ms: 0,
        };
        let content: Vec<u8> = (0..3_000u32).map(|i| (i * 7) as u8).collect();
        signer.sign(&statement, &[3; 16], &content).unwrap()
    });
    (merge, updates)
}

#[test]
fn an_expired_update_is_not_taken_whole() {
    let (mut merge, updates) = signed();
    if let Some(signatures) = &mut merge.signatures {
        signatures.required = true;
    }
    assert!(merge.expire(2..3));
    let both = [(1, &updates[0][..]), (2, &updates[1][..])];
    assert_eq!(merge.verify_together(&both), [Some(Ok(())), None]);
    // Its signature was checked before.
    merge.add_whole(2, &updates[1], Some(Ok(())));
    assert_eq!(merge.held(), 0);
    merge.add_whole(1, &updates[0], Some(Ok(())));
    assert!(matches!(merge.pop(), Some(Output::Update(update)) if update.seq == 1));
    let expired = Output::Expired {
        from: 2,
        to: 2,
        bytes: 0,
    };
    assert_eq!((merge.pop(), merge.pop()), (Some(expired), None));
}

/// The flow brings an update in packets of this many bytes, from `from` on.
fn bring(merge: &mut Merge, seq: u64, update: &[u8], from: usize) {
    for (at, part) in update.chunks(1_100).enumerate() {
        let offset = at * 1_100;
        let end = offset + part.len();
        let total = (end == update.len()).then_some(end as u64);
        if offset >= from {
            assert!(merge.accepts(seq, offset as u64..end as u64, total.is_some()));
            merge.add_flow(seq, offset as u64, part, total);
        }
    }
}

fn taken(merge: &mut Merge) -> Vec<(u64, Vec<u8>)> {
    let outputs = std::iter::from_fn(|| merge.pop());
    let update = |output| match output {
        Output::Update(update) => (update.seq, update.encoded.to_vec()),
        other => panic!("{other:?}"),
    };
    outputs.map(update).collect()
}

/// The header of a poisoned update is lost, and repaired by unicast.
#[test]
fn forged_bytes_beyond_the_end_do_no_harm() {
    let (mut merge, [first, _]) = signed();
    merge.add_flow(1, 4_000_000, b"x", None);
    merge.add_unicast(1, 0, &first[..1_100], first.len() as u64);
    bring(&mut merge, 1, &first, 1_100);
    assert_eq!(taken(&mut merge), [(1, first)]);
}

/// The same with a short first frame, of which the unicast path brought a part.
#[test]
fn forged_bytes_beyond_a_certain_end_do_no_harm() {
    let (mut merge, [first, _]) = signed();
    merge.add_unicast(1, 0, &first[..100], first.len() as u64);
    merge.add_flow(1, 3_000_000, b"x", None);
    merge.add_flow(1, 90, &first[90..], Some(first.len() as u64));
    assert_eq!(taken(&mut merge), [(1, first)]);
    assert_eq!(merge.stats().mismatches, 1);
}

/// What the flow brought while there were no keys is not handed on once there are.
#[test]
fn keys_count_for_what_is_here_already() {
    let (mut merge, [first, second]) = signed();
    let signatures = merge.signatures.take();
    merge.add_flow(2, 0, b"forged", Some(6));
    merge.add_flow(1, 2_000_000, b"forged", None);
    merge.set_signatures(signatures);
    bring(&mut merge, 1, &first, 0);
    assert_eq!(taken(&mut merge), [(1, first)]);
    let needs: Vec<_> = std::iter::from_fn(|| merge.pop_need()).collect();
    assert_eq!(needs.iter().map(|need| need.seq).collect::<Vec<_>>(), [2]);
    bring(&mut merge, 2, &second, 0);
    assert_eq!(taken(&mut merge), [(2, second)]);
}

/// The unicast path brought the header of a long update in a short range: that is enough.
#[test]
fn a_repaired_header_opens_the_flow() {
    let (mut merge, [first, _]) = signed();
    let header = signing::header_len(&first).unwrap();
    merge.add_unicast(1, 0, &first[..header], first.len() as u64);
    assert!(merge.parts[&1].is_headed());
    merge.add_flow(1, header as u64, &first[header..2_000], None);
    assert_eq!(merge.parts[&1].early(), 0);
    bring(&mut merge, 1, &first[..], 1_100);
    assert_eq!(taken(&mut merge), [(1, first)]);
}

/// True bytes that come after the header take the place of forged ones that came before it.
#[test]
fn bytes_before_the_header_give_way() {
    let (mut merge, [first, second]) = signed();
    for seq in [1, 2] {
        merge.add_flow(seq, 2_000, b"forged", None);
        merge.add_flow(seq, 3_130, b"forged", Some(3_136));
    }
    bring(&mut merge, 1, &first, 0);
    bring(&mut merge, 2, &second, 0);
    assert_eq!(taken(&mut merge), [(1, first), (2, second)]);
    assert_eq!(merge.pop_need(), None);
}

/// Where true bytes that overtook the header are next to forged ones, both go, and the rest is
/// asked for.
#[test]
fn forged_bytes_in_a_gap_are_asked_for() {
    let (mut merge, [first, _]) = signed();
    merge.add_flow(1, 2_000, b"forged", None);
    bring(&mut merge, 1, &first, 1_100);
    merge.add_flow(1, 0, &first[..1_100], None);
    assert_eq!(taken(&mut merge), []);
    let need = merge.pop_need().unwrap();
    assert_eq!((need.seq, need.reason), (1, NeedReason::Forged));
    merge.add_unicast(1, 0, &first, first.len() as u64);
    assert_eq!(taken(&mut merge), [(1, first)]);
}

/// Of a verified update that waits for its turn, what still arrives by the flow proves nothing.
#[test]
fn a_verified_update_is_kept_whatever_comes_later() {
    let (mut merge, [first, second]) = signed();
    bring(&mut merge, 2, &second, 0);
    merge.add_flow(2, 100, b"forged", None);
    merge.add_flow(2, 0, b"forged", Some(6));
    assert_eq!((merge.stats().mismatches, merge.pop_need()), (2, None));
    bring(&mut merge, 1, &first, 0);
    assert_eq!(taken(&mut merge), [(1, first), (2, second)]);
}

/// An update that was sent after one whose header was forged shows that this one was sent: it is
/// asked for, once.
#[test]
fn an_update_with_a_forged_header_is_asked_for_once() {
    let (mut merge, [_, second]) = signed();
    let mut needs = Vec::new();
    merge.add_flow(1, 0, b"forged", Some(6));
    assert_eq!(merge.pop_need(), None, "nothing shows that it was sent");
    merge.add_flow(2, 0, &second[..1_100], None);
    needs.extend(merge.pop_need().map(|need| (need.seq, need.reason)));
    merge.add_flow(1, 0, b"forged", Some(6));
    merge.request_forged(2);
    needs.extend(merge.pop_need().map(|need| (need.seq, need.reason)));
    assert_eq!(needs, [(1, NeedReason::Forged)]);
}

/// Whatever a forger sends, what is kept stays bounded.
#[test]
fn what_comes_before_headers_is_bounded() {
    let (mut merge, [first, second]) = signed();
    for n in 0..20_000_u64 {
        let (seq, offset) = (1 + n % 4_000, 1_100 * (n / 4_000 + 1));
        if merge.accepts(seq, offset..offset + 1_100, false) {
            merge.add_flow(seq, offset, &[0xee; 1_100], None);
        }
    }
    assert!(merge.held() <= 3 << 20, "{}", merge.held());
    assert!(merge.parts.len() <= 2_000, "{} parts", merge.parts.len());
    for n in 0..2_000_u64 {
        let offset = 200_000 + n * 1_100;
        if merge.accepts(1, offset..offset + 1_100, false) {
            merge.add_flow(1, offset, &[0xee; 1_100], None);
        }
    }
    assert!(merge.held() <= 3 << 20, "{}", merge.held());
    bring(&mut merge, 1, &first, 0);
    bring(&mut merge, 2, &second, 0);
    assert_eq!(taken(&mut merge), [(1, first), (2, second)]);
}

/// A source signed an update that an older one had begun to send unsigned.
#[test]
fn an_update_that_changed_between_connections_is_not_spliced() {
    let (mut merge, [first, _]) = signed();
    let unsigned = &first[header_of(&first)..];
    merge.add_unicast(1, 0, &unsigned[..1_000], unsigned.len() as u64);
    merge.disconnected();
    for at in (0..first.len()).step_by(700) {
        let end = (at + 700).min(first.len());
        merge.add_unicast(1, at as u64, &first[at..end], first.len() as u64);
    }
    assert_eq!(taken(&mut merge), [(1, first)]);
}

fn header_of(signed: &[u8]) -> usize {
    signing::header_len(signed).unwrap()
}
