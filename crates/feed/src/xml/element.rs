//! One element as text: what is in it, and how to make it stand alone outside its document.

use std::ops::Range;

use quick_xml::NsReader;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::name::ResolveResult;
use quick_xml::reader::Config;
use url::Url;

use super::nesting::Nesting;
use super::{MAX_ATTRIBUTES, push_attribute};

/// The longest namespace name that is copied into entries: the copies multiply with the entries.
const MAX_NAMESPACE: usize = 2048;

/// The most declarations that are remembered from the elements around the entries.
const MAX_BINDINGS: usize = 128;

/// What the elements around an entry declare, and what therefore goes missing when the entry is
/// cut out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    /// Prefix (empty for the default namespace) and namespace, both as written.
    bindings: Vec<(String, String)>,
    /// The document's address, as changed by `xml:base` attributes.
    base: Option<Url>,
    /// Whether an `xml:base` was seen.
    rebased: bool,
    lang: Option<String>,
}

impl Scope {
    pub(crate) fn new(document: Option<&Url>) -> Self {
        Self {
            base: document.cloned(),
            ..Self::default()
        }
    }

    /// The address that relative links in the entries are relative to.
    pub(crate) fn base(&self) -> Option<&Url> {
        self.base.as_ref()
    }

    /// The language of the document's texts, by its `xml:lang`.
    pub(crate) fn lang(&self) -> Option<&str> {
        self.lang.as_deref()
    }

    /// The namespace that a prefix stands for here.
    pub(crate) fn namespace(&self, prefix: &str) -> Option<&str> {
        self.bindings
            .iter()
            .find(|(p, _)| p == prefix)
            .map(|(_, namespace)| namespace.as_str())
    }

    /// Takes over the declarations of an element that is being entered.
    pub(crate) fn enter(&mut self, start: &BytesStart) {
        for attribute in start.attributes().with_checks(false).flatten() {
            let key = attribute.key.as_ref();
            let value: &str = &attribute.value;
            let prefix = match key.split_once(':') {
                Some(("xmlns", prefix)) => prefix,
                None if key == "xmlns" => "",
                Some(("xml", "base")) => {
                    let value = unescape(value);
                    let based = match &self.base {
                        Some(base) => base.join(&value).ok(),
                        None => Url::parse(&value).ok(),
                    };
                    if based.is_some() {
                        self.base = based;
                        self.rebased = true;
                    }
                    continue;
                }
                Some(("xml", "lang")) => {
                    self.lang = Some(unescape(value));
                    continue;
                }
                _ => continue,
            };
            self.bindings.retain(|(known, _)| known != prefix);
            if value.len() <= MAX_NAMESPACE && self.bindings.len() < MAX_BINDINGS {
                self.bindings.push((prefix.to_owned(), value.to_owned()));
            }
        }
    }
}

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
        find(&self.attributes, name)
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
        find(&self.attributes, name)
    }
}

fn find<'a>(attributes: &'a [(String, String)], name: &str) -> Option<&'a str> {
    attributes
        .iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_str())
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

fn attributes(start: &BytesStart) -> Vec<(String, String)> {
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
            let value = attribute.value.trim();
            relative |= !value.is_empty()
                && !value.starts_with('#')
                && Url::parse(value) == Err(url::ParseError::RelativeUrlWithoutBase);
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
    if let Ok(Some(c)) = name.resolve_char_ref() {
        text.push(crate::html::meant(c));
    } else if let Some(known) = crate::html::named(name) {
        // Also those of HTML: no XML, but what the feed means.
        text.push_str(known);
    } else {
        text.push('&');
        text.push_str(name);
        text.push(';');
    }
}

fn unescape(value: &str) -> String {
    quick_xml::escape::unescape(value).map_or_else(|_| value.to_owned(), Into::into)
}

/// Makes an entry's original text stand alone: adds to its start tag the declarations that it uses
/// and that the elements around it made. Nothing else is changed.
///
/// `fallback` is the namespace of an element that is in none because the document declares none.
///
/// # Errors
/// What is wrong with the text, if it cannot be read.
pub(crate) fn stand_alone(
    raw: &str,
    scope: &Scope,
    fallback: &str,
) -> Result<(String, Element), String> {
    let own = start_tag(raw)?;
    let based;
    let raw = match absolute_base(raw, &own, scope) {
        Some(changed) => {
            based = changed;
            based.as_str()
        }
        None => raw,
    };
    let mut added = String::new();
    for (prefix, namespace) in &scope.bindings {
        let (name, used) = if prefix.is_empty() {
            ("xmlns".to_owned(), true)
        } else {
            // Anywhere in the text: prefixes also occur inside attribute values.
            (
                format!("xmlns:{prefix}"),
                raw.contains(&format!("{prefix}:")),
            )
        };
        if used && find(&own.attributes, &name).is_none() {
            added.push(' ');
            added.push_str(&name);
            added.push_str("=\"");
            // As written; only the quotes may differ.
            added.push_str(&namespace.replace('"', "&quot;"));
            added.push('"');
        }
    }
    if scope.namespace("").is_none() && find(&own.attributes, "xmlns").is_none() {
        // No default namespace: where the element is prefixed, its unprefixed children are in
        // none, and must stay so inside another document.
        let default = if own.prefixed { "" } else { fallback };
        added.push_str(" xmlns=\"");
        added.push_str(default);
        added.push('"');
    }
    if let Some(lang) = &scope.lang
        && find(&own.attributes, "xml:lang").is_none()
    {
        added.push_str(" xml:lang=\"");
        push_attribute(&mut added, lang);
        added.push('"');
    }
    let mut xml = insert(raw, 1 + own.name_len, &added);
    let mut element = outline(&xml)?;
    if (scope.rebased || element.relative)
        && element.attribute("xml:base").is_none()
        && let Some(base) = &scope.base
    {
        let mut attribute = String::from(" xml:base=\"");
        push_attribute(&mut attribute, base.as_str());
        attribute.push('"');
        xml = insert(&xml, 1 + own.name_len, &attribute);
        element = outline(&xml)?;
    }
    Ok((xml, element))
}

/// The text with the base address of its start tag made whole, where it is relative to one outside.
fn absolute_base(raw: &str, own: &StartTag, scope: &Scope) -> Option<String> {
    let base = find(&own.attributes, "xml:base")?;
    if Url::parse(base) != Err(url::ParseError::RelativeUrlWithoutBase) {
        return None;
    }
    let whole = scope.base.as_ref()?.join(base).ok()?;
    let (before, value) = raw.split_once("xml:base")?;
    let value = value.trim_start().strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (_, after) = value.get(1..)?.split_once(quote)?;
    let mut out = String::with_capacity(raw.len() + 64);
    out.push_str(before);
    out.push_str("xml:base=\"");
    push_attribute(&mut out, whole.as_str());
    out.push('"');
    out.push_str(after);
    Some(out)
}

struct StartTag {
    name_len: usize,
    prefixed: bool,
    attributes: Vec<(String, String)>,
}

fn start_tag(raw: &str) -> Result<StartTag, String> {
    match quick_xml::Reader::from_str(raw).read_event() {
        Ok(Event::Start(start) | Event::Empty(start)) => Ok(StartTag {
            name_len: start.name().as_ref().len(),
            prefixed: start.name().prefix().is_some(),
            attributes: attributes(&start),
        }),
        Ok(_) => Err("it does not begin with a start tag".into()),
        Err(e) => Err(e.to_string()),
    }
}

fn insert(text: &str, at: usize, what: &str) -> String {
    let (before, after) = text.split_at_checked(at).unwrap_or((text, ""));
    [before, what, after].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::xml::{ATOM_NS, MAX_DEPTH};

    fn scope(xml: &str) -> Scope {
        let mut scope = Scope::new(Some(&Url::parse("https://example.org/f/a.xml").unwrap()));
        match quick_xml::Reader::from_str(xml).read_event().unwrap() {
            Event::Empty(start) => scope.enter(&start),
            other => panic!("{other:?}"),
        }
        scope
    }

    #[test]
    fn only_what_is_missing_and_used_is_added() {
        let scope = scope("<feed xmlns='urn:d' xmlns:t='urn:t' xmlns:u='urn:u'/>");
        let raw = "<entry\na='1'><t:x/></entry>";
        let (xml, element) = stand_alone(raw, &scope, ATOM_NS).unwrap();
        assert_eq!(
            xml,
            "<entry xmlns=\"urn:d\" xmlns:t=\"urn:t\"\na='1'><t:x/></entry>"
        );
        assert_eq!(element.namespace, "urn:d");
        assert!(element.child("urn:t", "x").is_some());
        let own = "<entry xmlns='urn:o'/>";
        assert_eq!(stand_alone(own, &scope, ATOM_NS).unwrap().0, own);
    }

    #[test]
    fn base_and_language_are_kept_where_they_matter() {
        let plain = scope("<feed xmlns='urn:d'/>");
        let absolute = "<entry><link href='https://a/'/></entry>";
        assert!(
            !stand_alone(absolute, &plain, ATOM_NS)
                .unwrap()
                .0
                .contains("xml:base")
        );
        let relative = "<entry><link href='../b'/></entry>";
        let (xml, _) = stand_alone(relative, &plain, ATOM_NS).unwrap();
        assert!(
            xml.contains(" xml:base=\"https://example.org/f/a.xml\""),
            "{xml}"
        );
        let rebased = scope("<feed xmlns='urn:d' xml:base='/g/' xml:lang='de'/>");
        let own = "<entry a='1' xml:base = 'h/'  ><link href='i'/></entry>";
        let (xml, _) = stand_alone(own, &rebased, ATOM_NS).unwrap();
        assert!(
            xml.contains("a='1' xml:base=\"https://example.org/g/h/\"  >"),
            "{xml}"
        );
        let (xml, _) = stand_alone(absolute, &rebased, ATOM_NS).unwrap();
        assert!(
            xml.contains(" xml:base=\"https://example.org/g/\""),
            "{xml}"
        );
        assert!(xml.contains(" xml:lang=\"de\""), "{xml}");
    }

    #[test]
    fn prefixed_and_undeclared_feeds_keep_their_meaning() {
        let prefixed = scope("<a:feed xmlns:a='http://www.w3.org/2005/Atom'/>");
        let (xml, element) = stand_alone("<a:entry><b/></a:entry>", &prefixed, ATOM_NS).unwrap();
        assert_eq!(element.namespace, ATOM_NS);
        assert!(xml.contains(" xmlns=\"\""), "{xml}");
        assert_eq!(element.children[0].namespace, "");
        let (_, element) = stand_alone("<entry/>", &scope("<feed/>"), ATOM_NS).unwrap();
        assert_eq!(element.namespace, ATOM_NS);
    }

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
