//! Strict check that a piece of XML is well-formed and namespace-well-formed, so that any
//! conforming reader accepts the document that it is embedded in.
//!
//! Deliberately narrower than XML 1.0 in one point: names must be ASCII. Widely used parsers
//! implement the older edition's tables for other letters, and no feed format has such names.

use std::borrow::Cow;

use memchr::{memchr_iter, memmem};

use super::element::unescape;
use super::token::{Tag, Token, Tokens, is_space as space};
use super::{MAX_ATTRIBUTES, MAX_DEPTH, is_clean, is_xml_char};

/// Surroundings of the one element that the text must consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Exactly the element, from `<` to `>`.
    Element,
    /// A document: declaration, comments, processing instructions and white space may surround it.
    Document,
}

/// Largest number of namespace declarations in force at any point: readers search through them.
pub(crate) const MAX_BINDINGS: usize = 128;

/// Checks the text.
///
/// # Errors
/// The defect, with the byte position.
pub(crate) fn check(xml: &str, form: Form) -> Result<(), String> {
    if form == Form::Element && !(xml.starts_with('<') && xml.ends_with('>')) {
        return Err("not exactly one element".into());
    }
    if !is_clean(xml) {
        let found = xml.char_indices().find(|(_, c)| !is_xml_char(*c));
        let (at, c) = found.unwrap_or_default();
        return Err(format!("the character U+{:04X} at byte {at}", u32::from(c)));
    }
    let mut tokens = Tokens::new(xml);
    // A document of ours around any element that passes must pass itself.
    let outer = usize::from(form == Form::Document);
    let mut bindings = Bindings::default();
    let mut open: Vec<&str> = Vec::new();
    let mut roots = 0usize;
    loop {
        let at = tokens.position();
        let fail = |what: &str| Err(format!("{what} at byte {at}"));
        let token = match tokens.next() {
            Ok(token) => token,
            Err(e) => return fail(e),
        };
        let outside = open.is_empty();
        match token {
            Token::Eof => break,
            Token::Start(start) => {
                roots += usize::from(outside);
                let depth = open.len() + 1;
                if depth > MAX_DEPTH + outer && !start.empty {
                    return fail("elements nested too deeply");
                }
                tag(&start, &mut bindings, depth, MAX_BINDINGS + outer).or_else(|e| fail(&e))?;
                if start.empty {
                    bindings.leave(depth);
                } else {
                    open.push(start.name);
                }
            }
            Token::End(name) => match open.pop() {
                Some(expected) if expected == name => bindings.leave(open.len() + 1),
                _ => return fail("an end tag of another name"),
            },
            Token::Text(text) => {
                if outside && !text.bytes().all(is_space) {
                    return fail("text outside the element");
                }
                if memmem::find(text.as_bytes(), b"]]>").is_some() {
                    return fail("\"]]>\" in text");
                }
                references(text).or_else(|e| fail(&e))?;
            }
            Token::CData(_) if outside => return fail("text outside the element"),
            Token::CData(_) => {}
            Token::Comment(text) => {
                if text.contains("--") || text.ends_with('-') {
                    return fail("\"--\" in a comment");
                }
            }
            Token::Instruction(content) => {
                let target = content.split(space).next().unwrap_or("");
                let declaration = target == "xml" && form == Form::Document && at == 0;
                if !declaration && (!is_name(target) || target.eq_ignore_ascii_case("xml")) {
                    return fail("a processing instruction with a bad target");
                }
            }
            // Internal entities would make the element depend on the document around it.
            Token::DocType => return fail("a document type declaration"),
        }
        if form == Form::Element && roots == 0 {
            return fail("something before the element");
        }
    }
    if !open.is_empty() {
        return Err("the element does not end".into());
    }
    if roots != 1 {
        return Err(format!("{roots} elements instead of one"));
    }
    Ok(())
}

/// Prefixes that the open elements declare.
#[derive(Default)]
struct Bindings<'a>(Vec<Binding<'a>>);

struct Binding<'a> {
    /// Depth of the element.
    depth: usize,
    prefix: &'a str,
    namespace: Cow<'a, str>,
}

impl<'a> Bindings<'a> {
    fn namespace(&self, prefix: &str) -> Option<&str> {
        if prefix == "xml" {
            return Some(XML_NS);
        }
        let found = self.0.iter().rev().find(|b| b.prefix == prefix);
        found.map(|b| b.namespace.as_ref())
    }

    /// Drops the declarations of the element at this depth.
    fn leave(&mut self, depth: usize) {
        while self.0.pop_if(|b| b.depth >= depth).is_some() {}
    }
}

const XML_NS: &str = "http://www.w3.org/XML/1998/namespace";

/// Checks a start tag's name, attributes and prefixes, and records its declarations.
fn tag<'a>(
    start: &Tag<'a>,
    bindings: &mut Bindings<'a>,
    depth: usize,
    most: usize,
) -> Result<(), String> {
    if !is_qname(start.name) {
        return Err("a bad element name".into());
    }
    let attributes = attributes(start.attributes)?;
    for &(name, value) in &attributes {
        let prefix = match name.split_once(':') {
            Some(("xmlns", prefix)) => {
                if value.is_empty() || prefix == "xmlns" || prefix == "xml" {
                    return Err(format!("a declaration of the prefix {prefix:?} as nothing"));
                }
                prefix
            }
            None if name == "xmlns" => "",
            _ => continue,
        };
        // The two namespaces that may not be bound to another prefix (Namespaces in XML §3).
        let namespace = normalised(value);
        if namespace == XML_NS || namespace == "http://www.w3.org/2000/xmlns/" {
            return Err("a declaration of a reserved namespace".into());
        }
        bindings.0.push(Binding {
            depth,
            prefix,
            namespace,
        });
        if bindings.0.len() > most {
            return Err("too many namespace declarations".into());
        }
    }
    if let Some(prefix) = start.prefix()
        && bindings.namespace(prefix).is_none()
    {
        return Err(format!("the undeclared prefix of <{}>", start.name));
    }
    let mut seen: Vec<(&str, &str)> = Vec::with_capacity(attributes.len());
    for &(name, _) in &attributes {
        let (namespace, local) = match name.split_once(':') {
            Some(("xmlns", prefix)) => ("xmlns", prefix),
            Some((prefix, local)) => match bindings.namespace(prefix) {
                Some(namespace) => (namespace, local),
                None => return Err(format!("the undeclared prefix of the attribute {name}")),
            },
            None => ("", name),
        };
        if seen.contains(&(namespace, local)) {
            return Err(format!("the attribute {name} twice"));
        }
        seen.push((namespace, local));
    }
    Ok(())
}

/// Returns the value of an attribute as a parser does (XML 1.0 section 3.3.3).
fn normalised(value: &str) -> Cow<'_, str> {
    if !value.contains(['&', '\t', '\r', '\n']) {
        return Cow::Borrowed(value);
    }
    Cow::Owned(unescape(
        &value.replace("\r\n", " ").replace(['\t', '\r', '\n'], " "),
    ))
}

/// Splits the raw attributes of a start tag, strictly (production 41).
pub(super) fn attributes(raw: &str) -> Result<Vec<(&str, &str)>, String> {
    let mut found = Vec::new();
    let mut rest = raw;
    loop {
        let trimmed = rest.trim_start_matches(space);
        if trimmed.is_empty() {
            return Ok(found);
        }
        if trimmed.len() == rest.len() {
            return Err("no white space before an attribute".into());
        }
        let (name, after) = trimmed
            .split_once('=')
            .ok_or("an attribute without a value")?;
        let name = name.trim_end_matches(space);
        if !is_qname(name) {
            return Err("a bad attribute name".into());
        }
        let after = after.trim_start_matches(space);
        let quote = match after.chars().next() {
            Some(q @ ('"' | '\'')) => q,
            _ => return Err(format!("the attribute {name} without quotes")),
        };
        let (value, after) = after[1..]
            .split_once(quote)
            .ok_or_else(|| format!("the attribute {name} without an end"))?;
        attribute_value(value)?;
        found.push((name, value));
        if found.len() > MAX_ATTRIBUTES {
            return Err("too many attributes".into());
        }
        rest = after;
    }
}

fn attribute_value(value: &str) -> Result<(), String> {
    if value.contains('<') {
        return Err("\"<\" in an attribute".into());
    }
    references(value)
}

/// Checks that each ampersand begins a reference that XML knows.
fn references(text: &str) -> Result<(), String> {
    for at in memchr_iter(b'&', text.as_bytes()) {
        let rest = text.get(at + 1..).unwrap_or("");
        let (name, _) = rest.split_once(';').ok_or("\"&\" without a name")?;
        reference(name)?;
    }
    Ok(())
}

/// Checks for a character reference to an allowed character, or one of the five predefined
/// entities.
pub(super) fn reference(name: &str) -> Result<(), String> {
    let known = match name.strip_prefix('#') {
        None => matches!(name, "amp" | "lt" | "gt" | "quot" | "apos"),
        Some(number) => {
            let (digits, radix) = match number.strip_prefix('x') {
                Some(hex) => (hex, 16),
                None => (number, 10),
            };
            // from_str_radix also takes a sign, XML does not.
            digits.chars().all(|c| c.is_digit(radix))
                && u32::from_str_radix(digits, radix)
                    .ok()
                    .and_then(char::from_u32)
                    .is_some_and(is_xml_char)
        }
    };
    if known {
        Ok(())
    } else {
        let shown: String = name.chars().take(20).collect();
        Err(format!("the unknown reference \"&{shown};\""))
    }
}

fn is_space(byte: u8) -> bool {
    space(char::from(byte))
}

/// Whether the text is a name without colon.
pub(super) fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

pub(super) fn is_qname(name: &str) -> bool {
    match name.split_once(':') {
        Some((prefix, local)) => is_name(prefix) && is_name(local),
        None => is_name(name),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn good_elements_pass() {
        for xml in [
            "<a/>",
            "<a b='1' c=\"&lt;&#x41;'\"\n/>",
            "<x:a xmlns:x='urn:x' x:b='1' b='2'><!-- c --><?p i?><![CDATA[<&]]>&amp;é</x:a>",
            "<a xml:lang='en' xml:base='/'>\t\r\n</a >",
            "<a xmlns=''/>",
        ] {
            assert_eq!(check(xml, Form::Element), Ok(()), "{xml}");
        }
        assert_eq!(
            check("<?xml version='1.0'?>\n<!-- x --><a/>\n", Form::Document),
            Ok(())
        );
    }

    #[test]
    fn bad_elements_do_not() {
        for xml in [
            "",
            "x",
            "<a>",
            "<a></b>",
            "<a/><b/>",
            "<a/> ",
            "<!-- c --><a/>",
            "<?xml version='1.0'?><a/>",
            "<!DOCTYPE a><a/>",
            "<a>&nbsp;</a>",
            "<a>&#0;</a>",
            "<a>&#xFFFE;</a>",
            "<a>&#+65;</a>",
            "<a>& b</a>",
            "<a>]]></a>",
            "<a>\u{8}</a>",
            "<a b=1/>",
            "<a b/>",
            "<a b='1'c='2'/>",
            "<a b='1' b='2'/>",
            "<a b='<'/>",
            "<a b='&'/>",
            "<a b='&x;'/>",
            "<x:a/>",
            "<a x:b=''/>",
            "<a xmlns:x=''/>",
            "<a xmlns:x='u' xmlns:y='u' x:b='' y:b=''/>",
            "<a:b:c xmlns:a='u'/>",
            "<1/>",
            "<a><!-- -- --></a>",
            "<a><!-- --->",
            "<a><?XML x?></a>",
            "<a xmlns:xml='urn:x'/>",
        ] {
            assert!(check(xml, Form::Element).is_err(), "{xml}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |n: usize| format!("{}{}", "<a>".repeat(n), "</a>".repeat(n));
        assert_eq!(check(&deep(MAX_DEPTH), Form::Element), Ok(()));
        assert!(check(&deep(MAX_DEPTH + 1), Form::Element).is_err());
    }

    #[test]
    fn a_document_around_a_good_element_is_good() {
        let wrapped = |inner: &str| format!("<feed xmlns='urn:f'>{inner}</feed>");
        let deep = format!("{}{}", "<a>".repeat(MAX_DEPTH), "</a>".repeat(MAX_DEPTH));
        let mut most = None;
        for n in 0..=MAX_BINDINGS + 1 {
            let bindings: String = (0..n).map(|n| format!(" xmlns:p{n}='urn:{n}'")).collect();
            let element = format!("<a{bindings}/>");
            if check(&element, Form::Element).is_ok() {
                most = Some(element);
            }
        }
        for inner in [deep, most.unwrap()] {
            assert_eq!(check(&wrapped(&inner), Form::Document), Ok(()));
        }
    }
}
