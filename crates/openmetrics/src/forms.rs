//! Comparison of the two text formats of the same metrics.

use crate::{Kind, parse, promtool};

/// Returns the errors of a program's metrics in Prometheus's text format (0.0.4) and as
/// OpenMetrics. Each must be valid, also to Prometheus's own reader, and both must have the same
/// samples under the same names, so that scrapes of either are equal.
pub fn forms(plain: &str, open_metrics: &str) -> Vec<String> {
    let mut wrong = promtool::plain(plain);
    wrong.extend(promtool::open_metrics(open_metrics));
    let samples = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    };
    let (left, right) = (samples(plain), samples(open_metrics));
    for (here, there, place) in [(&left, &right, "text"), (&right, &left, "OpenMetrics")] {
        let only = here.iter().filter(|sample| !there.contains(sample));
        wrong.extend(only.map(|sample| format!("only in the {place}: {sample}")));
    }
    let families = match parse(open_metrics) {
        Ok(families) => families,
        Err(why) => {
            wrong.push(format!("as OpenMetrics: {why}"));
            return wrong;
        }
    };
    // In this format, a family has the name of its samples.
    let mut about: Vec<&str> = plain.lines().filter(|line| line.starts_with('#')).collect();
    for (name, family) in &families {
        let (suffix, kind) = match family.kind {
            Kind::Counter => ("_total", "counter"),
            Kind::Info => ("_info", "gauge"),
            Kind::Gauge | Kind::Histogram => ("", family.kind.word()),
        };
        let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
        for expected in [
            format!("# HELP {name}{suffix} {help}"),
            format!("# TYPE {name}{suffix} {kind}"),
        ] {
            match about.iter().position(|line| *line == expected) {
                Some(at) => drop(about.remove(at)),
                None => wrong.push(format!("not in the text: {expected}")),
            }
        }
    }
    wrong.extend(
        about
            .iter()
            .map(|line| format!("too much in the text: {line}")),
    );
    wrong
}
