#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::html::plain_text;
use proptest::prelude::*;

use super::*;
use crate::xml::check::{Form, check};

fn feed(title: Option<&str>, url: &str, channel: Option<&str>) -> Outline {
    Outline {
        title: title.map(str::to_owned),
        url: url.to_owned(),
        channel: channel.map(str::to_owned),
    }
}

fn body(outlines: &str) -> Vec<Outline> {
    read(format!("<opml version='1.0'><body>{outlines}</body></opml>").as_bytes()).unwrap()
}

#[test]
fn folders_nest_and_names_are_found() {
    let list = read(
        br#"<?xml version="1.0" encoding="UTF-8"?>
        <opml version="2.0"><head><title>subscriptions</title></head><body>
        <outline text="Kernel" title="Kernel">
          <outline text="lore" type="rss" xmlUrl="https://lore.example/all/new.atom" htmlUrl="https://lore.example/all/"/>
          <outline text="Stable"><outline type="rss" text="stable" xmlUrl="https://a/s"></outline></outline>
          <outline type="rss" title="T&amp;x" text="no" xmlUrl="https://a/t?a=1&amp;b=2"/>
        </outline>
        <outline type="rss" xmlUrl="https://a/top"/>
        <outline text="A note without a feed"/>
        </body></opml>"#,
    )
    .unwrap();
    assert_eq!(
        list,
        [
            feed(
                Some("lore"),
                "https://lore.example/all/new.atom",
                Some("Kernel")
            ),
            feed(Some("stable"), "https://a/s", Some("Stable")),
            feed(Some("T&x"), "https://a/t?a=1&b=2", Some("Kernel")),
            feed(None, "https://a/top", None),
        ]
    );
}

#[test]
fn lists_of_the_field_are_read() {
    let url = |outline: &str| {
        let list = body(outline);
        assert_eq!(list.len(), 1, "{outline}");
        list[0].url.clone()
    };
    assert_eq!(url("<outline XMLURL='https://a/1'/>"), "https://a/1");
    assert_eq!(url("<OUTLINE xmlurl=\"https://a/1\">"), "https://a/1");
    assert_eq!(
        url("<outline xmlUrl='https://a/?a=1&b=2&amp;c=&nbsp;&#51;'/>"),
        "https://a/?a=1&b=2&c=&nbsp;3"
    );
    assert_eq!(
        url("<outline xmlUrl='feed://a.example/1'/>"),
        "http://a.example/1"
    );
    assert_eq!(
        url("<outline xmlUrl='FEED:https://a.example/1'/>"),
        "https://a.example/1"
    );
    assert_eq!(
        url("<outline type='rss' url='https://a/1'/>"),
        "https://a/1"
    );
    assert_eq!(body("<outline type='link' url='https://a/1'/>"), []);
    // The same feed twice in a folder, and once elsewhere.
    let twice = "<outline xmlUrl='https://a/1'/><outline xmlUrl='https://a/1'/>";
    let list = body(&format!("{twice}<outline text='F'>{twice}</outline>"));
    assert_eq!(
        list,
        [
            feed(None, "https://a/1", None),
            feed(None, "https://a/1", Some("F"))
        ]
    );
    assert_eq!(
        body("<outline text='&lt;b&gt;A&lt;/b&gt; &amp;amp; B' xmlUrl='https://a/1'/>")[0].title,
        Some("A & B".into())
    );
}

#[test]
fn any_encoding_is_read() {
    let mut latin =
        b"<?xml version='1.0' encoding='iso-8859-1'?><opml><body><outline text='Caf".to_vec();
    latin.push(0xe9);
    latin.extend(b"' xmlUrl='https://a/1'/></body></opml>");
    assert_eq!(read(&latin).unwrap()[0].title.as_deref(), Some("Café"));
    let wide: Vec<u8> =
        "\u{feff}<opml><body><outline text='é' xmlUrl='https://a/1'/></body></opml>"
            .encode_utf16()
            .flat_map(u16::to_be_bytes)
            .collect();
    assert_eq!(read(&wide).unwrap()[0].title.as_deref(), Some("é"));
}

#[test]
fn documents_that_are_no_lists_are_described() {
    let seen = |text: &str| match read(text.as_bytes()) {
        Err(OpmlError::NotOpml { seen }) => seen,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(seen(""), "an empty document");
    assert!(seen("<!doctype html><html><title>Login</title>").contains("'Login'"));
    assert!(seen("<feed xmlns='http://www.w3.org/2005/Atom'/>").starts_with("a feed itself"));
    assert!(seen("{\"a\": 1}").starts_with("JSON"));
    assert!(seen("https://a/1\nhttps://a/2\n").starts_with("text"));
}

#[test]
fn half_a_list_is_no_list() {
    let text = "<opml><body><outline xmlUrl='https://a/1'/><outline xmlUrl='https://a/2'/>";
    match read(text.as_bytes()) {
        Err(OpmlError::Broken { after: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
    let text = "<opml><body><outline xmlUrl='https://a/1'/><outline xmlUrl='https:";
    assert!(matches!(
        read(text.as_bytes()),
        Err(OpmlError::Broken { after: 1, .. })
    ));
}

#[test]
fn hostile_lists_are_bounded() {
    let deep = format!("<opml><body>{}", "<outline text='a'>".repeat(100_000));
    assert!(matches!(
        read(deep.as_bytes()),
        Err(OpmlError::Broken { after: 0, .. })
    ));
    let many: String = (0..=MAX_OUTLINES)
        .map(|n| format!("<outline xmlUrl='https://a/{n}'/>"))
        .collect();
    let many = format!("<opml><body>{many}</body></opml>");
    assert_eq!(read(many.as_bytes()), Err(OpmlError::TooLong));
    let long = vec![b' '; MAX_BYTES + 1];
    assert_eq!(read(&long), Err(OpmlError::TooLong));
    let bomb = "<!DOCTYPE opml [<!ENTITY a 'ha'><!ENTITY b '&a;&a;'>]><opml><body>\
                <outline text='&b;' xmlUrl='https://a/1'/></body></opml>";
    assert_eq!(
        read(bomb.as_bytes()).unwrap()[0].title.as_deref(),
        Some("&b;")
    );
    let wide: String = (0..100_000).map(|n| format!(" a{n}=''")).collect();
    body(&format!("<outline{wide}/>"));
}

#[test]
fn the_written_list_is_opml_2() {
    let time = "2026-11-21T08:05:09.5Z".parse().unwrap();
    let text = write(
        "flexfeed <a>",
        time,
        &[
            feed(Some("L&L \"q\""), "https://a/1?a=1&b=2", Some("lore")),
            feed(None, "https://a/2", None),
            feed(None, "https://a/3", Some("lore")),
        ],
    );
    assert_eq!(
        text,
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<opml version=\"2.0\">\n<head>\n\
         <title>flexfeed &lt;a&gt;</title>\n\
         <dateCreated>Sat, 21 Nov 2026 08:05:09 GMT</dateCreated>\n\
         </head>\n<body>\n<outline text=\"lore\">\n\
         <outline type=\"rss\" text=\"L&amp;L &quot;q&quot;\" title=\"L&amp;L &quot;q&quot;\" \
         xmlUrl=\"https://a/1?a=1&amp;b=2\"/>\n\
         <outline type=\"rss\" text=\"https://a/3\" xmlUrl=\"https://a/3\"/>\n</outline>\n\
         <outline type=\"rss\" text=\"https://a/2\" xmlUrl=\"https://a/2\"/>\n</body>\n</opml>\n"
    );
    check(&text, Form::Document).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_give_a_result(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
    }

    #[test]
    fn random_markup_gives_a_result(parts in proptest::collection::vec(prop::sample::select(vec![
        "<opml>", "</opml>", "<body>", "<outline ", "xmlUrl='", "https://a/", "'", ">", "/>",
        "</outline>", "&", ";", "&#0;",
        "<![CDATA[", "]]>", "<!--", "<?x", "?>", "é", "text=\"",
    ]), 0..24)) {
        let _ = read(parts.concat().as_bytes());
    }

    /// Any list is written as well-formed XML and is read back.
    #[test]
    fn written_lists_are_read_back(
        feeds in proptest::collection::vec(
            (
                "https://[a-z<>&'\" é]{1,9}x",
                proptest::option::of("[a-z&;'\"é]{1,8}"),
                proptest::option::of("[a-c&'\"]{1,2}"),
            ),
            0..8,
        ),
        title in "(?s).{0,20}",
    ) {
        let mut list: Vec<Outline> = Vec::new();
        for (url, title, channel) in &feeds {
            // Titles and folders are shown as text, and read as other readers may write them: as
            // HTML.
            let plain = |t: &Option<String>| t.as_deref().map(plain_text).filter(|t| !t.is_empty());
            let (title, channel) = (plain(title), plain(channel));
            let outline = Outline { title, url: url.clone(), channel };
            let place = |o: &Outline| (o.url.clone(), o.channel.clone());
            let known = list.iter().any(|o| place(o) == place(&outline));
            let settled = |t: &Option<String>| t.as_deref().is_none_or(|t| plain_text(t) == t);
            if !known && settled(&outline.title) && settled(&outline.channel) {
                list.push(outline);
            }
        }
        let text = write(&title, Timestamp::UNIX_EPOCH, &list);
        prop_assert_eq!(check(&text, Form::Document), Ok(()));
        // In the order of the channels, and with a title in any case.
        let mut expected = Vec::new();
        let mut channels: Vec<_> = list.iter().map(|o| o.channel.clone()).collect();
        let mut seen = std::collections::HashSet::new();
        channels.retain(|c| seen.insert(c.clone()));
        for channel in channels {
            for o in list.iter().filter(|o| o.channel == channel) {
                let title = o.title.clone().or_else(|| Some(crate::html::plain_text(&o.url)));
                expected.push(Outline { title, ..o.clone() });
            }
        }
        prop_assert_eq!(read(text.as_bytes()).unwrap(), expected);
    }
}
