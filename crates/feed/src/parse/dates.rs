//! Dates as feeds write them: RFC 3339 and RFC 822 in every unambiguous dialect. An ambiguous text
//! (`05/09/2025`) is no date: a wrong date is worse than none.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};

/// First plausible year; earlier ones are the zero of some clock.
const FIRST_YEAR: i16 = 1900;

/// Longest text that is examined.
const MAX_LEN: usize = 80;

/// First letters of the months, in the languages of feeds in the field; accents removed.
const MONTHS: [&[&str]; 12] = [
    &["jan", "ene", "gen"],
    &["feb", "fev"],
    &["mar", "mrz"],
    &["apr", "abr", "avr"],
    &["may", "mai", "mag"],
    &["jun", "giu", "juin"],
    &["jul", "lug", "juil"],
    &["aug", "ago", "aou"],
    &["sep", "set"],
    &["oct", "okt", "ott", "out"],
    &["nov"],
    &["dec", "dez", "dic"],
];

/// Zones by name, in minutes. Ambiguous names have their meaning in RFC 822, or none.
const ZONES: [(&str, i32); 24] = [
    ("z", 0),
    ("ut", 0),
    ("utc", 0),
    ("gmt", 0),
    ("wet", 0),
    ("west", 60),
    ("bst", 60),
    ("cet", 60),
    ("met", 60),
    ("mez", 60),
    ("cest", 120),
    ("mest", 120),
    ("mesz", 120),
    ("eet", 120),
    ("eest", 180),
    ("msk", 180),
    ("est", -300),
    ("edt", -240),
    ("cst", -360),
    ("cdt", -300),
    ("mst", -420),
    ("mdt", -360),
    ("pst", -480),
    ("pdt", -420),
];

/// Words after a time of day that do not concern its zone.
const FILLERS: [&str; 30] = [
    "mon",
    "tue",
    "tues",
    "wed",
    "thu",
    "thur",
    "thurs",
    "fri",
    "sat",
    "sun",
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
    "montag",
    "dienstag",
    "mittwoch",
    "donnerstag",
    "freitag",
    "samstag",
    "sonnabend",
    "sonntag",
    "uhr",
    "on",
    "of",
    "am",
    "de",
];

/// Names of Tuesday that begin like a month.
const TUESDAYS: [&str; 4] = ["mar", "mardi", "martedi", "martes"];

/// Reads a date. Without a time of day it is midnight, without a zone UTC.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if text.is_empty() || text.len() > MAX_LEN {
        return None;
    }
    digits(text).or_else(|| iso(text)).or_else(|| words(text))
}

/// Parses digits only: a day, a second of a day (also with a `T`), or seconds or milliseconds since
/// 1970.
fn digits(text: &str) -> Option<Timestamp> {
    let basic = text.strip_suffix('Z').unwrap_or(text).split_once('T');
    if let Some((day, time)) = basic
        && (day.len(), time.len()) == (8, 6)
    {
        return digits(&[day, time].concat());
    }
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize, to: usize| text.get(from..to)?.parse::<i32>().ok();
    match text.len() {
        8 => at(
            part(0, 4)?,
            part(4, 6)?,
            part(6, 8)?,
            Some(Time::midnight()),
            0,
        ),
        14 => {
            let time = clock(part(8, 10)?, part(10, 12)?, part(12, 14)?, 0)?;
            at(part(0, 4)?, part(4, 6)?, part(6, 8)?, Some(time), 0)
        }
        9 | 10 => Timestamp::from_second(text.parse().ok()?).ok(),
        12 | 13 => Timestamp::from_millisecond(text.parse().ok()?).ok(),
        _ => None,
    }
}

/// Parses `2025-09-05T09:49:57.5+02:00` and similar: a year or month alone, a space for the `T`, no
/// seconds, a comma, `+0200`, `+02`, a zone's name, or none.
fn iso(text: &str) -> Option<Timestamp> {
    let year: i32 = text.get(..4)?.parse().ok()?;
    let rest = text.get(4..)?;
    if rest.is_empty() {
        return at(year, 1, 1, None, 0);
    }
    let separator = rest
        .chars()
        .next()
        .filter(|c| matches!(c, '-' | '/' | '.'))?;
    let (month, rest) = number(rest.get(1..)?)?;
    let (day, rest) = match rest.strip_prefix(separator) {
        Some(rest) => number(rest)?,
        None => (1, rest),
    };
    let rest = rest.trim_start_matches(['T', 't', ' ', '_', ',']);
    let (time, zone) = if rest.is_empty() {
        (None, "")
    } else {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && !matches!(c, ':' | '.' | ','))
            .unwrap_or(rest.len());
        let (time, zone) = rest.split_at(end);
        // A zone separated by a second sign: "10:00:00-0700", "10:00:00 -07:00". RFC 9557 adds the
        // zone's name in brackets to the offset.
        let zone = zone.split('[').next().unwrap_or("");
        (Some(self::time(time, "")?), zone.trim())
    };
    at(year, month, day, time, zone_of(zone)?)
}

fn number(text: &str) -> Option<(i32, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    if !(1..=2).contains(&number.len()) {
        return None;
    }
    Some((number.parse().ok()?, rest))
}

/// Parses RFC 822 and every other form in which the month is a word, in any order; `05.09.2025`.
fn words(text: &str) -> Option<Timestamp> {
    let mut month = None;
    let mut numbers: Vec<i32> = Vec::new();
    let mut clock_text = None;
    let mut half = "";
    let mut zone = None;
    let mut dotted = None;
    // Whether the month may still turn out to be a Tuesday.
    let mut tuesday = false;
    // Whether a word may be an unknown zone.
    let mut unclear = false;
    // A comment (RFC 822) contains the zone's name.
    let (text, comment) = text.split_once('(').unwrap_or((text, ""));
    for token in text.split([' ', '\t', '\n', '\r', ',']) {
        let lower = fold(token);
        let word = lower.trim_matches('.');
        if word.is_empty() {
        } else if word.contains(':') && clock_text.is_none() {
            // The zone may follow without a space, and so may am or pm.
            let end = word
                .find(|c: char| !c.is_ascii_digit() && !matches!(c, ':' | '.'))
                .unwrap_or(word.len());
            let (time, rest) = word.split_at(end);
            clock_text = Some(time.to_owned());
            match rest {
                "" => {}
                "am" => half = "am",
                "pm" => half = "pm",
                rest => zone = Some(zone_of(rest)?),
            }
        } else if clock_text.is_some() && word.starts_with(['+', '-']) {
            zone = Some(zone_of(word)?);
        } else if matches!(word, "am" | "a.m") {
            half = "am";
        } else if matches!(word, "pm" | "p.m") {
            half = "pm";
        } else if clock_text.is_some() && zone.is_none() && named_zone(word).is_some() {
            zone = named_zone(word);
        } else if word.starts_with(|c: char| c.is_ascii_digit()) {
            let parts: Vec<&str> = word.split(['-', '/', '.']).collect();
            if let ([day, number, year], true) = (&parts[..], word.contains('.')) {
                // In dates with dots, the day comes first.
                let short = year.len() <= 2;
                let year = year.parse().ok()?;
                let year = if short { century(year) } else { year };
                dotted = Some((year, number.parse().ok()?, day.parse().ok()?));
                continue;
            }
            for part in parts {
                let digits = part.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                let suffix = part.get(digits.len()..).unwrap_or("");
                if let Some(found) = month_of(part) {
                    month = Some(found);
                } else if matches!(suffix, "" | "st" | "nd" | "rd" | "th") {
                    let number: i32 = digits.parse().ok()?;
                    // Two digits of a year, apart from "0001".
                    let short = digits.len() <= 2 && numbers.len() == 1;
                    numbers.push(if short { century(number) } else { number });
                }
            }
        } else if let Some(found) = month_of(word).filter(|_| month.is_none() || tuesday) {
            month = Some(found);
            tuesday = TUESDAYS.contains(&word);
        } else if clock_text.is_none() {
            // A zone before the time, the name of a day, or unrelated to the time.
            let upper = token.bytes().all(|b| b.is_ascii_uppercase());
            zone = zone.or(known_zone(word).filter(|_| upper));
        } else if !FILLERS.contains(&word) {
            unclear = true;
        }
    }
    if zone.is_none() && clock_text.is_some() {
        // The time would be off by hours in an ambiguous or unknown zone.
        if unclear {
            return None;
        }
        let comment = comment.split(')').next().unwrap_or("");
        zone = Some(zone_of(comment)?);
    }
    let time = match &clock_text {
        Some(text) => Some(time(text, half)?),
        None => None,
    };
    let (year, month, day) = match (dotted, month, &numbers[..]) {
        (Some((year, month, day)), None, []) => (year, month, day),
        // A year in front: the day was taken for two digits of a year.
        (None, Some(month), [a, b]) if *a > 31 => (*a, month, *b % 100),
        (None, Some(month), [a, b]) => (*b, month, *a),
        // "5 September 2025 at 9" has one number too many to be certain.
        _ => return None,
    };
    at(year, month, day, time, zone.unwrap_or(0))
}

/// Returns the year of two digits (RFC 2822 section 4.3).
fn century(year: i32) -> i32 {
    year + if year < 50 { 2000 } else { 1900 }
}

/// Returns the text in lower case and without the accents that occur in names of months.
fn fold(text: &str) -> String {
    text.chars()
        .flat_map(char::to_lowercase)
        .map(|c| match c {
            'ä' | 'á' | 'à' | 'â' => 'a',
            'é' | 'è' | 'ê' => 'e',
            'û' | 'ú' | 'ü' => 'u',
            'ç' => 'c',
            c => c,
        })
        .collect()
}

fn month_of(word: &str) -> Option<i32> {
    let found = MONTHS
        .iter()
        .position(|names| names.iter().any(|name| word.starts_with(name)))?;
    i32::try_from(found + 1).ok()
}

/// Parses `CEST`, `GMT+2`.
fn named_zone(word: &str) -> Option<i32> {
    zone_of(word).filter(|_| word.starts_with(|c: char| c.is_ascii_alphabetic()))
}

fn known_zone(name: &str) -> Option<i32> {
    ZONES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, minutes)| *minutes)
}

/// Returns a zone's offset in minutes: `+02:00`, `-0700`, `+2`, a name; an empty text is UTC.
/// `None` for an unknown name: the time would be wrong.
fn zone_of(zone: &str) -> Option<i32> {
    let zone = fold(zone.trim());
    let zone = zone
        .strip_prefix("gmt")
        .or_else(|| zone.strip_prefix("utc"))
        .filter(|rest| rest.starts_with(['+', '-']))
        .unwrap_or(&zone);
    if zone.is_empty() {
        return Some(0);
    }
    let (sign, rest) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return known_zone(zone),
    };
    let digits: String = rest.chars().filter(|c| *c != ':').collect();
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (hours, minutes) = match digits.len() {
        1 | 2 => (digits.parse::<i32>().ok()?, 0),
        3 | 4 => {
            let (hours, minutes) = digits.split_at(digits.len() - 2);
            (hours.parse().ok()?, minutes.parse().ok()?)
        }
        _ => return None,
    };
    (hours <= 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

/// Parses `9:49`, `09:49:57.5`, `9:49` in a half of the day.
fn time(text: &str, half: &str) -> Option<Time> {
    let text = text.replace(',', ".");
    let mut parts = text.split(':');
    let mut hour: i32 = parts.next()?.parse().ok()?;
    let minute: i32 = parts.next().unwrap_or("0").parse().ok()?;
    let (second, fraction) = match parts.next() {
        None | Some("") => (0, 0),
        Some(second) => match second.split_once('.') {
            None => (second.parse().ok()?, 0),
            Some((second, fraction)) => {
                let nine: String = fraction
                    .chars()
                    .chain("000000000".chars())
                    .take(9)
                    .collect();
                (second.parse().ok()?, nine.parse().ok()?)
            }
        },
    };
    match half {
        "am" if hour == 12 => hour = 0,
        "pm" if (1..12).contains(&hour) => hour += 12,
        _ => {}
    }
    clock(hour, minute, second, fraction)
}

fn clock(hour: i32, minute: i32, second: i32, nanosecond: i32) -> Option<Time> {
    // A leap second becomes the second before it.
    let second = if second == 60 { 59 } else { second };
    // Midnight at the end of a day, as some write it, is nearer to the day's last second than to
    // its first.
    if (hour, minute, second) == (24, 0, 0) {
        return Time::new(23, 59, 59, 0).ok();
    }
    Time::new(
        i8::try_from(hour).ok()?,
        i8::try_from(minute).ok()?,
        i8::try_from(second).ok()?,
        nanosecond,
    )
    .ok()
}

fn at(year: i32, month: i32, day: i32, time: Option<Time>, zone: i32) -> Option<Timestamp> {
    let date = Date::new(
        i16::try_from(year).ok().filter(|y| *y >= FIRST_YEAR)?,
        i8::try_from(month).ok()?,
        i8::try_from(day).ok()?,
    )
    .ok()?;
    let time = time.unwrap_or_else(Time::midnight);
    let zone = jiff::tz::Offset::from_seconds(zone * 60).ok()?;
    zone.to_timestamp(DateTime::from_parts(date, time)).ok()
}

#[cfg(test)]
mod tests {
    use super::parse;
    use proptest::prelude::*;

    #[test]
    fn dates_are_read_in_every_dialect() {
        let expected = "2025-09-05T09:49:57Z";
        for text in [
            "2025-09-05T09:49:57Z",
            " 2025-09-05t09:49:57z\n",
            "2025-09-05 09:49:57",
            "2025-09-05T09:49:57+00:00",
            "2025-09-05T11:49:57+0200",
            "2025-09-05T11:49:57 +02:00",
            "2025-09-05T11:49:57+02",
            "2025-09-05T11:49:57 CEST",
            "2025/09/05 09:49:57",
            "2025-9-5 9:49:57",
            "Fri, 05 Sep 2025 09:49:57 GMT",
            "Fri, 05 Sep 2025 09:49:57 +0000",
            "Fri, 5 Sep 2025 09:49:57 UT",
            "Fri, 05 Sep 25 09:49:57 Z",
            "Fri,05 Sep 2025 09:49:57 GMT",
            "Fri, 05 September 2025 09:49:57 GMT",
            "Fri, 05 Sept. 2025 09:49:57 GMT",
            "fri, 05 SEP 2025 09:49:57 gmt",
            "05 Sep 2025 05:49:57 EDT",
            "Fri, 05 Sep 2025 02:49:57 PDT",
            "Fri, 05 Sep 2025 02:49:57 -0700 (PDT)",
            "Fri, 05 Sep 2025 11:49:57 +02:00",
            "Fri, 05 Sep 2025 11:49:57 GMT+2",
            "Fri, 05 Sep 2025 11:49:57+0200",
            "Fri Sep  5 09:49:57 2025",
            "Fri Sep  5 09:49:57 UTC 2025",
            "September 5, 2025 9:49:57 AM",
            "Sep 5th, 2025, 09:49:57am",
            "Fr, 05 Sep 2025 11:49:57 MESZ",
            "05-Sep-2025 09:49:57",
            "05.09.2025 09:49:57",
            "ven., 05 septembre 2025 09:49:57 +0000",
            "20250905094957",
            "20250905T094957Z",
            "05.09.25 09:49:57",
            "2025 Sep 5 09:49:57",
            "2025-09-05T11:49:57+02:00[Europe/Berlin]",
            "mar., 05 septembre 2025 09:49:57 +0000",
            "Fri, 05 Sep 2025 11:49:57 +0200 Europe/Berlin",
            "1757065797",
            "1757065797000",
        ] {
            let read = parse(text).map(|t| t.to_string());
            assert_eq!(read.as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn missing_parts_default_to_midnight_and_utc() {
        for (text, expected) in [
            ("2025", "2025-01-01T00:00:00Z"),
            ("2025-09", "2025-09-01T00:00:00Z"),
            ("2025-09-05", "2025-09-05T00:00:00Z"),
            ("20250905", "2025-09-05T00:00:00Z"),
            ("5 Sep 2025", "2025-09-05T00:00:00Z"),
            ("Sep 5, 2025", "2025-09-05T00:00:00Z"),
            ("2025-09-05T09:49", "2025-09-05T09:49:00Z"),
            (
                "2025-09-05T09:49:57.1234567891Z",
                "2025-09-05T09:49:57.123456789Z",
            ),
            ("2025-09-05T09:49:57,5Z", "2025-09-05T09:49:57.5Z"),
            ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"),
            ("Fri, 05 Sep 2025 24:00:00 GMT", "2025-09-05T23:59:59Z"),
            ("12 Mär 2025 12:30 PM", "2025-03-12T12:30:00Z"),
            ("12 déc. 2025 12:30 AM", "2025-12-12T00:30:00Z"),
            ("Sun, 06 Nov 94 08:49:37 GMT", "1994-11-06T08:49:37Z"),
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        ] {
            let read = parse(text).map(|t| t.to_string());
            assert_eq!(read.as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn ambiguous_dates_are_rejected() {
        for text in [
            "",
            "yesterday",
            "09/05/2025",
            "05/09/2025 10:00",
            "2025-02-30",
            "2025-13-01",
            "0000-00-00 00:00:00",
            "0001-01-01T00:00:00Z",
            "Mon, 01 Jan 0001 00:00:00 +0000",
            "Fri, 05 Sep 2025 09:49:57 IST",
            "0000-00-00T00:00:00Z",
            "Thu, 31 Jun 2025 00:00:00 GMT",
            "2025-09-05T25:00:00Z",
            "2025-09-05T09:49:57 Mars/Olympus",
            "Fri, 05 Sep 2025 09:49:57 +9999",
            "1 2 3 4 5 Sep",
            "0",
            "Invalid Date",
            "Fri, 05 Sep 2025 09:49:57 ET",
            "Fri, 05 Sep 2025 09:49:57 EST5EDT",
            "Fri, 05 Sep 2025 09:49:57 Europe/Berlin",
            "Fri, 05 Sep 2025 09:49:57 A",
            "Fri Sep  5 09:49:57 MART 2025",
            "Fri, 05 Sep 2025 09:49:57 SAMT",
            "Fri, 05 Sep 2025 09:49:57 (ET)",
            "-",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_result(text in "(?s).{0,90}") {
            let _ = parse(&text);
        }

        #[test]
        fn random_dates_give_a_result(text in "([0-9]{1,5}|[-+:., /TZ()]|Sep|PM|GMT|é){0,16}") {
            let _ = parse(&text);
        }

        /// A written RFC 3339 or RFC 822 date is read back.
        #[test]
        fn written_dates_are_read_back(second in 1i64..253_000_000_000) {
            let time = jiff::Timestamp::from_second(second).unwrap_or_default();
            prop_assert_eq!(parse(&time.to_string()), Some(time));
            let zoned = time.to_zoned(jiff::tz::TimeZone::UTC);
            let mail = zoned.strftime("%a, %d %b %Y %H:%M:%S %z").to_string();
            prop_assert_eq!(parse(&mail), Some(time), "{}", mail);
        }
    }
}
