#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;

const LIMITS: Limits = Limits {
    entries: 10,
    entry_bytes: 1000,
};

fn entries(text: &str) -> (Vec<String>, usize) {
    let document = split(text, None, LIMITS).unwrap();
    let entries = document.entries.into_iter().map(Cow::into_owned);
    (entries.collect(), document.skipped.len())
}

#[test]
fn entries_are_cut_out_byte_for_byte() {
    let text = "<?xml version='1.0'?><!-- c --><feed xmlns='http://www.w3.org/2005/Atom'>\
        <title>A &amp; B</title><entry \n><id>1</id></entry >\r\n<entry/>\
        <entry><content><entry>x</entry></content></entry></feed>trailing";
    let document = split(text, None, LIMITS).unwrap();
    assert_eq!(document.format, Format::Atom);
    assert_eq!(document.title.as_deref(), Some("A & B"));
    assert_eq!(
        document.entries,
        [
            "<entry \n><id>1</id></entry >",
            "<entry><content><entry>x</entry></content></entry>"
        ]
    );
    assert!(document.skipped.is_empty());
}

#[test]
fn rss_items_are_found_where_each_version_has_them() {
    let rss = "<rss><channel><title>T</title><image><title>no</title></image>\
        <item><title>1</title></item></channel></rss>";
    let document = split(rss, None, LIMITS).unwrap();
    assert_eq!(document.format, Format::Rss);
    assert_eq!(document.title.as_deref(), Some("T"));
    assert_eq!(document.entries.len(), 1);
    let rdf = "<rdf:RDF xmlns:rdf='urn:r'><channel><title>T</title></channel>\
        <item/><item>a</item></rdf:RDF>";
    let document = split(rdf, None, LIMITS).unwrap();
    assert_eq!(document.format, Format::Rdf);
    assert_eq!(document.entries, ["<item>a</item>"]);
}

#[test]
fn a_bad_entry_costs_only_itself() {
    let good = "<entry><id>1</id></entry>";
    for bad in [
        "<entry><!-- </entry>",
        "<entry></entry ",
        "<entry><b></entry",
    ] {
        let text = format!("<feed>{good}{bad}{good}</feed>");
        let (found, skipped) = entries(&text);
        assert_eq!(found, [good, good], "{bad}");
        assert!(skipped >= 1, "{bad}");
    }
}

#[test]
fn wrong_end_tags_and_ampersands_cost_nothing() {
    let good = "<entry><id>1</id></entry>";
    for odd in [
        "<entry><b></entry>",
        "<entry><b></i></entry>",
        "<entry>a & b</entry>",
    ] {
        let text = format!("<feed>{good}{odd}</i>{good}</feed>");
        let expected = [good, odd, good].map(str::to_owned).to_vec();
        assert_eq!(entries(&text), (expected, 0), "{odd}");
    }
    let text = format!("<feed><entry><id>x</id>{good}</feed>");
    let whole = "<entry><id>x</id></entry>".to_owned();
    assert_eq!(entries(&text), (vec![whole, good.to_owned()], 0));
}

#[test]
fn truncated_documents_yield_their_whole_items() {
    let text = "<feed><entry>1</entry><entry>2</entry><entry><id>3";
    assert_eq!(
        entries(text),
        (
            vec!["<entry>1</entry>".into(), "<entry>2</entry>".into()],
            1
        )
    );
    let text = "<feed><entry>1</entry>";
    assert_eq!(entries(text), (vec!["<entry>1</entry>".into()], 1));
}

#[test]
fn a_bad_header_does_not_hide_the_entries() {
    let text = "<feed><title>a & b</title><entry>1</entry></feed>";
    assert_eq!(entries(text).0, ["<entry>1</entry>"]);
}

#[test]
fn limits_hold() {
    let many = format!("<feed>{}</feed>", "<entry>1</entry>".repeat(11));
    let (found, skipped) = entries(&many);
    assert_eq!((found.len(), skipped), (10, 1));
    let long = format!(
        "<feed><entry>{}</entry><entry>1</entry></feed>",
        "x".repeat(1001)
    );
    assert_eq!(entries(&long), (vec!["<entry>1</entry>".into()], 1));
    // Without a limit, every one of these would be scanned to the end.
    let hostile = format!("<feed>{}", "<entry><a>".repeat(200_000));
    let (found, skipped) = entries(&hostile);
    assert!(found.is_empty());
    assert!(skipped <= MAX_SKIPPED, "{skipped}");
}

#[test]
fn other_documents_are_named() {
    let root = |text| split(text, None, LIMITS).unwrap_err();
    assert_eq!(root("<html><body>"), NotXmlFeed::Root("<html>".to_owned()));
    assert!(matches!(
        root("<feed xmlns='urn:other'/>"),
        NotXmlFeed::Root(seen) if seen.contains("urn:other")
    ));
    assert_eq!(root("hello <rss/>"), NotXmlFeed::NoElement);
    assert_eq!(root(""), NotXmlFeed::NoElement);
}
