//! The description of the API (OpenAPI 3.1), made of the calls themselves.

use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    Contact, Content, InfoBuilder, OpenApi, Ref, RefOr, ResponseBuilder, SecurityRequirement, Tag,
};
use utoipa::{PartialSchema, ToSchema};

use super::problem::{MEDIA_TYPE, Problem};
use crate::auth::cookie;

/// Request bodies: members with a default are optional.
const REQUESTS: [&str; 12] = [
    "SignIn",
    "FirstOperator",
    "NewPassword",
    "ReceiverPatch",
    "NewChannel",
    "NewFeed",
    "FeedPatch",
    "FeedToTest",
    "NewEnrolment",
    "NewUser",
    "UserPatch",
    "NewApiToken",
];

/// Calls without authentication.
const OPEN: [&str; 2] = ["sign_in", "setup"];

const TAGS: [(&str, &str); 11] = [
    ("session", "Signing in and out"),
    ("overview", "Overview and history"),
    ("receivers", "Receivers and their moves"),
    ("channels", "Channels and their flows"),
    ("feeds", "Feeds"),
    ("updates", "Updates and their delivery"),
    ("relays", "Relays"),
    ("enrolments", "Enrolment links"),
    ("source", "Commands to the source"),
    ("people", "People, API tokens, the audit log"),
    ("events", "Live events"),
];

const DESCRIPTION: &str = "\
The console's API. JSON is in snake_case; times are Unix milliseconds in members \
that end in `_ms`, as are durations. A member whose value is not known is null and never left out. \
Lists have `items` and `next_cursor`, which is null at the end. Errors are problem details \
(RFC 9457) with a stable `type`.

A browser signs in by `POST /api/v1/session` and sends the `csrf` of the answer as `X-CSRF-Token` \
with everything but GET. A program sends an API token as `Authorization: Bearer …`.";

/// The description.
#[must_use]
pub fn document() -> OpenApi {
    let mut document = super::calls().into_openapi();
    document.info = InfoBuilder::new()
        .title("flexfeed console")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .contact(None::<Contact>)
        .build();
    document.tags = Some(
        TAGS.iter()
            .map(|(name, description)| {
                let mut tag = Tag::new(name);
                tag.description = Some((*description).to_owned());
                tag
            })
            .collect(),
    );
    let components = document.components.get_or_insert_default();
    for (name, schema) in [
        ("Problem", <Problem as PartialSchema>::schema()),
        (
            "Update",
            <crate::live::events::Update as PartialSchema>::schema(),
        ),
    ] {
        components.schemas.insert(name.to_owned(), schema);
    }
    let mut more = Vec::new();
    <crate::live::events::Update as ToSchema>::schemas(&mut more);
    for (name, schema) in more {
        components.schemas.entry(name).or_insert(schema);
    }
    for (name, schema) in &mut components.schemas {
        if !REQUESTS.contains(&name.as_str()) {
            require_all(schema);
        }
    }
    components.add_security_scheme(
        "session",
        SecurityScheme::ApiKey(ApiKey::Cookie(ApiKeyValue::with_description(
            cookie::PLAIN,
            "The cookie of POST /api/v1/session; its name begins with __Host- where it is for \
             https only. With it, every request that changes something needs the header \
             X-CSRF-Token.",
        ))),
    );
    components.add_security_scheme(
        "token",
        SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
    );
    let wrong = ResponseBuilder::new()
        .description("Failed; the reason")
        .content(
            MEDIA_TYPE,
            Content::new(Some(RefOr::Ref(Ref::from_schema_name("Problem")))),
        )
        .build();
    for item in document.paths.paths.values_mut() {
        let calls = [
            &mut item.get,
            &mut item.post,
            &mut item.patch,
            &mut item.delete,
        ];
        for call in calls.into_iter().flatten() {
            finish(call, &wrong);
        }
    }
    document
}

fn finish(call: &mut Operation, wrong: &utoipa::openapi::Response) {
    let id = call.operation_id.as_deref().unwrap_or_default();
    let none: [String; 0] = [];
    call.security = Some(match OPEN.contains(&id) {
        true => Vec::new(),
        false => vec![
            SecurityRequirement::new("session", none.clone()),
            SecurityRequirement::new("token", none),
        ],
    });
    call.responses
        .responses
        .insert("default".to_owned(), RefOr::T(wrong.clone()));
}

/// Unknown values are null: every member is present.
fn require_all(schema: &mut RefOr<Schema>) {
    let RefOr::T(schema) = schema else { return };
    match schema {
        Schema::Object(object) => {
            if matches!(object.schema_type, SchemaType::Type(Type::Object)) {
                object.required = object.properties.keys().cloned().collect();
            }
        }
        Schema::AllOf(all) => all.items.iter_mut().for_each(require_all),
        _ => {}
    }
}

/// The description as it is kept in `docs/openapi.json`.
#[must_use]
pub(super) fn text() -> String {
    // Maps and texts can always be written.
    let mut text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// `UPDATE_SNAPSHOTS=1` rewrites it.
    #[test]
    fn the_description_is_the_one_that_is_kept() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(path, text()).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == text(),
            "docs/openapi.json is not what the calls say: UPDATE_SNAPSHOTS=1 cargo test -p \
             flexfeed-console renews it"
        );
    }

    #[test]
    fn every_call_has_its_words_and_its_lock() {
        let document = document();
        let mut ids = std::collections::BTreeSet::new();
        for (path, item) in &document.paths.paths {
            for call in [&item.get, &item.post, &item.patch, &item.delete]
                .into_iter()
                .flatten()
            {
                let id = call.operation_id.clone().unwrap();
                assert!(call.summary.is_some(), "{id}");
                assert!(
                    call.tags.as_ref().is_some_and(|tags| tags.len() == 1),
                    "{id}"
                );
                assert!(ids.insert(id), "{path}");
            }
        }
        let schemas = &document.components.as_ref().unwrap().schemas;
        for name in &REQUESTS {
            assert!(schemas.contains_key(*name), "{name}");
        }
        // Nothing is meant that is not there.
        let text = text();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
    }
}
