//! Webhooks: an HTTP POST for each update, as a CloudEvents 1.0 event in binary mode, signed.
//!
//! The operator chose the address, so it may be a private one; the target of a redirect is the
//! server's choice, so redirects are not followed.

use std::error::Error as StdError;
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use url::Url;

use super::event::Event;
use super::signature::SigningKey;
use super::{Target, Verdict};
use crate::config::shown_url;
use service::peer_text::plain;

/// Bytes read of a response: enough for an error message and for reuse of the connection.
const ANSWER: usize = 4 << 10;

/// Time limit for the body of an answer.
const REST: Duration = Duration::from_secs(1);

/// Time limit for connecting.
const CONNECT: Duration = Duration::from_secs(10);

/// Longest header value.
const MAX_HEADER: usize = 4096;

/// Webhook.
#[derive(Debug)]
pub struct Webhook {
    url: Url,
    key: Option<SigningKey>,
    timeout: Duration,
    client: Client,
    /// Note for https errors if no certificate authorities were found.
    tls_note: Option<String>,
}

impl Webhook {
    /// Returns a webhook that posts to `url`, signed with `key`, with `timeout` for each attempt.
    ///
    /// # Errors
    /// The address is not for HTTP, or no client can be made; in words for the operator.
    pub fn new(url: Url, key: Option<SigningKey>, timeout: Duration) -> Result<Self, String> {
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(format!(
                "{} is no address for a webhook: use http:// or https://",
                shown_url(&url)
            ));
        }
        let (client, tls_note) = client()?;
        Ok(Self {
            url,
            key,
            timeout,
            client,
            tls_note,
        })
    }

    /// Posts an event, and waits for the status.
    async fn post(&self, event: &Event) -> Result<Response, String> {
        let body = match &event.body {
            Some((_, body)) => body.clone(),
            None => serde_json::to_vec(&event.data).map_err(|error| error.to_string())?,
        };
        let mut headers = headers(event);
        let now = Timestamp::now().as_second();
        let mut put = |name, value: String| {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        // A message's id is its publisher's: any text, and a header and a signature take less.
        let id = match event.body {
            Some(_) => encoded(&event.id).replace('.', "%2E"),
            None => event.id.clone(),
        };
        put("webhook-id", id.clone());
        put("webhook-timestamp", now.to_string());
        if let Some(key) = &self.key {
            put("webhook-signature", key.sign(&id, now, &body));
        }
        let request = self.client.post(self.url.clone()).headers(headers);
        let sent = request.body(body).send().await;
        sent.map_err(|error| format!("{}: {}", shown_url(&self.url), self.words(&error)))
    }

    /// Judges an answer: 2xx is success, 410 the end, everything else is retried.
    async fn judge(&self, mut response: Response) -> Verdict {
        let status = response.status();
        let after = retry_after(response.headers());
        let mut answer = Vec::new();
        let reading = async {
            while answer.len() < ANSWER
                && let Ok(Some(chunk)) = response.chunk().await
            {
                answer.extend_from_slice(&chunk);
            }
        };
        // The status decides, even if the body never ends.
        let _ = tokio::time::timeout(REST, reading).await;
        if status.is_success() {
            return Verdict::Done;
        }
        let said = String::from_utf8_lossy(&answer);
        let said: String = plain(said.trim()).chars().take(200).collect();
        let mut reason = format!("{} answered {status}", shown_url(&self.url));
        if status.is_redirection() {
            reason.push_str("; redirects are not followed: give the webhook the address itself");
        } else if !said.is_empty() {
            reason = format!("{reason}: {said}");
        }
        if status == StatusCode::GONE {
            return Verdict::Disable { reason };
        }
        Verdict::Again { reason, after }
    }

    fn words(&self, error: &reqwest::Error) -> String {
        let mut causes: Vec<String> = Vec::new();
        let mut next: Option<&(dyn StdError + 'static)> = error.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if causes.last() != Some(&text) && causes.len() < 8 {
                causes.push(text);
            }
            next = cause.source();
        }
        if causes.is_empty() {
            // Its own text has the whole address.
            causes.push("the request failed".into());
        }
        if self.url.scheme() == "https" {
            causes.extend(self.tls_note.clone());
        }
        causes.join(": ")
    }
}

impl Target for Webhook {
    const KIND: &'static str = "webhook";

    async fn attempt(&self, event: &Event, _attempt: u32) -> Verdict {
        let reason = match tokio::time::timeout(self.timeout, self.post(event)).await {
            Ok(Ok(response)) => return self.judge(response).await,
            Ok(Err(reason)) => reason,
            Err(_) => format!(
                "{} did not answer within {} s",
                shown_url(&self.url),
                self.timeout.as_secs_f64()
            ),
        };
        Verdict::Again {
            reason,
            after: None,
        }
    }
}

/// Returns a client, and the problem with https if only http works.
fn client() -> Result<(Client, Option<String>), String> {
    // An error means that there is a provider already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        Client::builder()
            .user_agent(concat!("flexfeed-receiver/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(1)
    };
    let words = |error: reqwest::Error| match error.source() {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    };
    match builder().build() {
        Ok(client) => Ok((client, None)),
        // A machine without certificate authorities can still post over plain http.
        Err(error) => {
            let note = format!(
                "{} (https needs the certificate authorities of the system: install the package \
                 ca-certificates)",
                words(error)
            );
            let client = builder().tls_certs_only([]).build().map_err(words)?;
            Ok((client, Some(note)))
        }
    }
}

/// Returns the event's attributes by the HTTP binding of CloudEvents.
fn headers(event: &Event) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let entry = HeaderValue::from_static("application/json");
    let content_type = match &event.body {
        // A message's media type may have what no header may.
        Some((kind, _)) => HeaderValue::from_str(kind).unwrap_or(entry),
        None => entry,
    };
    headers.insert(CONTENT_TYPE, content_type);
    let seq = event.seq.to_string();
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-type", &event.kind),
        ("ce-source", &event.source),
        ("ce-id", &event.id),
        ("ce-time", &event.time),
        ("ce-subject", &event.subject),
        ("ce-channel", &event.channel),
        ("ce-sequence", &seq),
    ] {
        if let Ok(value) = HeaderValue::from_str(&encoded(value)) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers
}

/// Returns a header value by the CloudEvents HTTP binding, section 3.1.3.2: printable ASCII except
/// `"` and `%` is kept, everything else percent-encoded; truncated if very long.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '!'..='~') && !matches!(c, '"' | '%') {
            out.push(c);
        } else {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
        if out.len() >= MAX_HEADER {
            break;
        }
    }
    out
}

/// Parses `Retry-After` (RFC 9110 section 10.2.3): seconds or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = rfc2822::parse(value).ok()?.timestamp();
    let wait = at.as_second().saturating_sub(Timestamp::now().as_second());
    Some(Duration::from_secs(u64::try_from(wait).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn header_values_are_encoded_by_the_binding() {
        assert_eq!(encoded("urn:x/1?a=b"), "urn:x/1?a=b");
        assert_eq!(
            encoded("Euro € \"50%\"\r\n"),
            "Euro%20%E2%82%AC%20%2250%25%22%0D%0A"
        );
        assert!(encoded(&"é".repeat(10_000)).len() <= MAX_HEADER + 12);
    }

    #[test]
    fn retry_after_has_two_forms() {
        let after = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(value).unwrap());
            retry_after(&headers)
        };
        assert_eq!(after("120"), Some(Duration::from_secs(120)));
        assert_eq!(after("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        assert!(after("Fri, 31 Dec 2100 23:59:59 GMT") > Some(Duration::from_secs(1 << 30)));
        for nonsense in ["soon", "-1", "1.5"] {
            assert_eq!(after(nonsense), None);
        }
    }

    #[test]
    fn no_message_shows_a_possible_secret() {
        let error = Webhook::new(
            Url::parse("ftp://u:p@example.org/s3cret").unwrap(),
            None,
            CONNECT,
        );
        let error = error.unwrap_err();
        assert!(error.contains("ftp://example.org/…"), "{error}");
        assert!(
            !error.contains("u:p") && !error.contains("s3cret"),
            "{error}"
        );
    }
}
