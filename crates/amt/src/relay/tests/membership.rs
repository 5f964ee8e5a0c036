//! Effects of records on a tunnel's groups.

use std::time::Duration;

use super::lab::{Lab, at, dropped, ip, record};
use crate::relay::{Config, DropReason, Event, Join, Outcome};
use crate::report::RecordKind::{Allow, Block, IsEx, IsIn, ToEx, ToIn};

const ASM: &str = "239.1.1.1";
const SSM: &str = "232.1.1.1";
const A: &str = "192.0.2.1";
const B: &str = "192.0.2.2";
const C: &str = "192.0.2.3";

/// Returns which of three sources are forwarded after these records.
fn after(group: &str, records: &[(crate::report::RecordKind, &[&str])]) -> String {
    let mut lab = Lab::new(Config::default());
    let from = at("203.0.113.5:1");
    for (kind, sources) in records {
        lab.join(from, &[record(*kind, group, sources)]);
    }
    let through = [(A, 'a'), (B, 'b'), (C, 'c')];
    let through = through
        .iter()
        .filter(|(source, _)| !lab.receivers(source, group).is_empty());
    through.map(|(_, letter)| *letter).collect()
}

#[test]
fn lists_grow_and_shrink() {
    assert_eq!(after(SSM, &[(Allow, &[A])]), "a");
    assert_eq!(after(SSM, &[(IsIn, &[A]), (Allow, &[B])]), "ab");
    assert_eq!(after(SSM, &[(IsIn, &[A, B]), (Block, &[A])]), "b");
    assert_eq!(after(SSM, &[(IsIn, &[A]), (Block, &[A])]), "");
    assert_eq!(after(SSM, &[(Block, &[A])]), "");
    assert_eq!(after(SSM, &[(ToIn, &[A, B])]), "ab");
    assert_eq!(after(SSM, &[(ToIn, &[A, B]), (ToIn, &[])]), "");
}

#[test]
fn an_exclude_list_takes_everything_else() {
    assert_eq!(after(ASM, &[(IsEx, &[])]), "abc");
    assert_eq!(after(ASM, &[(ToEx, &[A])]), "bc");
    assert_eq!(after(ASM, &[(ToEx, &[A]), (Allow, &[A])]), "abc");
    assert_eq!(after(ASM, &[(ToEx, &[A]), (Block, &[B])]), "c");
    assert_eq!(after(ASM, &[(IsEx, &[A, B]), (IsEx, &[C])]), "ab");
    assert_eq!(after(ASM, &[(IsEx, &[]), (ToIn, &[])]), "");
    assert_eq!(after(ASM, &[(IsEx, &[]), (ToIn, &[A])]), "a");
    assert_eq!(after(ASM, &[(IsIn, &[A]), (ToEx, &[A])]), "bc");
}

#[test]
fn a_list_in_several_reports_is_one_list() {
    let mut lab = Lab::new(Config::default());
    let from = at("203.0.113.5:1");
    lab.join(from, &[record(ToIn, SSM, &[A])]);
    lab.join(from, &[record(ToIn, SSM, &[B])]);
    assert_eq!(lab.receivers(A, SSM), [from]);
    assert_eq!(lab.receivers(B, SSM), [from]);
    // The host wants only the second: the first expires by itself.
    lab.pass(Duration::from_secs(3));
    assert!(lab.receivers(A, SSM).is_empty());
    assert_eq!(lab.receivers(B, SSM), [from]);
    lab.join(from, &[record(IsIn, SSM, &[A])]);
    lab.join(from, &[record(IsIn, SSM, &[B])]);
    lab.pass(Duration::from_secs(100));
    assert_eq!(lab.receivers(A, SSM), [from]);
}

#[test]
fn groups_that_are_not_forwarded_are_rejected() {
    let mut lab = Lab::new(Config::default());
    let from = at("203.0.113.5:1");
    for bad in [
        record(IsEx, "224.0.0.251", &[]),
        record(IsEx, SSM, &[]),
        record(IsIn, SSM, &["239.1.1.1"]),
        record(IsIn, SSM, &["0.0.0.0"]),
        record(IsEx, "ff02::fb", &[]),
        record(IsEx, "ff3e::1", &[]),
        record(IsEx, "ff01::1", &[]),
    ] {
        let handled = lab.join(from, std::slice::from_ref(&bad));
        assert_eq!(handled, dropped(DropReason::Report), "{bad:?}");
    }
    assert_eq!(lab.relay.tunnels(), 0);
    // Neighbouring addresses count.
    let handled = lab.join(
        from,
        &[record(IsEx, "224.0.0.1", &[]), record(IsIn, SSM, &[A])],
    );
    assert_eq!(handled, dropped(DropReason::Report));
    assert_eq!(lab.receivers(A, SSM), [from]);
}

#[test]
fn the_unspecified_source_alone_is_any_source() {
    let mut lab = Lab::new(Config::default());
    let from = at("203.0.113.5:1");
    let (group, source) = ("ff1e::1", "2001:db8:9::1");
    assert_eq!(
        lab.join(from, &[record(Allow, group, &["::"])]),
        Outcome::Accepted
    );
    assert_eq!(lab.receivers(source, group), [from]);
    assert_eq!(
        lab.join(from, &[record(Block, group, &["::"])]),
        Outcome::Accepted
    );
    assert_eq!(lab.relay.tunnels(), 0);
    for (group, sources) in [("ff3e::1", &["::"][..]), ("ff1e::1", &["::", source])] {
        let handled = lab.join(from, &[record(Allow, group, sources)]);
        assert_eq!(handled, dropped(DropReason::Report), "{group}");
    }
}

#[test]
fn the_native_side_joins_the_sum_of_all() {
    let mut lab = Lab::new(Config::default());
    let (one, two) = (at("203.0.113.5:1"), at("203.0.113.5:2"));
    let join = |source: Option<&str>| Join {
        source: source.map(ip),
        group: ip(ASM),
    };
    let expect = |lab: &mut Lab, events: &[Event]| {
        assert_eq!(lab.events, events);
        lab.events.clear();
    };
    assert_eq!(lab.join(one, &[record(IsIn, ASM, &[A])]), Outcome::Accepted);
    expect(&mut lab, &[Event::Join(join(Some(A)))]);
    lab.join(two, &[record(IsIn, ASM, &[A, B])]);
    expect(&mut lab, &[Event::Join(join(Some(B)))]);
    // Any source covers each; its join precedes their leaves.
    lab.join(one, &[record(ToEx, ASM, &[C])]);
    let any = [
        Event::Join(join(None)),
        Event::Leave(join(Some(A))),
        Event::Leave(join(Some(B))),
    ];
    expect(&mut lab, &any);
    assert_eq!(lab.receivers(A, ASM), [one, two]);
    assert_eq!(lab.receivers(C, ASM), []);
    lab.join(one, &[record(ToIn, ASM, &[])]);
    let back = [
        Event::Join(join(Some(A))),
        Event::Join(join(Some(B))),
        Event::Leave(join(None)),
    ];
    expect(&mut lab, &back);
    lab.join(two, &[record(Block, ASM, &[A, B])]);
    let gone = [Event::Leave(join(Some(A))), Event::Leave(join(Some(B)))];
    expect(&mut lab, &gone);
}

#[test]
fn senders_to_an_any_source_group_fill_no_memory() {
    let mut lab = Lab::new(Config::default());
    let from = at("203.0.113.5:1");
    lab.join(from, &[record(IsEx, ASM, &[])]);
    for n in 0..50_000_u32 {
        let source = std::net::Ipv4Addr::from(0x0a00_0000 + n).into();
        assert!(lab.relay.recipients(source, ip(ASM)).is_some());
        // Groups without members leave nothing either.
        let group = std::net::Ipv4Addr::from(0xef80_0000 + n).into();
        assert!(lab.relay.recipients(source, group).is_none());
    }
    assert!(lab.relay.lists() <= 1024, "{}", lab.relay.lists());
}
