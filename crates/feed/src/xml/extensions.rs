//! Elements of other vocabularies in an entry (`thr:in-reply-to`, `itunes:duration`): kept if the
//! entry itself has to be written from its fields.

use super::check::{Form, check};
use super::element::{Child, Element};
use super::repair::repair;
use super::scope::{Scope, extract_element};
use super::token::{Token, Tokens};
use super::{ATOM_03_NS, ATOM_NS};

/// Largest number of bytes kept: declarations of the document are repeated in each element.
const MAX_BYTES: usize = 64 * 1024;

/// Namespaces whose elements are read into the entry's fields, in small letters.
const READ: [&str; 5] = [
    "purl.org/rss/1.0/modules/content",
    "purl.org/dc/",
    "www.w3.org/1999/xhtml",
    "rssnamespace.org/feedburner",
    "undeclared prefix ",
];

/// Returns the elements of other namespaces in an entry that is cut out of its document, each
/// complete by itself.
pub(crate) fn extensions(text: &str, element: &Element) -> String {
    let mut out = String::new();
    let mut foreign = element
        .children
        .iter()
        .filter(|child| is_foreign(child, &element.namespace))
        .peekable();
    if foreign.peek().is_none() {
        return out;
    }
    let mut scope = Scope::new(None);
    if let Ok(Token::Start(start)) = Tokens::new(text).next() {
        scope.enter(&start);
    }
    for child in foreign {
        let raw = text.get(child.range.clone()).unwrap_or("");
        let Ok((mut whole, _)) = extract_element(raw, &scope, "") else {
            continue;
        };
        // Nothing in the element is without a prefix.
        if !child.nested && is_prefixed(raw) {
            whole = whole.replacen(" xmlns=\"\"", "", 1);
        }
        let whole = match check(&whole, Form::Element) {
            Ok(()) => Some(whole),
            Err(_) => repair(&whole),
        };
        out.extend(whole.filter(|whole| out.len() + whole.len() <= MAX_BYTES));
    }
    out
}

fn is_prefixed(raw: &str) -> bool {
    let name = raw
        .split(|c: char| c.is_ascii_whitespace() || matches!(c, '>' | '/'))
        .next();
    name.is_some_and(|name| name.contains(':'))
}

fn is_foreign(child: &Child, own: &str) -> bool {
    let namespace = child.namespace.as_str();
    if namespace.is_empty() || namespace == own || matches!(namespace, ATOM_NS | ATOM_03_NS) {
        return false;
    }
    let lower = namespace.to_ascii_lowercase();
    !READ.iter().any(|read| lower.contains(read))
}
