//! Formats of `/metrics`. The programs write OpenMetrics; a client that does not ask for it gets
//! Prometheus's own text format, which every reader of metrics accepts. A sample is the same line
//! in both, so series have the same names in either format.

use std::fmt;

use axum::http::header::{ACCEPT, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

/// Text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's text format, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that a request prefers; the text, unless it names OpenMetrics.
    #[must_use]
    pub fn asked(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(ACCEPT).iter();
        let accepted = accepted.filter_map(|value| value.to_str().ok());
        let ranges = accepted
            .flat_map(|value| value.split(','))
            .filter_map(Range::read);
        let (mut text, mut open) = (Preference::default(), Preference::default());
        for (place, range) in ranges.enumerate() {
            let Some((format, specific)) = range.means() else {
                continue;
            };
            let preference = Preference {
                specific,
                weight: range.weight,
                place,
            };
            match format {
                Format::Text => text.take(preference),
                Format::OpenMetrics => open.take(preference),
            }
        }
        match open.weight > 0 && open.precedes(&text) {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    /// Content type of the answer.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Preference of a request for one format.
#[derive(Debug, Clone, Copy, Default)]
struct Preference {
    /// Precision with which the format is named; the highest wins.
    specific: u8,
    /// Weight in thousandths; 0 for not at all.
    weight: u16,
    /// Position in the list.
    place: usize,
}

impl Preference {
    fn take(&mut self, other: Self) {
        if (other.specific, other.weight) > (self.specific, self.weight) {
            *self = other;
        }
    }

    /// Whether this format is preferred: of greater weight, or named more exactly, or earlier.
    fn precedes(&self, other: &Self) -> bool {
        let exactly = |preference: &Self| preference.specific >= NAMED;
        match self.weight.cmp(&other.weight) {
            std::cmp::Ordering::Equal if exactly(other) => self.place < other.place,
            order => order.is_ge(),
        }
    }
}

/// Precision of `*/*`, `text/*`, a type, and a type with its version.
const ANY: u8 = 1;
const KIND: u8 = 2;
const NAMED: u8 = 3;
const VERSIONED: u8 = 4;

/// Element of an `Accept` header (RFC 9110, section 12.5.1).
#[derive(Debug)]
struct Range<'a> {
    kind: &'a str,
    version: Option<&'a str>,
    weight: u16,
}

impl<'a> Range<'a> {
    /// Parses an element; `None` if it is malformed.
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let mut range = Self {
            kind: parts.next().filter(|kind| !kind.is_empty())?,
            version: None,
            weight: 1000,
        };
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim_matches('"');
            if name.eq_ignore_ascii_case("q") {
                range.weight = thousandths(value)?;
            } else if name.eq_ignore_ascii_case("version") {
                range.version = Some(value);
            }
        }
        Some(range)
    }

    /// Returns the format that the element names, and the precision.
    fn means(&self) -> Option<(Format, u8)> {
        let is = |kind: &str| self.kind.eq_ignore_ascii_case(kind);
        let (format, own) = match () {
            () if is("*/*") => return Some((Format::Text, ANY)),
            () if is("text/*") => return Some((Format::Text, KIND)),
            () if is("text/plain") => (Format::Text, "0.0.4"),
            () if is("application/openmetrics-text") => (Format::OpenMetrics, "1.0.0"),
            () => return None,
        };
        match self.version {
            None => Some((format, NAMED)),
            Some(version) if version == own => Some((format, VERSIONED)),
            Some(_) => None,
        }
    }
}

/// Parses a weight such as `0.75` to thousandths.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let part = format!("{part:0<3}").parse::<u16>().ok()?;
    match (whole, part) {
        ("0", part) => Some(part),
        ("1", 0) => Some(1000),
        _ => None,
    }
}

/// Answers a request with metrics, given as OpenMetrics, in the format that it prefers.
pub fn answer(headers: &HeaderMap, open_metrics: Result<String, fmt::Error>) -> Response {
    let Ok(text) = open_metrics else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let format = Format::asked(headers);
    let text = match format {
        Format::Text => plain(&text),
        Format::OpenMetrics => text,
    };
    let header = |name: HeaderName, value| (name, HeaderValue::from_static(value));
    let headers = [
        header(CONTENT_TYPE, format.content_type()),
        header(VARY, "accept"),
    ];
    (headers, text).into_response()
}

/// Returns an OpenMetrics text in Prometheus's text format. There a family has the name of its
/// samples and no unit, and cannot be an `info`. The text has to be the encoder's: well-formed,
/// `# HELP` right before `# TYPE`, no exemplars.
#[must_use]
pub fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        let about = line.strip_prefix("# ");
        let about = about.map(|about| about.split_once(' ').unwrap_or((about, "")));
        match about {
            // The family's name depends on the type.
            Some(("HELP", rest)) => help = rest.split_once(' '),
            Some(("TYPE", rest)) => {
                let (name, kind) = rest.split_once(' ').unwrap_or((rest, "unknown"));
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "gauge" | "histogram" | "summary" => ("", kind),
                    _ => ("", "untyped"),
                };
                if let Some((_, words)) = help.take().filter(|(of, _)| *of == name) {
                    text.push_str(&format!("# HELP {name}{suffix} {words}\n"));
                }
                text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
            }
            // `# UNIT` and `# EOF`.
            Some(_) => {}
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn asked(accept: &[&str]) -> Format {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(ACCEPT, HeaderValue::from_str(value).unwrap());
        }
        Format::asked(&headers)
    }

    #[test]
    fn openmetrics_is_for_clients_that_prefer_it() {
        for accept in [
            // Prometheus 2 and 3, and the latter when it also takes protobuf.
            &[
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                 version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            ][..],
            &[
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;\
                 escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            ],
            &[
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                 encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,\
                 text/plain;version=0.0.4;q=0.2",
            ],
            &["application/openmetrics-text"],
            &["application/openmetrics-text; version=\"1.0.0\" ; charset=utf-8"],
            &["APPLICATION/OpenMetrics-Text; Q=0.5, text/plain;q=0.499"],
            &["application/openmetrics-text, */*"],
            &["*/*, application/openmetrics-text"],
            &["application/openmetrics-text, text/plain"],
            &["text/plain;q=0.1", "application/openmetrics-text;q=0.2"],
            // The more exact name counts.
            &["application/openmetrics-text;q=0.5, text/*;q=0.9, text/plain;q=0.1"],
            &["application/openmetrics-text;q=0.5, text/plain;version=1.0.0"],
        ] {
            assert_eq!(asked(accept), Format::OpenMetrics, "{accept:?}");
        }
    }

    #[test]
    fn all_other_clients_get_the_text() {
        for accept in [
            &[][..],
            &[""],
            &["*/*"],
            &["text/plain;version=0.0.4"],
            &["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"],
            &["application/json"],
            &["application/openmetrics-text;q=0"],
            &["application/openmetrics-text;q=0, */*;q=0"],
            &["application/openmetrics-text;q=0.4, text/plain;q=0.5"],
            &["application/openmetrics-text;q=0.4, */*;q=0.5"],
            &["text/plain, application/openmetrics-text"],
            // An unsupported version.
            &["application/openmetrics-text;version=0.0.1"],
            &["application/openmetrics-text;version=2.0.0, text/plain;q=0.1"],
            // Malformed elements are ignored.
            &["application/openmetrics-text;q=1.5"],
            &["application/openmetrics-text;q=2"],
            &["application/openmetrics-text;q=0.1234"],
            &["application/openmetrics-text;q=+.5"],
            &["application/openmetrics-text;q"],
            &[";;;,,,=;q=;"],
        ] {
            assert_eq!(asked(accept), Format::Text, "{accept:?}");
        }
        let mut headers = HeaderMap::new();
        let bytes = HeaderValue::from_bytes(b"application/openmetrics-text \xff").unwrap();
        headers.append(ACCEPT, bytes);
        assert_eq!(Format::asked(&headers), Format::Text);
    }

    #[test]
    fn answers_have_their_content_type() {
        let text = || Ok("# HELP a b.\n# TYPE a counter\na_total 1\n# EOF\n".to_owned());
        let mut headers = HeaderMap::new();
        let answered = answer(&headers, text());
        assert_eq!(
            answered.headers()[CONTENT_TYPE],
            "text/plain; version=0.0.4; charset=utf-8"
        );
        assert_eq!(answered.headers()[VARY], "accept");
        let open = HeaderValue::from_static("application/openmetrics-text");
        headers.insert(ACCEPT, open);
        let answered = answer(&headers, text());
        assert_eq!(
            answered.headers()[CONTENT_TYPE],
            "application/openmetrics-text; version=1.0.0; charset=utf-8"
        );
        let failed = answer(&headers, Err(fmt::Error));
        assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    #[test]
    fn families_have_the_names_of_their_samples() {
        let open = "\
# HELP a_things Things # and \\\\ more.
# TYPE a_things counter
a_things_total{x=\"# TYPE y\"} 7
# HELP a_size_bytes Size.
# TYPE a_size_bytes gauge
# UNIT a_size_bytes bytes
# HELP a_build The program.
# TYPE a_build info
a_build_info{version=\"1\"} 1
# HELP a_time_seconds Time.
# TYPE a_time_seconds histogram
# UNIT a_time_seconds seconds
a_time_seconds_sum 0.5
a_time_seconds_count 1
a_time_seconds_bucket{le=\"1.0\"} 1
a_time_seconds_bucket{le=\"+Inf\"} 1
# HELP a_riddle Unknown.
# TYPE a_riddle unknown
a_riddle 3
# EOF
";
        let text = "\
# HELP a_things_total Things # and \\\\ more.
# TYPE a_things_total counter
a_things_total{x=\"# TYPE y\"} 7
# HELP a_size_bytes Size.
# TYPE a_size_bytes gauge
# HELP a_build_info The program.
# TYPE a_build_info gauge
a_build_info{version=\"1\"} 1
# HELP a_time_seconds Time.
# TYPE a_time_seconds histogram
a_time_seconds_sum 0.5
a_time_seconds_count 1
a_time_seconds_bucket{le=\"1.0\"} 1
a_time_seconds_bucket{le=\"+Inf\"} 1
# HELP a_riddle Unknown.
# TYPE a_riddle untyped
a_riddle 3
";
        assert_eq!(plain(open), text);
    }
}
