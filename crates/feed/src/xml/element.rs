//! One element as text: what is in it.

use std::ops::Range;

use super::MAX_ATTRIBUTES;
use super::nesting::Nesting;
use crate::html::links::is_relative;
use quick_xml::NsReader;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::name::ResolveResult;
use quick_xml::reader::Config;

/// A direct child of an element.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    /// Namespace name, empty if none.
    pub namespace: String,
    /// Name without prefix.
    pub local: String,
    /// Where its text is in the element's.
    pub range: Range<usize>,
    /// Where its content is: the same without its tags.
    pub inner: Range<usize>,
    /// Whether there are elements in it.
    pub nested: bool,
    /// The character data directly in it, with references resolved.
    pub text: String,
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

/// The outline of an element: enough to find things in its text.
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
    /// Where the end tag begins; `None` for an empty-element tag.
    pub content_end: Option<usize>,
    /// Direct children in order.
    pub children: Vec<Child>,
    /// The character data directly in it, with references resolved.
    pub text: String,
    /// Whether a link in it needs a base address.
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
/// What is wrong, if the text is not XML, nests too deeply or has too many attributes.
pub(crate) fn outline(xml: &str) -> Result<Element, String> {
    let mut reader = NsReader::from_str(xml);
    lenient(reader.config_mut());
    let mut nesting = Nesting::default();
    let mut element: Option<Element> = None;
    let mut child: Option<Child> = None;
    let mut relative = false;
    loop {
        let at = position(&reader);
        let (namespace, event) = match reader.read_resolved_event() {
            Ok((ns, event)) => (resolved(&ns), event),
            Err(e) => return Err(e.to_string()),
        };
        let empty = matches!(event, Event::Empty(_));
        match event {
            Event::Start(start) | Event::Empty(start) => {
                nesting.open(start.name().as_ref())?;
                relative |= has_relative_link(&start)?;
                let local = start.local_name().as_ref().to_owned();
                let end = position(&reader);
                match (nesting.depth(), &mut child) {
                    (1, _) => {
                        element = Some(Element {
                            namespace,
                            local,
                            name_len: start.name().as_ref().len(),
                            attributes: attributes(&start),
                            content_end: None,
                            children: Vec::new(),
                            text: String::new(),
                            relative: false,
                        });
                    }
                    (2, _) => {
                        child = Some(Child {
                            namespace,
                            local,
                            range: at..at,
                            inner: end..end,
                            nested: false,
                            text: String::new(),
                            attributes: attributes(&start),
                        });
                    }
                    (_, Some(child)) => child.nested = true,
                    _ => {}
                }
                if !empty {
                    continue;
                }
                nesting.close(start.name().as_ref());
            }
            Event::End(end) => {
                if nesting.close(end.name().as_ref()) == 0 {
                    if nesting.depth() == 0 {
                        return Err("an end tag without a start tag".into());
                    }
                    continue;
                }
            }
            Event::Eof => return Err("it ends in the middle".into()),
            other => {
                match (nesting.depth(), &mut element, &mut child) {
                    (1, Some(element), _) => push_data(&mut element.text, &other),
                    (2, _, Some(child)) => push_data(&mut child.text, &other),
                    _ => {}
                }
                continue;
            }
        }
        // Here an element has ended, and with it those inside that have no end tag.
        let depth = nesting.depth();
        let end = position(&reader);
        if depth < 2
            && let (Some(whole), Some(mut ended)) = (&mut element, child.take())
        {
            // The parent's end tag is not part of it.
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

/// Feeds in the field forget end tags and write ampersands that begin no reference.
pub(crate) fn lenient(config: &mut Config) {
    config.check_end_names = false;
    config.allow_unmatched_ends = true;
    config.allow_dangling_amp = true;
}

fn position(reader: &NsReader<&[u8]>) -> usize {
    usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX)
}

fn resolved(namespace: &ResolveResult) -> String {
    match namespace {
        ResolveResult::Bound(ns) => ns.as_ref().to_owned(),
        // Not "no namespace": it must not be taken for one of ours.
        ResolveResult::Unknown(prefix) => format!("undeclared prefix {prefix}"),
        ResolveResult::Unbound => String::new(),
    }
}

pub(crate) fn attributes(start: &BytesStart) -> Vec<(String, String)> {
    start
        .attributes()
        .with_checks(false)
        .flatten()
        .take(MAX_ATTRIBUTES)
        .map(|a| (a.key.as_ref().to_owned(), unescape(&a.value)))
        .collect()
}

/// Counts the attributes on the way, so that nobody meets an element with too many.
fn has_relative_link(start: &BytesStart) -> Result<bool, String> {
    let mut relative = false;
    for (n, attribute) in start.attributes().with_checks(false).flatten().enumerate() {
        if n >= MAX_ATTRIBUTES {
            return Err(format!("more than {MAX_ATTRIBUTES} attributes"));
        }
        if matches!(attribute.key.as_ref(), "href" | "src") {
            relative |= is_relative(&attribute.value);
        }
    }
    Ok(relative)
}

/// Appends the character data of an event; an entity that is not predefined stays as written.
pub(crate) fn push_data(text: &mut String, event: &Event) {
    match event {
        Event::Text(data) => text.push_str(data),
        Event::CData(data) => text.push_str(data),
        Event::GeneralRef(name) => push_reference(text, name),
        _ => {}
    }
}

fn push_reference(text: &mut String, name: &BytesRef) {
    // Also those of HTML: no XML, but what the feed means.
    if let Some(known) = crate::html::reference(name) {
        text.push_str(&known);
    } else {
        text.push('&');
        text.push_str(name);
        text.push(';');
    }
}

/// The text of a value with its references resolved, those of HTML too; what is none stays.
pub(crate) fn unescape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut parts = value.split('&');
    text.push_str(parts.next().unwrap_or(""));
    for part in parts {
        let known = part
            .split_once(';')
            .and_then(|(name, rest)| Some((crate::html::reference(name)?, rest)));
        match known {
            Some((known, rest)) => {
                text.push_str(&known);
                text.push_str(rest);
            }
            None => {
                text.push('&');
                text.push_str(part);
            }
        }
    }
    text
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
