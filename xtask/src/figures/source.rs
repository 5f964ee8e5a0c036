//! Rust source text without comments and literals, and the lines of it that are test code.

/// Text of a Rust file, prepared for counting.
#[derive(Debug)]
pub struct Source {
    /// The text as it is in the file.
    pub text: String,
    /// The text with comments and the contents of literals blanked; same lines and byte offsets.
    pub code: String,
    /// Modules declared with `#[cfg(test)] mod name;`, whose files are test code.
    pub test_modules: Vec<String>,
    /// Byte ranges of items behind `#[cfg(test)]`.
    test_ranges: Vec<(usize, usize)>,
}

impl Source {
    /// Prepares the text of a file.
    #[must_use]
    pub fn new(text: String) -> Self {
        let code = blank(&text);
        let mut test_modules = Vec::new();
        let mut test_ranges = Vec::new();
        for (start, _) in code.match_indices("#[cfg(") {
            let Some(close) = matching(&code, start + 1) else {
                continue;
            };
            if !is_test_condition(&code[start + "#[cfg".len()..close]) {
                continue;
            }
            let item = skip_attributes(&code, close + 1);
            let end = item_end(&code, item);
            test_ranges.push((start, end));
            let head = code[item..end].trim_start_matches("pub ");
            if let Some(name) = head
                .strip_prefix("mod ")
                .and_then(|rest| rest.strip_suffix(';'))
            {
                test_modules.push(name.trim().to_owned());
            }
        }
        Self {
            text,
            code,
            test_modules,
            test_ranges,
        }
    }

    /// Whether the byte at `offset` belongs to an item behind `#[cfg(test)]`.
    #[must_use]
    pub fn is_test(&self, offset: usize) -> bool {
        self.test_ranges
            .iter()
            .any(|&(start, end)| (start..end).contains(&offset))
    }

    /// Returns the number of lines with code outside of tests.
    #[must_use]
    pub fn code_lines(&self) -> usize {
        let mut offset = 0;
        let mut count = 0;
        for line in self.code.split_inclusive('\n') {
            let first = line.len() - line.trim_start().len();
            if !line.trim().is_empty() && !self.is_test(offset + first) {
                count += 1;
            }
            offset += line.len();
        }
        count
    }

    /// Returns the doc blocks (runs of `///` or `//!` lines) as their first lines of text.
    #[must_use]
    pub fn doc_openings(&self) -> Vec<&str> {
        let mut openings = Vec::new();
        let mut before = "";
        for (line, code) in self.text.lines().zip(self.code.lines()) {
            let trimmed = line.trim_start();
            // A line of a literal that looks like a comment has something left of it in the code.
            let kind = match trimmed.get(..3) {
                Some("///") if !trimmed.starts_with("////") => "///",
                Some("//!") => "//!",
                _ => "",
            };
            let kind = if code.trim().is_empty() { kind } else { "" };
            if !kind.is_empty() && kind != before {
                openings.push(trimmed[3..].trim());
            }
            before = kind;
        }
        openings
    }

    /// Returns the body of each item that begins with `keyword` (`struct`, `trait`): its name, the
    /// byte offset of its body, and the text between its braces. Items of tests are left out.
    #[must_use]
    pub fn bodies(&self, keyword: &str) -> Vec<(&str, usize, &str)> {
        let mut found = Vec::new();
        for (start, _) in self.code.match_indices(keyword) {
            let after = start + keyword.len();
            if self.is_test(start) || !is_word(&self.code, start, after) {
                continue;
            }
            let rest = self.code[after..].trim_start();
            let name_at = self.code.len() - rest.len();
            let name = rest
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap_or("");
            let Some(end) = rest.find([';', '{', '(']) else {
                continue;
            };
            let open = name_at + end;
            if name.is_empty() || !self.code[open..].starts_with('{') {
                continue;
            }
            if let Some(close) = matching(&self.code, open) {
                found.push((name, open + 1, &self.code[open + 1..close]));
            }
        }
        found
    }
}

/// Whether `start..end` is a word of its own.
fn is_word(code: &str, start: usize, end: usize) -> bool {
    let letter = |c: char| c.is_alphanumeric() || c == '_';
    !code[..start].ends_with(letter) && !code[end..].starts_with(letter)
}

/// Whether the condition `(…` of a `cfg` holds in tests only.
fn is_test_condition(condition: &str) -> bool {
    let inner = condition.trim_start_matches('(').trim_end_matches(')');
    let inner = inner.strip_prefix("all(").unwrap_or(inner);
    inner.split(',').any(|part| part.trim() == "test")
}

/// Returns the offset of the bracket that closes the one at `open`.
fn matching(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(offset);
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns the offset of the item that follows the attributes at `offset`.
fn skip_attributes(code: &str, mut offset: usize) -> usize {
    loop {
        let rest = code[offset..].trim_start();
        offset = code.len() - rest.len();
        if !rest.starts_with("#[") {
            return offset;
        }
        match matching(code, offset + 1) {
            Some(close) => offset = close + 1,
            None => return offset,
        }
    }
}

/// Words that begin an item; anything else behind an attribute is a field, a variant or an
/// argument, which a comma ends.
const ITEMS: &[&str] = &[
    "async", "const", "enum", "extern", "fn", "impl", "let", "mod", "static", "struct", "trait",
    "type", "unsafe", "use",
];

/// Returns the offset behind the item that begins at `offset`: behind its `;` or its braces.
fn item_end(code: &str, offset: usize) -> usize {
    let head = code[offset..].trim_start_matches("pub");
    let head = match head.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((_, rest)) => rest,
        None => head,
    };
    let word = head.split_whitespace().next().unwrap_or("");
    let word = word.split('<').next().unwrap_or("");
    let is_item = ITEMS.contains(&word);
    let bytes = code.as_bytes();
    let mut at = offset;
    while at < bytes.len() {
        match bytes[at] {
            b';' => return at + 1,
            b',' if !is_item => return at + 1,
            b'{' => return matching(code, at).map_or(code.len(), |close| close + 1),
            b'(' | b'[' => at = matching(code, at).unwrap_or(code.len()),
            _ => {}
        }
        at += 1;
    }
    code.len()
}

/// Replaces comments and the contents of literals by blanks, byte for byte; newlines stay.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end == at {
            out.push(bytes[at]);
            at += 1;
            continue;
        }
        let comment = bytes[at] == b'/';
        for (offset, &byte) in bytes[at..end].iter().enumerate() {
            // Quotes stay, so that a line of nothing but text still counts as code.
            let edge = offset == 0 || offset + 1 == end - at;
            out.push(match byte {
                b'\n' => b'\n',
                _ if comment => b' ',
                _ if edge => b'"',
                _ if byte.is_ascii_whitespace() => b' ',
                _ => b'_',
            });
        }
        at = end;
    }
    // Only whole characters were replaced, byte for byte, by ASCII.
    String::from_utf8_lossy(&out).into_owned()
}

/// Returns the end of the comment or literal that begins at `at`; `at` if none does.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let to_end = |offset: Option<usize>| offset.map_or(bytes.len(), |offset| at + offset);
    if rest.starts_with(b"//") {
        return to_end(rest.iter().position(|&byte| byte == b'\n'));
    }
    if rest.starts_with(b"/*") {
        return block_comment_end(bytes, at);
    }
    let in_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest[0] {
        b'"' => string_end(bytes, at + 1),
        b'r' | b'b' | b'c' if !in_word => prefixed_string_end(bytes, at),
        b'\'' => char_end(bytes, at),
        _ => at,
    }
}

/// Returns the end of a nested block comment.
fn block_comment_end(bytes: &[u8], at: usize) -> usize {
    let mut depth = 0;
    let mut offset = at;
    while offset < bytes.len() {
        if bytes[offset..].starts_with(b"/*") {
            depth += 1;
            offset += 2;
        } else if bytes[offset..].starts_with(b"*/") {
            depth -= 1;
            offset += 2;
            if depth == 0 {
                return offset;
            }
        } else {
            offset += 1;
        }
    }
    bytes.len()
}

/// Returns the end of a string whose text begins at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the end of a raw, byte or C string or a byte character; `at` if it is a word.
fn prefixed_string_end(bytes: &[u8], at: usize) -> usize {
    let letters = bytes[at..]
        .iter()
        .take_while(|byte| matches!(byte, b'r' | b'b' | b'c'))
        .count();
    let hashes = bytes[at + letters..]
        .iter()
        .take_while(|&&byte| byte == b'#')
        .count();
    let quote = at + letters + hashes;
    let raw = bytes[at..at + letters].contains(&b'r');
    match bytes.get(quote) {
        _ if letters > 2 => at,
        Some(b'"') if raw => {
            let closing = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            bytes[quote + 1..]
                .windows(closing.len())
                .position(|window| window == closing)
                .map_or(bytes.len(), |offset| quote + 1 + offset + closing.len())
        }
        Some(b'"') if hashes == 0 => string_end(bytes, quote + 1),
        Some(b'\'') if hashes == 0 && letters == 1 && bytes[at] == b'b' => char_end(bytes, quote),
        _ => at,
    }
}

/// Returns the end of a character; `at` if the quote begins a lifetime.
fn char_end(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at + 1) {
        Some(b'\\') => bytes[at + 3..]
            .iter()
            .position(|&byte| byte == b'\'')
            .map_or(bytes.len(), |offset| at + 3 + offset + 1),
        Some(first) => {
            let width = match first {
                0..=0x7f => 1,
                0x80..=0xdf => 2,
                0xe0..=0xef => 3,
                _ => 4,
            };
            if bytes.get(at + 1 + width) == Some(&b'\'') {
                at + width + 2
            } else {
                at
            }
        }
        None => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new(text.to_owned())
    }

    #[test]
    fn comments_and_literals_are_blanked_and_lifetimes_are_not() {
        let text = "fn a<'x>(b: &'x str) -> char { /* { */ '{' } // {\nlet s = r#\"{\"#; b'{';";
        let code = source(text).code;
        assert_eq!(code.len(), text.len());
        assert_eq!(code.matches('{').count(), 1);
        assert!(code.contains("fn a<'x>(b: &'x str)"));
    }

    #[test]
    fn lines_of_tests_comments_and_blanks_are_no_code() {
        let text = "/// Doc.\nfn a() {\n\n    // Why.\n    b();\n}\n#[cfg(test)]\nmod tests {\n    \
                    fn c() {}\n}\n#[cfg(all(test, unix))]\nuse d;\nconst E: u8 = 0;\n";
        assert_eq!(source(text).code_lines(), 4);
    }

    #[test]
    fn text_in_a_literal_is_code() {
        assert_eq!(
            source("const A: &str = \"\n/// What\n\";\n").code_lines(),
            3
        );
        assert!(
            source("const A: &str = \"\n/// What\n\";\n")
                .doc_openings()
                .is_empty()
        );
    }

    #[test]
    fn a_doc_block_is_counted_once() {
        let text = "//! One.\n//! Two.\n\n/// What it is.\n///\n/// It.\nfn a() {}\n//// no\n";
        assert_eq!(source(text).doc_openings(), ["One.", "What it is."]);
    }

    #[test]
    fn a_field_for_tests_ends_with_its_comma_and_generics_do_not() {
        let text = "struct A {\n#[cfg(test)]\nb: u8,\nc: u8,\n}\n\
                    #[cfg(test)]\nimpl<A, B> C<A, B> {\nfn d() {}\n}\n";
        assert_eq!(source(text).code_lines(), 3);
    }

    #[test]
    fn test_modules_in_files_of_their_own_are_named() {
        let text = "#[cfg(test)]\nmod tests;\n#[cfg(test)]\npub mod lab;\nmod product;\n";
        assert_eq!(source(text).test_modules, ["tests", "lab"]);
    }

    #[test]
    fn bodies_have_names_and_skip_tests() {
        let text = "struct A<T> where T: X { a: T }\nstruct B(u8);\nstruct C;\nconstruct!{}\n\
                    #[cfg(test)]\nstruct D { a: u8 }\n";
        let names: Vec<_> = source(text)
            .bodies("struct")
            .iter()
            .map(|(name, _, body)| format!("{name}:{}", body.trim()))
            .collect();
        assert_eq!(names, ["A:a: T"]);
    }
}
