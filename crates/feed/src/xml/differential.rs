//! The strict check against an independent parser: expat must accept everything that passes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::check::{Form, check};

const SCRIPT: &str = "
import json, sys
from xml.parsers import expat
def ok(text):
    parser = expat.ParserCreate(namespace_separator=' ')
    try:
        parser.Parse(text.encode('utf-8'), True)
        return True
    except expat.ExpatError:
        return False
print(json.dumps([ok(text) for text in json.load(sys.stdin)]))
";

#[test]
fn accepted_xml_passes_expat() {
    let part = prop::sample::select(vec![
        "<a>",
        "</a>",
        "<a ",
        ">",
        "/>",
        "<b/>",
        "<x:a",
        "</x:a>",
        "<",
        " ",
        "\n",
        "\t",
        "\r",
        "b='1'",
        "c=\"2\"",
        "b='1' ",
        " x:b=''",
        "xmlns='urn:u' ",
        "xmlns:x='urn:x' ",
        "xmlns:x=''",
        "xmlns:y='urn:x' ",
        " y:b=''",
        " xml:lang='e'",
        "xmlns:xml='u'",
        "é",
        "€",
        "\u{b7}",
        "\u{1}",
        "\u{fffe}",
        "&amp;",
        "&#65;",
        "&#x1F600;",
        "&#0;",
        "&#xD800;",
        "&x;",
        "&",
        ";",
        "]]>",
        "]]",
        "<![CDATA[",
        "<!--",
        "-->",
        "--",
        "-",
        "<?p i?>",
        "<?",
        "?>",
        "<?xml version='1.0'?>",
        "<!DOCTYPE a>",
        "'",
        "\"",
        "=",
        "1",
        ":",
        "text",
    ]);
    let soup = proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat());
    let document = (soup.clone(), soup, any::<bool>()).prop_map(|(inside, attributes, wrap)| {
        if wrap {
            format!("<a xmlns:x='urn:x' {attributes}>{inside}</a>")
        } else {
            inside
        }
    });
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let documents: Vec<String> = (0..30_000)
        .map(|_| document.new_tree(&mut runner).unwrap().current())
        .collect();
    let passing: Vec<&String> = documents
        .iter()
        .filter(|d| check(d, Form::Element).is_ok())
        .collect();
    assert!(passing.len() > 300, "only {} of them pass", passing.len());
    let started = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut python = match started {
        Ok(python) => python,
        Err(e) => {
            eprintln!("SKIPPED: no python3 to compare with: {e}");
            return;
        }
    };
    let mut stdin = python.stdin.take().unwrap();
    stdin
        .write_all(serde_json::to_string(&passing).unwrap().as_bytes())
        .unwrap();
    drop(stdin);
    let output = python.wait_with_output().unwrap();
    let verdicts: Vec<bool> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(verdicts.len(), passing.len());
    for (document, good) in passing.iter().zip(verdicts) {
        assert!(good, "expat refuses {document:?}");
    }
}
