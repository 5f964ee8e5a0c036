//! Tokens of XML, as lenient as feeds require and without a copy: each entry is read several times,
//! for its position, its fields and its form.

use memchr::{memchr, memchr3_iter, memmem};
use quick_xml::Reader;

/// Piece of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// Start tag or empty-element tag.
    Start(Tag<'a>),
    /// Name in an end tag, without white space after it.
    End(&'a str),
    /// Character data as written, with its references.
    Text(&'a str),
    /// Content of a CDATA section.
    CData(&'a str),
    /// Content of a comment.
    Comment(&'a str),
    /// A processing instruction or the XML declaration, without `<?` and `?>`.
    Instruction(&'a str),
    /// A document type declaration.
    DocType,
    /// The end of the text.
    Eof,
}

/// A start tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag<'a> {
    /// Name with its prefix.
    pub name: &'a str,
    /// Everything between the name and the end of the tag.
    pub attributes: &'a str,
    /// Whether it ends with `/>`.
    pub empty: bool,
}

impl<'a> Tag<'a> {
    pub(crate) fn prefix(&self) -> Option<&'a str> {
        self.name.split_once(':').map(|(prefix, _)| prefix)
    }

    pub(crate) fn local(&self) -> &'a str {
        local(self.name)
    }
}

/// Returns the name without its prefix.
pub(crate) fn local(name: &str) -> &str {
    name.split_once(':').map_or(name, |(_, local)| local)
}

/// Reader of the pieces of a text, one after the other.
#[derive(Debug)]
pub(crate) struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Returns the byte position after the last piece.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Continues at another position.
    pub(crate) fn seek(&mut self, at: usize) {
        self.at = at.min(self.text.len());
    }

    /// Returns the next piece.
    ///
    /// # Errors
    /// A piece that does not end, or a `<!` that begins nothing.
    pub(crate) fn next(&mut self) -> Result<Token<'a>, &'static str> {
        let rest = self.text.get(self.at..).unwrap_or("");
        let bytes = rest.as_bytes();
        let Some(first) = bytes.first() else {
            return Ok(Token::Eof);
        };
        if *first != b'<' {
            let len = memchr(b'<', bytes).unwrap_or(bytes.len());
            self.at += len;
            return Ok(Token::Text(rest.get(..len).unwrap_or("")));
        }
        match bytes.get(1) {
            None => Err("a tag that does not end"),
            Some(b'!') => self.declaration(rest),
            // As in quick-xml, no instruction at all.
            Some(b'?') if rest.starts_with("<?>") => Err("an empty processing instruction"),
            Some(b'?') => {
                let content = self.until(rest, 2, b"?>");
                content
                    .map(Token::Instruction)
                    .ok_or("a processing instruction that does not end")
            }
            Some(b'/') => {
                let end = tag_end(bytes).ok_or("an end tag that does not end")?;
                self.at += end + 1;
                let name = rest.get(2..end).unwrap_or("");
                Ok(Token::End(name.trim_end_matches(is_space)))
            }
            Some(_) => {
                let end = tag_end(bytes).ok_or("a tag that does not end")?;
                self.at += end + 1;
                let content = rest.get(1..end).unwrap_or("");
                let (content, empty) = match content.strip_suffix('/') {
                    Some(content) => (content, true),
                    None => (content, false),
                };
                let len = content.bytes().position(|b| is_space(char::from(b)));
                let (name, attributes) = content.split_at(len.unwrap_or(content.len()));
                Ok(Token::Start(Tag {
                    name,
                    attributes,
                    empty,
                }))
            }
        }
    }

    fn declaration(&mut self, rest: &'a str) -> Result<Token<'a>, &'static str> {
        if rest.starts_with("<!--") {
            let content = self.until(rest, 4, b"-->");
            return content
                .map(Token::Comment)
                .ok_or("a comment that does not end");
        }
        if rest.starts_with("<![CDATA[") {
            let content = self.until(rest, 9, b"]]>");
            return content
                .map(Token::CData)
                .ok_or("a section that does not end");
        }
        if rest
            .get(2..9)
            .is_some_and(|d| d.eq_ignore_ascii_case("doctype"))
        {
            // Once per document, and with a grammar of its own.
            let mut reader = Reader::from_str(rest);
            let read = reader.read_event();
            read.map_err(|_| "a document type declaration that does not end")?;
            let len = usize::try_from(reader.buffer_position()).unwrap_or(rest.len());
            self.seek(self.at + len);
            return Ok(Token::DocType);
        }
        Err("\"<!\" that begins nothing")
    }

    /// Returns the text from `start` up to `end`, and moves past it.
    fn until(&mut self, rest: &'a str, start: usize, end: &[u8]) -> Option<&'a str> {
        let len = memmem::find(rest.as_bytes().get(start..)?, end)?;
        self.at += start + len + end.len();
        rest.get(start..start + len)
    }
}

/// Returns the position of the `>` of a tag, outside of quotes.
fn tag_end(bytes: &[u8]) -> Option<usize> {
    let mut quote = 0;
    for at in memchr3_iter(b'>', b'"', b'\'', bytes) {
        match bytes.get(at) {
            Some(b'>') if quote == 0 => return Some(at),
            Some(b'>') => {}
            Some(mark) if quote == 0 => quote = *mark,
            Some(mark) if quote == *mark => quote = 0,
            _ => {}
        }
    }
    None
}

/// Whether the character is white space of XML (production 3).
pub(crate) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use quick_xml::events::Event;

    use super::*;

    fn all(text: &str) -> Vec<Result<String, ()>> {
        let mut tokens = Tokens::new(text);
        let mut found = Vec::new();
        loop {
            match tokens.next() {
                Ok(Token::Eof) => return found,
                Ok(Token::Text(text)) => match found.last_mut() {
                    // The other parser returns references separately.
                    Some(Ok(last)) if last.starts_with("text ") => last.push_str(text),
                    _ => found.push(Ok(format!("text {text}"))),
                },
                Ok(Token::Start(tag)) => {
                    let kind = if tag.empty { "empty" } else { "start" };
                    found.push(Ok(format!("{kind} {}|{}", tag.name, tag.attributes)));
                }
                Ok(Token::End(name)) => found.push(Ok(format!("end {name}"))),
                Ok(Token::CData(text)) => found.push(Ok(format!("cdata {text}"))),
                Ok(Token::Comment(text)) => found.push(Ok(format!("comment {text}"))),
                Ok(Token::Instruction(text)) => found.push(Ok(format!("pi {text}"))),
                Ok(Token::DocType) => found.push(Ok("doctype".into())),
                Err(_) => {
                    found.push(Err(()));
                    return found;
                }
            }
        }
    }

    /// Returns the same pieces, by quick-xml.
    fn other(text: &str) -> Vec<Result<String, ()>> {
        let mut reader = Reader::from_str(text);
        let config = reader.config_mut();
        config.check_end_names = false;
        config.allow_unmatched_ends = true;
        config.allow_dangling_amp = true;
        let mut found: Vec<Result<String, ()>> = Vec::new();
        let push_text = |found: &mut Vec<Result<String, ()>>, text: &str| match found.last_mut() {
            Some(Ok(last)) if last.starts_with("text ") => last.push_str(text),
            _ => found.push(Ok(format!("text {text}"))),
        };
        loop {
            let piece = match reader.read_event() {
                Ok(Event::Eof) => return found,
                Ok(Event::Text(text)) => {
                    if !text.is_empty() {
                        push_text(&mut found, &text);
                    }
                    continue;
                }
                Ok(Event::GeneralRef(name)) => {
                    push_text(&mut found, &format!("&{};", &*name));
                    continue;
                }
                Ok(Event::Start(t)) => {
                    format!("start {}|{}", t.name().as_ref(), t.attributes_raw())
                }
                Ok(Event::Empty(t)) => {
                    format!("empty {}|{}", t.name().as_ref(), t.attributes_raw())
                }
                Ok(Event::End(t)) => format!("end {}", t.name().as_ref()),
                Ok(Event::CData(t)) => format!("cdata {}", &*t),
                Ok(Event::Comment(t)) => format!("comment {}", &*t),
                Ok(Event::PI(t)) => format!("pi {}", &*t),
                Ok(Event::Decl(t)) => format!("pi {}", &*t),
                Ok(Event::DocType(_)) => "doctype".to_owned(),
                Err(_) => {
                    found.push(Err(()));
                    return found;
                }
            };
            found.push(Ok(piece));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn pieces_are_those_of_quick_xml(parts in proptest::collection::vec(
            prop::sample::select(vec![
                "<a", "<b:c", "</a", ">", "/>", " d='e'", " f=\"g\"", "'", "\"", "=", " ", "\n",
                "<!--", "-->", "--", "->", "<![CDATA[", "]]>", "]]", "<?", "?>", "?", "<!",
                "<!DOCTYPE a",
                "<!doctype [", "]", "<!ENTITY x '>'>", "&amp;", "&", ";", "é", "text", "/",
                "<", "\r",
            ]), 0..14)
        ) {
            let text = parts.concat();
            prop_assert_eq!(all(&text), other(&text), "{:?}", text);
        }
    }
}
