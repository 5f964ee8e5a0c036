//! Enrolment links, as people paste them.

use flexfeed_receiver::link::{Link, redact};

/// A link that is read can be written and read again; no message about a link that is not read
/// shows its token.
pub fn link(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = redact(&text);
    match Link::parse(&text) {
        Ok((link, _)) => {
            let secret = link.to_secret_text();
            assert_eq!(Link::parse(&secret), Ok((link.clone(), Vec::new())));
            let token = std::str::from_utf8(link.token.as_bytes()).expect("tokens are text");
            // A short one may stand in the link, or in a field's name, by chance.
            let elsewhere = token.len() < 12 || secret.replacen(token, "", 1).contains(token);
            assert!(elsewhere || !redact(&secret).contains(token));
            assert!(elsewhere || !format!("{link:?}").contains(token));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
