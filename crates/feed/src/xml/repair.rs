//! Repair of an entry that is nearly XML: signs and references that XML does not define, characters
//! that it cannot hold, attributes without quotes, missing end tags.

use super::check::{self, Form, MAX_BINDINGS, check, is_name, is_qname};
use super::element::{raw_attributes, unescape};
use super::nesting::Nesting;
use super::token::{Tag, Token, Tokens};
use super::{MAX_ATTRIBUTES, clean, push_attribute, push_text};
use crate::html::reference;

/// Repairs the element and leaves everything else unchanged; `None` if the result is still no XML.
pub(crate) fn repair(xml: &str) -> Option<String> {
    let mut tokens = Tokens::new(xml);
    let mut out = String::with_capacity(xml.len() + xml.len() / 16);
    let mut nesting = Nesting::default();
    // Prefixes that open elements declare, with the depth of each, which never falls.
    let mut declared: Vec<(usize, String)> = vec![(0, "xml".into())];
    // Depth of an element that cannot be kept.
    let mut dropped = None;
    loop {
        match tokens.next().ok()? {
            Token::Start(tag) if tag.empty => {
                let depth = nesting.depth() + 1;
                if dropped.is_none() {
                    push_tag(&mut out, &tag, &mut declared, depth);
                }
                while declared.pop_if(|(of, _)| *of >= depth).is_some() {}
                if depth == 1 {
                    break;
                }
            }
            Token::Start(tag) => {
                nesting.open(tag.name).ok()?;
                let depth = nesting.depth();
                if dropped.is_none() && !push_tag(&mut out, &tag, &mut declared, depth) {
                    // Deeper elements are part of a text that is kept complete.
                    if depth > 2 {
                        return None;
                    }
                    dropped = Some(depth);
                }
            }
            Token::End(name) => {
                for ended in nesting.ended(name) {
                    let depth = ended.depth;
                    if dropped.is_none() {
                        out.push_str("</");
                        out.push_str(ended.name);
                        out.push('>');
                    }
                    dropped = dropped.filter(|at| *at != depth);
                    while declared.pop_if(|(of, _)| *of >= depth).is_some() {}
                }
                if nesting.depth() == 0 {
                    break;
                }
            }
            Token::Eof => return None,
            _ if dropped.is_some() || nesting.depth() == 0 => {}
            Token::Text(text) => push_references(&mut out, &clean(&text.replace("]]>", "]]&gt;"))),
            Token::CData(text) => {
                out.push_str("<![CDATA[");
                out.push_str(&clean(text));
                out.push_str("]]>");
            }
            Token::Comment(text) if !text.contains("--") && !text.ends_with('-') => {
                out.push_str("<!--");
                out.push_str(&clean(text));
                out.push_str("-->");
            }
            _ => {}
        }
    }
    check(&out, Form::Element).is_ok().then_some(out)
}

/// Writes a start tag. Returns whether its name is valid in XML.
fn push_tag(
    out: &mut String,
    tag: &Tag,
    declared: &mut Vec<(usize, String)>,
    depth: usize,
) -> bool {
    let attributes: Vec<(&str, &str)> = raw_attributes(tag.attributes)
        .take(MAX_ATTRIBUTES)
        .collect();
    let end = if tag.empty { "/>" } else { ">" };
    for (name, value) in &attributes {
        if let Some(prefix) = name.strip_prefix("xmlns:")
            && is_name(prefix)
            && !value.is_empty()
            // An element with more is dropped, and each name is searched for in all of them.
            && declared.len() <= MAX_BINDINGS
        {
            declared.push((depth, prefix.to_owned()));
        }
    }
    let known = |name: &str| match name.split_once(':') {
        Some(("xmlns", _)) | None => true,
        Some((prefix, _)) => declared.iter().any(|(_, declared)| declared == prefix),
    };
    if !is_qname(tag.name) || !known(tag.name) {
        return false;
    }
    out.push('<');
    out.push_str(tag.name);
    let mut seen: Vec<&str> = Vec::new();
    let good = attributes.iter().all(|(name, _)| {
        let first = !seen.contains(name);
        seen.push(name);
        first && known(name)
    });
    if good && check::attributes(tag.attributes).is_ok() {
        out.push_str(tag.attributes);
        out.push_str(end);
        return true;
    }
    seen.clear();
    for (name, value) in &attributes {
        let empty = name.starts_with("xmlns:") && value.is_empty();
        if !is_qname(name) || !known(name) || empty || seen.contains(name) {
            continue;
        }
        seen.push(name);
        out.push(' ');
        out.push_str(name);
        out.push_str("=\"");
        push_attribute(out, &unescape(value));
        out.push('"');
    }
    out.push_str(end);
    true
}

/// Writes a text with its references in XML's form: those of HTML as their characters.
fn push_references(out: &mut String, text: &str) {
    let mut parts = text.split('&');
    out.push_str(parts.next().unwrap_or(""));
    for part in parts {
        let (name, rest) = part.split_once(';').unwrap_or(("", ""));
        if check::reference(name).is_ok() {
            out.push('&');
            out.push_str(part);
        } else if let Some(known) = reference(name) {
            push_text(out, &known);
            out.push_str(rest);
        } else {
            out.push_str("&amp;");
            out.push_str(part);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, Instant};

    use super::*;
    use crate::xml::MAX_DEPTH;

    /// Each end tag and each prefixed name costs the same, whatever was declared around it.
    #[test]
    fn many_declarations_do_not_multiply_with_elements() {
        let declarations: String = (0..MAX_ATTRIBUTES)
            .map(|n| format!(" xmlns:p{n}='u'"))
            .collect();
        let open = format!("<a{declarations}>").repeat(MAX_DEPTH - 1);
        let inner = "<b/><z:b/>".repeat(50_000);
        let xml = format!("{open}{inner}{}", "</a>".repeat(MAX_DEPTH - 1));
        let began = Instant::now();
        assert_eq!(repair(&xml), None);
        let taken = began.elapsed();
        assert!(taken < Duration::from_secs(20), "{taken:?}");
    }

    #[test]
    fn as_many_declarations_as_may_be_are_known() {
        let declarations: String = (0..MAX_BINDINGS)
            .map(|n| format!(" xmlns:p{n}='urn:{n}'"))
            .collect();
        let last = MAX_BINDINGS - 1;
        let xml = format!("<a{declarations}><p{last}:b>&nbsp;</a>");
        let whole = repair(&xml).unwrap();
        assert!(whole.contains(&format!("<p{last}:b>")), "{whole}");
    }
}
