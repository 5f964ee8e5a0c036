//! HTML in a piece of XML: the content of an XHTML text construct, or unescaped markup of a feed.

use std::borrow::Cow;

use url::Url;

use super::element::{raw_attributes, unescape};
use super::push_text;
use super::token::{Tag, Token, Tokens, local};
use crate::html::links;

/// Elements that HTML never closes. All others need an end tag there.
const VOID: [&str; 14] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
    "track", "wbr",
];

/// Returns `inner` as HTML: prefixes of names, comments and CDATA sections are removed, and empty
/// elements get an end tag. Text and attributes stay as written, except for links, which are
/// resolved by `base` and by the `xml:base` of the elements around them.
pub(crate) fn html(inner: &str, base: Option<&Url>) -> String {
    let mut tokens = Tokens::new(inner);
    let mut out = String::with_capacity(inner.len());
    let mut bases = Bases::new(base);
    let mut left = links::growth(inner.len());
    loop {
        if left == 0 {
            bases = Bases::new(None);
        }
        match tokens.next() {
            Ok(Token::Start(tag)) if tag.empty => {
                let own = bases.of(&tag);
                let base = own.as_ref().or(bases.current());
                let name = tag.local();
                let start = out.len();
                push_tag(&mut out, name, tag.attributes, base, &mut left);
                if !VOID.contains(&name) {
                    push_end(&mut out, name);
                } else if out.len() > start {
                    // As written: both forms are HTML.
                    out.insert(out.len() - 1, '/');
                }
            }
            Ok(Token::Start(tag)) => {
                let base = bases.open(&tag);
                push_tag(&mut out, tag.local(), tag.attributes, base, &mut left);
            }
            Ok(Token::End(name)) => {
                bases.close();
                push_end(&mut out, local(name));
            }
            Ok(Token::Text(text)) => out.push_str(text),
            Ok(Token::CData(text)) => push_text(&mut out, text),
            Ok(Token::Eof) | Err(_) => return out,
            Ok(_) => {}
        }
    }
}

/// Base addresses of the open elements.
struct Bases<'a> {
    document: Option<&'a Url>,
    /// Bases of elements with one of their own, with their depth.
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

    /// Returns the base of an element's own.
    fn of(&self, tag: &Tag) -> Option<Url> {
        let mut attributes = raw_attributes(tag.attributes);
        let (_, own) = attributes.find(|(name, _)| *name == "xml:base")?;
        let own = unescape(own);
        links::join(self.current(), &own)
    }

    fn open(&mut self, tag: &Tag) -> Option<&Url> {
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

fn push_tag(out: &mut String, name: &str, attributes: &str, base: Option<&Url>, left: &mut usize) {
    let start = out.len();
    out.push('<');
    out.push_str(name);
    let attributes = attributes.trim_end();
    // Declarations mean nothing to HTML.
    if attributes.contains("xmlns") {
        for (key, value) in raw_attributes(attributes) {
            if key != "xmlns" && !key.starts_with("xmlns:") {
                let quote = if value.contains('"') { '\'' } else { '"' };
                out.push(' ');
                out.push_str(key);
                out.push('=');
                out.push(quote);
                out.push_str(value);
                out.push(quote);
            }
        }
    } else {
        out.push_str(attributes);
    }
    out.push('>');
    if let Some(tag) = out.get(start..)
        && let Cow::Owned(whole) = links::absolute_within(tag, base, left)
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
    use crate::html::links;

    /// Tags with bases of their own share one growth.
    #[test]
    fn bases_of_many_tags_share_one_growth() {
        let base = format!("urn://e/{}/", "b".repeat(400));
        let tag = format!("<a xml:base='{base}'{}/>", " src='x'".repeat(40));
        let inner = tag.repeat(1 << 20 >> 10);
        // End tags are added to that.
        let most = links::longest(inner.len()) + inner.len();
        let len = html(&inner, None).len();
        assert!(len <= most, "{len}");
    }

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
