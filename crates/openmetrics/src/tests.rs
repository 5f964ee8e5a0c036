#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;

const GOOD: &str = "\
# HELP a_size_bytes How much
# TYPE a_size_bytes gauge
# UNIT a_size_bytes bytes
a_size_bytes{x=\"1\",y=\"a\\\"b\\\\c\\nd,}=\"} -1.5e3
a_size_bytes{x=\"2\",y=\"\"} NaN
# TYPE a_things counter
# HELP a_things Things.
a_things_total 7
# HELP a_build The program
# TYPE a_build info
a_build_info{version=\"1\"} 1
# HELP a_time_seconds How long
# TYPE a_time_seconds histogram
# UNIT a_time_seconds seconds
a_time_seconds_bucket{le=\"0.5\",x=\"1\"} 1
a_time_seconds_bucket{le=\"+Inf\",x=\"1\"} 3
a_time_seconds_sum{x=\"1\"} 9.5
a_time_seconds_count{x=\"1\"} 3
# EOF
";

#[test]
fn valid_text_is_parsed() {
    let families = parse(GOOD).unwrap();
    assert_eq!(families.len(), 4);
    let size = &families["a_size_bytes"];
    assert_eq!(
        (size.kind, size.unit.as_deref()),
        (Kind::Gauge, Some("bytes"))
    );
    assert_eq!(size.samples[0].labels["y"], "a\"b\\c\nd,}=");
    assert_eq!(size.samples[0].value, -1500.0);
    assert!(size.samples[1].value.is_nan());
    assert_eq!(families["a_things"].samples[0].suffix, "_total");
    let labels: Vec<_> = families["a_time_seconds"].labels().into_iter().collect();
    assert_eq!(labels, ["x"]);
}

#[test]
fn ambiguous_text_is_rejected() {
    for (from, to) in [
        ("# EOF\n", ""),
        ("# EOF\n", "# EOF\nmore 1\n# EOF"),
        ("# EOF\n", "# EOF\n\n"),
        ("a_things_total 7", "a_things 7"),
        ("a_things_total 7", "a_things_total  7"),
        ("a_things_total 7", "a_things_total -7"),
        ("a_things_total 7", "a_things_total NaN"),
        ("a_things_total 7", "a_things_total seven"),
        ("a_things_total 7", "a_things_total infinity"),
        ("a_things_total 7", "a_things_total 7 8"),
        ("a_things_total 7", "a_things_total 7\na_things_total 8"),
        ("a_things_total 7", "a_things_total 7\n"),
        ("a_things_total 7", "a_things_total{x} 7"),
        ("a_things_total 7", "a_things_total{x=\"1\"y=\"2\"} 7"),
        ("a_things_total 7", "a_things_total{x=\"1\",x=\"2\"} 7"),
        ("a_things_total 7", "a_things_total{1x=\"1\"} 7"),
        ("a_things_total 7", "a_things_total{x=\"\\t\"} 7"),
        ("a_things_total 7", "a_things_total{x=\"1} 7"),
        ("a_things_total 7", "b_things_total 7"),
        ("# TYPE a_things counter\n", ""),
        ("# TYPE a_things counter\n", "# TYPE a_things gauge\n"),
        ("# TYPE a_things counter\n", "# TYPE a_things thing\n"),
        (
            "# TYPE a_things counter\n",
            "# TYPE a_things counter\n# TYPE a_things counter\n",
        ),
        ("# HELP a_things Things.\n", ""),
        ("# HELP a_things Things.\n", "# HELP a_things .\n"),
        ("# HELP a_things Things.\n", "# help a_things Things.\n"),
        ("# UNIT a_size_bytes bytes\n", ""),
        (
            "# UNIT a_size_bytes bytes\n",
            "# UNIT a_size_bytes seconds\n",
        ),
        (
            "a_build_info{version=\"1\"} 1",
            "a_build_info{version=\"1\"} 2",
        ),
        ("{le=\"0.5\",x=\"1\"} 1", "{le=\"0.5\",x=\"1\"} 4"),
        ("{le=\"+Inf\",x=\"1\"} 3", "{le=\"+Inf\",x=\"1\"} 2"),
        ("a_time_seconds_bucket{le=\"+Inf\",x=\"1\"} 3\n", ""),
        ("a_time_seconds_sum{x=\"1\"} 9.5\n", ""),
        (
            "a_build_info{version=\"1\"} 1",
            "a_build_info{version=\"1\"} 1\n# TYPE a_things counter",
        ),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let bad = GOOD.replace(from, to);
        parse(&bad).expect_err(&bad);
    }
    for name in [
        "a_wait_ms",
        "a_Things",
        "a_things_total",
        "a_size_kilobytes",
    ] {
        let text = format!("# HELP {name} x\n# TYPE {name} gauge\n{name} 1\n# EOF\n");
        parse(&text).expect_err(&text);
    }
}

#[test]
fn a_document_is_compared_both_ways() {
    let families = parse(GOOD).unwrap();
    let good = table(&families).join("\n");
    assert!(
        good.contains("| `a_things_total` | counter |  | Things |"),
        "{good}"
    );
    assert_eq!(differences(&good, "a_", &families), Vec::<String>::new());
    for (from, to, expected) in [
        ("counter", "gauge", "instead of"),
        ("Things", "Other things", "instead of"),
        ("`x`, `y`", "`x`", "instead of"),
        (
            "`a_things_total`",
            "`a_thing_total`",
            "not in the program: a_thing_total",
        ),
        ("`a_things_total`", "`a_thing_total`", "not in the document"),
        ("| Things |", "|", "not four cells"),
    ] {
        let found = differences(&good.replace(from, to), "a_", &families);
        assert!(
            found.iter().any(|one| one.contains(expected)),
            "{to}: {found:?}"
        );
    }
    let twice = format!("{good}\n{good}");
    assert!(!differences(&twice, "a_", &families).is_empty());
    // Rows of another program do not count.
    let with_other = format!("{good}\n| `b_x` | gauge |  | Something |");
    assert_eq!(
        differences(&with_other, "a_", &families),
        Vec::<String>::new()
    );
}

const PLAIN: &str = "\
# HELP a_size_bytes How much
# TYPE a_size_bytes gauge
a_size_bytes{x=\"1\",y=\"a\\\"b\\\\c\\nd,}=\"} -1.5e3
a_size_bytes{x=\"2\",y=\"\"} NaN
# TYPE a_things_total counter
# HELP a_things_total Things.
a_things_total 7
# HELP a_build_info The program
# TYPE a_build_info gauge
a_build_info{version=\"1\"} 1
# HELP a_time_seconds How long
# TYPE a_time_seconds histogram
a_time_seconds_bucket{le=\"0.5\",x=\"1\"} 1
a_time_seconds_bucket{le=\"+Inf\",x=\"1\"} 3
a_time_seconds_sum{x=\"1\"} 9.5
a_time_seconds_count{x=\"1\"} 3
";

#[test]
fn both_text_formats_are_compared() {
    assert_eq!(forms(PLAIN, GOOD), Vec::<String>::new());
    for (bad, expected) in [
        (
            PLAIN.replace("a_things_total 7", "a_things_total 8"),
            vec![
                "only in the text: a_things_total 8",
                "only in the OpenMetrics: a_things_total 7",
            ],
        ),
        (
            PLAIN.replace("# TYPE a_build_info gauge\n", ""),
            vec!["not in the text: # TYPE a_build_info gauge"],
        ),
        (
            format!("{PLAIN}# EOF\n"),
            vec!["too much in the text: # EOF"],
        ),
    ] {
        let mut wrong = forms(&bad, GOOD);
        wrong.retain(|line| !line.starts_with("promtool"));
        assert_eq!(wrong, expected);
    }
    assert!(forms(PLAIN, PLAIN).iter().any(|w| w.contains("# EOF")));
}

/// The forms are not mistaken for each other, and naming conventions are checked.
#[test]
fn promtool_rejects_invalid_text() {
    let folder = std::path::Path::new(".");
    if promtool::run(&["--version"], folder, "").unwrap().is_none() {
        return;
    }
    for bad in [GOOD, "a_total 1\n", "a 1\na 1\n", "a{ 1\n"] {
        let said = promtool::plain(bad);
        assert!(said.len() == 1, "{bad}: {said:?}");
    }
    let no_end = GOOD.replace("# EOF\n", "");
    let no_unit = GOOD.replace("# UNIT a_size_bytes bytes", "# UNIT a_size_bytes seconds");
    for bad in [PLAIN, &no_end, &no_unit] {
        let said = promtool::open_metrics(bad);
        assert!(said.len() == 1, "{bad}: {said:?}");
    }
}
