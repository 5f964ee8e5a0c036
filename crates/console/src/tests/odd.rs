//! Texts that break programs: in every place where the description allows a text.

use serde_json::{Map, Value, json};

use super::*;
use crate::api::document;

on_both! {
    odd_texts_break_nothing,
}

/// NUL, which PostgreSQL cannot store; what is SQL; what reorders; what is long; what is none of
/// it.
fn odd() -> Vec<String> {
    vec![
        "\0".to_owned(),
        "a\0b".to_owned(),
        "' OR 1=1 --".to_owned(),
        "%_\\".to_owned(),
        "\u{202e}\u{feff}🦀\u{e000}".to_owned(),
        "\u{10ffff}".repeat(500),
        "9".repeat(400),
        "-1".to_owned(),
        "1e999".to_owned(),
        "../../x".to_owned(),
    ]
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The members of a body that are texts, or lists of them.
fn bodies(document: &Value, call: &Value, text: &str) -> Vec<Value> {
    let schema = &call["requestBody"]["content"]["application/json"]["schema"]["$ref"];
    let Some(name) = schema.as_str().and_then(|name| name.rsplit('/').next()) else {
        return Vec::new();
    };
    let members = &document["components"]["schemas"][name]["properties"];
    let members = members.as_object().unwrap();
    let fill = |of: &str| {
        let mut body = Map::new();
        for (member, schema) in members {
            let kind = schema["type"].to_string();
            if !of.is_empty() && of != member {
                continue;
            }
            if kind.contains("\"string\"") {
                body.insert(member.clone(), text.into());
            } else if kind.contains("\"array\"") {
                body.insert(member.clone(), json!([text]));
            }
        }
        Value::Object(body)
    };
    let mut all: Vec<Value> = members.keys().map(|member| fill(member)).collect();
    all.push(fill(""));
    all
}

async fn odd_texts_break_nothing(place: bench::TestDatabase) {
    let bench = Bench::start(place).await;
    let operator = bench.operator().await;
    let made = json!({"name": "odd", "scopes": ["operate", "admin"]});
    let made = operator.post("/api/v1/api-tokens", &made).await.json();
    let token = format!("Bearer {}", made["token"].as_str().unwrap());
    let robot = bench.anonymous().with("authorization", &token);
    let [alpha, ..] = bench.populate().await;
    let document: Value = serde_json::to_value(document()).unwrap();
    let mut asked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, call) in item.as_object().unwrap() {
            let id = call["operationId"].as_str().unwrap();
            // Events have no end, and a wrong password for each text takes long.
            if ["events", "sign_in", "setup"].contains(&id) {
                continue;
            }
            let known = path
                .replace("{name}", "lore")
                .replace("{channel}", "lore")
                .replace("{seq}", "1");
            let known = match known.contains("/receivers/") {
                true => known.replace("{id}", &alpha.to_string()),
                false => known.replace("{id}", "1"),
            };
            let method = method.to_uppercase();
            let empty = Vec::new();
            let parameters = call["parameters"].as_array().unwrap_or(&empty);
            for text in odd() {
                let mut requests: Vec<(String, Option<Value>)> = Vec::new();
                for parameter in parameters {
                    let name = parameter["name"].as_str().unwrap();
                    let value = escaped(&text);
                    match parameter["in"].as_str().unwrap() {
                        "query" => requests.push((format!("{known}?{name}={value}"), None)),
                        "path" => {
                            requests.push((path.replace(&format!("{{{name}}}"), &value), None));
                        }
                        _ => {}
                    }
                }
                let bodies = bodies(&document, call, &text);
                requests.extend(bodies.into_iter().map(|body| (known.clone(), Some(body))));
                for (path, body) in requests {
                    let body = body.map(|body| body.to_string());
                    let answer = robot.send(&method, &path, body.as_deref()).await;
                    assert!(answer.code < 500, "{id} {path} {body:?}: {}", answer.body);
                    asked += 1;
                }
            }
        }
    }
    assert!(asked > 1_000, "{asked}");
    // All of it is in the audit log, and that can be read.
    assert_eq!(robot.get("/api/v1/audit?limit=1000").await.code, 200);
}
