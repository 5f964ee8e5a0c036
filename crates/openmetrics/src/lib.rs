//! A strict reader of metrics, for tests: [`parse`] reads OpenMetrics 1.0 text and rejects
//! ambiguous input, [`differences`] compares it with the document that lists the metrics, [`forms`]
//! checks both text formats, and [`promtool`] asks Prometheus.

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

/// Type of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value that never decreases.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Values in buckets.
    Histogram,
    /// Constant labels.
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

    /// Returns the type's name.
    pub fn word(self) -> &'static str {
        let known = Self::ALL.iter().find(|(_, kind)| *kind == self);
        known.map_or("", |(name, _)| name)
    }

    /// Returns the suffixes of sample names.
    fn suffixes(self) -> &'static [&'static str] {
        match self {
            Kind::Counter => &["_total", "_created"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["_bucket", "_count", "_sum", "_created"],
            Kind::Info => &["_info"],
        }
    }
}

/// A sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Suffix after the family's name, such as `_total`.
    pub suffix: String,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// A metric family: all samples of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Type of the metric.
    pub kind: Kind,
    /// Help text.
    pub help: String,
    /// Unit, which is also the last part of the name.
    pub unit: Option<String>,
    /// Samples, in the order of the text.
    pub samples: Vec<Sample>,
}

impl Family {
    /// Returns the names of all labels of the samples, except `le`.
    pub fn labels(&self) -> BTreeSet<&str> {
        let names = self.samples.iter().flat_map(|sample| sample.labels.keys());
        names
            .map(String::as_str)
            .filter(|name| *name != "le")
            .collect()
    }
}

/// Parses OpenMetrics text.
///
/// # Errors
/// The first error, with its line.
pub fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let Some(body) = text.strip_suffix("# EOF\n") else {
        return Err("the last line is not `# EOF`".into());
    };
    let mut reader = Parser::default();
    for (at, line) in body.split_terminator('\n').enumerate() {
        let wrong = |why: String| format!("line {}: {why}: {line}", at + 1);
        reader.line(line).map_err(wrong)?;
    }
    reader.end()
}

/// State of the parser.
#[derive(Debug, Default)]
struct Parser {
    done: BTreeMap<String, Family>,
    current: Option<OpenFamily>,
}

#[derive(Debug)]
struct OpenFamily {
    name: String,
    kind: Option<Kind>,
    help: Option<String>,
    unit: Option<String>,
    samples: Vec<Sample>,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut parts = comment.splitn(3, ' ');
            let (word, name) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
            let rest = parts.next().unwrap_or("");
            return self.about(word, name, rest);
        }
        let Some(open) = &mut self.current else {
            return Err("a sample before any # TYPE".into());
        };
        let Some(kind) = open.kind else {
            return Err("a sample of a family without # TYPE".into());
        };
        let (name, labels, value) = line::sample(line)?;
        let suffix = name.strip_prefix(open.name.as_str()).unwrap_or(name);
        if !name.starts_with(&open.name) || !kind.suffixes().contains(&suffix) {
            return Err(format!("no sample of the {} {}", kind.word(), open.name));
        }
        let sample = Sample {
            suffix: suffix.to_owned(),
            labels,
            value,
        };
        let same = |other: &Sample| other.suffix == sample.suffix && other.labels == sample.labels;
        if open.samples.iter().any(same) {
            return Err("duplicate sample".into());
        }
        open.samples.push(sample);
        Ok(())
    }

    /// Parses `# TYPE`, `# HELP` or `# UNIT`.
    fn about(&mut self, word: &str, name: &str, rest: &str) -> Result<(), String> {
        if !line::is_name(name, true) {
            return Err(format!("{name:?} is no name of a metric"));
        }
        if self.current.as_ref().is_none_or(|open| open.name != name) {
            self.finish()?;
            if self.done.contains_key(name) {
                return Err(format!("{name}: samples of a family are not consecutive"));
            }
            self.current = Some(OpenFamily {
                name: name.to_owned(),
                kind: None,
                help: None,
                unit: None,
                samples: Vec::new(),
            });
        }
        let Some(open) = &mut self.current else {
            return Ok(());
        };
        if !open.samples.is_empty() {
            return Err("metadata after samples of its family".into());
        }
        let twice = match word {
            "TYPE" => {
                let kind = Kind::read(rest).ok_or_else(|| format!("{rest:?} is no known type"))?;
                open.kind.replace(kind).is_some()
            }
            "HELP" => open.help.replace(line::unescape(rest)?).is_some(),
            "UNIT" => open.unit.replace(rest.to_owned()).is_some(),
            _ => return Err("no TYPE, HELP or UNIT".into()),
        };
        match twice {
            true => Err(format!("{name} has a # {word} twice")),
            false => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        let Some(open) = self.current.take() else {
            return Ok(());
        };
        let name = open.name;
        let kind = open.kind.ok_or_else(|| format!("{name} has no # TYPE"))?;
        let help = open.help.ok_or_else(|| format!("{name} has no # HELP"))?;
        let family = Family {
            kind,
            help,
            unit: open.unit,
            samples: open.samples,
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
