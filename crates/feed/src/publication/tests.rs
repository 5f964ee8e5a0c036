use serde_json::json;

use super::*;

fn now() -> Timestamp {
    "2026-11-28T10:00:00Z".parse().unwrap()
}

fn entry_of(publication: &Publication) -> Entry {
    Publication::decode(publication.encoded()).unwrap()
}

fn from_content(content: Content) -> Result<Publication, PublicationError> {
    Publication::from_content(content, "default".into(), now())
}

fn from_event(event: Value) -> Result<Publication, PublicationError> {
    Publication::from_event_json(event.to_string().as_bytes(), now())
}

fn event(data: Value) -> Value {
    let mut event = json!({
        "specversion": "1.0", "id": "7", "source": "https://ci.example.org/builds", "type": "build",
        "time": "2026-11-27T09:00:00.25Z", "subject": "Build 7",
    });
    let members = data.as_object().unwrap();
    event.as_object_mut().unwrap().extend(members.clone());
    event
}

#[test]
fn a_text_is_an_entry() {
    let content = Content {
        id: Some("urn:uuid:1".into()),
        title: Some("Notice".into()),
        url: Some("https://example.org/7".into()),
        body: "The house\nis <closed>.".into(),
        ..Content::default()
    };
    let publication = from_content(content).unwrap();
    assert_eq!(publication.id(), "urn:uuid:1");
    let entry = entry_of(&publication);
    assert_eq!(entry.id, "urn:uuid:1");
    assert_eq!(entry.title.as_deref(), Some("Notice"));
    assert_eq!(entry.url.as_deref(), Some("https://example.org/7"));
    assert_eq!(
        entry.content_text.as_deref(),
        Some("The house\nis <closed>.")
    );
    assert_eq!(entry.published, Some(now()));
    assert!(entry.xml.contains("is &lt;closed&gt;"), "{}", entry.xml);
}

#[test]
fn an_id_is_the_same_with_spaces_around_it() {
    let content = Content {
        id: Some(" 1 ".into()),
        body: "x".into(),
        ..Content::default()
    };
    let publication = from_content(content).unwrap();
    assert_eq!((publication.id(), &*entry_of(&publication).id), ("1", "1"));
}

#[test]
fn the_first_line_is_the_title_of_a_text_without() {
    let title = |text: &str| {
        let content = Content {
            body: text.into(),
            ..Content::default()
        };
        entry_of(&from_content(content).unwrap()).title
    };
    assert_eq!(
        title("\n  First line \nsecond").as_deref(),
        Some("First line")
    );
    let long = title(&"ä".repeat(500)).unwrap();
    assert_eq!((long.chars().count(), long.ends_with('…')), (121, true));
}

#[test]
fn an_event_is_an_entry() {
    let html = json!({"datacontenttype": "text/html", "data": "<p>Passed.</p>"});
    let entry = entry_of(&from_event(event(html)).unwrap());
    assert_eq!(entry.id, "https://ci.example.org/builds#7");
    assert_eq!(entry.title.as_deref(), Some("Build 7"));
    assert_eq!(entry.content_html.as_deref(), Some("<p>Passed.</p>"));
    assert_eq!(entry.published, "2026-11-27T09:00:00.25Z".parse().ok());

    let item = json!({"data": {"id": "other", "title": "Passed", "content_text": "in 3 s",
        "tags": ["ci"], "date_published": "2026-01-01T00:00:00Z"}});
    let entry = entry_of(&from_event(event(item)).unwrap());
    assert_eq!(entry.id, "https://ci.example.org/builds#7");
    assert_eq!(entry.title.as_deref(), Some("Passed"));
    assert_eq!(entry.tags, ["ci"]);
    assert_eq!(entry.published, "2026-01-01T00:00:00Z".parse().ok());

    let other = json!({"datacontenttype": "application/json", "data": {"passed": true}});
    let entry = entry_of(&from_event(event(other)).unwrap());
    assert_eq!(
        entry.content_text.as_deref(),
        Some("{\n  \"passed\": true\n}")
    );

    let base64 = json!({"datacontenttype": "text/plain", "data_base64": "Z3LDvMOfZQ=="});
    let entry = entry_of(&from_event(event(base64)).unwrap());
    assert_eq!(entry.content_text.as_deref(), Some("grüße"));

    let entry = entry_of(&from_event(event(json!({}))).unwrap());
    assert_eq!(
        (entry.title.as_deref(), entry.content_text),
        (Some("Build 7"), None)
    );
}

#[test]
fn events_of_different_sources_are_different_entries() {
    let pairs = [
        ("https://a.example", "1"),
        ("https://b.example", "1"),
        ("/ci", "main#7"),
        ("/ci#main", "7"),
        ("/ci", "main%237"),
    ];
    let ids = pairs.map(|(source, id)| {
        let event = event(json!({"source": source, "id": id, "data": "x"}));
        from_event(event).unwrap().id().to_owned()
    });
    let different: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(different.len(), pairs.len(), "{ids:?}");
}

#[test]
fn an_item_keeps_its_id() {
    let item = |id: Option<&str>, body: &str| {
        let content = Content {
            id: id.map(str::to_owned),
            content_type: Some("application/json".into()),
            body: body.into(),
            ..Content::default()
        };
        from_content(content).unwrap().id().to_owned()
    };
    let with_id = r#"{"id": "river-1", "title": "x"}"#;
    assert_eq!(item(None, with_id), "river-1");
    assert_eq!(item(Some("other"), with_id), "other");
    assert_eq!(item(None, r#"{"id": 7, "title": "x"}"#), "7");
    assert_eq!(item(None, r#"{"title": "x"}"#), "default");
}

#[test]
fn json_that_is_no_item_is_shown_as_text() {
    let shown = |json: &str| {
        let content = Content {
            title: Some("T".into()),
            content_type: Some("application/json".into()),
            body: json.into(),
            ..Content::default()
        };
        let entry = entry_of(&from_content(content).unwrap());
        (entry.title.unwrap(), entry.content_text)
    };
    let text = |json: &str| {
        Some(format!(
            "{:#}",
            serde_json::from_str::<Value>(json).unwrap()
        ))
    };
    for json in [
        r#"{"title": 5, "x": 1}"#,
        r#"{"title": {"en": "x"}}"#,
        "[1, 2]",
        "7",
    ] {
        assert_eq!(shown(json), ("T".into(), text(json)), "{json}");
    }
    // A blank title is none.
    let item = r#"{"title": " ", "content_text": "y"}"#;
    assert_eq!(shown(item), ("T".into(), Some("y".into())));
    let summary = r#"{"summary": "disk full", "host": "a"}"#;
    assert_eq!(shown(summary), ("T".into(), None));
}

/// Indents may make JSON a hundred times as long.
#[test]
fn nested_json_takes_no_more_room_than_an_entry() {
    let deep = format!(
        "{}{}0{}",
        "[".repeat(100),
        "0,".repeat(200_000),
        "]".repeat(100)
    );
    let content = Content {
        content_type: Some("application/json".into()),
        body: deep.clone().into(),
        ..Content::default()
    };
    let error = from_content(content).unwrap_err().to_string();
    assert!(error.contains("indents"), "{error}");
    let event = event(json!({})).to_string();
    let event = event.replacen('{', &format!("{{\"data\":{deep},"), 1);
    let error = Publication::from_event_json(event.as_bytes(), now()).unwrap_err();
    assert!(error.to_string().contains("indents"), "{error}");
}

#[test]
fn an_event_in_binary_mode_is_an_entry() {
    let event = Event {
        specversion: "1.0".into(),
        id: "7".into(),
        source: "/builds".into(),
        kind: "build".into(),
        datacontenttype: Some("application/json".into()),
        data: EventData::Bytes(br#"{"title": "Passed"}"#.to_vec()),
        ..Event::default()
    };
    let entry = entry_of(&Publication::from_event(event.clone(), now()).unwrap());
    assert_eq!(
        (&*entry.id, entry.title.as_deref()),
        ("/builds#7", Some("Passed"))
    );
    let broken = Event {
        data: EventData::Bytes(b"{".to_vec()),
        ..event
    };
    let error = Publication::from_event(broken, now())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the data make no entry: no JSON"),
        "{error}"
    );
}

#[test]
fn defects_are_named() {
    let cases = [
        (
            json!({"specversion": "0.3"}),
            "specversion is \"0.3\": 1.0 is supported",
        ),
        (json!({"id": " "}), "id is \" \": it must not be empty"),
        (
            json!({"source": ""}),
            "source is \"\": it must not be empty",
        ),
        (
            json!({"time": "noon"}),
            "time is \"noon\": it must be one of RFC 3339",
        ),
        (
            json!({"id": "a\u{0}"}),
            "control characters are not allowed",
        ),
        (json!({"id": "x".repeat(3000)}), "at most 2048 are allowed"),
        (
            json!({"data": "x", "data_base64": "eA=="}),
            "data_base64 is \"\": it excludes data",
        ),
        (
            json!({"data_base64": "?"}),
            "data_base64 is \"?\": it is not Base64",
        ),
        (
            json!({"datacontenttype": "image/png", "data_base64": "eA=="}),
            "content-type is \"image/png\": entries are text, HTML or JSON",
        ),
        (
            json!({"datacontenttype": "text/plain; charset=latin1", "data": "x"}),
            "texts have to be UTF-8",
        ),
        (
            json!({"datacontenttype": "text/plain", "data": 5}),
            "it must be a string",
        ),
        (json!({"subject": null}), "neither title nor content"),
        (
            json!({"datacontenttype": "text/plain", "data": "x".repeat(MAX_ENTRY_BYTES + 1)}),
            "at most 1048576 are allowed",
        ),
    ];
    for (change, expected) in cases {
        let error = from_event(event(change)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for array in [
        "[]",
        r#"["1.0", "7", "/s", "t", null, null, "text/plain", "x", null]"#,
    ] {
        let error = Publication::from_event_json(array.as_bytes(), now()).unwrap_err();
        assert!(
            error.to_string().contains("it must be an object"),
            "{error}"
        );
    }
}

#[test]
fn a_batch_is_taken_whole_or_not() {
    let batch = |events: &Value| Publication::from_batch_json(events.to_string().as_bytes(), now());
    let good = |id: &str| event(json!({"id": id, "data": "x"}));
    let ids = batch(&json!([good("1"), good("2")])).unwrap();
    let ids: Vec<_> = ids.iter().map(Publication::id).collect();
    let source = "https://ci.example.org/builds";
    assert_eq!(ids, [format!("{source}#1"), format!("{source}#2")]);
    let error = batch(&json!([good("1"), {"id": "2"}]))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("event 2 of the batch: no CloudEvents"),
        "{error}"
    );
    assert!(batch(&json!([])).is_err());
    let many = Value::from(vec![good("1"); MAX_BATCH + 1]);
    let error = batch(&many).unwrap_err().to_string();
    assert!(error.contains("at most 1000"), "{error}");
}

#[test]
fn other_bytes_are_no_publication() {
    for bytes in [
        &b""[..],
        b"{}",
        b"[]",
        b"\xff",
        br#"{"id": "1"}"#,
        br#"{"title": "x"}"#,
    ] {
        assert!(Publication::decode(bytes).is_err(), "{bytes:?}");
    }
}
