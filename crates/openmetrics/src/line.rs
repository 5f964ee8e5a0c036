//! Sample lines.

use std::collections::BTreeMap;

/// Name, labels and value of a sample.
type Parts<'a> = (&'a str, BTreeMap<String, String>, f64);

/// Whether a text is a valid name of a metric or, without colons, of a label.
pub(crate) fn is_name(name: &str, colons: bool) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    !name.is_empty() && name.chars().all(allowed) && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Parses a sample: `name{label="value",…} value`.
pub(crate) fn sample(line: &str) -> Result<Parts<'_>, String> {
    let end = line
        .find(['{', ' '])
        .ok_or("neither labels nor a value after the name")?;
    let (name, rest) = line.split_at(end);
    if !is_name(name, true) {
        return Err(format!("{name:?} is no name of a metric"));
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest
        .strip_prefix(' ')
        .ok_or("no single space before the value")?;
    if value.contains(' ') {
        return Err("trailing text after the value".into());
    }
    Ok((name, labels, number(value)?))
}

fn number(text: &str) -> Result<f64, String> {
    match text {
        "+Inf" => Ok(f64::INFINITY),
        "-Inf" => Ok(f64::NEG_INFINITY),
        "NaN" => Ok(f64::NAN),
        _ if text.contains(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E')) => {
            Err(format!("{text:?} is no number"))
        }
        _ => text.parse().map_err(|_| format!("{text:?} is no number")),
    }
}

/// Parses labels up to the closing brace; returns them and the rest.
fn labels(text: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return Ok((labels, behind));
        }
        if !labels.is_empty() {
            rest = rest.strip_prefix(',').ok_or("no comma between labels")?;
        }
        let (name, quoted) = rest.split_once("=\"").ok_or("a label without a value")?;
        if !is_name(name, false) {
            return Err(format!("{name:?} is no name of a label"));
        }
        let end = closing(quoted).ok_or("a label's value without an end")?;
        let value = quoted.get(..end).unwrap_or_default();
        rest = quoted.get(end + 1..).unwrap_or_default();
        if labels.insert(name.to_owned(), unescape(value)?).is_some() {
            return Err(format!("the label {name} twice"));
        }
    }
}

/// Returns the position of the closing quote.
fn closing(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at),
            _ => {}
        }
    }
    None
}

/// Unescapes `\\`, `\"` and `\n`; other escapes are errors.
pub(crate) fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\\') => plain.push('\\'),
                Some('"') => plain.push('"'),
                Some('n') => plain.push('\n'),
                other => return Err(format!("a backslash before {other:?}")),
            },
            '\r' => return Err("a carriage return".into()),
            c => plain.push(c),
        }
    }
    Ok(plain)
}
