//! The archive behind the feed, and its search: what public-inbox answers to `/?q=…&x=A`.

use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// The most results of one page, as on the real ones.
const PAGE: usize = 200;

/// Far before and after every mail.
const EVER: (&str, &str) = ("1970-01-01T00:00:00Z", "9000-01-01T00:00:00Z");

/// All mails that ever arrived.
#[derive(Debug, Default)]
pub struct Archive {
    mails: Vec<Archived>,
}

/// One of them.
#[derive(Debug)]
struct Archived {
    id: String,
    arrived: Timestamp,
    dated: Timestamp,
    xml: String,
}

/// Search terms: ranges for the times of a mail.
#[derive(Debug)]
struct Question {
    by_arrival: bool,
    range: RangeInclusive<Timestamp>,
}

impl Archive {
    /// A new mail, or a new form of one.
    pub fn put(&mut self, id: &str, arrived: Timestamp, dated: Timestamp, xml: &str) {
        match self.mails.iter_mut().find(|mail| mail.id == id) {
            Some(mail) => {
                xml.clone_into(&mut mail.xml);
                mail.dated = dated;
            }
            None => self.mails.push(Archived {
                id: id.to_owned(),
                arrived,
                dated,
                xml: xml.to_owned(),
            }),
        }
    }

    /// The entries that a search finds, newest first, a page of them from `offset` on.
    ///
    /// # Errors
    /// When the query is not one of the few kinds that are understood here.
    pub fn search(&self, query: &str, offset: usize) -> Result<String> {
        let question = Question::parse(query)?;
        let mut found: Vec<(Timestamp, &str)> = self
            .mails
            .iter()
            .map(|mail| {
                let time = if question.by_arrival {
                    mail.arrived
                } else {
                    mail.dated
                };
                (time, mail.xml.as_str())
            })
            .filter(|(time, _)| question.range.contains(time))
            .collect();
        found.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        Ok(found
            .iter()
            .skip(offset)
            .take(PAGE)
            .map(|(_, xml)| *xml)
            .collect())
    }
}

impl Question {
    /// `rt:A..B` (arrival), `dt:A..B` or `d:A..B` (the mail's own date).
    fn parse(query: &str) -> Result<Question> {
        let (kind, range) = query
            .trim()
            .split_once(':')
            .context("no prefix such as rt:")?;
        let by_arrival = match kind {
            "rt" => true,
            "dt" | "d" => false,
            other => bail!("the prefix {other}: is not known here"),
        };
        let (from, to) = range.split_once("..").context("no range such as A..B")?;
        let (from, to) = (time(from, EVER.0)?, time(to, EVER.1)?);
        ensure!(from <= to, "the range {range} is backwards");
        Ok(Question {
            by_arrival,
            range: from..=to,
        })
    }
}

/// `YYYYMMDDHHMMSS`, `YYYYMMDD` or RFC 3339; empty for no bound.
fn time(text: &str, empty: &str) -> Result<Timestamp> {
    let digits = text.len() >= 8 && text.bytes().all(|byte| byte.is_ascii_digit());
    let parse = |format: &str, text: &str| -> Result<Timestamp> {
        let civil = DateTime::strptime(format, text)?;
        Ok(civil.to_zoned(TimeZone::UTC)?.timestamp())
    };
    match text.len() {
        0 => Ok(empty.parse()?),
        8 if digits => parse("%Y%m%d%H%M%S", &format!("{text}000000")),
        14 if digits => parse("%Y%m%d%H%M%S", text),
        _ => text.parse().with_context(|| format!("{text:?} is no time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_757_000_000 + second).unwrap()
    }

    #[test]
    fn mails_are_found_by_arrival_and_by_date() {
        let mut archive = Archive::default();
        for n in 0..5i64 {
            // The one that arrived last is dated first.
            archive.put(&format!("m{n}"), at(n), at(-n * 100), &format!("<{n}>"));
        }
        archive.put("m2", at(99), at(-200), "<2b>");
        let text = |time: Timestamp| time.strftime("%Y%m%d%H%M%S").to_string();
        let range = format!("{}..{}", text(at(1)), text(at(3)));
        assert_eq!(
            archive.search(&format!("rt:{range}"), 0).unwrap(),
            "<3><2b><1>"
        );
        assert_eq!(archive.search(&format!("rt:{range}"), 2).unwrap(), "<1>");
        assert_eq!(
            archive.search(&format!("rt:{}..", at(4)), 0).unwrap(),
            "<4>"
        );
        let old = format!("dt:..{}", text(at(-150)));
        assert_eq!(archive.search(&old, 0).unwrap(), "<2b><3><4>");
        for bad in ["", "rt:", "s:x", "rt:1..2", "rt:20250902..20250901"] {
            assert!(archive.search(bad, 0).is_err(), "{bad}");
        }
    }
}
