//! Lists, whatever is in them.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn id(number: u64) -> Uuid {
    Uuid::from_u64_pair(0, number)
}

fn facts(number: u64) -> Facts {
    Facts {
        id: id(number),
        name: format!("Node-{:05}", number % 997),
        label: String::new(),
        tags: match number % 3 {
            0 => vec!["edge".into()],
            _ => Vec::new(),
        },
        software: "flexfeed-receiver/0.1.0".into(),
        address: format!("192.0.2.{}:4433", number % 250),
        channels: Vec::new(),
        enrolled_ms: 1_000 + number.cast_signed(),
        seen_ms: 2_000,
        revoked_ms: None,
        held: false,
    }
}

fn state(channel: &str, rung: Rung, backlog: u64) -> State {
    State {
        channel: channel.into(),
        connected: rung != Rung::Offline,
        rung,
        since_ms: 5_000,
        cause: Some("stalled".into()),
        cursor: Some(10),
        backlog,
        key_sequence: Some(1),
        rtt_us: Some(1_234),
        legs: None,
        updated_ms: 6_000,
    }
}

fn fleet(count: u64) -> Fleet {
    let mut fleet = Fleet::default();
    fleet.put_head("lore", 50);
    for number in 0..count {
        fleet.put_receiver(facts(number));
        let rung = Rung::ALL[usize::try_from(number % 5).unwrap()];
        fleet.put_state(id(number), state("lore", rung, number % 7));
    }
    fleet
}

/// All pages of a selection, one after the other.
fn walk(fleet: &Fleet, selection: &Selection, limit: usize) -> Vec<Uuid> {
    let mut all = Vec::new();
    let mut place = PageStart::Start;
    loop {
        let page = fleet.page(selection, &place, limit).unwrap();
        assert!(page.items.len() <= limit);
        all.extend(page.items.iter().map(|row| row.id));
        match page.next_cursor {
            Some(next) => place = PageStart::After(next),
            None => return all,
        }
    }
}

#[test]
fn a_receiver_is_shown_with_the_worst_of_its_channels() {
    let mut fleet = fleet(1);
    fleet.put_state(id(0), state("news", Rung::Unicast, 3));
    fleet.put_state(id(0), state("aaa", Rung::Amt, 9));
    let shown = fleet.receiver(id(0)).unwrap();
    assert_eq!(shown.rung, Rung::Unicast);
    assert_eq!(shown.behind_updates, Some(9));
    assert_eq!(shown.rtt_ms, Some(1.2));
    let names: Vec<&str> = shown.channels.iter().map(|c| &*c.channel).collect();
    assert_eq!(names, ["aaa", "lore", "news"]);
    let mut selection = Selection::default();
    selection.filter.channel = Some("aaa".into());
    let page = fleet.page(&selection, &PageStart::Start, 10).unwrap();
    assert_eq!(page.items[0].rung, Rung::Amt);
    selection.filter.channel = Some("nowhere".into());
    assert_eq!(
        fleet
            .page(&selection, &PageStart::Start, 10)
            .unwrap()
            .filtered,
        0
    );
}

#[test]
fn a_disconnected_receiver_falls_behind_with_the_channel() {
    let mut fleet = fleet(0);
    fleet.put_receiver(facts(1));
    assert_eq!(fleet.receiver(id(1)).unwrap().behind_updates, None);
    fleet.put_state(id(1), state("lore", Rung::Offline, 0));
    assert_eq!(fleet.receiver(id(1)).unwrap().behind_updates, Some(40));
    fleet.put_head("lore", 60);
    assert_eq!(fleet.receiver(id(1)).unwrap().behind_updates, Some(50));
    // The lag of a connected receiver is the last one written.
    fleet.put_state(id(1), state("lore", Rung::Multicast, 2));
    assert_eq!(fleet.receiver(id(1)).unwrap().behind_updates, Some(2));
}

/// A receiver's state may be read before the receiver itself.
#[test]
fn states_read_before_their_receiver_are_kept() {
    let mut fleet = fleet(0);
    assert!(!fleet.put_state(id(1), state("lore", Rung::Unicast, 2)));
    assert!(!fleet.put_state(id(1), state("lore", Rung::Amt, 3)));
    assert!(!fleet.put_state(id(2), state("lore", Rung::Amt, 3)));
    assert!(fleet.receiver(id(1)).is_none());
    fleet.put_receiver(facts(1));
    let shown = fleet.receiver(id(1)).unwrap();
    assert_eq!((shown.rung, shown.behind_updates), (Rung::Amt, Some(3)));
    // The state is used once, removed with its receiver, and bounded.
    fleet.remove(id(1));
    fleet.put_receiver(facts(1));
    assert!(fleet.receiver(id(1)).unwrap().channels.is_empty());
    fleet.remove(id(2));
    fleet.put_receiver(facts(2));
    assert!(fleet.receiver(id(2)).unwrap().channels.is_empty());
    for number in 10..2_000 {
        fleet.put_state(id(number), state("lore", Rung::Amt, 3));
    }
    assert_eq!(fleet.strangers.len(), STRANGERS);
    fleet.clear();
    assert!(fleet.strangers.is_empty());
}

#[test]
fn an_absent_receiver_is_not_behind() {
    let mut fleet = fleet(0);
    for number in 0..4 {
        fleet.put_receiver(facts(number));
    }
    fleet.put_state(id(0), state("lore", Rung::Multicast, 0));
    fleet.put_state(id(1), state("lore", Rung::Unicast, 3));
    fleet.put_state(id(2), state("lore", Rung::Offline, 3));
    // One channel is served by a source that is away.
    fleet.put_state(id(3), state("lore", Rung::Amt, 0));
    fleet.put_state(id(3), state("news", Rung::Offline, 9));
    let (counts, behind) = fleet.counts();
    assert_eq!((counts.total, counts.connected, behind), (4, 3, 1));
    assert_eq!(fleet.receiver(id(2)).unwrap().behind_updates, Some(40));
}

/// The channels of a receiver as they are shown, and its rung.
fn shown(fleet: &Fleet, number: u64) -> (Vec<String>, Rung) {
    let shown = fleet.receiver(id(number)).unwrap();
    let names = shown.channels.into_iter().map(|one| one.channel);
    (names.collect(), shown.rung)
}

#[test]
fn a_channel_that_a_receiver_does_not_ask_for_any_more_does_not_count() {
    let mut fleet = fleet(0);
    let asking = |channels: &[&str]| Facts {
        channels: channels.iter().map(|&name| name.into()).collect(),
        ..facts(1)
    };
    let names = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
    fleet.put_receiver(asking(&["lore", "news"]));
    fleet.put_state(id(1), state("lore", Rung::Multicast, 0));
    fleet.put_state(id(1), state("news", Rung::Offline, 0));
    assert_eq!(
        shown(&fleet, 1),
        (names(&["lore", "news"]), Rung::Offline),
        "it is away from one"
    );
    fleet.put_receiver(asking(&["lore"]));
    assert_eq!(shown(&fleet, 1), (names(&["lore"]), Rung::Multicast));
    let mut selection = Selection::default();
    selection.filter.channel = Some("news".into());
    let page = fleet.page(&selection, &PageStart::Start, 9).unwrap();
    assert_eq!(page.filtered, 0);
    // The requested channels may change.
    fleet.put_receiver(asking(&["lore", "news"]));
    assert_eq!(shown(&fleet, 1).0, names(&["lore", "news"]));
}

#[test]
fn a_channel_that_is_gone_takes_its_states_along() {
    let mut fleet = fleet(0);
    fleet.put_head("news", 70);
    fleet.put_receiver(facts(1));
    fleet.put_state(id(1), state("lore", Rung::Multicast, 0));
    fleet.put_state(id(1), state("news", Rung::Offline, 0));
    let both = HashMap::from([("lore", true), ("news", true)]);
    let version = fleet.version();
    fleet.set_channels(&both);
    assert_eq!(fleet.version(), version, "nothing is new");
    assert_eq!(shown(&fleet, 1).1, Rung::Offline);
    // Not published at present: what is known of it is kept.
    fleet.set_channels(&HashMap::from([("lore", true), ("news", false)]));
    assert!(fleet.version() > version);
    assert_eq!(shown(&fleet, 1), (vec!["lore".to_owned()], Rung::Multicast));
    fleet.set_channels(&both);
    assert_eq!(shown(&fleet, 1).1, Rung::Offline);
    fleet.set_channels(&HashMap::from([("lore", true)]));
    assert_eq!(shown(&fleet, 1), (vec!["lore".to_owned()], Rung::Multicast));
    // One of the same name is another one.
    fleet.set_channels(&both);
    assert_eq!(shown(&fleet, 1).1, Rung::Multicast);
    fleet.put_state(id(1), state("news", Rung::Offline, 0));
    let shown = fleet.receiver(id(1)).unwrap();
    assert_eq!(shown.channels[1].behind_updates, None, "its head is gone");
}

#[test]
fn filters_select_matching_rows() {
    let fleet = fleet(1_000);
    let count = |filter: Filter| {
        let selection = Selection {
            filter,
            ..Selection::default()
        };
        fleet
            .page(&selection, &PageStart::Start, 1)
            .unwrap()
            .filtered
    };
    assert_eq!(count(Filter::default()), 1_000);
    let of = |text: &str| Filter {
        text: Some(text.into()),
        ..Filter::default()
    };
    // 1 and 998 have the same name.
    assert_eq!(count(of("node-00001")), 2);
    assert_eq!(count(of("192.0.2.7:")), 4);
    assert_eq!(count(of("nothing")), 0);
    let rung = Some(Rung::Amt);
    assert_eq!(
        count(Filter {
            rung,
            ..Filter::default()
        }),
        200
    );
    let connected = Some(false);
    assert_eq!(
        count(Filter {
            connected,
            ..Filter::default()
        }),
        200
    );
    let tag = Some("edge".to_owned());
    assert_eq!(
        count(Filter {
            tag,
            ..Filter::default()
        }),
        334
    );
    let cause = Some("stalled".to_owned());
    assert_eq!(
        count(Filter {
            cause,
            ..Filter::default()
        }),
        1_000
    );
    let receiver = Some(id(3));
    assert_eq!(
        count(Filter {
            receiver,
            ..Filter::default()
        }),
        1
    );
    let behind = count(Filter {
        behind: Some(true),
        ..Filter::default()
    });
    let not = count(Filter {
        behind: Some(false),
        ..Filter::default()
    });
    assert_eq!(behind + not, 1_000);
    assert!(behind > 800 && not > 100, "{behind} {not}");
}

#[test]
fn those_that_were_removed_are_a_list_of_their_own() {
    let mut fleet = fleet(10);
    for number in [2, 5] {
        fleet.put_receiver(Facts {
            revoked_ms: Some(9),
            ..facts(number)
        });
    }
    let list = |revoked: bool, rung: Option<Rung>| {
        let filter = Filter {
            revoked,
            rung,
            ..Filter::default()
        };
        let selection = Selection {
            filter,
            ..Selection::default()
        };
        let page = fleet.page(&selection, &PageStart::Start, 20).unwrap();
        assert_eq!(fleet.all(&selection).len(), page.filtered);
        assert!(page.items.iter().all(|row| row.revoked == revoked));
        (page.total, page.filtered)
    };
    assert_eq!(list(false, None), (8, 8));
    assert_eq!(list(true, None), (2, 2));
    assert_eq!(list(true, Some(Rung::Multicast)), (2, 1));
    // As many as the overview counts.
    assert_eq!(fleet.counts().0.total, 8);
    // A search by id finds the receiver.
    let mut selection = Selection::default();
    selection.filter.receiver = Some(id(5));
    let page = fleet.page(&selection, &PageStart::Start, 1).unwrap();
    assert!(page.items[0].revoked);
}

#[test]
fn a_cursor_of_another_order_is_refused() {
    let fleet = fleet(10);
    let selection = Selection::default();
    let page = fleet.page(&selection, &PageStart::Start, 3).unwrap();
    let next = PageStart::After(page.next_cursor.unwrap());
    assert!(fleet.page(&selection, &next, 3).is_ok());
    let other = Selection {
        order: Order::Desc,
        ..Selection::default()
    };
    assert_eq!(fleet.page(&other, &next, 3), Err(page::BadCursor));
    for bad in ["", "x", "e30", "%%%"] {
        let bad = PageStart::After(bad.into());
        assert_eq!(fleet.page(&selection, &bad, 3), Err(page::BadCursor));
    }
}

#[test]
fn an_offset_leads_to_the_same_as_cursors() {
    let fleet = fleet(503);
    let selection = Selection {
        sort: Sort::Lag,
        order: Order::Desc,
        ..Selection::default()
    };
    let all = walk(&fleet, &selection, 50);
    assert_eq!(all, fleet.all(&selection));
    let page = fleet.page(&selection, &PageStart::Offset(480), 50).unwrap();
    let ids: Vec<Uuid> = page.items.iter().map(|row| row.id).collect();
    assert_eq!(ids, all[480..]);
    assert_eq!(page.next_cursor, None);
    let beyond = fleet
        .page(&selection, &PageStart::Offset(9_999), 50)
        .unwrap();
    assert!(beyond.items.is_empty());
    let huge = fleet.page(&selection, &PageStart::Offset(usize::MAX), 50);
    assert!(huge.unwrap().items.is_empty());
}

#[test]
fn a_hundred_thousand_are_paged_without_a_loss() {
    let fleet = fleet(100_000);
    for (sort, order) in [(Sort::Name, Order::Asc), (Sort::Lag, Order::Desc)] {
        let selection = Selection {
            sort,
            order,
            ..Selection::default()
        };
        // Far fewer pages than there are: each of them looks at all receivers.
        let all = walk(&fleet, &selection, 25_000);
        assert_eq!(all.len(), 100_000);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 100_000);
        let began = Instant::now();
        let page = fleet
            .page(&selection, &PageStart::Offset(50_000), 100)
            .unwrap();
        assert_eq!(page.items.len(), 100);
        // A generous bound on what takes milliseconds.
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}

fn rung() -> impl Strategy<Value = Rung> {
    proptest::sample::select(Rung::ALL.to_vec())
}

fn change() -> impl Strategy<Value = (u64, Option<(Rung, u64)>)> {
    (0..30u64, proptest::option::of((rung(), 0..4u64)))
}

fn selection() -> impl Strategy<Value = Selection> {
    let sorts = vec![
        Sort::Name,
        Sort::Rung,
        Sort::Lag,
        Sort::Rtt,
        Sort::Since,
        Sort::Seen,
        Sort::Enrolled,
    ];
    let orders = vec![Order::Asc, Order::Desc];
    (
        proptest::sample::select(sorts),
        proptest::sample::select(orders),
        proptest::option::of(rung()),
    )
        .prop_map(|(sort, order, rung)| Selection {
            sort,
            order,
            filter: Filter {
                rung,
                ..Filter::default()
            },
        })
}

fn apply(fleet: &mut Fleet, changes: &[(u64, Option<(Rung, u64)>)]) {
    for (number, change) in changes {
        match change {
            Some((rung, backlog)) => {
                fleet.put_receiver(facts(*number));
                fleet.put_state(id(*number), state("lore", *rung, *backlog));
            }
            None => fleet.remove(id(*number)),
        }
    }
}

proptest! {
    #[test]
    fn pages_together_are_everything_in_order(
        changes in proptest::collection::vec(change(), 0..60),
        selection in selection(),
        limit in 1..12usize,
    ) {
        let mut fleet = Fleet::default();
        apply(&mut fleet, &changes);
        let all = walk(&fleet, &selection, limit);
        let once: BTreeSet<&Uuid> = all.iter().collect();
        prop_assert_eq!(once.len(), all.len());
        prop_assert_eq!(&all, &fleet.all(&selection));
        let expected = match selection.filter.rung {
            None => fleet.len(),
            Some(rung) => {
                let rungs = fleet.ids().map(|id| fleet.receiver(id).unwrap().rung);
                rungs.filter(|other| *other == rung).count()
            }
        };
        prop_assert_eq!(all.len(), expected);
    }

    #[test]
    fn a_page_and_its_deltas_are_the_next_page(
        first in proptest::collection::vec(change(), 0..60),
        second in proptest::collection::vec(change(), 0..20),
        selection in selection(),
        limit in 1..12usize,
    ) {
        let mut fleet = Fleet::default();
        apply(&mut fleet, &first);
        let old = fleet.page(&selection, &PageStart::Start, limit).unwrap();
        apply(&mut fleet, &second);
        let new = fleet.page(&selection, &PageStart::Start, limit).unwrap();
        let delta = delta(&old.items, &new.items);
        prop_assert_eq!(delta.is_empty(), old.items == new.items);
        // A client's application of the difference.
        let mut rows: HashMap<Uuid, Receiver> =
            old.items.iter().map(|row| (row.id, row.clone())).collect();
        for gone in &delta.gone {
            prop_assert!(rows.remove(gone).is_some());
        }
        rows.extend(delta.receivers.into_iter().map(|row| (row.id, row)));
        let order = delta.order.unwrap_or_else(|| old.items.iter().map(|row| row.id).collect());
        let shown: Vec<Receiver> = order.iter().map(|id| rows[id].clone()).collect();
        prop_assert_eq!(shown, new.items);
        prop_assert_eq!(rows.len(), order.len());
    }
}
