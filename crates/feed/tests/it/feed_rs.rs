//! Comparison with feed-rs, an independent reader: over the corpus, and over generated feeds.
//!
//! feed-rs panics on some documents, and refuses or misreads others; [`KNOWN`] lists them all, each
//! with its reason, and the test fails if one of the differences is gone.

mod known;

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use feed::Entry;
use feed::parse::parse;
use feed_rs::model;
use proptest::prelude::*;
use url::Url;

use known::KNOWN;

enum Other {
    Panicked,
    Refused,
    Read(Box<model::Feed>),
}

fn other(bytes: &[u8], address: &str) -> Other {
    let base = Url::parse(address).unwrap();
    let parser = feed_rs::parser::Builder::new()
        .base_uri(Some(&base))
        .sanitize_content(false)
        .id_generator(|_, _, _| String::new())
        .build();
    match catch_unwind(AssertUnwindSafe(|| parser.parse(bytes))) {
        Err(_) => Other::Panicked,
        Ok(Err(_)) => Other::Refused,
        Ok(Ok(feed)) => Other::Read(Box::new(feed)),
    }
}

/// Returns the letters and digits of a text or of HTML, which are independent of white space,
/// markup and references.
fn letters(html: &str) -> String {
    let mut out = String::new();
    let mut rest = html;
    while let Some(at) = rest.find(['<', '&']) {
        out.push_str(&rest[..at]);
        let end = if rest[at..].starts_with('<') {
            '>'
        } else {
            ';'
        };
        match rest[at..].find(end) {
            Some(len) if end == '>' || len < 9 => rest = &rest[at + len + 1..],
            _ => rest = &rest[at + 1..],
        }
    }
    out.push_str(rest);
    out.retain(char::is_alphanumeric);
    out
}

fn same(ours: Option<&str>, theirs: Option<&str>) -> bool {
    letters(ours.unwrap_or("")) == letters(theirs.unwrap_or(""))
}

/// Returns the fields in which the two results for one entry differ.
fn differences(ours: &Entry, theirs: &model::Entry) -> Vec<&'static str> {
    let mut found = Vec::new();
    let mut check = |field, good: bool| {
        if !good {
            found.push(field);
        }
    };
    check("id", theirs.id.is_empty() || theirs.id == ours.id);
    let title = theirs.title.as_ref().map(|t| t.content.as_str());
    check("title", same(ours.title.as_deref(), title));
    let slash = |url: &str| url.trim_end_matches('/').to_owned();
    let links: Vec<String> = theirs.links.iter().map(|l| slash(&l.href)).collect();
    check(
        "link",
        ours.url
            .as_deref()
            .map_or(links.is_empty(), |url| links.contains(&slash(url))),
    );
    let own = |t: &Option<jiff::Timestamp>| t.map(|t| t.as_millisecond());
    check(
        "published",
        theirs.published.map(|t| t.timestamp_millis()) == own(&ours.published),
    );
    // feed-rs gives an RSS item's date twice.
    let updated = theirs.updated.map(|t| t.timestamp_millis());
    check(
        "updated",
        updated == own(&ours.updated) || updated == own(&ours.published),
    );
    let names: Vec<&str> = ours
        .authors
        .iter()
        .flat_map(|a| [a.name.as_deref(), a.url.as_deref()])
        .flatten()
        .collect();
    let named = |name: &str| names.iter().any(|n| n.contains(name.trim()));
    check(
        "authors",
        theirs
            .authors
            .iter()
            .filter_map(|a| a.name.as_deref())
            .all(named),
    );
    let content = theirs.content.as_ref().and_then(|c| c.body.as_deref());
    let summary = theirs.summary.as_ref().map(|s| s.content.as_str());
    let body = ours
        .content_html
        .as_deref()
        .or(ours.content_text.as_deref());
    check(
        "content",
        same(body, content) || (content.is_none() && same(body, summary)),
    );
    found
}

/// Returns all differences in one document.
fn compare(bytes: &[u8], address: &str) -> BTreeSet<&'static str> {
    let ours = parse(bytes, address);
    match (ours, other(bytes, address)) {
        (_, Other::Panicked) => BTreeSet::from(["panic"]),
        (Err(_), Other::Refused) => BTreeSet::new(),
        (Ok(_), Other::Refused) => BTreeSet::from(["refused"]),
        (Err(_), Other::Read(_)) => BTreeSet::from(["taken for a feed"]),
        (Ok(ours), Other::Read(theirs)) => {
            if ours.entries.len() != theirs.entries.len() {
                return BTreeSet::from(["number of entries"]);
            }
            let pairs = ours.entries.iter().zip(&theirs.entries);
            pairs.flat_map(|(o, t)| differences(o, t)).collect()
        }
    }
}

#[test]
fn the_corpus_agrees_with_feed_rs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut found = BTreeSet::new();
    let mut agreed = 0;
    for folder in fs::read_dir(root).unwrap() {
        let folder = folder.unwrap();
        if !folder.file_type().unwrap().is_dir() {
            continue;
        }
        for file in fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            if name.ends_with(".expected") {
                continue;
            }
            let name = format!("{}/{name}", folder.file_name().into_string().unwrap());
            let bytes = fs::read(file.path()).unwrap();
            let differences = compare(&bytes, &format!("https://feeds.example/{name}"));
            agreed += usize::from(differences.is_empty());
            found.extend(differences.into_iter().map(|d| (name.clone(), d)));
        }
    }
    let known: BTreeSet<(String, &str)> = KNOWN
        .iter()
        .flat_map(|(_, documents)| *documents)
        .map(|(name, what)| ((*name).to_owned(), *what))
        .collect();
    let new: Vec<_> = found.difference(&known).collect();
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "not known: {new:#?}\nnot there: {gone:#?}"
    );
    assert!(agreed >= 90, "the two agree on {agreed} documents only");
}

/// Entry to be written in each format.
#[derive(Debug, Clone)]
struct GeneratedEntry {
    id: String,
    title: String,
    link: String,
    second: i64,
    html: String,
    author: String,
}

prop_compose! {
    fn made()(
        id in "[a-z0-9]{1,12}",
        title in "[A-Za-zé世 ]{1,20}x",
        path in "[a-z0-9/]{0,12}",
        second in 86_400i64..4_000_000_000,
        html in "(<p>[a-zA-Zé ]{1,30}</p>|<b>[a-z]{1,5}</b>|&amp;|[a-z]{1,9}|<br/>){1,6}z",
        author in "[A-Z][a-zé]{1,9}",
    ) -> GeneratedEntry {
        let id = format!("urn:made:{id}");
        let link = format!("https://made.example/{path}");
        GeneratedEntry { id, title, link, second, html, author }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn document(format: usize, entries: &[GeneratedEntry]) -> String {
    let time = |e: &GeneratedEntry| jiff::Timestamp::from_second(e.second).unwrap();
    let mail = |e: &GeneratedEntry| {
        let time = time(e).to_zoned(jiff::tz::TimeZone::UTC);
        time.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string()
    };
    let each =
        |write: &dyn Fn(&GeneratedEntry) -> String| entries.iter().map(write).collect::<String>();
    match format {
        0 => format!(
            "<feed xmlns='http://www.w3.org/2005/Atom'><title>F</title>{}</feed>",
            each(&|e| format!(
                "<entry><id>{}</id><title>{}</title><link href='{}'/><updated>{}</updated>\
                 <author><name>{}</name></author><content type='html'>{}</content></entry>",
                e.id,
                e.title,
                e.link,
                time(e),
                e.author,
                escaped(&e.html)
            ))
        ),
        1 => format!(
            "<feed xmlns='http://www.w3.org/2005/Atom'><title>F</title>{}</feed>",
            each(&|e| format!(
                "<entry><id>{}</id><title type='html'>{}</title>\
                 <link rel='alternate' href='{}'/><published>{}</published>\
                 <author><name>{}</name></author><content type='xhtml'>\
                 <div xmlns='http://www.w3.org/1999/xhtml'>{}</div></content></entry>",
                e.id,
                e.title,
                e.link,
                time(e),
                e.author,
                e.html
            ))
        ),
        2 => format!(
            "<rss version='2.0' xmlns:dc='http://purl.org/dc/elements/1.1/'>\
             <channel><title>F</title>{}</channel></rss>",
            each(&|e| format!(
                "<item><guid isPermaLink='false'>{}</guid><title>{}</title><link>{}</link>\
                 <pubDate>{}</pubDate>\
                 <dc:creator>{}</dc:creator><description>{}</description></item>",
                e.id,
                e.title,
                e.link,
                mail(e),
                e.author,
                escaped(&e.html)
            ))
        ),
        3 => format!(
            "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' \
             xmlns='http://purl.org/rss/1.0/' xmlns:dc='http://purl.org/dc/elements/1.1/'>\
             <channel><title>F</title></channel>{}</rdf:RDF>",
            each(&|e| format!(
                "<item rdf:about='{}'><title>{}</title><link>{}</link><dc:date>{}</dc:date>\
                 <dc:creator>{}</dc:creator><description>{}</description></item>",
                e.id,
                e.title,
                e.link,
                time(e),
                e.author,
                escaped(&e.html)
            ))
        ),
        _ => {
            let items: Vec<_> = entries
                .iter()
                .map(|e| {
                    serde_json::json!({
                        "id": e.id, "title": e.title, "url": e.link, "content_html": e.html,
                        "date_published": time(e).to_string(), "authors": [{"name": e.author}],
                    })
                })
                .collect();
            serde_json::json!({
                "version": "https://jsonfeed.org/version/1.1", "title": "F", "items": items,
            })
            .to_string()
        }
    }
}

proptest! {
    // The seeds of failures would go path_around a lib.rs, which a test in this folder has not.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    })]

    /// On valid feeds the two agree, and both find the written entries.
    #[test]
    fn valid_feeds_agree_with_feed_rs(
        format in 0usize..5,
        entries in proptest::collection::vec(made(), 0..6),
    ) {
        let mut ids = BTreeSet::new();
        let mut entries = entries;
        entries.retain(|e| ids.insert(e.id.clone()));
        let text = document(format, &entries);
        let address = "https://made.example/feed";
        prop_assert_eq!(compare(text.as_bytes(), address), BTreeSet::new(), "{}", text);
        let read = parse(text.as_bytes(), address).unwrap();
        prop_assert_eq!(read.entries.len(), entries.len());
        for (read, made) in read.entries.iter().zip(&entries) {
            prop_assert_eq!(&read.id, &made.id);
            let folded = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            prop_assert_eq!(folded(read.title.as_deref().unwrap()), folded(&made.title));
            prop_assert_eq!(read.url.as_ref(), Some(&made.link));
            let date = read.published.or(read.updated).unwrap();
            prop_assert_eq!(date.as_second(), made.second);
            prop_assert_eq!(read.content_html.as_ref(), Some(&made.html));
            prop_assert_eq!(read.authors[0].name.as_ref(), Some(&made.author));
        }
    }

    /// A document of several entries gives the same result as its entries one by one.
    #[test]
    fn entries_are_read_independently(
        format in 0usize..5,
        entries in proptest::collection::vec(made(), 1..6),
    ) {
        let mut ids = BTreeSet::new();
        let mut entries = entries;
        entries.retain(|e| ids.insert(e.id.clone()));
        let address = "https://made.example/feed";
        let whole = parse(document(format, &entries).as_bytes(), address).unwrap();
        for (read, made) in whole.entries.iter().zip(&entries) {
            let alone = document(format, std::slice::from_ref(made));
            let alone = parse(alone.as_bytes(), address).unwrap();
            prop_assert_eq!(std::slice::from_ref(read), &alone.entries[..]);
        }
    }

    /// An entry without an id gets the same one after it was re-dated, spaced otherwise, and moved;
    /// and its content hash is unchanged.
    #[test]
    fn generated_ids_are_stable(
        entries in proptest::collection::vec((made(), any::<bool>(), any::<bool>()), 1..6),
        later in 1i64..100_000_000,
    ) {
        let item = |e: &GeneratedEntry, link: bool, titled: bool, space: &str, date: i64| {
            let date = jiff::Timestamp::from_second(date).unwrap();
            let title = e.title.split_whitespace().collect::<Vec<_>>().join(space);
            let link = link.then(|| format!("<link>{space}{}{space}</link>", e.link));
            let title = titled.then(|| format!("<title>{space}{title}{space}</title>"));
            let (link, title) = (link.unwrap_or_default(), title.unwrap_or_default());
            let html = escaped(&e.html);
            format!(
                "<item>{title}{space}{link}<description>{html}</description>\
                 <pubDate>{date}</pubDate></item>{space}"
            )
        };
        let wrap = |items: String| format!("<rss version='2.0'><channel>{items}</channel></rss>");
        let first = entries.iter().map(|(e, l, t)| item(e, *l, *t, " ", e.second));
        let first: String = first.collect();
        let again = entries.iter().rev();
        let again: String = again
            .map(|(e, l, t)| item(e, *l, *t, "\n\t  ", e.second + later))
            .collect();
        let address = "https://made.example/feed";
        let read = |text: String| parse(wrap(text).as_bytes(), address).unwrap().entries;
        let (first, mut again) = (read(first), read(again));
        again.reverse();
        prop_assert_eq!(first.len(), again.len());
        for (a, b) in first.iter().zip(&again) {
            prop_assert!(a.id.starts_with("urn:uuid:"));
            prop_assert_eq!(&a.id, &b.id);
            prop_assert_eq!(a.content_hash(), b.content_hash());
            prop_assert_ne!(a.published, b.published);
        }
    }
}
