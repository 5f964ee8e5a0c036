//! What a program's `/metrics` says, read strictly, for tests: [`parse`] takes OpenMetrics 1.0 text
//! and refuses what a scraper might read in another way, [`differences`] compares it with the
//! document that lists the metrics, and [`forms`] looks at both text formats. [`promtool`] asks Prometheus.

mod document;
mod forms;
mod line;
pub mod promtool;
mod rules;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use document::{differences, table};
pub use forms::forms;

/// What a family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Values in buckets.
    Histogram,
    /// Labels that do not change.
    Info,
}

impl Kind {
    const ALL: [(&'static str, Kind); 4] = [
        ("counter", Kind::Counter),
        ("gauge", Kind::Gauge),
        ("histogram", Kind::Histogram),
        ("info", Kind::Info),
    ];

    fn read(word: &str) -> Option<Self> {
        let known = Self::ALL.iter().find(|(name, _)| *name == word);
        known.map(|(_, kind)| *kind)
    }

    /// The word for it.
    pub fn word(self) -> &'static str {
        let known = Self::ALL.iter().find(|(_, kind)| *kind == self);
        known.map_or("", |(name, _)| name)
    }

    /// What the names of samples have behind the family's.
    fn suffixes(self) -> &'static [&'static str] {
        match self {
            Kind::Counter => &["_total", "_created"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["_bucket", "_count", "_sum", "_created"],
            Kind::Info => &["_info"],
        }
    }
}

/// One line with a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Behind the family's name, such as `_total`.
    pub suffix: String,
    /// By name.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// All samples of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// What it is.
    pub kind: Kind,
    /// What it means.
    pub help: String,
    /// The unit, which is also the last part of the name.
    pub unit: Option<String>,
    /// In the order of the text.
    pub samples: Vec<Sample>,
}

impl Family {
    /// The names of all labels that its samples have, without those that buckets have in any case.
    pub fn labels(&self) -> BTreeSet<&str> {
        let names = self.samples.iter().flat_map(|sample| sample.labels.keys());
        names
            .map(String::as_str)
            .filter(|name| *name != "le")
            .collect()
    }
}

/// Reads a text.
///
/// # Errors
/// The first thing that is wrong, with its line.
pub fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let Some(body) = text.strip_suffix("# EOF\n") else {
        return Err("the last line is not `# EOF`".into());
    };
    let mut reader = Reader::default();
    for (at, line) in body.split_terminator('\n').enumerate() {
        let wrong = |why: String| format!("line {}: {why}: {line}", at + 1);
        reader.line(line).map_err(wrong)?;
    }
    reader.end()
}

/// What of a family is known while it is read.
#[derive(Debug, Default)]
struct Reader {
    done: BTreeMap<String, Family>,
    current: Option<Begun>,
}

#[derive(Debug)]
struct Begun {
    name: String,
    kind: Option<Kind>,
    help: Option<String>,
    unit: Option<String>,
    samples: Vec<Sample>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut parts = comment.splitn(3, ' ');
            let (word, name) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
            let rest = parts.next().unwrap_or("");
            return self.about(word, name, rest);
        }
        let Some(begun) = &mut self.current else {
            return Err("a sample before any # TYPE".into());
        };
        let Some(kind) = begun.kind else {
            return Err("a sample of a family without # TYPE".into());
        };
        let (name, labels, value) = line::sample(line)?;
        let suffix = name.strip_prefix(begun.name.as_str()).unwrap_or(name);
        if !name.starts_with(&begun.name) || !kind.suffixes().contains(&suffix) {
            return Err(format!("no sample of the {} {}", kind.word(), begun.name));
        }
        let sample = Sample {
            suffix: suffix.to_owned(),
            labels,
            value,
        };
        let same = |other: &Sample| other.suffix == sample.suffix && other.labels == sample.labels;
        if begun.samples.iter().any(same) {
            return Err("there was the same sample before".into());
        }
        begun.samples.push(sample);
        Ok(())
    }

    /// `# TYPE`, `# HELP` or `# UNIT`.
    fn about(&mut self, word: &str, name: &str, rest: &str) -> Result<(), String> {
        if !line::is_name(name, true) {
            return Err(format!("{name:?} is no name of a metric"));
        }
        if self.current.as_ref().is_none_or(|begun| begun.name != name) {
            self.finish()?;
            if self.done.contains_key(name) {
                return Err(format!("{name} was there before: a family stands together"));
            }
            self.current = Some(Begun {
                name: name.to_owned(),
                kind: None,
                help: None,
                unit: None,
                samples: Vec::new(),
            });
        }
        let Some(begun) = &mut self.current else {
            return Ok(());
        };
        if !begun.samples.is_empty() {
            return Err("it stands behind samples of its family".into());
        }
        let twice = match word {
            "TYPE" => {
                let kind = Kind::read(rest).ok_or_else(|| format!("{rest:?} is no known type"))?;
                begun.kind.replace(kind).is_some()
            }
            "HELP" => begun.help.replace(line::unescape(rest)?).is_some(),
            "UNIT" => begun.unit.replace(rest.to_owned()).is_some(),
            _ => return Err("no TYPE, HELP or UNIT".into()),
        };
        match twice {
            true => Err(format!("{name} has a # {word} twice")),
            false => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        let Some(begun) = self.current.take() else {
            return Ok(());
        };
        let name = begun.name;
        let kind = begun.kind.ok_or_else(|| format!("{name} has no # TYPE"))?;
        let help = begun.help.ok_or_else(|| format!("{name} has no # HELP"))?;
        let family = Family {
            kind,
            help,
            unit: begun.unit,
            samples: begun.samples,
        };
        rules::check(&name, &family).map_err(|why| format!("{name}: {why}"))?;
        self.done.insert(name, family);
        Ok(())
    }

    fn end(mut self) -> Result<BTreeMap<String, Family>, String> {
        self.finish()?;
        let mut names = BTreeSet::new();
        for (name, family) in &self.done {
            for suffix in family.kind.suffixes() {
                if !names.insert(format!("{name}{suffix}")) {
                    return Err(format!("two families have samples {name}{suffix}"));
                }
            }
        }
        Ok(self.done)
    }
}
