//! Parsing of each format, of frequent errors in feeds, and of documents that are no feeds.

use feed::parse::{MAX_ENTRIES, MAX_ENTRY_BYTES, ParseError, ParsedFeed, parse};
use feed::{Attachment, Author, Entry};
use proptest::prelude::*;

const ADDRESS: &str = "https://example.org/feeds/a.xml";
const ATOM: &str = "http://www.w3.org/2005/Atom";

fn read(text: &str) -> ParsedFeed {
    parse(text.as_bytes(), ADDRESS).unwrap()
}

fn atom(entries: &str) -> ParsedFeed {
    read(&format!(
        "<feed xmlns='{ATOM}' xmlns:t='urn:t'><title>F</title>{entries}</feed>"
    ))
}

fn one(feed: ParsedFeed) -> Entry {
    assert_eq!(feed.entries.len(), 1, "{feed:?}");
    feed.entries.into_iter().next().unwrap()
}

fn author(name: Option<&str>, url: Option<&str>) -> Author {
    Author {
        name: name.map(str::to_owned),
        url: url.map(str::to_owned),
    }
}

#[test]
fn atom_entries_have_all_fields_and_their_own_text() {
    let raw = "<entry ><id> urn:x&amp;y </id>\r\n<title type='html'>A &lt;b&gt;B&lt;/b&gt;</title>\
        <author><name>N</name><email>n@example.org</email></author>\
        <author><name>M</name><uri>https://m/</uri></author>\
        <link rel='alternate' href='https://example.org/1'/>\
        <link rel='enclosure' type='audio/ogg' length='7' href='https://example.org/1.ogg'/>\
        <category term='t1'/><category term='t2' label='T2'/>\
        <published>2025-01-01T00:00:00Z</published><updated>2025-01-02T03:04:05.678+01:00</updated>\
        <summary>S</summary><t:x y=\"&#10;\"/><!-- c --><content type='xhtml'>\
        <div xmlns='http://www.w3.org/1999/xhtml'><p>a&lt;</p></div></content></entry>";
    let feed = atom(raw);
    assert_eq!(feed.title.as_deref(), Some("F"));
    assert_eq!(feed.skipped, Vec::<String>::new());
    let entry = one(feed);
    assert_eq!(entry.id, "urn:x&y");
    assert_eq!(entry.title.as_deref(), Some("A B"));
    assert_eq!(entry.url.as_deref(), Some("https://example.org/1"));
    assert_eq!(
        entry.authors,
        [
            author(Some("N"), Some("mailto:n@example.org")),
            author(Some("M"), Some("https://m/"))
        ]
    );
    assert_eq!(entry.published.unwrap().to_string(), "2025-01-01T00:00:00Z");
    assert_eq!(
        entry.updated.unwrap().to_string(),
        "2025-01-02T02:04:05.678Z"
    );
    assert_eq!(entry.summary.as_deref(), Some("S"));
    assert_eq!(entry.content_html.as_deref(), Some("<p>a&lt;</p>"));
    assert_eq!(entry.tags, ["t1", "T2"]);
    assert_eq!(
        entry.attachments,
        [Attachment {
            url: "https://example.org/1.ogg".into(),
            mime_type: "audio/ogg".into(),
            size: Some(7)
        }]
    );
    let added = format!("<entry xmlns=\"{ATOM}\" xmlns:t=\"urn:t\" >");
    assert_eq!(entry.xml, raw.replacen("<entry >", &added, 1));
}

#[test]
fn entries_without_an_id_get_a_stable_one() {
    let linked = "<entry><title>T</title><link href='https://example.org/1'/></entry>";
    let dated = linked.replace(
        "</entry>",
        "<updated>2025-01-01T00:00:00Z</updated></entry>",
    );
    let other = linked.replace("<title>T", "<title>U");
    let id = |text: &str| one(atom(text)).id;
    assert!(id(linked).starts_with("urn:uuid:"), "{}", id(linked));
    assert_eq!(id(linked), id(&dated));
    assert_ne!(id(linked), id(&other));
    let long = format!("<entry><id>{}</id></entry>", "x".repeat(5000));
    assert!(id(&long).starts_with("urn:uuid:"));
}

#[test]
fn a_bad_entry_or_field_costs_only_itself() {
    let good = |n| format!("<entry><id>{n}</id><title>T{n}</title></entry>");
    let feed = atom(&format!(
        "{}<entry><id>x</id><!-- </entry>{}<entry></entry>{}",
        good(1),
        good(2),
        "<entry><id>3</id><title>T3</title><content type='?'>c</content></entry>"
    ));
    let ids: Vec<_> = feed.entries.iter().map(|e| e.id.as_str()).collect();
    assert_eq!(ids, ["1", "2", "3"]);
    assert_eq!(feed.entries[2].title.as_deref(), Some("T3"));
    assert!(feed.entries[2].xml.contains("<content type='?'>"));
    assert_eq!(feed.skipped.len(), 2, "{:?}", feed.skipped);
    let none = format!("<feed xmlns='{ATOM}'><entry><id>x</id><!-- </entry></feed>");
    let error = parse(none.as_bytes(), ADDRESS).unwrap_err();
    assert!(matches!(error, ParseError::NoUsableEntry { .. }), "{error}");
}

#[test]
fn an_entry_that_is_not_well_formed_alone_is_rewritten() {
    let entry = one(atom("<entry><id>1</id><title>a&nbsp;b</title></entry>"));
    assert!(
        entry.xml.contains("<title>a\u{a0}b</title>"),
        "{}",
        entry.xml
    );
    let control = one(atom("<entry><id>1</id><title>a&#8;b\u{c}</title></entry>"));
    assert_eq!(control.title.as_deref(), Some("ab"));
    assert!(!control.xml.contains("&#8;"));
}

#[test]
fn encodings_are_followed() {
    let text =
        b"<?xml version='1.0' encoding='iso-8859-1'?><feed xmlns='http://www.w3.org/2005/Atom'>\
        <entry><id>1</id><title>\xe9</title></entry></feed>";
    let entry = one(parse(text, ADDRESS).unwrap());
    assert_eq!(entry.title.as_deref(), Some("é"));
    assert!(entry.xml.contains("<title>é</title>"));
    let wide: Vec<u8> = "\u{feff}<feed><entry><id>é</id></entry></feed>"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    assert_eq!(one(parse(&wide, ADDRESS).unwrap()).id, "é");
}

#[test]
fn rss_items_become_entries() {
    let feed = read(
        "<rss version='2.0' xmlns:content='http://purl.org/rss/1.0/modules/content/' \
         xmlns:dc='http://purl.org/dc/elements/1.1/' xmlns:i='http://www.itunes.com/dtds/podcast-1.0.dtd'>\
         <channel><title>R</title><item><guid isPermaLink='false'> g1 </guid><title>T</title>\
         <link>https://example.org/1</link><description>&lt;p&gt;S&lt;/p&gt;</description>\
         <content:encoded><![CDATA[<p>C</p>]]></content:encoded><category>k</category>\
         <author>a@b.org (A)</author><dc:creator>B</dc:creator>\
         <pubDate>Fri, 05 Sep 2025 09:49:57 +0000</pubDate>\
         <enclosure url='https://example.org/1.mp3' type='audio/mpeg' length='9'/></item>\
         <item><guid>https://example.org/2</guid><description>D</description></item>\
         </channel></rss>",
    );
    assert_eq!(feed.title.as_deref(), Some("R"));
    let first = &feed.entries[0];
    assert_eq!(first.id, "g1");
    assert_eq!(first.url.as_deref(), Some("https://example.org/1"));
    assert_eq!(first.summary.as_deref(), Some("S"));
    assert_eq!(first.content_html.as_deref(), Some("<p>C</p>"));
    assert_eq!(
        first.authors,
        [
            author(Some("A"), Some("mailto:a@b.org")),
            author(Some("B"), None)
        ]
    );
    assert_eq!(first.published.unwrap().as_second(), 1_757_065_797);
    assert_eq!(first.attachments[0].url, "https://example.org/1.mp3");
    assert_eq!(first.tags, ["k"]);
    for part in [
        "<id>g1</id>",
        "<content type=\"html\">&lt;p&gt;C&lt;/p&gt;</content>",
        "<updated>2025-09-05T09:49:57Z</updated>",
        "rel=\"enclosure\"",
        "<email>a@b.org</email>",
    ] {
        assert!(first.xml.contains(part), "{part}: {}", first.xml);
    }
    let second = &feed.entries[1];
    assert_eq!(second.url.as_deref(), Some("https://example.org/2"));
    assert_eq!(second.content_html.as_deref(), Some("D"));
}

#[test]
fn every_rss_version_is_read() {
    for version in ["0.91", "0.92", "2.0", "2.00", ""] {
        let entry = one(read(&format!(
            "<rss version='{version}'><channel><item><title>T</title>\
             <link>/1</link></item></channel></rss>"
        )));
        assert_eq!(
            entry.url.as_deref(),
            Some("https://example.org/1"),
            "{version}"
        );
    }
    let entry = one(read(
        "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' \
         xmlns='http://purl.org/rss/1.0/'><channel><title>R</title></channel>\
         <item rdf:about='https://example.org/1'><title>T</title>\
         <link>https://example.org/one</link></item></rdf:RDF>",
    ));
    assert_eq!(entry.id, "https://example.org/1");
    assert_eq!(entry.url.as_deref(), Some("https://example.org/one"));
}

#[test]
fn json_feeds_are_read_leniently() {
    let feed = read(
        r#"{"version": "https://jsonfeed.org/version/1.1", "title": "J",
            "authors": [{"name": "Feed"}],
            "items": [
              {"id": 7, "url": "/7", "title": "T", "content_html": "<p>", "summary": "S",
               "date_published": "2025-01-01T00:00:00Z", "tags": ["t"],
               "authors": [{"name": "“x@y.org"}],
               "attachments": [{"url": "https://a/1", "mime_type": "a/b", "size_in_bytes": 3}]},
              {"id": "b", "title": 5, "content_text": "text"},
              "nonsense", {}
            ]}"#,
    );
    assert_eq!(feed.title.as_deref(), Some("J"));
    assert_eq!(feed.skipped.len(), 2);
    let [first, second] = &feed.entries[..] else {
        panic!("{feed:?}");
    };
    assert_eq!(first.id, "7");
    assert_eq!(first.url.as_deref(), Some("https://example.org/7"));
    assert_eq!(first.content_html.as_deref(), Some("<p>"));
    assert_eq!(first.authors, [author(Some("“x@y.org"), None)]);
    assert_eq!(first.attachments[0].size, Some(3));
    assert_eq!(first.tags, ["t"]);
    assert_eq!(second.title, None);
    assert_eq!(second.content_text.as_deref(), Some("text"));
    assert_eq!(second.authors, [author(Some("Feed"), None)]);
}

/// Each of these made the parsing library panic when it was given the whole document.
#[test]
fn documents_that_panicked_the_library_are_safe() {
    let rss = |item: &str| {
        one(read(&format!(
            "<rss version='2.0' xmlns:itunes='http://www.itunes.com/dtds/podcast-1.0.dtd' \
             xmlns:media='http://search.yahoo.com/mrss/'><channel><item><guid>g</guid>\
             <title>T</title>{item}</item></channel></rss>"
        )))
    };
    let entry = rss("<author>“a@b.org</author>");
    assert_eq!(entry.title.as_deref(), Some("T"));
    rss("<author>a@b.org”</author>");
    rss("<itunes:duration>99999999999999999999999:00:00</itunes:duration>");
    rss("<media:thumbnail url='https://a/' time='99999999999999999999:00:00'/>");
}

#[test]
fn documents_that_are_no_feeds_are_described() {
    let seen = |text: &str| match parse(text.as_bytes(), ADDRESS) {
        Err(ParseError::NotAFeed { seen, .. }) => seen,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(
        seen("<!doctype html><html><title>Sign in</title><p>a & b"),
        "an HTML page titled 'Sign in'"
    );
    assert_eq!(
        seen("<html xmlns='http://www.w3.org/1999/xhtml'><head><title>X</title></head></html>"),
        "an HTML page titled 'X'"
    );
    assert_eq!(
        seen("<opml/>"),
        "an XML document with the root element <opml>"
    );
    assert_eq!(seen(""), "an empty document");
    assert!(seen("{\"items\": []}").starts_with("JSON"));
    assert!(seen("[1]").starts_with("JSON"));
    assert!(seen("Service unavailable").starts_with("text"));
    assert!(seen("<feed xmlns='urn:other'></feed>").contains("urn:other"));
    // A feed without entries is a feed.
    assert!(atom("").entries.is_empty());
}

#[test]
fn work_is_bounded() {
    let many = "<entry><id>1</id></entry>".repeat(MAX_ENTRIES + 5);
    let feed = atom(&many);
    assert_eq!((feed.entries.len(), feed.skipped.len()), (MAX_ENTRIES, 1));
    let long = format!(
        "<entry><id>1</id><title>{}</title></entry><entry><id>2</id></entry>",
        "x".repeat(MAX_ENTRY_BYTES)
    );
    assert_eq!(one(atom(&long)).id, "2");
    let deep = format!(
        "<entry><id>1</id>{}{}</entry><entry><id>2</id></entry>",
        "<a>".repeat(100_000),
        "</a>".repeat(100_000)
    );
    assert_eq!(one(atom(&deep)).id, "2");
    let wide: String = (0..50_000).map(|n| format!(" a{n}=''")).collect();
    let wide = format!("<entry><id>1</id><a{wide}/></entry><entry><id>2</id></entry>");
    assert_eq!(one(atom(&wide)).id, "2");
    // Each of these sections would be searched for to the end of the document.
    for open in ["<!--", "<![CDATA[", "<", "&"] {
        let endless = format!("<entry><id>1</id></entry>{}", open.repeat(1_000_000));
        assert_eq!(one(atom(&endless)).id, "1", "{open}");
    }
    let repeated = format!("<entry><id>1</id>{}</entry>", "<id>2</id>".repeat(80_000));
    assert_eq!(one(atom(&repeated)).id, "1");
    // Expanding these would take gigabytes.
    let laughs = "<!DOCTYPE feed [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;&a;'>]>\
        <feed><entry><id>1</id><title>&b;</title></entry></feed>";
    assert_eq!(one(read(laughs)).title.as_deref(), Some("&b;"));
    // Each link would become as long as the base.
    for base in ["a".repeat(500_000), "a".repeat(3_000)] {
        for (open, close) in [
            ("<content type='html'>", "</content>"),
            ("<content type='xhtml'><div xmlns='x'>", "</div></content>"),
        ] {
            let link = if open.contains("xhtml") {
                "<a href='x'/>"
            } else {
                "&lt;a href=x>"
            };
            let links = link.repeat(20_000);
            let text = format!("<id>1</id>{open}{links}{close}");
            let entry = one(atom(&format!("<entry xml:base='/{base}/'>{text}</entry>")));
            assert!(entry.content_html.unwrap().len() <= 2 * MAX_ENTRY_BYTES);
        }
    }
    let steps = format!("<p xml:base='{}/'>", "a".repeat(100)).repeat(100);
    let links = "<a href='x'/>".repeat(20_000);
    let deep = format!("<content type='xhtml'><div xmlns='x'>{steps}{links}</div></content>");
    let entry = one(atom(&format!("<entry><id>1</id>{deep}</entry>")));
    assert!(entry.content_html.unwrap().len() <= 2 * MAX_ENTRY_BYTES);
    for endless in [
        "<script>",
        "<a b='",
        "<a b='>'",
        "<a ",
        "<!--",
        "&#1",
        "<a href=x ",
    ] {
        let text = endless.repeat(450_000 / endless.len());
        let entry = format!(
            "<entry><id>1</id><title type='html'><![CDATA[{text}]]></title>\
            <content type='html'><![CDATA[{text}]]></content></entry>"
        );
        assert_eq!(one(atom(&entry)).id, "1", "{endless}");
    }
    let nested = format!("{{\"items\": {}", "[".repeat(1_000_000));
    assert!(parse(nested.as_bytes(), ADDRESS).is_err());
}

proptest! {
    // The seeds of failures would go path_around a lib.rs, which a test in this folder has not.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_give_a_result(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes, ADDRESS);
    }

    #[test]
    fn random_feed_parts_give_a_result(parts in proptest::collection::vec(
        prop::sample::select(vec![
            "<feed \
             xmlns='http://www.w3.org/2005/Atom'>", "<feed>", "</feed>", "<entry>", "</entry>",
             "<entry",
            "<rss version='2.0'>", "<channel>", "</channel>", "</rss>", "<item>", "</item>",
            "<item/>",
            "<id>", "</id>", "<title type='xhtml'>", "<title>", "</title>",
            "<content type='html'>", "</content>",
            "<content src='x'/>", "<author>", "</author>", "<name>", "</name>",
            "<link href='//'/>", "<link>", "</link>",
            "<guid>", "</guid>", "<pubDate>", "</pubDate>", "2025-01-01", "99:99", "é",
            "“a@b.c”", "&amp;", "&", "&#0;",
            "<![CDATA[", "]]>", "<!--", "-->", "<?x?>", "<!DOCTYPE a>", "xml:base='::'", "<a \
                xml:base='http://['/>",
            " ", ">", "<", "/>", "x:y", "{", "}", "\"items\":[",
        ]), 0..24)
    ) {
        let _ = parse(parts.concat().as_bytes(), ADDRESS);
    }

    /// A damaged byte or a truncation anywhere never costs more than the entries it is in.
    #[test]
    fn damage_is_local(at in 100usize..2000, byte in any::<u8>()) {
        let entry = |n: usize| format!("<entry><id>urn:{n}</id><title>Title {n}</title></entry>\n");
        let mut text = format!("<feed xmlns='{ATOM}'>").into_bytes();
        let mut places = Vec::new();
        for n in 0..50 {
            let start = text.len();
            text.extend(entry(n).bytes());
            places.push(start..text.len());
        }
        text.extend(b"</feed>");
        text[at] = byte;
        let feed = parse(&text, ADDRESS).unwrap();
        let hit = places.iter().position(|p| p.contains(&at)).unwrap();
        // The text after an opened comment or section is inside it up to its end.
        let opens = byte == b'!' || byte == b'<' || byte == b'?';
        let upto = if opens { hit } else { places.len() };
        for n in (0..upto).filter(|n| *n != hit && *n != hit + 1) {
            // By its title: the damage may give its id to another entry.
            let title = format!("Title {n}");
            let there = feed.entries.iter().any(|e| e.title.as_ref() == Some(&title));
            prop_assert!(there, "{} {:?}", title, feed.skipped);
        }
    }
}
