//! Dialects: practices of published feeds beyond their formats, or against them.

use feed::Entry;
use feed::parse::{ParsedFeed, parse};

const ADDRESS: &str = "https://example.org/feeds/a.xml";
const ATOM: &str = "http://www.w3.org/2005/Atom";
const THREADING: &str = "http://purl.org/syndication/thread/1.0";

fn read(text: &str) -> ParsedFeed {
    parse(text.as_bytes(), ADDRESS).unwrap()
}

fn one(feed: ParsedFeed) -> Entry {
    assert_eq!(feed.entries.len(), 1, "{feed:?}");
    feed.entries.into_iter().next().unwrap()
}

fn rss(item: &str) -> Entry {
    one(read(&format!(
        "<rss version='2.0' xmlns:dc='http://purl.org/dc/elements/1.1/' xmlns:thr='{THREADING}'>\
         <channel><title>R</title><item><guid>g</guid>{item}</item></channel></rss>"
    )))
}

fn atom(entry: &str) -> Entry {
    one(read(&format!(
        "<feed xmlns='{ATOM}' xmlns:thr='{THREADING}'><title>F</title>\
         <entry><id>urn:1</id>{entry}</entry></feed>"
    )))
}

fn people(entry: &Entry) -> Vec<(Option<&str>, Option<&str>)> {
    let authors = entry.authors.iter();
    authors
        .map(|a| (a.name.as_deref(), a.url.as_deref()))
        .collect()
}

/// Reads the entry again, alone in a document.
fn again(entry: &Entry) -> Entry {
    one(read(&format!("<feed xmlns='{ATOM}'>{}</feed>", entry.xml)))
}

#[test]
fn feeds_without_entries_are_feeds() {
    let empty = [
        "<rss/>",
        "<rss version='2.0'><channel/></rss>",
        "<rss version='2.0'><channel><title>R</title></channel></rss>",
        "<rss version='2.0'><channel><title>R</title><link>https://example.org/</channel></rss>",
        "<rss version='2.0'><channel><title>R</title><br><image><url>x</image></channel></rss>",
        "<rss version='2.0'><channel><title>R</title></channel></rss> <!-- end --> ",
        "<rss version='2.0'><channel><title>a & b < c</title></channel></rss>",
        "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#'/>",
        "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' \
         xmlns='http://purl.org/rss/1.0/'><channel rdf:about='x'><title>R</title>\
         <items><rdf:Seq/></items></channel></rdf:RDF>",
        "<feed xmlns='http://www.w3.org/2005/Atom'/>",
        "<feed xmlns='http://www.w3.org/2005/Atom'><title>F</title><id>urn:f</id></feed>",
        "<feed xmlns='http://www.w3.org/2005/Atom'><title>F</title><link href='x'></feed>",
        "<a:feed xmlns:a='http://www.w3.org/2005/Atom'><a:title>F</a:title></a:feed>",
        "<FEED><TITLE>F</TITLE></FEED>",
        r#"{"version": "https://jsonfeed.org/version/1.1", "title": "J", "items": []}"#,
        r#"{"version": "https://jsonfeed.org/version/1.1", "title": "J", "items": [],}"#,
    ];
    let refused: Vec<_> = empty
        .iter()
        .filter_map(|text| {
            let read = parse(text.as_bytes(), ADDRESS);
            (read.as_ref().map(|feed| feed.entries.len()) != Ok(0)).then_some((text, read))
        })
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    // A truncated document may have lost entries, and one with entries has lost them.
    let lost = [
        "<rss version='2.0'><channel><title>R</title>",
        "<rss version='2.0'><channel><title>R",
        "<feed xmlns='http://www.w3.org/2005/Atom'><title>F</title>",
        "<feed xmlns='http://www.w3.org/2005/Atom'><entry></entry></feed>",
        "<rss version='2.0'><channel><item></item></channel></rss>",
        r#"{"version": "https://jsonfeed.org/version/1.1", "items": [{"id"#,
        r#"{"version": "https://jsonfeed.org/version/1.1", "items": [{}]}"#,
    ];
    for text in lost {
        assert!(parse(text.as_bytes(), ADDRESS).is_err(), "{text}");
    }
}

#[test]
fn links_keep_their_base() {
    let html = "&lt;p>&lt;a href='/x'>x&lt;/a> &lt;a title=\"a > b\" href=y>y&lt;/a> \
                &lt;IMG SRC=\"../i.png\" srcset=\"a.png 1x, /b.png 2x\"> &lt;a href='#f'>f&lt;/a> \
                &lt;a href='mailto:a@b.org'>m&lt;/a> &lt;a href='https://o.example/z?a&amp;amp;b'>\
                z&lt;/a> &lt;a href='?q=1&amp;amp;r'>q&lt;/a> 1 < 2 &lt;b";
    let expected = "<p><a href='https://example.org/x'>x</a> \
        <a title=\"a > b\" href=\"https://example.org/feeds/y\">y</a> \
        <IMG SRC=\"https://example.org/i.png\" \
        srcset=\"https://example.org/feeds/a.png 1x, https://example.org/b.png 2x\"> \
        <a href='#f'>f</a> <a href='mailto:a@b.org'>m</a> \
        <a href='https://o.example/z?a&amp;b'>z</a> \
        <a href='https://example.org/feeds/a.xml?q=1&amp;r'>q</a> 1 < 2 <b";
    let entry = rss(&format!("<description>{html}</description>"));
    assert_eq!(entry.content_html.as_deref(), Some(expected));
    assert_eq!(again(&entry).content_html.as_deref(), Some(expected));
    // By `xml:base`, on any element.
    let based = "<rss xml:base='https://b.example/'><channel xml:base='c/'><item xml:base='d/'>\
        <guid>g</guid><description xml:base='e/'>&lt;a href='x'></description></item></channel></rss>";
    let link = Some("<a href='https://b.example/c/d/e/x'>");
    assert_eq!(one(read(based)).content_html.as_deref(), link);
    let old = "<feed xmlns='http://purl.org/atom/ns#' xml:base='https://b.example/c/'><entry>\
        <id>1</id><content type='text/html' mode='escaped' xml:base='d/'>&lt;a href='x'></content>\
        </entry></feed>";
    let link = Some("<a href='https://b.example/c/d/x'>");
    let entry = one(read(old));
    assert_eq!(entry.content_html.as_deref(), link);
    assert_eq!(again(&entry).content_html.as_deref(), link);
    // Atom keeps its text, which states the base itself.
    let raw = "<content type='html' xml:base='/d/'>&lt;a href='x'></content>";
    let entry = atom(raw);
    assert!(entry.xml.contains(raw), "{}", entry.xml);
    let link = Some("<a href='https://example.org/d/x'>");
    assert_eq!(entry.content_html.as_deref(), link);
    assert_eq!(again(&entry).content_html.as_deref(), link);
    let entry = atom(
        "<content type='xhtml' xml:base='/d/'><div xmlns='http://www.w3.org/1999/xhtml' \
         xml:base='e/'><a href='x'/><p xml:base='f/'><a href='y'/></p><a href='z'/></div></content>",
    );
    let expected = "<a href='https://example.org/d/e/x'></a><p xml:base='f/'>\
                    <a href='https://example.org/d/e/f/y'></a></p>\
                    <a href='https://example.org/d/e/z'></a>";
    assert_eq!(entry.content_html.as_deref(), Some(expected));
    // A base that nothing is relative to is ignored.
    let opaque = "<rss xml:base='mailto:a@b.org'><channel><item><guid>g</guid><link>x</link>\
        <description xml:base='urn:x'>&lt;a href='x'></description></item></channel></rss>";
    let entry = one(read(opaque));
    let link = "https://example.org/feeds/x";
    assert_eq!(entry.url.as_deref(), Some(link));
    let html = format!("<a href='{link}'>");
    assert_eq!(entry.content_html.as_deref(), Some(&*html));
    // Without an address of the document, links stay unchanged.
    let nowhere = "<rss><channel><item><guid>g</guid><description>&lt;a href='x'></description>\
                   </item></channel></rss>";
    let entry = one(parse(nowhere.as_bytes(), "").unwrap());
    assert_eq!(entry.content_html.as_deref(), Some("<a href='x'>"));
    let json = r#"{"version": "https://jsonfeed.org/version/1.1", "items": [
        {"id": "1", "content_html": "<a href='/x'>"}]}"#;
    let link = Some("<a href='https://example.org/x'>");
    assert_eq!(one(read(json)).content_html.as_deref(), link);
}

#[test]
fn extensions_survive_malformed_xml() {
    let reply = "<thr:in-reply-to ref='urn:0' href='https://example.org/0'/>";
    for broken in [
        "<title>a\u{8}b</title>",
        "<title>a&#8;b</title>",
        "<title>a&nbsp;b</title>",
        "<title>a & b</title>",
        "<title>a < b</title>",
        "<title>a]]>b</title>",
        "<title type=html>a</title>",
        "<title type='html' type='html'>a</title>",
        "<title u:a='1'>a</title>",
        "<title>a</title><summary>a<br>b</summary>",
        "<title>a</title><!-- a -- b -->",
        "<title>a</title><1/>",
        "<title>a</title><x y='<'/>",
        "<title>a</title><x y='&nbsp;&'/>",
    ] {
        let entry = atom(&format!("{broken}<rights>R</rights>{reply}"));
        let xml = &entry.xml;
        assert!(xml.contains("in-reply-to"), "{broken}: {xml}");
        assert!(xml.contains("'urn:0'"), "{broken}: {xml}");
        let same = again(&entry);
        assert_eq!(same.title, entry.title, "{broken}: {xml}");
        assert_eq!(same.xml, entry.xml, "{broken}");
    }
    // Only the defects are changed.
    let entry = atom(&format!(
        "<title>a&nbsp;b\u{8} &</title><rights>R</rights>{reply}"
    ));
    let expected = format!("<title>a\u{a0}b &amp;</title><rights>R</rights>{reply}</entry>");
    assert!(entry.xml.ends_with(&expected), "{}", entry.xml);
    let entry = rss(&format!(
        "<title>T</title>{reply}<thr:bad ref='&nbsp;'><u:x/></thr:bad>"
    ));
    let kept = format!("xmlns:thr=\"{THREADING}\"");
    assert!(entry.xml.contains(&kept), "{}", entry.xml);
    assert!(entry.xml.contains("ref='urn:0'"), "{}", entry.xml);
    let repaired = "ref=\"\u{a0}\"></thr:bad>";
    assert!(entry.xml.contains(repaired), "{}", entry.xml);
    assert!(!entry.xml.contains("u:x"), "{}", entry.xml);
    assert_eq!(again(&entry).xml, entry.xml);
    // An id of several entries is replaced, and nothing else.
    let two = |n| {
        format!(
            "<entry><id>x</id><title>{n}</title><link href='https://e.example/{n}'/>\
             <rights>R</rights>{reply}</entry>"
        )
    };
    let feed = read(&format!(
        "<feed xmlns='{ATOM}' xmlns:thr='{THREADING}'>{}{}</feed>",
        two(1),
        two(2)
    ));
    for entry in &feed.entries {
        assert!(entry.id.starts_with("urn:uuid:"), "{}", entry.id);
        assert!(
            entry.xml.contains(&format!("<id>{}</id>", entry.id)),
            "{}",
            entry.xml
        );
        let rest = format!("<rights>R</rights>{reply}</entry>");
        assert!(entry.xml.ends_with(&rest), "{}", entry.xml);
    }
}

#[test]
fn only_a_div_alone_is_left_out_of_xhtml() {
    for (inner, html) in [
        ("<div></div>", None),
        ("<div/>", None),
        ("<div/> <div>a</div>", Some("<div></div> <div>a</div>")),
        ("<div></div><div>a</div>", Some("<div></div><div>a</div>")),
        ("<div>a<br/></div>", Some("a<br/>")),
        ("<div><div>a</div></div>", Some("<div>a</div>")),
        ("<div>a<p>b", Some("a<p>b")),
        ("x<div>a</div>", Some("x<div>a</div>")),
        ("<p>a</p>", Some("<p>a</p>")),
    ] {
        let entry = atom(&format!(
            "<title>T</title><content type='xhtml'>{inner}</content>"
        ));
        assert_eq!(entry.content_html.as_deref(), html, "{inner}");
    }
}

#[test]
fn atom_in_rss_needs_no_prefix() {
    for (ns, prefix) in [
        (String::new(), ""),
        (format!(" xmlns='{ATOM}'"), ""),
        (format!(" xmlns:a='{ATOM}'"), "a:"),
    ] {
        let element = |name: &str, attributes: &str, text: &str| {
            format!("<{prefix}{name}{ns}{attributes}>{text}</{prefix}{name}>")
        };
        let item = [
            element("title", " type='html'", "A &lt;b&gt;B&lt;/b&gt;"),
            element("id", "", "urn:1"),
            element("link", " rel='alternate' href='/1'", ""),
            element(
                "link",
                " rel='enclosure' type='audio/ogg' href='/1.ogg'",
                "",
            ),
            element("published", "", "2025-09-05T09:49:57Z"),
            element("updated", "", "2025-09-06T09:49:57Z"),
            element("summary", " type='html'", "S &amp;lt;"),
            element("content", " type='html'", "&lt;p&gt;C"),
            element("category", " term='t1'", ""),
            element(
                "author",
                "",
                &format!("<{prefix}name>N</{prefix}name><{prefix}email>n@e.org</{prefix}email>"),
            ),
        ];
        let text = format!(
            "<rss><channel><item>{}</item></channel></rss>",
            item.concat()
        );
        let entry = one(read(&text));
        assert_eq!(entry.id, "urn:1", "{text}");
        assert_eq!(entry.title.as_deref(), Some("A B"), "{text}");
        assert_eq!(
            entry.url.as_deref(),
            Some("https://example.org/1"),
            "{text}"
        );
        let files: Vec<_> = entry.attachments.iter().map(|a| a.url.as_str()).collect();
        assert_eq!(files, ["https://example.org/1.ogg"], "{text}");
        let dates = [entry.published, entry.updated].map(|d| d.unwrap().as_second());
        assert_eq!(dates, [1_757_065_797, 1_757_152_197], "{text}");
        assert_eq!(entry.summary.as_deref(), Some("S <"), "{text}");
        assert_eq!(entry.content_html.as_deref(), Some("<p>C"), "{text}");
        assert_eq!(entry.tags, ["t1"], "{text}");
        assert_eq!(
            people(&entry),
            [(Some("N"), Some("mailto:n@e.org"))],
            "{text}"
        );
    }
    // RSS's own elements take precedence.
    let both = "<title>T</title><link>https://example.org/1</link><description>D</description>\
        <id>urn:1</id><summary>S</summary>";
    let entry = rss(both);
    assert_eq!(entry.id, "g");
    assert_eq!(entry.content_html.as_deref(), Some("D"));
}

#[test]
fn a_body_needs_no_namespace() {
    for body in [
        "<body>B <p>c</p></body>",
        "<div>B <p>c</p></div>",
        "<xhtml:body>B <p>c</p></xhtml:body>",
        "<body xmlns='http://www.w3.org/1999/xhtml'>B <p>c</p></body>",
        "<BODY>B <p>c</p></BODY>",
    ] {
        let entry = rss(&format!("<description>D</description>{body}"));
        assert_eq!(entry.content_html.as_deref(), Some("B <p>c</p>"), "{body}");
        assert_eq!(entry.summary.as_deref(), Some("D"), "{body}");
    }
}

#[test]
fn capitals_do_not_matter() {
    for text in [
        "<RSS VERSION='2.0'><CHANNEL><TITLE>F</TITLE><ITEM><GUID ISPERMALINK='false'>1</GUID>\
         <TITLE>T</TITLE><LINK>https://e.example/1</LINK><DESCRIPTION>C</DESCRIPTION>\
         <PUBDATE>Fri, 05 Sep 2025 09:49:57 GMT</PUBDATE></ITEM></CHANNEL></RSS>",
        "<Rss><Channel><Title>F</Title><Item><Guid>1</Guid><Title>T</Title>\
         <Link>https://e.example/1</Link><Description>C</Description>\
         <pubdate>Fri, 05 Sep 2025 09:49:57 GMT</pubdate></Item></Channel></Rss>",
        "<FEED xmlns='http://www.w3.org/2005/Atom'><TITLE>F</TITLE><ENTRY><ID>1</ID>\
         <TITLE>T</TITLE><LINK HREF='https://e.example/1'/><CONTENT TYPE='html'>C</CONTENT>\
         <PUBLISHED>2025-09-05T09:49:57Z</PUBLISHED></ENTRY></FEED>",
        "<Feed><Title>F</Title><Entry><Id>1</Id><Title>T</Title><Link Href='https://e.example/1'/>\
         <Content Type='html'>C</Content><Published>2025-09-05T09:49:57Z</Published></Entry></Feed>",
        "<RDF:rdf xmlns:RDF='http://www.w3.org/1999/02/22-rdf-syntax-ns#' \
         xmlns='http://purl.org/rss/1.0/'><CHANNEL><TITLE>F</TITLE></CHANNEL>\
         <ITEM RDF:ABOUT='1'><TITLE>T</TITLE><LINK>https://e.example/1</LINK>\
         <DESCRIPTION>C</DESCRIPTION><pubDate>Fri, 05 Sep 2025 09:49:57 GMT</pubDate></ITEM></RDF:rdf>",
    ] {
        let feed = read(text);
        assert_eq!(feed.title.as_deref(), Some("F"), "{text}");
        let entry = one(feed);
        assert_eq!(entry.id, "1", "{text}");
        assert_eq!(entry.title.as_deref(), Some("T"), "{text}");
        assert_eq!(entry.url.as_deref(), Some("https://e.example/1"), "{text}");
        assert_eq!(entry.content_html.as_deref(), Some("C"), "{text}");
        assert_eq!(
            entry.published.unwrap().as_second(),
            1_757_065_797,
            "{text}"
        );
        let same = again(&entry);
        assert_eq!((same.id, same.title), (entry.id, entry.title), "{text}");
    }
}

#[test]
fn authors_are_taken_apart() {
    let anna = (Some("Anna B"), Some("mailto:a@b.org"));
    for author in [
        "<author>a@b.org (Anna B)</author>",
        "<author>Anna B (a@b.org)</author>",
        "<author>Anna B &lt;a@b.org&gt;</author>",
        "<author>Anna B (mailto:a@b.org)</author>",
        "<author>\"Anna B\" &lt;a@b.org&gt;</author>",
        "<dc:creator>Anna B (a@b.org)</dc:creator>",
        "<dc:author>Anna B (a@b.org)</dc:author>",
        "<author><name>Anna B</name><email>a@b.org</email></author>",
    ] {
        assert_eq!(people(&rss(author)), [anna], "{author}");
    }
    for author in [
        "<author>Anna B (a@b.org)</author>",
        "<author>a@b.org (Anna B)</author>",
        "<author><name>Anna B (a@b.org)</name></author>",
        "<author><name>Anna B</name><email>mailto:a@b.org</email></author>",
    ] {
        assert_eq!(people(&atom(author)), [anna], "{author}");
    }
    let json = r#"{"version": "https://jsonfeed.org/version/1", "items": [
        {"id": "1", "author": "Anna B (a@b.org)"}]}"#;
    assert_eq!(people(&one(read(json))), [anna]);
    for name in [
        "Anna B (C)",
        "Anna B (she/her)",
        "(a) b@c (d)",
        "Anna (a@b) B",
    ] {
        let entry = rss(&format!("<author>{name}</author>"));
        assert_eq!(people(&entry), [(Some(name), None)], "{name}");
    }
}

#[test]
fn every_reference_of_html_is_resolved() {
    for (written, meant) in [
        ("&nbsp;x", "x"),
        ("&hellip;", "…"),
        ("&Zcaron;", "Ž"),
        ("&lambda;&Lambda;", "λΛ"),
        ("&rarrhk;", "↪"),
        ("&NotEqualTilde;", "≂̸"),
        ("&CounterClockwiseContourIntegral;", "∳"),
        ("&fjlig;", "fj"),
        ("&AMP;&QUOT;", "&\""),
        ("&copy 2025", "© 2025"),
        ("&notit;", "¬it;"),
        ("&unheard;", "&unheard;"),
        ("&#955;&#x3bb;&#X3BB;", "λλλ"),
        ("&#150;&#x96;", "––"),
        (
            "&#0;&#xD800;&#1114112;&#99999999999999;",
            "\u{fffd}\u{fffd}\u{fffd}\u{fffd}",
        ),
        ("&#955 x", "λ x"),
        ("&#x3bb x", "λ x"),
        ("&#;&#x;&;", "&#;&#x;&;"),
        ("AT&T", "AT&T"),
    ] {
        let escaped = written.replace('&', "&amp;");
        for item in [
            format!("<title>{escaped}</title>"),
            format!("<title><![CDATA[{written}]]></title>"),
        ] {
            assert_eq!(rss(&item).title.as_deref(), Some(meant), "{item}");
        }
        let entry = atom(&format!("<title type='html'>{escaped}</title>"));
        assert_eq!(entry.title.as_deref(), Some(meant), "{written}");
    }
    // As in the XML itself, where HTML's rules for omitted parts do not apply.
    for (written, meant) in [
        ("&Zcaron;&lambda;", "Žλ"),
        ("&#150;", "–"),
        ("&#x110000;", "\u{fffd}"),
        ("&unheard;", "&unheard;"),
        ("AT&T &amp; x", "AT&T & x"),
    ] {
        let entry = atom(&format!("<title>{written}</title>"));
        assert_eq!(entry.title.as_deref(), Some(meant), "{written}");
        assert_eq!(again(&entry).title.as_deref(), Some(meant), "{written}");
        let entry = atom(&format!("<title>T</title><category term='{written}'/>"));
        assert_eq!(entry.tags, [meant], "{written}");
    }
}

#[test]
fn a_quoted_angle_bracket_ends_no_tag() {
    for (title, meant) in [
        ("<b title='a > b'>x</b>", "x"),
        ("<b title=\"a > 'b'\" class='>'>x</b> y", "x y"),
        ("<b title = 'a > b' >x</b>", "x"),
        ("<b it's>x</b> y's > z", "x y's > z"),
        ("<b title=a\"b>x</b>", "x"),
        ("<b title='a>x</b> y", "x y"),
    ] {
        let entry = rss(&format!("<title><![CDATA[{title}]]></title>"));
        assert_eq!(entry.title.as_deref(), Some(meant), "{title}");
    }
    let entry = rss("<title>T</title><x y='>' z=\"/>\"/><link>https://e.example/1</link>");
    assert_eq!(entry.url.as_deref(), Some("https://e.example/1"));
    let entry = rss("<description><![CDATA[<a title='>' href='/x'>]]></description>");
    let expected = "<a title='>' href='https://example.org/x'>";
    assert_eq!(entry.content_html.as_deref(), Some(expected));
}

#[test]
fn unknown_zones_give_no_date() {
    let date = |text: &str| {
        let entry = rss(&format!("<pubDate>{text}</pubDate>"));
        entry.published.map(|t| t.to_string())
    };
    for zone in [
        "ET",
        "PT",
        "EST5EDT",
        "Europe/Berlin",
        "America/New_York",
        "A",
        "M",
        "N",
        "Y",
        "J",
        "et",
        "Eastern",
        "IST",
        "EST-0500",
        "(ET)",
        "Ora standard",
        "+25:00",
        "GMT+99",
    ] {
        for text in [
            format!("Fri, 05 Sep 2025 09:49:57 {zone}"),
            format!("Fri Sep  5 09:49:57 {zone} 2025"),
            format!("2025-09-05T09:49:57 {zone}"),
        ] {
            assert_eq!(date(&text), None, "{text}");
        }
    }
    for text in [
        "Fri, 05 Sep 2025 09:49:57A",
        "2025-09-05T09:49:57A",
        "2025-09-05 09:49 A",
    ] {
        assert_eq!(date(text), None, "{text}");
    }
    for (text, expected) in [
        ("Fri, 05 Sep 2025 05:49:57 EDT", "2025-09-05T09:49:57Z"),
        ("Fri, 05 Sep 2025 09:49:57 UT", "2025-09-05T09:49:57Z"),
        ("Fri, 05 Sep 2025 09:49:57 Z", "2025-09-05T09:49:57Z"),
        ("Fri, 05 Sep 2025 05:49:57 (EDT)", "2025-09-05T09:49:57Z"),
        ("Fri, 05 Sep 2025 EDT 05:49:57", "2025-09-05T09:49:57Z"),
        ("Fri, 05 Sep 2025 11:49:57 GMT+2", "2025-09-05T09:49:57Z"),
        ("09:49:57 Fri 05 Sep 2025", "2025-09-05T09:49:57Z"),
        (
            "09:49:57 Freitag, 5. September 2025",
            "2025-09-05T09:49:57Z",
        ),
        (
            "Freitag, 5. September 2025 um 09:49:57 Uhr",
            "2025-09-05T09:49:57Z",
        ),
        (
            "September 5, 2025 at 9:49:57 AM GMT",
            "2025-09-05T09:49:57Z",
        ),
    ] {
        assert_eq!(date(text).as_deref(), Some(expected), "{text}");
    }
    let json = |date: &str| {
        let text = format!(
            r#"{{"version": "https://jsonfeed.org/version/1.1", "items": [
                {{"id": "1", "date_published": "{date}"}}]}}"#
        );
        one(read(&text)).published
    };
    assert_eq!(json("Fri, 05 Sep 2025 09:49:57 ET"), None);
    assert!(json("Fri, 05 Sep 2025 09:49:57 GMT").is_some());
}

#[test]
fn content_with_elements_that_are_not_xml_stays_in_the_entry() {
    let atom = "<feed xmlns='http://www.w3.org/2005/Atom'><entry><id>1</id>\
        <content type='html'><p>before <o:p>a &nbsp; paragraph</o:p></p></content></entry></feed>";
    let read = |document: &str| {
        let mut entries = feed::parse::parse(document.as_bytes(), "https://a/")
            .unwrap()
            .entries;
        assert_eq!(entries.len(), 1);
        entries.remove(0)
    };
    let entry = read(atom);
    let html = entry.content_html.clone().unwrap();
    assert!(html.contains("paragraph"), "{html}");
    let again = read(&format!(
        "<feed xmlns='http://www.w3.org/2005/Atom'>{}</feed>",
        entry.xml
    ));
    assert!(
        again.content_html.unwrap().contains("paragraph"),
        "{}",
        entry.xml
    );
}
