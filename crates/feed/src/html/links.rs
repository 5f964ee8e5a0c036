//! Relative links in HTML that leaves its document: without a base they lead nowhere.

use std::borrow::Cow;

use url::Url;

use super::tag::Attributes;
use super::unescaped;

/// Attributes whose value is an address.
const ADDRESSES: [&str; 11] = [
    "action",
    "background",
    "cite",
    "data",
    "formaction",
    "href",
    "longdesc",
    "poster",
    "src",
    "srcset",
    "xlink:href",
];

/// Elements whose content is no markup.
const RAW: [&str; 5] = ["script", "style", "textarea", "title", "xmp"];

/// Longest address that is changed.
const MAX_ADDRESS: usize = 8 * 1024;

/// Longest base address. A document that repeats it in each link grows by this much each time.
const MAX_BASE: usize = 4 * 1024;

/// Longest text whose links are resolved, in bytes.
const MAX_HTML: usize = crate::entry::MAX_ENTRY_BYTES;

/// Returns the base address for an element with the base `own` inside one with `base`. A base that
/// is too long to be repeated, or that nothing is relative to (`mailto:`), is none.
pub(crate) fn join(base: Option<&Url>, own: &str) -> Option<Url> {
    let joined = match base {
        Some(base) => base.join(own).ok(),
        None => Url::parse(own).ok(),
    };
    joined.filter(|joined| joined.as_str().len() <= MAX_BASE && !joined.cannot_be_a_base())
}

/// Returns the largest number of bytes of a text of `len` after its links were resolved.
pub(crate) fn longest(len: usize) -> usize {
    len.saturating_mul(5)
        .saturating_add(16 * 1024)
        .min(MAX_HTML)
}

/// Whether an address needs a base: a fragment of the same document does not.
pub(crate) fn is_relative(address: &str) -> bool {
    let address = address.trim();
    if address.is_empty() || address.starts_with('#') {
        return false;
    }
    let end = address.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
    let scheme = end.is_some_and(|end| {
        address.starts_with(|c: char| c.is_ascii_alphabetic()) && address[end..].starts_with(':')
    });
    !scheme
}

/// Returns the largest number of bytes by which a text of `len` may grow.
pub(crate) fn growth(len: usize) -> usize {
    longest(len).saturating_sub(len)
}

/// Returns the HTML with its relative links resolved and nothing else changed.
pub(crate) fn absolute<'a>(html: &'a str, base: Option<&Url>) -> Cow<'a, str> {
    absolute_within(html, base, &mut growth(html.len()))
}

/// Resolves relative links within a budget of `left` bytes of growth, and deducts the growth from
/// it. The first link that exceeds the budget exhausts it: the rest of the text is unchanged, and
/// no further address is joined.
pub(crate) fn absolute_within<'a>(
    html: &'a str,
    base: Option<&Url>,
    left: &mut usize,
) -> Cow<'a, str> {
    let Some(base) = base.filter(|base| base.as_str().len() <= MAX_BASE) else {
        return Cow::Borrowed(html);
    };
    let mut out = String::new();
    let mut kept = 0;
    let mut at = 0;
    while *left > 0
        && let Some(found) = html.get(at..).and_then(|rest| rest.find('<'))
    {
        at += found;
        let rest = html.get(at..).unwrap_or("");
        if rest.starts_with("<!--") {
            at = rest.find("-->").map_or(html.len(), |end| at + end + 3);
            continue;
        }
        if !rest[1..].starts_with(|c: char| c.is_ascii_alphabetic()) {
            at += 1;
            continue;
        }
        let mut attributes = Attributes::new(rest);
        let mut edits = Vec::new();
        for attribute in attributes.by_ref() {
            if *left == 0 || !is_address(attribute.name) {
                continue;
            }
            let value = &rest[attribute.value.clone()];
            let most = value.len().saturating_add(*left);
            match whole(attribute.name, value, base, most) {
                Resolution::Same => {}
                Resolution::TooLong => *left = 0,
                Resolution::Changed(whole) => {
                    let grown = (whole.len() + 2).saturating_sub(value.len());
                    *left -= grown.min(*left);
                    edits.push((attribute.value, whole));
                }
            }
        }
        // After a tag that does not end there are no others.
        let Some(end) = attributes.end() else {
            break;
        };
        for (range, whole) in edits {
            out.push_str(html.get(kept..at + range.start).unwrap_or(""));
            let quoted = rest[..range.start].ends_with(['"', '\'']);
            out.push_str(if quoted { "" } else { "\"" });
            out.push_str(&whole);
            out.push_str(if quoted { "" } else { "\"" });
            kept = at + range.end;
        }
        at += end + raw(rest, end);
    }
    if kept == 0 {
        return Cow::Borrowed(html);
    }
    out.push_str(html.get(kept..).unwrap_or(""));
    Cow::Owned(out)
}

fn is_address(name: &str) -> bool {
    ADDRESSES
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}

/// Returns the length of the content after a tag that ends at `end` if that content is no markup.
fn raw(tag: &str, end: usize) -> usize {
    let name = tag[1..].split(|c: char| !c.is_ascii_alphanumeric()).next();
    let name = name.unwrap_or("");
    if !RAW.iter().any(|raw| name.eq_ignore_ascii_case(raw)) {
        return 0;
    }
    let rest = tag.get(end..).unwrap_or("");
    let close = rest.match_indices("</").find(|(at, _)| {
        let close = rest.get(at + 2..at + 2 + name.len());
        close.is_some_and(|close| close.eq_ignore_ascii_case(name))
    });
    close.map_or(rest.len(), |(at, _)| at)
}

/// Value of an attribute with its relative addresses resolved.
enum Resolution {
    /// No link, or none that can be joined.
    Same,
    Changed(String),
    /// Link that would exceed the byte budget.
    TooLong,
}

/// Resolves the relative addresses in the value of an attribute, in at most `most` bytes including
/// the quotes that may be needed.
fn whole(attribute: &str, value: &str, base: &Url, most: usize) -> Resolution {
    let list = attribute.eq_ignore_ascii_case("srcset");
    if value.len() > MAX_ADDRESS || !list && !is_relative(value) {
        return Resolution::Same;
    }
    let value = unescaped(value);
    let join = |address: &str| {
        let join = is_relative(address).then(|| base.join(address.trim()).ok());
        join.flatten().map(String::from)
    };
    let whole = if list {
        // Addresses with descriptors, separated by commas; an address may contain commas.
        let mut changed = false;
        let mut candidates = String::new();
        let mut rest = value.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',');
        while !rest.is_empty() {
            let end = rest.find(|c: char| c.is_ascii_whitespace());
            let (address, after) = rest.split_at(end.unwrap_or(rest.len()));
            let bare = address.trim_end_matches(',');
            let (descriptor, after) = if bare.len() < address.len() {
                ("", after)
            } else {
                after.split_once(',').unwrap_or((after, ""))
            };
            let joined = join(bare);
            changed |= joined.is_some();
            let address = joined.unwrap_or_else(|| bare.to_owned());
            let candidate = format!("{address} {}", descriptor.trim());
            if !candidates.is_empty() {
                candidates.push_str(", ");
            }
            candidates.push_str(candidate.trim());
            if candidates.len() > most {
                return Resolution::TooLong;
            }
            rest = after.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',');
        }
        changed.then_some(candidates)
    } else {
        join(&value)
    };
    let Some(whole) = whole else {
        return Resolution::Same;
    };
    let whole = whole
        .replace('&', "&amp;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
        .replace('<', "&lt;");
    if whole.len() + 2 > most {
        Resolution::TooLong
    } else {
        Resolution::Changed(whole)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn base() -> Url {
        Url::parse("https://e.example/a/b?c").unwrap()
    }

    #[test]
    fn only_addresses_are_resolved() {
        for (html, expected) in [
            ("<a href=x>", "<a href=\"https://e.example/a/x\">"),
            ("<a href=' x '>", "<a href='https://e.example/a/x'>"),
            (
                "<a href='?d&amp;e=\"'>",
                "<a href='https://e.example/a/b?d&amp;e=%22'>",
            ),
            ("<a href='//o/x'>", "<a href='https://o/x'>"),
            (
                "<img srcset=\"a,b.png, c.png 2x,/d.png 1x\">",
                "<img srcset=\"https://e.example/a/a,b.png, https://e.example/a/c.png 2x, \
                 https://e.example/d.png 1x\">",
            ),
            ("<object data=x>", "<object data=\"https://e.example/a/x\">"),
            (
                "<script>'<a href=x>'</SCRIPT><a href=x>",
                "<script>'<a href=x>'</SCRIPT><a href=\"https://e.example/a/x\">",
            ),
        ] {
            assert_eq!(absolute(html, Some(&base())), expected);
            assert_eq!(absolute(expected, Some(&base())), expected);
            assert_eq!(absolute(html, None), html);
        }
        for same in [
            "",
            "a < b",
            "<a href>",
            "<a href=''>",
            "<a href='#x'>",
            "<a href='data:x'>",
            "<a href='tel:1'>",
            "<a title='href=x'>",
            "<!-- <a href=x> -->",
            "<a href='x",
            "</a href=x>",
            "<p>href=x</p>",
            "<é href=x>",
        ] {
            assert_eq!(absolute(same, Some(&base())), same);
        }
    }

    /// One tag full of links, or one attribute full of candidates, uses its growth and no more.
    #[test]
    fn resolved_links_stay_within_their_growth() {
        let base = Url::parse(&format!("https://e.example/{}/", "b".repeat(4000))).unwrap();
        let tag = format!("<a{}>", " src=x".repeat(100_000));
        let list = format!("<img srcset=\"{}\">", "a, ".repeat(2_600));
        let tags = "<a href=x>".repeat(60_000);
        for html in [tag, list, tags] {
            let whole = absolute(&html, Some(&base));
            assert!(whole.len() <= longest(html.len()), "{}", whole.len());
        }
        // The new text of one value before it is examined.
        let list = "a, ".repeat(2_600);
        let whole = whole("srcset", &list, &base, 100_000);
        assert!(matches!(whole, Resolution::TooLong));
        // Earlier output is kept.
        let html = "<a href=x>".repeat(1_000);
        let whole = absolute(&html, Some(&base));
        assert!(whole.len() > html.len());
        assert!(whole.ends_with("<a href=x>"));
    }

    proptest! {
        /// Resolved links are unchanged by a second pass, and text is never lost.
        #[test]
        fn links_are_resolved_once(
            html in "(<[a-z]{1,3}|>|/>| |href=|src=|srcset=|'|\"|é|[a-z/.:#?&;,]{1,4}\
                |<!--|-->){0,20}"
        ) {
            let once = absolute(&html, Some(&base())).into_owned();
            prop_assert_eq!(absolute(&once, Some(&base())), once.as_str());
        }
    }
}
