//! Start tags as HTML reads them: quotes count only at the start of a value.

/// Attribute of a tag: its name, and the range of its value in the tag's text, without quotes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    pub name: &'a str,
    pub value: std::ops::Range<usize>,
}

/// Iterator over the attributes of the tag at the start of a text.
pub(crate) struct Attributes<'a> {
    text: &'a str,
    at: usize,
    /// End of the tag, past its `>`, once reached.
    end: Option<usize>,
}

impl<'a> Attributes<'a> {
    /// Returns the attributes in a text that is the part between a tag's name and its end.
    pub(crate) fn within(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            end: None,
        }
    }

    /// Returns the attributes of the tag at the start of `text`, which begins with `<` and a name.
    pub(super) fn new(text: &'a str) -> Self {
        let name = text.bytes().skip(1).position(|b| ends_name(b) && b != b'=');
        // The slash of an end tag does not end its name.
        let at = match text.as_bytes() {
            [b'<', b'/', ..] => 2,
            _ => name.map_or(text.len(), |len| 1 + len),
        };
        Self {
            text,
            at,
            end: None,
        }
    }

    /// Returns the position past the tag's `>`; `None` if the text ends before.
    pub(super) fn end(&self) -> Option<usize> {
        self.end
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_while(&mut self, more: impl Fn(u8) -> bool) {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or(&[]);
        self.at += rest.iter().position(|b| !more(*b)).unwrap_or(rest.len());
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        if self.end.is_some() {
            return None;
        }
        self.skip_while(|b| b.is_ascii_whitespace() || b == b'/');
        if self.peek()? == b'>' {
            self.end = Some(self.at + 1);
            return None;
        }
        let start = self.at;
        // An equals sign that begins a name is part of it.
        self.at += usize::from(self.peek() == Some(b'='));
        self.skip_while(|b| !ends_name(b));
        let name = self.text.get(start..self.at)?;
        self.skip_while(|b| b.is_ascii_whitespace());
        if self.peek() != Some(b'=') {
            let value = self.at..self.at;
            return Some(Attribute { name, value });
        }
        self.at += 1;
        self.skip_while(|b| b.is_ascii_whitespace());
        let value = match self.peek()? {
            quote @ (b'"' | b'\'') => {
                let start = self.at + 1;
                let rest = self.text.as_bytes().get(start..)?;
                let Some(len) = rest.iter().position(|b| *b == quote) else {
                    self.at = self.text.len();
                    return None;
                };
                self.at = start + len + 1;
                start..start + len
            }
            _ => {
                let start = self.at;
                self.skip_while(|b| !b.is_ascii_whitespace() && b != b'>');
                start..self.at
            }
        };
        Some(Attribute { name, value })
    }
}

fn ends_name(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>' | b'=')
}

/// Returns the position past the `>` of the tag at the start of `text`.
pub(super) fn end(text: &str) -> Option<usize> {
    let mut attributes = Attributes::new(text);
    attributes.by_ref().for_each(drop);
    attributes.end()
}

#[cfg(test)]
mod tests {
    use super::{Attributes, end};

    #[test]
    fn attributes_are_found_as_html_finds_them() {
        let read = |text: &'static str| {
            let found = Attributes::new(text);
            found.map(|a| (a.name, &text[a.value])).collect::<Vec<_>>()
        };
        assert_eq!(
            read("<a b='1>' C = \"2'\" d=3/4 e/f=''=g h>i='j'"),
            [
                ("b", "1>"),
                ("C", "2'"),
                ("d", "3/4"),
                ("e", ""),
                ("f", ""),
                ("=g", ""),
                ("h", "")
            ]
        );
        assert_eq!(read("<a/>"), []);
        assert_eq!(read("</a b='>'>"), [("a", ""), ("b", ">")]);
        for (text, len) in [
            ("<a>", Some(3)),
            ("<a b='>'>", Some(9)),
            ("<a it's>'", Some(8)),
            ("<a =>", Some(5)),
            ("<a", None),
            ("<a b='>", None),
            ("<a b=", None),
            ("</", None),
        ] {
            assert_eq!(end(text), len, "{text}");
        }
    }
}
