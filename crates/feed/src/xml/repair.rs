//! Making XML of an entry that is not quite: signs and references that XML does not know, characters
//! that it cannot hold, attributes without quotes, missing end tags.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::check::{self, Form, check, is_name, is_qname};
use super::element::{lenient, unescape};
use super::nesting::Nesting;
use super::{clean, push_attribute, push_text};
use crate::html::reference;

/// The element with what is wrong put right and everything else as it is; `None` where that is not
/// enough.
pub(crate) fn repair(xml: &str) -> Option<String> {
    let mut reader = Reader::from_str(xml);
    lenient(reader.config_mut());
    let mut out = String::with_capacity(xml.len() + xml.len() / 16);
    let mut nesting = Nesting::default();
    // Prefixes that open elements declare, with the depth of each.
    let mut declared: Vec<(usize, String)> = vec![(0, "xml".into())];
    // The depth at which an element begins that cannot be kept.
    let mut dropped = None;
    loop {
        match reader.read_event().ok()? {
            Event::Start(tag) => {
                nesting.open(tag.name().as_ref()).ok()?;
                if dropped.is_none()
                    && !push_tag(&mut out, &tag, &mut declared, nesting.depth(), "")
                {
                    dropped = Some(nesting.depth());
                }
            }
            Event::Empty(tag) => {
                let depth = nesting.depth() + 1;
                if dropped.is_none() {
                    push_tag(&mut out, &tag, &mut declared, depth, "/");
                }
                declared.retain(|(of, _)| *of < depth);
                if depth == 1 {
                    break;
                }
            }
            Event::End(tag) => {
                for name in nesting.ended(tag.name().as_ref()) {
                    let depth = name.depth;
                    if dropped.is_none() {
                        out.push_str("</");
                        out.push_str(&name.name);
                        out.push('>');
                    }
                    dropped = dropped.filter(|at| *at != depth);
                    declared.retain(|(of, _)| *of < depth);
                }
                if nesting.depth() == 0 {
                    break;
                }
            }
            Event::Eof => return None,
            _ if dropped.is_some() || nesting.depth() == 0 => {}
            Event::Text(text) => {
                let text = text.replace('&', "&amp;").replace("]]>", "]]&gt;");
                out.push_str(&clean(&text));
            }
            Event::GeneralRef(name) => push_reference(&mut out, &name),
            Event::CData(text) => {
                out.push_str("<![CDATA[");
                out.push_str(&clean(&text));
                out.push_str("]]>");
            }
            Event::Comment(text) if !text.contains("--") && !text.ends_with('-') => {
                out.push_str("<!--");
                out.push_str(&clean(&text));
                out.push_str("-->");
            }
            _ => {}
        }
    }
    check(&out, Form::Element).is_ok().then_some(out)
}

/// Writes a start tag. Returns whether its name can stand in XML.
fn push_tag(
    out: &mut String,
    tag: &BytesStart,
    declared: &mut Vec<(usize, String)>,
    depth: usize,
    end: &str,
) -> bool {
    let attributes: Vec<(String, String)> = tag
        .html_attributes()
        .with_checks(false)
        .flatten()
        .map(|a| (a.key.as_ref().to_owned(), a.value.into_owned()))
        .collect();
    for (name, value) in &attributes {
        if let Some(prefix) = name.strip_prefix("xmlns:")
            && is_name(prefix)
            && !value.is_empty()
        {
            declared.push((depth, prefix.to_owned()));
        }
    }
    let known = |name: &str| match name.split_once(':') {
        Some(("xmlns", _)) | None => true,
        Some((prefix, _)) => declared.iter().any(|(_, declared)| declared == prefix),
    };
    let name = tag.name();
    if !is_qname(name.as_ref()) || !known(name.as_ref()) {
        return false;
    }
    out.push('<');
    out.push_str(name.as_ref());
    let mut seen: Vec<&str> = Vec::new();
    let good = attributes.iter().all(|(name, _)| {
        let first = !seen.contains(&name.as_str());
        seen.push(name);
        first && known(name)
    });
    if good && check::attributes(tag.attributes_raw()).is_ok() {
        out.push_str(tag.attributes_raw());
        out.push_str(end);
        out.push('>');
        return true;
    }
    seen.clear();
    for (name, value) in &attributes {
        let empty = name.starts_with("xmlns:") && value.is_empty();
        if !is_qname(name) || !known(name) || empty || seen.contains(&name.as_str()) {
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
    out.push('>');
    true
}

/// Writes a reference as XML knows it: one of HTML as what it stands for.
fn push_reference(out: &mut String, name: &str) {
    let own = matches!(name, "amp" | "lt" | "gt" | "quot" | "apos");
    if own || name.starts_with('#') && check(&format!("<a>&{name};</a>"), Form::Element).is_ok() {
        out.push('&');
        out.push_str(name);
        out.push(';');
    } else if let Some(known) = reference(name) {
        push_text(out, &known);
    } else {
        out.push_str("&amp;");
        push_text(out, name);
        out.push(';');
    }
}
