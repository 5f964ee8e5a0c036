//! Whether a piece of XML is well-formed and namespace-well-formed, strictly enough that any
//! conforming reader takes the document that it is embedded in.
//!
//! Deliberately narrower than XML 1.0 in one point: names must be ASCII. Widely used parsers
//! implement the older edition's tables for other letters, and no feed format has such names.

use std::collections::HashSet;

use quick_xml::NsReader;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::{DEFAULT_MAX_NAMESPACE_BINDINGS, QName, ResolveResult};

use super::{MAX_ATTRIBUTES, MAX_DEPTH, is_xml_char};

/// What surrounds the one element that the text must consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Exactly the element, from `<` to `>`.
    Element,
    /// A document: declaration, comments, processing instructions and white space may surround it.
    Document,
}

/// Says what is wrong, with the byte position, or nothing.
pub(crate) fn check(xml: &str, form: Form) -> Result<(), String> {
    if form == Form::Element && !(xml.starts_with('<') && xml.ends_with('>')) {
        return Err("not exactly one element".into());
    }
    let mut reader = NsReader::from_str(xml);
    reader.config_mut().enable_all_checks(true);
    // A document of ours around any element that passes must pass itself.
    let outer = usize::from(form == Form::Document);
    reader
        .resolver_mut()
        .set_max_namespace_bindings(DEFAULT_MAX_NAMESPACE_BINDINGS + outer);
    let mut depth = 0usize;
    let mut roots = 0usize;
    loop {
        let at = reader.buffer_position();
        let fail = |what: &str| Err(format!("{what} at byte {at}"));
        let event = match reader.read_event() {
            Ok(event) => event,
            Err(e) => return fail(&e.to_string()),
        };
        let outside = depth == 0;
        match event {
            Event::Eof => break,
            Event::Start(start) => {
                roots += usize::from(outside);
                depth += 1;
                if depth > MAX_DEPTH + outer {
                    return fail("elements nested too deeply");
                }
                tag(&start, &reader).or_else(|e| fail(&e))?;
            }
            Event::Empty(start) => {
                roots += usize::from(outside);
                tag(&start, &reader).or_else(|e| fail(&e))?;
            }
            // The reader has compared the name with the start tag's.
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Text(text) => {
                if outside && !text.bytes().all(is_space) {
                    return fail("text outside the element");
                }
                if text.contains("]]>") {
                    return fail("\"]]>\" in text");
                }
                chars(&text).or_else(|e| fail(&e))?;
            }
            Event::CData(text) if !outside => chars(&text).or_else(|e| fail(&e))?,
            Event::GeneralRef(name) if !outside => reference(&name).or_else(|e| fail(&e))?,
            Event::CData(_) | Event::GeneralRef(_) => return fail("text outside the element"),
            Event::Comment(text) => {
                if text.contains("--") || text.ends_with('-') {
                    return fail("\"--\" in a comment");
                }
                chars(&text).or_else(|e| fail(&e))?;
            }
            Event::PI(pi) => {
                let target = pi.target();
                if !is_name(target) || target.eq_ignore_ascii_case("xml") {
                    return fail("a processing instruction with a bad target");
                }
                chars(&pi).or_else(|e| fail(&e))?;
            }
            Event::Decl(_) if form == Form::Document && at == 0 => {}
            Event::Decl(_) => return fail("an XML declaration inside"),
            // Internal entities would make the element depend on the document around it.
            Event::DocType(_) => return fail("a document type declaration"),
        }
        if form == Form::Element && roots == 0 {
            return fail("something before the element");
        }
    }
    if depth != 0 {
        return Err("the element does not end".into());
    }
    if roots != 1 {
        return Err(format!("{roots} elements instead of one"));
    }
    Ok(())
}

/// Checks a start tag's name, attributes and prefixes.
fn tag(start: &BytesStart, reader: &NsReader<&[u8]>) -> Result<(), String> {
    let resolver = reader.resolver();
    if !is_qname(start.name().as_ref()) {
        return Err("a bad element name".into());
    }
    if start.name().prefix().is_some()
        && !matches!(
            resolver.resolve_element(start.name()).0,
            ResolveResult::Bound(_)
        )
    {
        return Err(format!(
            "the undeclared prefix of <{}>",
            start.name().as_ref()
        ));
    }
    let mut seen = HashSet::new();
    for (name, value) in attributes(start.attributes_raw())? {
        let namespace = match name.split_once(':') {
            Some(("xmlns", prefix)) => {
                if value.is_empty() || prefix == "xmlns" || prefix == "xml" {
                    return Err(format!("a declaration of the prefix {prefix:?} as nothing"));
                }
                "xmlns".to_owned()
            }
            Some(_) => match resolver.resolve_attribute(QName(name)).0 {
                ResolveResult::Bound(ns) => ns.as_ref().to_owned(),
                _ => return Err(format!("the undeclared prefix of the attribute {name}")),
            },
            None => String::new(),
        };
        if name == "xmlns" || name.starts_with("xmlns:") {
            // The two namespaces that may not be bound to another prefix (Namespaces in XML §3).
            if matches!(
                value,
                "http://www.w3.org/XML/1998/namespace" | "http://www.w3.org/2000/xmlns/"
            ) {
                return Err("a declaration of a reserved namespace".into());
            }
        }
        let local = name.split_once(':').map_or(name, |(_, local)| local);
        if !seen.insert((namespace, local)) {
            return Err(format!("the attribute {name} twice"));
        }
    }
    Ok(())
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
    chars(value)?;
    if value.contains('<') {
        return Err("\"<\" in an attribute".into());
    }
    let mut parts = value.split('&');
    parts.next();
    for part in parts {
        let (name, _) = part.split_once(';').ok_or("\"&\" in an attribute")?;
        reference(name)?;
    }
    Ok(())
}

/// A character reference to an allowed character, or one of the five predefined entities.
fn reference(name: &str) -> Result<(), String> {
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

fn chars(text: &str) -> Result<(), String> {
    match text.chars().find(|c| !is_xml_char(*c)) {
        Some(c) => Err(format!("the character U+{:04X}", u32::from(c))),
        None => Ok(()),
    }
}

fn space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn is_space(byte: u8) -> bool {
    space(char::from(byte))
}

/// A name without colon.
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
        for n in 0..=DEFAULT_MAX_NAMESPACE_BINDINGS + 1 {
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
