//! Declarations of the elements around an entry, and their insertion into an entry that is cut out.

use memchr::memmem;
use url::Url;

use super::element::{Element, attributes, find, outline, raw_attributes, unescape};
use super::push_attribute;
use super::token::{Tag, Token, Tokens};
use crate::html::links;

/// Longest namespace name that is copied into entries: the copies multiply with the entries.
const MAX_NAMESPACE: usize = 2048;

/// Largest number of declarations that are kept from the elements around the entries.
const MAX_BINDINGS: usize = 128;

/// Declarations of the elements around an entry, which are missing after the entry is cut out.
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

    /// Returns the address that links in the entries are relative to.
    pub(crate) fn base(&self) -> Option<&Url> {
        self.base.as_ref()
    }

    /// Returns the language of the document's texts, by its `xml:lang`.
    pub(crate) fn lang(&self) -> Option<&str> {
        self.lang.as_deref()
    }

    /// Returns the namespace of a prefix in this scope.
    pub(crate) fn namespace(&self, prefix: &str) -> Option<&str> {
        self.bindings
            .iter()
            .find(|(p, _)| p == prefix)
            .map(|(_, namespace)| namespace.as_str())
    }

    /// Adds the declarations of an element that is entered.
    pub(crate) fn enter(&mut self, start: &Tag) {
        for (key, value) in raw_attributes(start.attributes) {
            let prefix = match key.split_once(':') {
                Some(("xmlns", prefix)) => prefix,
                None if key == "xmlns" => "",
                Some(("xml", "base")) => {
                    let value = unescape(value);
                    let based = links::join(self.base.as_ref(), &value);
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

/// Completes an entry's original text: adds to its start tag the declarations that the entry uses
/// and that the elements around it made. Nothing else is changed.
///
/// `fallback` is the namespace of an element without one in a document that declares none.
///
/// # Errors
/// The defect of the text, if it cannot be read.
pub(crate) fn extract_element(
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
                memmem::find(raw.as_bytes(), format!("{prefix}:").as_bytes()).is_some(),
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
        // No default namespace: if the element is prefixed, its unprefixed children are in none,
        // and must stay so inside another document.
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

/// Returns the text with the base address of its start tag resolved, if that is relative to one
/// outside.
fn absolute_base(raw: &str, own: &StartTag, scope: &Scope) -> Option<String> {
    let base = find(&own.attributes, "xml:base")?;
    if Url::parse(base) != Err(url::ParseError::RelativeUrlWithoutBase) {
        return None;
    }
    let whole = links::join(Some(scope.base.as_ref()?), base)?;
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
    match Tokens::new(raw).next()? {
        Token::Start(start) => Ok(StartTag {
            name_len: start.name.len(),
            prefixed: start.prefix().is_some(),
            attributes: attributes(start.attributes),
        }),
        _ => Err("it does not begin with a start tag".into()),
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
    use crate::xml::ATOM_NS;

    fn scope(xml: &str) -> Scope {
        let mut scope = Scope::new(Some(&Url::parse("https://example.org/f/a.xml").unwrap()));
        match Tokens::new(xml).next().unwrap() {
            Token::Start(start) => scope.enter(&start),
            other => panic!("{other:?}"),
        }
        scope
    }

    #[test]
    fn only_missing_and_used_declarations_are_added() {
        let scope = scope("<feed xmlns='urn:d' xmlns:t='urn:t' xmlns:u='urn:u'/>");
        let raw = "<entry\na='1'><t:x/></entry>";
        let (xml, element) = extract_element(raw, &scope, ATOM_NS).unwrap();
        assert_eq!(
            xml,
            "<entry xmlns=\"urn:d\" xmlns:t=\"urn:t\"\na='1'><t:x/></entry>"
        );
        assert_eq!(element.namespace, "urn:d");
        assert!(element.child("urn:t", "x").is_some());
        let own = "<entry xmlns='urn:o'/>";
        assert_eq!(extract_element(own, &scope, ATOM_NS).unwrap().0, own);
    }

    #[test]
    fn base_and_language_are_kept_where_they_matter() {
        let plain = scope("<feed xmlns='urn:d'/>");
        let absolute = "<entry><link href='https://a/'/></entry>";
        assert!(
            !extract_element(absolute, &plain, ATOM_NS)
                .unwrap()
                .0
                .contains("xml:base")
        );
        let relative = "<entry><link href='../b'/></entry>";
        let (xml, _) = extract_element(relative, &plain, ATOM_NS).unwrap();
        assert!(
            xml.contains(" xml:base=\"https://example.org/f/a.xml\""),
            "{xml}"
        );
        let rebased = scope("<feed xmlns='urn:d' xml:base='/g/' xml:lang='de'/>");
        let own = "<entry a='1' xml:base = 'h/'  ><link href='i'/></entry>";
        let (xml, _) = extract_element(own, &rebased, ATOM_NS).unwrap();
        assert!(
            xml.contains("a='1' xml:base=\"https://example.org/g/h/\"  >"),
            "{xml}"
        );
        let (xml, _) = extract_element(absolute, &rebased, ATOM_NS).unwrap();
        assert!(
            xml.contains(" xml:base=\"https://example.org/g/\""),
            "{xml}"
        );
        assert!(xml.contains(" xml:lang=\"de\""), "{xml}");
    }

    #[test]
    fn prefixed_and_undeclared_feeds_keep_their_meaning() {
        let prefixed = scope("<a:feed xmlns:a='http://www.w3.org/2005/Atom'/>");
        let (xml, element) =
            extract_element("<a:entry><b/></a:entry>", &prefixed, ATOM_NS).unwrap();
        assert_eq!(element.namespace, ATOM_NS);
        assert!(xml.contains(" xmlns=\"\""), "{xml}");
        assert_eq!(element.children[0].namespace, "");
        let (_, element) = extract_element("<entry/>", &scope("<feed/>"), ATOM_NS).unwrap();
        assert_eq!(element.namespace, ATOM_NS);
    }
}
