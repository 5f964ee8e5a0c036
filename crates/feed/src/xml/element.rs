//! One element as text, and its content.

use std::ops::Range;

use memchr::{memchr, memchr2};

use super::MAX_ATTRIBUTES;
use super::nesting::Nesting;
use super::token::{Tag, Token, Tokens};
use crate::html::links::is_relative;
use crate::html::tag::Attributes;

/// Direct child of an element.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    /// Namespace name, empty if none.
    pub namespace: String,
    /// Name without prefix.
    pub local: String,
    /// Range of the child in the element's text.
    pub range: Range<usize>,
    /// Range of its content: the same without its tags.
    pub inner: Range<usize>,
    /// Whether the child contains elements.
    pub nested: bool,
    /// First element in the child.
    pub first: Option<Inner>,
    /// Whether the child contains elements after the first one.
    pub others: bool,
    /// Character data directly in the child, with references resolved.
    pub text: String,
    /// Attributes: qualified name and value.
    pub attributes: Vec<(String, String)>,
}

/// Element in a child.
#[derive(Debug, Clone)]
pub(crate) struct Inner {
    /// Name without prefix.
    pub local: String,
    /// Range of its content in the text, without its tags.
    pub range: Range<usize>,
    /// Attributes: qualified name and value.
    pub attributes: Vec<(String, String)>,
}

impl Child {
    pub(crate) fn is(&self, namespace: &str, local: &str) -> bool {
        self.namespace == namespace && self.local == local
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        find_in_any_case(&self.attributes, name)
    }
}

/// Outline of an element: enough to locate its parts in its text.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    /// Namespace name, empty if none.
    pub namespace: String,
    /// Name without prefix.
    pub local: String,
    /// Length of the name with prefix; attributes can be inserted at `1 + name_len`.
    pub name_len: usize,
    /// Attributes of the element itself.
    pub attributes: Vec<(String, String)>,
    /// Position of the end tag; `None` for an empty-element tag.
    pub content_end: Option<usize>,
    /// Direct children in order.
    pub children: Vec<Child>,
    /// Character data directly in the element, with references resolved.
    pub text: String,
    /// Whether a link in the element needs a base address.
    pub relative: bool,
}

impl Element {
    pub(crate) fn child(&self, namespace: &str, local: &str) -> Option<&Child> {
        self.children.iter().find(|c| c.is(namespace, local))
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        find_in_any_case(&self.attributes, name)
    }
}

pub(crate) fn find<'a>(attributes: &'a [(String, String)], name: &str) -> Option<&'a str> {
    attributes
        .iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_str())
}

fn find_in_any_case<'a>(attributes: &'a [(String, String)], name: &str) -> Option<&'a str> {
    find(attributes, name).or_else(|| {
        let mut attributes = attributes.iter();
        let found = attributes.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    })
}

/// Reads the outline of the element that `xml` begins with.
///
/// # Errors
/// The defect, if the text is not XML, nests too deeply or has too many attributes.
pub(crate) fn outline(xml: &str) -> Result<Element, String> {
    let mut tokens = Tokens::new(xml);
    let mut nesting = Nesting::default();
    let mut element: Option<Element> = None;
    let mut child: Option<Child> = None;
    let mut relative = false;
    // Whether the end of a child's first element is still ahead.
    let mut inner_open = false;
    loop {
        let at = tokens.position();
        let empty = match tokens.next()? {
            Token::Start(tag) => {
                nesting.open(tag.name)?;
                relative |= has_relative_link(tag.attributes)?;
                let end = tokens.position();
                match (nesting.depth(), &element, &mut child) {
                    (1, _, _) => {
                        let attributes = attributes(tag.attributes);
                        element = Some(Element {
                            namespace: namespace(&tag, &[&attributes]),
                            local: tag.local().to_owned(),
                            name_len: tag.name.len(),
                            attributes,
                            content_end: None,
                            children: Vec::new(),
                            text: String::new(),
                            relative: false,
                        });
                    }
                    (2, Some(element), _) => {
                        let attributes = attributes(tag.attributes);
                        child = Some(Child {
                            namespace: namespace(&tag, &[&attributes, &element.attributes]),
                            local: tag.local().to_owned(),
                            range: at..at,
                            inner: end..end,
                            nested: false,
                            first: None,
                            others: false,
                            text: String::new(),
                            attributes,
                        });
                    }
                    (3, _, Some(child)) => {
                        child.nested = true;
                        child.others = child.first.is_some();
                        inner_open = !child.others && !tag.empty;
                        child.first.get_or_insert_with(|| Inner {
                            local: tag.local().to_owned(),
                            range: end..end,
                            attributes: attributes(tag.attributes),
                        });
                    }
                    _ => {}
                }
                if !tag.empty {
                    continue;
                }
                nesting.close(tag.name);
                true
            }
            Token::End(name) => {
                if nesting.close(name) == 0 {
                    if nesting.depth() == 0 {
                        return Err("an end tag without a start tag".into());
                    }
                    continue;
                }
                false
            }
            Token::Eof => return Err("it ends in the middle".into()),
            other => {
                match (nesting.depth(), &mut element, &mut child) {
                    (1, Some(element), _) => push_data(&mut element.text, &other),
                    (2, _, Some(child)) => push_data(&mut child.text, &other),
                    _ => {}
                }
                continue;
            }
        };
        // Here an element has ended, and with it those inside that have no end tag.
        let depth = nesting.depth();
        let end = tokens.position();
        if depth <= 2
            && let Some(child) = &mut child
            && let Some(first) = &mut child.first
            && std::mem::take(&mut inner_open)
        {
            first.range.end = at;
        }
        if depth < 2
            && let (Some(whole), Some(mut ended)) = (&mut element, child.take())
        {
            // The parent's end tag is not part of the child.
            ended.range.end = if depth == 1 { end } else { at };
            ended.inner.end = if empty { ended.inner.start } else { at };
            whole.children.push(ended);
        }
        if depth == 0 {
            let Some(mut whole) = element.take() else {
                return Err("an end tag without a start tag".into());
            };
            whole.content_end = (!empty).then_some(at);
            whole.relative = relative;
            return Ok(whole);
        }
    }
}

/// Returns the namespace of a tag's name by the declarations of these elements, innermost first.
fn namespace(tag: &Tag, declared: &[&Vec<(String, String)>]) -> String {
    let find = |name: &str| {
        declared
            .iter()
            .find_map(|attributes| find(attributes, name))
    };
    match tag.prefix() {
        None => find("xmlns").unwrap_or("").to_owned(),
        Some("xml") => "http://www.w3.org/XML/1998/namespace".to_owned(),
        Some(prefix) => match find(&format!("xmlns:{prefix}")) {
            Some(namespace) if !namespace.is_empty() => namespace.to_owned(),
            // Not "no namespace": such an element must not be taken for one of ours.
            _ => format!("undeclared prefix {prefix}"),
        },
    }
}

/// Returns the attributes in the part between a tag's name and its end, as written.
pub(crate) fn raw_attributes(raw: &str) -> impl Iterator<Item = (&str, &str)> {
    Attributes::within(raw).map(|a| (a.name, raw.get(a.value).unwrap_or("")))
}

pub(crate) fn attributes(raw: &str) -> Vec<(String, String)> {
    raw_attributes(raw)
        .take(MAX_ATTRIBUTES)
        .map(|(name, value)| (name.to_owned(), unescape(value)))
        .collect()
}

/// Whether an attribute is a relative link. Counts the attributes at the same time.
///
/// # Errors
/// If the element has too many attributes.
fn has_relative_link(raw: &str) -> Result<bool, String> {
    let mut relative = false;
    for (n, (name, value)) in raw_attributes(raw).enumerate() {
        if n >= MAX_ATTRIBUTES {
            return Err(format!("more than {MAX_ATTRIBUTES} attributes"));
        }
        if matches!(name, "href" | "src") {
            relative |= is_relative(value);
        }
    }
    Ok(relative)
}

/// Appends the character data of a piece; an unknown entity stays as written.
pub(crate) fn push_data(text: &mut String, token: &Token) {
    match token {
        Token::Text(data) => push_unescaped(text, data),
        Token::CData(data) => text.push_str(data),
        _ => {}
    }
}

/// Resolves the references of a value, those of HTML too; others stay.
pub(crate) fn unescape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    push_unescaped(&mut text, value);
    text
}

fn push_unescaped(text: &mut String, mut rest: &str) {
    while let Some(at) = memchr(b'&', rest.as_bytes()) {
        let (before, special) = rest.split_at(at);
        text.push_str(before);
        let after = special.get(1..).unwrap_or("");
        let end = memchr2(b';', b'&', after.as_bytes());
        let name = end.and_then(|end| after.get(..end).filter(|_| after[end..].starts_with(';')));
        // References of HTML are no XML, but are meant by the feed.
        match name.and_then(crate::html::reference) {
            Some(known) => {
                text.push_str(&known);
                rest = end.and_then(|end| after.get(end + 1..)).unwrap_or("");
            }
            None => {
                text.push('&');
                rest = after;
            }
        }
    }
    text.push_str(rest);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::xml::MAX_DEPTH;

    #[test]
    fn the_outline_finds_texts_and_places() {
        let xml = "<e><id>a&amp;<![CDATA[b]]>&#99;<x>no</x></id><y z='1'/></e>";
        let element = outline(xml).unwrap();
        assert_eq!(element.children[0].text, "a&bc");
        assert_eq!(&xml[element.children[1].range.clone()], "<y z='1'/>");
        assert_eq!(element.children[1].attribute("z"), Some("1"));
        assert_eq!(&xml[element.content_end.unwrap()..], "</e>");
    }

    #[test]
    fn missing_and_stray_end_tags_are_passed_over() {
        let xml = "<e><a>1<br>2</i></a><b>3 & 4<c></e>";
        let element = outline(xml).unwrap();
        let parts: Vec<_> = element
            .children
            .iter()
            .map(|c| (&xml[c.range.clone()], &xml[c.inner.clone()], c.nested))
            .collect();
        assert_eq!(
            parts,
            [
                ("<a>1<br>2</i></a>", "1<br>2</i>", true),
                ("<b>3 & 4<c>", "3 & 4<c>", true)
            ]
        );
        assert_eq!(element.children[1].text, "3 & 4");
        assert_eq!(&xml[element.content_end.unwrap()..], "</e>");
    }

    #[test]
    fn hostile_shapes_are_refused() {
        let deep = "<a>".repeat(MAX_DEPTH + 1);
        assert!(outline(&deep).is_err());
        let wide: String = (0..=MAX_ATTRIBUTES).map(|n| format!(" a{n}=''")).collect();
        assert!(outline(&format!("<a{wide}/>")).is_err());
        for bad in ["", "x", "</a>", "<a>", "<a", "<a><b></b>", "<a></b>"] {
            assert!(outline(bad).is_err(), "{bad}");
        }
    }
}
