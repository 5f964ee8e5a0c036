//! Enrolment links: what a receiver needs, in one line.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use signing::VerifyingKey;
use store::{NewToken, TokenRow};
use utoipa::ToSchema;

use super::extract::{Json as Body, Path, Query};
use super::list::ListQuery;
use super::overview::Warning;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::auth::secret;
use crate::clock::now_ms;
use crate::site::Site;

/// The longest link that receivers read, in bytes.
const MAX_LINK: usize = 4_096;

/// First word of the source's warnings about the address in links.
const ADDRESS: &str = "public-address";

/// The longest label, in characters.
const MAX_LABEL: usize = 100;

/// Maximum number of receivers that a token admits.
const MAX_LIMIT: u32 = 1_000_000;

/// Maximum validity: ten years.
const MAX_TTL: i64 = 3_650 * 86_400_000;

/// An enrolment token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Enrolment {
    /// Its number.
    pub token_id: i64,
    /// Label for people.
    pub label: String,
    /// The channels that it admits to; empty for all.
    pub channels: Vec<String>,
    /// Creation time; Unix milliseconds.
    pub created_ms: i64,
    /// Expiry; Unix milliseconds; null for none.
    pub expires_ms: Option<i64>,
    /// Number of receivers it admits; null for any number.
    pub limit: Option<u32>,
    /// Number of receivers it has admitted.
    pub used: u32,
    /// Whether it is public.
    pub public: bool,
    /// Time of the revocation; Unix milliseconds; null if not revoked.
    pub revoked_ms: Option<i64>,
}

impl From<TokenRow> for Enrolment {
    fn from(row: TokenRow) -> Self {
        Self {
            token_id: row.id,
            label: row.label,
            channels: row.channels,
            created_ms: row.created_ms,
            expires_ms: row.expires_ms,
            limit: row.limit,
            used: row.uses,
            public: row.public,
            revoked_ms: row.revoked_ms,
        }
    }
}

/// All enrolment tokens, also revoked and expired ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Enrolments {
    /// In the order of their creation.
    pub items: Vec<Enrolment>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// Enrolment tokens
///
/// The links themselves are shown only once.
#[utoipa::path(get, path = "/api/v1/enrolments", tag = "enrolments", operation_id = "enrolments",
    params(ListQuery), responses((status = 200, body = Enrolments)))]
pub async fn enrolments(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<Enrolments>, Problem> {
    caller.may(Scope::Enrolments)?;
    let rows = site.store.tokens().list().await?;
    let all = rows.into_iter().map(Enrolment::from);
    let (items, next_cursor) = query.part(all.collect(), |enrolment| enrolment.token_id)?;
    Ok(Json(Enrolments { items, next_cursor }))
}

/// A new enrolment link.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewEnrolment {
    /// Label for people.
    #[schema(max_length = 100)]
    pub label: String,
    /// The channels that it admits to; empty for all existing ones.
    pub channels: Vec<String>,
    /// Number of receivers it admits; null for any number.
    #[schema(minimum = 1, maximum = 1000000)]
    pub limit: Option<u32>,
    /// Expiry; Unix milliseconds; null for none.
    pub expires_ms: Option<i64>,
}

/// An enrolment link, which is not shown again, and the command lines that use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnrolmentLink {
    /// The number of its token.
    pub token_id: i64,
    /// The link; its holder can subscribe.
    pub link: String,
    /// Command line for Docker.
    pub docker_run: String,
    /// Command line for Kubernetes.
    pub helm_install: String,
    /// Command line of the program itself.
    pub binary: String,
    /// Reason why it may fail; null if none is known.
    pub warning: Option<String>,
}

/// Creates an enrolment link
#[utoipa::path(post, path = "/api/v1/enrolments", tag = "enrolments",
    operation_id = "create_enrolment", request_body = NewEnrolment,
    responses((status = 201, body = EnrolmentLink)))]
pub async fn create_enrolment(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Body(new): Body<NewEnrolment>,
) -> Result<(StatusCode, Json<EnrolmentLink>), Problem> {
    caller
        .may_do(&site, Scope::Enrolments, "enrolment.create", "")
        .await?;
    let done = create(&site, &new).await;
    let target = match &done {
        Ok(made) => made.token_id.to_string(),
        Err(_) => String::new(),
    };
    let detail = serde_json::to_value(&new).unwrap_or_default();
    caller
        .note(&site, "enrolment.create", target, detail, &done)
        .await;
    done.map(|made| (StatusCode::CREATED, Json(made)))
}

async fn create(site: &Site, new: &NewEnrolment) -> Result<EnrolmentLink, Problem> {
    let now = now_ms();
    if new.label.chars().count() > MAX_LABEL {
        let what = format!("has at most {MAX_LABEL} characters");
        return Err(Problem::invalid("label", what));
    }
    if new
        .limit
        .is_some_and(|limit| !(1..=MAX_LIMIT).contains(&limit))
    {
        let what = format!("is from 1 to {MAX_LIMIT}, or null for any number");
        return Err(Problem::invalid("limit", what));
    }
    if new
        .expires_ms
        .is_some_and(|then| then <= now || then - now > MAX_TTL)
    {
        let what = "is a time from now on, ten years away at most; null for ever";
        return Err(Problem::invalid("expires_ms", what));
    }
    let known = site.store.channels().list().await?;
    let active = known.iter().filter(|row| row.active);
    let active: Vec<String> = active.map(|row| row.channel.name.clone()).collect();
    if let Some(unknown) = new.channels.iter().find(|name| !active.contains(name)) {
        return Err(Problem::invalid(
            "channels",
            format!(
                "there is no channel {:?}",
                service::peer_text::plain(unknown)
            ),
        ));
    }
    let mut channels = match new.channels.is_empty() {
        true => active,
        false => new.channels.clone(),
    };
    channels.sort();
    channels.dedup();
    if channels.is_empty() {
        return Err(Problem::conflict(
            "there is no channel yet that a receiver could get: make one first",
        ));
    }
    let source = site.board().source.clone();
    let source = source.filter(|source| !source.pins.is_empty()).ok_or_else(|| {
        Problem::conflict(
            "no source has said yet where receivers find it and how they recognise it: start one \
             on this database",
        )
    })?;
    let (address, warning) = match source.public_address.first() {
        Some(address) => (address.clone(), doubts(&source.warnings)),
        None => (
            source.listen.clone(),
            Some(
                "the source was given no --public-address: the link says where it listens, which \
                 works only where that can be reached"
                    .to_owned(),
            ),
        ),
    };
    let token = secret::new_secret()?;
    let key = site.store.signing_keys().pinnable(&channels).await?;
    let key = key.map(VerifyingKey);
    let link = link(&token, &address, &source.pins, key, &channels);
    if link.len() > MAX_LINK {
        return Err(Problem::invalid(
            "channels",
            format!("the link would be longer than the {MAX_LINK} bytes that receivers read"),
        ));
    }
    let hash = secret::hash(&token).ok_or_else(Problem::internal)?;
    let row = site
        .store
        .tokens()
        .add(&NewToken {
            hash,
            label: new.label.clone(),
            limit: new.limit,
            expires_ms: new.expires_ms,
            public: false,
            channels: match new.channels.is_empty() {
                true => Vec::new(),
                false => channels,
            },
        })
        .await?;
    Ok(EnrolmentLink {
        token_id: row.id,
        docker_run: format!(
            "docker run -d --restart unless-stopped -p 127.0.0.1:8080:8080 -v feeds:/data \
             flexfeed/receiver '{link}'"
        ),
        helm_install: format!(
            "helm install flexfeed-receiver ./helm/flexfeed --set source.enabled=false \
             --set relay.enabled=false --set console.enabled=false --set receiver.enabled=true \
             --set-string receiver.link='{link}'"
        ),
        binary: format!("flexfeed-receiver '{link}'"),
        link,
        warning,
    })
}

/// Returns the source's warnings about the address in links; `None` without any.
fn doubts(warnings: &[String]) -> Option<String> {
    let all = warnings.iter().map(|text| Warning::of(text));
    let about = all.filter(|warning| warning.code == ADDRESS);
    let texts: Vec<String> = about.map(|warning| warning.text).collect();
    (!texts.is_empty()).then(|| texts.join(" "))
}

/// The link with this token. `address` is HOST:PORT.
fn link(
    token: &str,
    address: &str,
    pins: &[String],
    key: Option<VerifyingKey>,
    channels: &[String],
) -> String {
    let mut link = format!("flexfeed://{token}@{address}");
    // Receivers take two pins: the present one, and the next.
    let pins = pins.iter().take(2).map(|pin| format!("pin={pin}"));
    let channels = channels.iter().map(|channel| format!("ch={channel}"));
    let key = key.map(|key| format!("key={key}"));
    for (at, part) in pins.chain(key).chain(channels).enumerate() {
        link.push(if at == 0 { '?' } else { '&' });
        link.push_str(&part);
    }
    link
}

/// Revokes a token
///
/// Receivers that enrolled with it stay.
#[utoipa::path(delete, path = "/api/v1/enrolments/{id}", tag = "enrolments",
    operation_id = "revoke_enrolment",
    params(("id" = i64, Path, description = "The token's number")),
    responses((status = 204, description = "Revoked")))]
pub async fn revoke_enrolment(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<StatusCode, Problem> {
    caller
        .may_do(
            &site,
            Scope::Enrolments,
            "enrolment.revoke",
            &id.to_string(),
        )
        .await?;
    let done = match site.store.tokens().revoke(id).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Problem::not_found(format!("there is no token {id}"))),
        Err(error) => Err(error.into()),
    };
    caller
        .note(&site, "enrolment.revoke", id.to_string(), json!({}), &done)
        .await;
    done.map(|()| StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_parse_at_receivers() {
        let pins = ["sha256:A".to_owned(), "sha256:B".to_owned()];
        let channels = ["lore".to_owned(), "news".to_owned()];
        assert_eq!(
            link("T", "h.example:4433", &pins, None, &channels),
            "flexfeed://T@h.example:4433?pin=sha256:A&pin=sha256:B&ch=lore&ch=news"
        );
        let key = VerifyingKey([0; 32]);
        assert_eq!(
            link("T", "h:1", &pins[..1], Some(key), &channels[..1]),
            format!("flexfeed://T@h:1?pin=sha256:A&key={key}&ch=lore")
        );
        assert_eq!(
            link("T", "h:1", &[], None, &channels[..1]),
            "flexfeed://T@h:1?ch=lore"
        );
    }

    #[test]
    fn a_link_comes_with_warnings_about_its_address() {
        let said = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            doubts(&texts)
        };
        let address = "public-address: PUBLIC_ADDRESS is not set: links name 127.0.0.1";
        let other = "the disk is slow";
        let text = "PUBLIC_ADDRESS is not set: links name 127.0.0.1";
        assert_eq!(said(&[other, address]).as_deref(), Some(text));
        assert_eq!(said(&[other]), None);
        assert_eq!(said(&[]), None);
    }
}
