//! Channels.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{
    AuthenticationType, ChannelRow, ChannelSettings, FecSetting, FecSettingError, NewCommand,
    Origin, Retention,
};
use utoipa::ToSchema;

use super::commands::{CommandReceipt, ask};
use super::extract::{Json as Body, Path, Query};
use super::list::ListQuery;
use super::overview::ChannelOverview;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::live::board::Board;
use crate::site::Site;

/// A channel's name is a file name at the receivers.
const MAX_NAME: usize = 100;

/// Receivers have a file of their own that is called so.
const RESERVED: &str = "status";

/// Maximum number of channels that receivers take from one source.
const MAX_CHANNELS: usize = 64;

/// Default group of the first channel's flow.
const FIRST_GROUP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(232, 70, 70, 1)), 4434);

/// Bounds of a flow's rate in bits per second.
const RATES: std::ops::RangeInclusive<u64> = 64_000..=100_000_000_000;
/// Deadlines of updates that a channel may have, in ms.
const DEADLINES: std::ops::RangeInclusive<u64> = 10..=86_400_000;

/// A channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Channel {
    /// Current state.
    #[serde(flatten)]
    pub overview: ChannelOverview,
    /// Creation time; Unix milliseconds.
    pub created_ms: i64,
    /// Whether packets sent before a receiver joined are hidden from it.
    pub private: bool,
    /// Authentication of its flow: `none`, `signature`, `tags`, `auto` or `stream`.
    #[schema(pattern = "^(none|signature|tags|auto|stream)$")]
    pub packet_authentication: String,
    /// Erasure coding of its flow: `off`, or a policy, `adaptive`, `tail`, `reactive` or
    /// `proactive:SYMBOLS/PACKETS`, by the code RLC or with `,reed-solomon` or `,xor`, and on the
    /// flow, or with `,unicast` at the end on each receiver's own connection.
    #[schema(pattern = "^(off|(adaptive|tail|reactive|proactive:[0-9/]+)\
                   (,(rlc|reed-solomon|xor))?(,unicast)?)$")]
    pub fec: String,
    /// Time in ms after which an update expires: it is neither sent nor delivered later; null
    /// for a log, whose updates all arrive.
    pub deadline_ms: Option<u64>,
    /// Its multicast groups with their ports; empty for no multicast.
    pub groups: Vec<String>,
    /// Maximum rate of its flow, in bits per second; null for the general setting.
    pub rate_bps: Option<u64>,
    /// The seq of the oldest update that is kept; one more than `head` if none is.
    pub first: u64,
    /// Maximum of updates kept; null for the general setting.
    pub keep_updates: Option<u64>,
    /// Time for which updates are kept; null for no bound.
    pub keep_ms: Option<i64>,
    /// Number of feeds it has.
    pub feeds: usize,
    /// Key epoch of its flow; null if unknown.
    pub key_sequence: Option<u64>,
    /// More about its flow, as reported by the source.
    pub flow: Value,
    /// Origin: `flags` (the source's settings) or `managed` (a command, or the console).
    #[schema(pattern = "^(flags|managed)$")]
    pub origin: String,
    /// The source that publishes it; null if none does.
    pub published_by: Option<String>,
}

impl Channel {
    fn of(row: &ChannelRow, board: &Board) -> Self {
        let pulse = board.pulses.get(&row.channel.name);
        let flow = pulse.and_then(|pulse| serde_json::from_str(&pulse.flow).ok());
        let flow = match flow {
            Some(Value::Object(flow)) => Value::Object(flow),
            _ => json!({}),
        };
        let settings = &row.settings;
        Self {
            overview: ChannelOverview::of(row, pulse),
            created_ms: row.created_ms,
            private: settings.private,
            packet_authentication: settings.packet_authentication.as_str().to_owned(),
            fec: settings.fec.as_str().to_owned(),
            deadline_ms: settings.deadline_ms,
            groups: settings
                .groups
                .as_deref()
                .unwrap_or_default()
                .split(',')
                .filter(|group| !group.is_empty())
                .map(str::to_owned)
                .collect(),
            rate_bps: settings.rate_bps,
            first: row.channel.first,
            keep_updates: settings.keep.count,
            keep_ms: settings.keep.age_ms,
            feeds: board
                .feeds
                .iter()
                .filter(|feed| feed.channel == row.channel.name)
                .count(),
            key_sequence: flow.get("key_sequence").and_then(Value::as_u64),
            flow,
            origin: settings.origin.as_str().to_owned(),
            published_by: row.lease.as_ref().map(|lease| lease.name.clone()),
        }
    }
}

/// All channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Channels {
    /// By name.
    pub items: Vec<Channel>,
    /// Cursor of the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// Channels
#[utoipa::path(get, path = "/api/v1/channels", tag = "channels", operation_id = "channels",
    params(ListQuery), responses((status = 200, body = Channels)))]
pub async fn channels(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<Channels>, Problem> {
    caller.may(Scope::Read)?;
    let board = site.board();
    let all = board.channels.iter().map(|row| Channel::of(row, &board));
    let (items, next_cursor) = query.part(all.collect(), |channel: &Channel| {
        channel.overview.name.clone()
    })?;
    Ok(Json(Channels { items, next_cursor }))
}

/// One channel
#[utoipa::path(get, path = "/api/v1/channels/{name}", tag = "channels", operation_id = "channel",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = Channel)))]
pub async fn channel(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Channel>, Problem> {
    caller.may(Scope::Read)?;
    let board = site.board();
    let row = board.channel(&name).ok_or_else(|| unknown(&name))?;
    Ok(Json(Channel::of(row, &board)))
}

fn unknown(name: &str) -> Problem {
    Problem::not_found(format!("there is no channel {name:?}"))
}

/// A new channel.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewChannel {
    /// Its name: letters, digits, `-`, `_` and `.`, and no dot at the beginning.
    #[schema(
        required = true,
        min_length = 1,
        max_length = 100,
        pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]*$"
    )]
    pub name: String,
    /// Whether packets sent before a receiver joined are hidden from it.
    pub private: bool,
    /// Authentication of its flow: a `signature` behind each packet, `tags` for each receiver,
    /// `auto` for tags with few receivers and signatures with more, `stream` for a signature behind
    /// each update, or `none`, the default.
    #[schema(pattern = "^(none|signature|tags|auto|stream)$")]
    pub packet_authentication: Option<String>,
    /// Erasure coding of its flow, as of a channel: when packets with repair symbols are sent, from
    /// which receivers rebuild lost packets; `adaptive` if left out.
    #[schema(pattern = "^(off|(adaptive|tail|reactive|proactive:[0-9/]+)\
                   (,(rlc|reed-solomon|xor))?(,unicast)?)$")]
    pub fec: Option<String>,
    /// Time in ms after which an update expires: it is neither sent nor delivered later; left
    /// out for a log, whose updates all arrive.
    #[schema(minimum = 10, maximum = 86400000)]
    pub deadline_ms: Option<u64>,
    /// Its multicast groups with their ports, one of IPv4, of IPv6, or of each; empty for no
    /// multicast; the next free ones if left out.
    pub groups: Option<Vec<String>>,
    /// Maximum rate of its flow, in bits per second.
    #[schema(minimum = 64000)]
    pub rate_bps: Option<u64>,
    /// Maximum of updates kept.
    #[schema(minimum = 1)]
    pub keep_updates: Option<u64>,
    /// Time for which updates are kept, in milliseconds.
    #[schema(minimum = 60000)]
    pub keep_ms: Option<i64>,
}

/// Creates a channel
#[utoipa::path(post, path = "/api/v1/channels", tag = "channels", operation_id = "create_channel",
    request_body = NewChannel, responses((status = 201, body = Channel)))]
pub async fn create_channel(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Body(new): Body<NewChannel>,
) -> Result<(StatusCode, Json<Channel>), Problem> {
    caller
        .may_do(&site, Scope::Channels, "channel.create", &new.name)
        .await?;
    let done = create(&site, &new).await;
    let detail = serde_json::to_value(&new).unwrap_or_default();
    caller
        .note(&site, "channel.create", &new.name, detail, &done)
        .await;
    let row = done?;
    site.catch_up().await;
    let channel = Channel::of(&row, &site.board());
    Ok((StatusCode::CREATED, Json(channel)))
}

async fn create(site: &Site, new: &NewChannel) -> Result<ChannelRow, Problem> {
    check_name(&new.name)?;
    if new.rate_bps.is_some_and(|rate| !RATES.contains(&rate)) {
        let what = format!(
            "is from {} to {} bits per second",
            RATES.start(),
            RATES.end()
        );
        return Err(Problem::invalid("rate_bps", what));
    }
    let stored = |count: u64| (1..=u64::from(u32::MAX)).contains(&count);
    if new.keep_updates.is_some_and(|count| !stored(count)) {
        return Err(Problem::invalid("keep_updates", "is from 1 to 4294967295"));
    }
    /// Ten years.
    const MAX_AGE: i64 = 3_650 * 86_400_000;
    if new
        .keep_ms
        .is_some_and(|age| !(60_000..=MAX_AGE).contains(&age))
    {
        return Err(Problem::invalid("keep_ms", "is from a minute to ten years"));
    }
    authentication(new)?;
    fec(new)?;
    if new
        .deadline_ms
        .is_some_and(|time| !DEADLINES.contains(&time))
    {
        return Err(Problem::invalid("deadline_ms", "is from 10 ms to a day"));
    }
    let refusal = OnceLock::new();
    let choose = |rows: &[ChannelRow]| match settings(new, rows) {
        Ok(settings) => Some(settings),
        Err(problem) => {
            let _ = refusal.set(problem);
            None
        }
    };
    match site.store.channels().add(&new.name, &choose).await? {
        Some(row) => Ok(row),
        // Without a refusal, no settings were chosen: the name is taken.
        None => Err(refusal.into_inner().unwrap_or_else(|| {
            let what = format!("there is a channel {:?} already", new.name);
            Problem::conflict(what).of_field("name")
        })),
    }
}

/// Returns the authentication of a new channel's packets.
fn authentication(new: &NewChannel) -> Result<AuthenticationType, Problem> {
    let Some(word) = &new.packet_authentication else {
        return Ok(AuthenticationType::default());
    };
    AuthenticationType::from_word(word).ok_or_else(|| {
        let what = "is none, signature, tags, auto or stream";
        Problem::invalid("packet_authentication", what)
    })
}

/// Returns the erasure coding of a new channel's flow.
fn fec(new: &NewChannel) -> Result<FecSetting, Problem> {
    let Some(text) = &new.fec else {
        return Ok(FecSetting::default());
    };
    let wrong = |error: FecSettingError| Problem::invalid("fec", error.to_string());
    text.parse().map_err(wrong)
}

/// Returns the settings of a new channel among the existing ones.
fn settings(new: &NewChannel, rows: &[ChannelRow]) -> Result<ChannelSettings, Problem> {
    let rows: Vec<&ChannelRow> = rows.iter().filter(|row| row.active).collect();
    if rows.len() >= MAX_CHANNELS {
        return Err(Problem::conflict(format!(
            "there are {MAX_CHANNELS} channels already, and receivers take no more from one source"
        )));
    }
    let taken: HashSet<SocketAddr> = rows.into_iter().flat_map(groups_of).collect();
    let groups = match &new.groups {
        Some(given) => given_groups(given, &taken)?,
        None => next_groups(&taken)?,
    };
    let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
    Ok(ChannelSettings {
        groups: Some(groups.join(",")),
        rate_bps: new.rate_bps,
        private: new.private,
        packet_authentication: authentication(new)?,
        fec: fec(new)?,
        deadline_ms: new.deadline_ms,
        keep: Retention {
            count: new.keep_updates,
            age_ms: new.keep_ms,
        },
        origin: Origin::Managed,
    })
}

fn check_name(name: &str) -> Result<(), Problem> {
    let wrong = |what: String| Err(Problem::invalid("name", what));
    if name.is_empty() || name.len() > MAX_NAME {
        return wrong(format!("a channel's name has 1 to {MAX_NAME} characters"));
    }
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if let Some(odd) = name.chars().find(|&c| !is_allowed(c)) {
        return wrong(format!(
            "{odd:?} cannot be in a channel's name: use letters, digits, '-', '_' and '.'"
        ));
    }
    if name.starts_with('.') {
        return wrong("a channel's name cannot begin with a dot".to_owned());
    }
    if name == RESERVED {
        return wrong(format!(
            "no channel can be called {RESERVED}: receivers keep their own status in a file of \
             that name"
        ));
    }
    Ok(())
}

fn groups_of(row: &ChannelRow) -> Vec<SocketAddr> {
    let groups = row.settings.groups.as_deref().unwrap_or_default();
    groups
        .split(',')
        .filter_map(|group| group.parse().ok())
        .collect()
}

fn given_groups(given: &[String], taken: &HashSet<SocketAddr>) -> Result<Vec<SocketAddr>, Problem> {
    let wrong = |what: String| Problem::invalid("groups", what);
    let mut groups: Vec<SocketAddr> = Vec::new();
    for text in given.iter().take(3) {
        let group: SocketAddr = text.trim().parse().map_err(|_| {
            wrong("write a multicast address and a port, such as 232.70.70.1:4434".to_owned())
        })?;
        if !group.ip().is_multicast() || group.port() == 0 {
            return Err(wrong(format!(
                "{group} is no multicast address with a port"
            )));
        }
        if groups
            .iter()
            .any(|other| other.is_ipv4() == group.is_ipv4())
        {
            return Err(wrong(
                "give at most one group of IPv4 and one of IPv6".to_owned(),
            ));
        }
        if taken.contains(&group) {
            return Err(wrong(format!(
                "another channel has {group}: its listeners would get both"
            )));
        }
        groups.push(group);
    }
    Ok(groups)
}

/// Returns the groups after the last ones of other channels.
fn next_groups(taken: &HashSet<SocketAddr>) -> Result<Vec<SocketAddr>, Problem> {
    let none = || {
        Problem::conflict("no groups are free after those of the other channels: give some")
            .of_field("groups")
    };
    let last = |v4: bool| taken.iter().filter(|group| group.is_ipv4() == v4).max();
    let mut groups = Vec::new();
    match last(true) {
        Some(last) => groups.push(after(*last).ok_or_else(none)?),
        // The source has multicast of IPv6 alone.
        None if last(false).is_some() => {}
        None => groups.push(FIRST_GROUP),
    }
    if let Some(last) = last(false) {
        groups.push(after(*last).ok_or_else(none)?);
    }
    Ok(groups)
}

fn after(group: SocketAddr) -> Option<SocketAddr> {
    let ip = match group.ip() {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            IpAddr::from(Ipv4Addr::new(a, b, c, d.checked_add(1)?))
        }
        IpAddr::V6(ip) => {
            let next = u128::from(ip).checked_add(1)?;
            // The rest of the address says what kind of group it is.
            (next & 0xffff != 0).then(|| IpAddr::from(Ipv6Addr::from(next)))?
        }
    };
    Some(SocketAddr::new(ip, group.port()))
}

/// Gives a channel's flow a new key
#[utoipa::path(post, path = "/api/v1/channels/{name}/rekey", tag = "channels",
    operation_id = "rekey_channel",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 202, body = CommandReceipt)))]
pub async fn rekey_channel(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<(StatusCode, Json<CommandReceipt>), Problem> {
    caller
        .may_do(&site, Scope::Channels, "channel.rekey", &name)
        .await?;
    if site.board().channel(&name).is_none() {
        return Err(unknown(&name));
    }
    let command = NewCommand {
        kind: "rekey".to_owned(),
        channel: Some(name),
        ..NewCommand::default()
    };
    ask(&site, &caller, command).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn groups(all: &[&str]) -> HashSet<SocketAddr> {
        all.iter().map(|group| group.parse().unwrap()).collect()
    }

    #[test]
    fn names_are_those_that_receivers_can_have_files_of() {
        for good in ["lore", "a", "news.de", "a_b-c"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".hidden", "status", "a/b", "a b", "ü", &"x".repeat(101)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_next_groups_are_free() {
        let next = |taken: &[&str]| {
            let next = next_groups(&groups(taken));
            next.map(|next| next.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(next(&[]).unwrap(), ["232.70.70.1:4434"]);
        assert_eq!(next(&["232.1.1.1:5000"]).unwrap(), ["232.1.1.2:5000"]);
        let both = [
            "232.70.70.3:4434",
            "232.70.70.1:4434",
            "[ff3e::4646:9]:4434",
        ];
        assert_eq!(
            next(&both).unwrap(),
            ["232.70.70.4:4434", "[ff3e::4646:a]:4434"]
        );
        assert_eq!(next(&["[ff3e::1]:4434"]).unwrap(), ["[ff3e::2]:4434"]);
        assert!(next(&["232.70.70.255:4434"]).is_err());
        assert!(next(&["[ff3e::ffff]:4434"]).is_err());
    }

    #[test]
    fn given_groups_are_checked() {
        let taken = groups(&["232.70.70.1:4434"]);
        let given = |all: &[&str]| {
            let all: Vec<String> = all.iter().map(|group| (*group).to_owned()).collect();
            given_groups(&all, &taken).is_ok()
        };
        assert!(given(&[]));
        assert!(given(&["232.70.70.2:4434", "[ff3e::1]:4434"]));
        for bad in [
            "x",
            "192.0.2.1:1",
            "232.70.70.2:0",
            "232.70.70.2",
            "232.70.70.1:4434",
        ] {
            assert!(!given(&[bad]), "{bad}");
        }
        assert!(!given(&["232.70.70.2:1", "232.70.70.3:1"]));
    }
}
