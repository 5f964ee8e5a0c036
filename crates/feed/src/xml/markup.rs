//! The HTML in a piece of XML: the content of an XHTML text construct, or markup that a feed
//! forgot to escape.

use std::borrow::Cow;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use url::Url;

use super::element::unescape;
use super::push_text;
use crate::html::links;

/// Elements that HTML never closes. All others need an end tag there.
const VOID: [&str; 14] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
    "track", "wbr",
];

/// `inner` as HTML: prefixes of names, comments and CDATA sections go, and elements that are empty
/// get an end tag. Text and attributes stay as they are written, but for links, which are made
/// whole by `base` and by the `xml:base` of the elements around them.
pub(crate) fn html(inner: &str, base: Option<&Url>) -> String {
    let mut reader = Reader::from_str(inner);
    let config = reader.config_mut();
    config.check_end_names = false;
    config.allow_unmatched_ends = true;
    config.allow_dangling_amp = true;
    let mut out = String::with_capacity(inner.len());
    let mut bases = Bases::new(base);
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => {
                let base = bases.open(&tag);
                push_tag(
                    &mut out,
                    tag.local_name().as_ref(),
                    tag.attributes_raw(),
                    base,
                );
            }
            Ok(Event::Empty(tag)) => {
                let own = bases.of(&tag);
                let base = own.as_ref().or(bases.current());
                let name = tag.local_name();
                if VOID.contains(&name.as_ref()) {
                    let at = out.len();
                    push_tag(&mut out, name.as_ref(), tag.attributes_raw(), base);
                    // As it was written: both forms are HTML.
                    if out.len() > at {
                        out.insert(out.len() - 1, '/');
                    }
                } else {
                    push_tag(&mut out, name.as_ref(), tag.attributes_raw(), base);
                    push_end(&mut out, name.as_ref());
                }
            }
            Ok(Event::End(tag)) => {
                bases.close();
                push_end(&mut out, tag.local_name().as_ref());
            }
            Ok(Event::Text(text)) => out.push_str(&text),
            Ok(Event::CData(text)) => push_text(&mut out, &text),
            Ok(Event::GeneralRef(name)) => {
                out.push('&');
                out.push_str(&name);
                out.push(';');
            }
            Ok(Event::Eof) | Err(_) => return out,
            Ok(_) => {}
        }
    }
}

/// The base addresses of the open elements.
struct Bases<'a> {
    document: Option<&'a Url>,
    /// Those of elements that have one of their own, with their depth.
    own: Vec<(usize, Url)>,
    depth: usize,
}

impl<'a> Bases<'a> {
    fn new(document: Option<&'a Url>) -> Self {
        Self {
            document,
            own: Vec::new(),
            depth: 0,
        }
    }

    fn current(&self) -> Option<&Url> {
        self.own.last().map(|(_, base)| base).or(self.document)
    }

    /// The base that an element has of its own.
    fn of(&self, tag: &BytesStart) -> Option<Url> {
        if !tag.attributes_raw().contains("xml:base") {
            return None;
        }
        let own = tag.try_get_attribute("xml:base").ok().flatten()?;
        let own = unescape(&own.value);
        match self.current() {
            Some(base) => base.join(&own).ok(),
            None => Url::parse(&own).ok(),
        }
    }

    fn open(&mut self, tag: &BytesStart) -> Option<&Url> {
        self.depth += 1;
        if let Some(base) = self.of(tag) {
            self.own.push((self.depth, base));
        }
        self.current()
    }

    fn close(&mut self) {
        self.own.pop_if(|(depth, _)| *depth >= self.depth);
        self.depth = self.depth.saturating_sub(1);
    }
}

fn push_tag(out: &mut String, name: &str, attributes: &str, base: Option<&Url>) {
    let start = out.len();
    out.push('<');
    out.push_str(name);
    let attributes = attributes.trim_end();
    // Declarations mean nothing to HTML.
    if attributes.contains("xmlns") {
        for attribute in quick_xml::events::attributes::Attributes::new(attributes, 0)
            .with_checks(false)
            .flatten()
        {
            let key = attribute.key.as_ref();
            if key != "xmlns" && !key.starts_with("xmlns:") {
                let quote = if attribute.value.contains('"') {
                    '\''
                } else {
                    '"'
                };
                out.push(' ');
                out.push_str(key);
                out.push('=');
                out.push(quote);
                out.push_str(&attribute.value);
                out.push(quote);
            }
        }
    } else {
        out.push_str(attributes);
    }
    out.push('>');
    if let Some(tag) = out.get(start..)
        && let Cow::Owned(whole) = links::absolute(tag, base)
    {
        out.truncate(start);
        out.push_str(&whole);
    }
}

fn push_end(out: &mut String, name: &str) {
    out.push_str("</");
    out.push_str(name);
    out.push('>');
}

#[cfg(test)]
mod tests {
    use super::html;

    #[test]
    fn markup_becomes_html() {
        for (xml, expected) in [
            ("<p>a&lt;</p>", "<p>a&lt;</p>"),
            ("<x:p class='q'>a<x:br/>b</x:p>", "<p class='q'>a<br/>b</p>"),
            ("a<!-- no --><td/><?p?>", "a<td></td>"),
            (
                "<![CDATA[<b> & ]]>&nbsp;&#39;",
                "&lt;b&gt; &amp; &nbsp;&#39;",
            ),
            ("Tom & <b>Jerry", "Tom & <b>Jerry"),
            (
                "<svg xmlns=\"urn:s\" a='\"' xmlns:x='u'><x:c r='1'/></svg>",
                "<svg a='\"'><c r='1'></c></svg>",
            ),
        ] {
            assert_eq!(html(xml, None), expected, "{xml}");
        }
    }
}
