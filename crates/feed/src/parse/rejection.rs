//! Description of documents that are not feeds.

use super::error::ParseError;

/// Bytes of the document that are examined.
const LOOK: usize = 64 * 1024;

/// Characters of a title or beginning that are quoted.
const QUOTE: usize = 80;

/// Texts in the pages of common bot checks, in lower case. The first are those of the one in front
/// of the Linux kernel's list archives. The mere word "captcha" is not one of them: articles
/// contain it too.
const CHALLENGES: [&str; 38] = [
    "making sure you're not a bot",
    "making sure you&#39;re not a bot",
    "anubis_challenge",
    "/.within.website/",
    "checking you are not a bot",
    "/go-away/",
    "just a moment...",
    "cf-chl",
    "_cf_chl_opt",
    "challenge-platform",
    "challenges.cloudflare.com",
    "cloudflare ray id",
    "cf-turnstile",
    "enable javascript and cookies to continue",
    "checking your browser",
    "ddos-guard",
    "verify you are human",
    "verify that you're not a robot",
    "verifying you are human",
    "confirm you are a human",
    "are you a robot",
    "awswaf",
    "_incapsula_resource",
    "sucuri_cloudproxy",
    "_pxappid",
    "px-captcha",
    "captcha-delivery.com",
    "g-recaptcha",
    "recaptcha/api.js",
    "recaptcha/enterprise.js",
    "h-captcha",
    "hcaptcha.com",
    "frc-captcha",
    "altcha",
    "mtcaptcha",
    "id=\"captcha",
    "class=\"captcha",
    "name=\"captcha",
];

/// Elements that a broken HTML page may begin with.
const HTML_ROOTS: [&str; 22] = [
    "a", "b", "body", "br", "center", "div", "font", "form", "h1", "h2", "h3", "head", "hr",
    "link", "meta", "p", "pre", "script", "span", "style", "table", "title",
];

/// First bytes of binary documents, as text.
const MAGIC: [(&str, &str); 6] = [
    ("%PDF-", "a PDF document"),
    ("\u{1f}\u{8b}", "gzip-compressed data"),
    // The second byte of gzip in windows-1252, the encoding of undeclared bytes.
    ("\u{1f}‹", "gzip-compressed data"),
    ("\u{89}PNG", "a PNG image"),
    ("‰PNG", "a PNG image"),
    ("PK\u{3}\u{4}", "a ZIP archive"),
];

/// Returns the error for a document whose root element, if it has one, is `root`.
pub(super) fn not_a_feed(text: &str, root: Option<&str>) -> ParseError {
    let head = head(text);
    let lower = head.to_ascii_lowercase();
    let trimmed = head.trim_start_matches('\u{feff}').trim();
    let html = lower.contains("<html") || lower.contains("<!doctype html") || {
        root.is_none()
            && ["<head", "<body", "<title"]
                .iter()
                .any(|t| lower.contains(t))
            || root.is_some_and(|root| {
                let name = root.trim_matches(['<', '>']).to_ascii_lowercase();
                HTML_ROOTS.contains(&name.as_str())
            })
    };
    let magic = MAGIC.iter().find(|(begin, _)| text.starts_with(begin));
    let seen = if trimmed.is_empty() {
        "an empty document".to_owned()
    } else if let Some((_, name)) = magic {
        (*name).to_owned()
    } else if html {
        match title(head, &lower) {
            Some(title) => format!("an HTML page titled '{}'", quote(&title)),
            None => "an HTML page without a title".to_owned(),
        }
    } else if let Some(root) = root {
        format!("an XML document with the root element {}", quote(root))
    } else if trimmed.starts_with('{') || trimmed.starts_with('[') {
        format!(
            "JSON that is no JSON Feed, beginning with '{}'",
            quote(trimmed)
        )
    } else if trimmed
        .chars()
        .take(256)
        .any(|c| c == '\0' || c == '\u{fffd}')
    {
        "binary data".to_owned()
    } else {
        format!("text beginning with '{}'", quote(trimmed))
    };
    let challenge = html && CHALLENGES.iter().any(|c| lower.contains(c));
    let seen = if challenge {
        format!("{seen}, a bot check")
    } else {
        seen
    };
    ParseError::NotAFeed { seen, challenge }
}

fn head(text: &str) -> &str {
    let mut end = text.len().min(LOOK);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns the title of a page. `lower` is `head` in lower case, of the same length.
fn title(head: &str, lower: &str) -> Option<String> {
    let start = lower.find("<title")?;
    let start = start + lower[start..].find('>')? + 1;
    let end = start + lower[start..].find('<')?;
    let title = crate::html::plain_text(head.get(start..end)?);
    (!title.is_empty()).then_some(title)
}

/// Returns the text as one short line that is safe to print on a terminal.
fn quote(text: &str) -> String {
    let line = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(4 * QUOTE)
        .collect::<String>();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= QUOTE {
        return line;
    }
    let mut short: String = line.chars().take(QUOTE).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str) -> (String, bool) {
        match not_a_feed(text, None) {
            ParseError::NotAFeed { seen, challenge } => (seen, challenge),
            other => (other.to_string(), false),
        }
    }

    #[test]
    fn documents_are_named() {
        for (text, expected) in [
            ("", "an empty document"),
            (" \n", "an empty document"),
            (
                "<!DOCTYPE HTML><HTML><Title>Hé &amp;\nho</title>",
                "an HTML page titled 'Hé & ho'",
            ),
            ("<html><body>", "an HTML page without a title"),
            ("Not found", "text beginning with 'Not found'"),
            ("\u{1f}\u{fffd}\0", "binary data"),
            (
                "{\"a\": 1}",
                "JSON that is no JSON Feed, beginning with '{\"a\": 1}'",
            ),
        ] {
            assert_eq!(seen(text), (expected.to_owned(), false));
        }
        let long = seen(&"x".repeat(100_000)).0;
        assert!(long.len() < 200, "{long}");
        assert!(!seen("a\u{1b}[31m").0.contains('\u{1b}'));
    }

    #[test]
    fn bot_checks_are_recognised() {
        let (seen, challenge) = seen(
            "<!doctype html><html><head><title>Making sure you&#39;re not a bot!</title></head>",
        );
        assert!(challenge);
        assert_eq!(
            seen,
            "an HTML page titled 'Making sure you're not a bot!', a bot check"
        );
    }
}
