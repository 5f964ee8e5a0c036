//! `/events`: updates as server-sent events (WHATWG HTML, section 9.2).
//!
//! An update is an event without a type, with the CloudEvents event as data on one line. Type `gap`
//! announces missing updates, type `expired` those that expired, type `resync` a new incarnation.
//! Type `live` is an update with a deadline as soon as it is whole, before its turn, and type
//! `live-message` a message, neither of which moves the client. The event id
//! is the client's cursor: `INCARNATION/SEQ` for one channel, `CHANNEL:INCARNATION:SEQ` joined by
//! commas for several. A client that sends it in `Last-Event-ID` continues there and gets each
//! update once. Without it the stream begins with new updates; with `last_event_id=0` in the query,
//! with the oldest kept.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use feed::payload::event_json;
use flexicast::Cursor;
use futures_util::future::select_all;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, warn};
use uuid::Uuid;

use super::Site;
use super::event_id::{ALL, IdPart};
use crate::journal::{JournalPosition, JournalReader, Kind, Missing, RecordHeader};
use crate::live::LiveUpdate;
use crate::messages::ReceivedMessage;

/// Largest number of clients.
const CLIENTS: usize = 64;

/// Interval of keep-alives, by which both sides notice a lost connection.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Time without progress after which a client is dropped; it can reconnect and continue.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 30 });

/// Bytes read from the journals per client and turn, plus at most one update.
const PORTION: usize = 64 << 10;

/// Reconnection time announced to clients, in ms.
const RETRY_MS: u32 = 2000;

const NOT_KEPT: &str = "not kept any more";

/// Places for clients, and their counters.
#[derive(Debug)]
pub(super) struct Clients {
    places: Arc<Semaphore>,
    pub(super) connected: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(CLIENTS)),
            connected: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

pub(super) async fn events(
    State(site): State<Arc<Site>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let wish = EventsRequest::of(&uri, &headers);
    let unknown = wish.channels.iter().find(|c| site.reader(c).is_none());
    if let Some(unknown) = unknown {
        let text = format!("there is no channel {unknown:?} here: see /\n");
        return (StatusCode::NOT_FOUND, text).into_response();
    }
    let stream = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    if method == Method::HEAD {
        return stream.into_response();
    }
    let Ok(place) = Arc::clone(&site.clients.places).try_acquire_owned() else {
        site.clients.refused.fetch_add(1, Ordering::Relaxed);
        let later = [(RETRY_AFTER, HeaderValue::from_static("10"))];
        let text = format!("too many clients: {CLIENTS} already; try again later\n");
        return (StatusCode::SERVICE_UNAVAILABLE, later, text).into_response();
    };
    let served = site.channels.iter();
    let wanted = served.filter(|s| wish.channels.is_empty() || wish.channels.contains(&s.channel));
    let wanted: Vec<(String, Arc<JournalReader>)> = wanted
        .map(|served| (served.channel.clone(), Arc::clone(&served.reader)))
        .collect();
    if wanted.is_empty() {
        return (StatusCode::NOT_FOUND, "there is no channel here\n").into_response();
    }
    // One portion waits, one is being made: the bound on a slow client's memory.
    let (out, body) = mpsc::channel(1);
    // Reads the journals to find the client's position.
    let found = spawn_blocking(move || ClientStream::new(wanted, wish.last.as_deref()));
    let client = match found.await {
        Ok(client) => client,
        Err(error) => {
            warn!(%error, "event client not served");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    tokio::spawn(serve(Arc::clone(&site), client, out, place));
    (stream, Body::from_stream(ReceiverStream::new(body))).into_response()
}

/// Parameters of a client's request.
struct EventsRequest {
    /// Channels; `None` for all.
    channels: Vec<String>,
    /// Id of the last event received.
    last: Option<String>,
}

impl EventsRequest {
    fn of(uri: &Uri, headers: &HeaderMap) -> Self {
        let header = headers.get("last-event-id");
        let header = header.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let mut wish = Self {
            channels: Vec::new(),
            last: None,
        };
        let query = uri.query().unwrap_or_default();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "channel" => {
                    let names = value.split(',').filter(|name| !name.is_empty());
                    wish.channels.extend(names.map(str::to_owned));
                }
                "last_event_id" => wish.last = Some(value.into_owned()),
                _ => {}
            }
        }
        // A reconnecting client repeats its query; its current position is in the header.
        wish.last = header.filter(|id| !id.is_empty()).or(wish.last);
        wish.last = wish.last.filter(|id| !id.is_empty());
        wish
    }
}

/// Counts a client until dropped.
struct Counted<'a>(&'a Clients);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a client until it disconnects or is too slow, or the receiver stops.
async fn serve(
    site: Arc<Site>,
    mut client: ClientStream,
    out: mpsc::Sender<Result<Bytes, std::convert::Infallible>>,
    _place: OwnedSemaphorePermit,
) {
    site.clients.connected.fetch_add(1, Ordering::Relaxed);
    let _counted = Counted(&site.clients);
    let mut ends: Vec<_> = client.channels.iter().map(|c| c.reader.watch()).collect();
    let (mut live, mut messages) = (site.board.live(), site.board.messages());
    let mut text = client.greeting();
    loop {
        for end in &mut ends {
            end.mark_unchanged();
        }
        let pulled = spawn_blocking(move || {
            let events = client.pull(&mut text);
            (client, text, events)
        });
        let events;
        (client, text, events) = match pulled.await {
            Ok(pulled) => pulled,
            Err(error) => return warn!(%error, "event client dropped"),
        };
        if text.is_empty() {
            let changed = select_all(ends.iter_mut().map(|end| Box::pin(end.changed())));
            tokio::select! {
                () = live.ready() => {}
                () = messages.ready() => {}
                _ = changed => continue,
                () = out.closed() => return,
                () = site.stop.cancelled() => return,
                () = tokio::time::sleep(HEARTBEAT) => text.push_str(":\n\n"),
            }
        }
        let room = tokio::select! {
            room = tokio::time::timeout(PATIENCE, out.reserve()) => room,
            // Undelivered events follow after a reconnection.
            () = site.stop.cancelled() => return,
        };
        match room {
            Ok(Ok(room)) => {
                // What expired while there was no room is not among them.
                client.write_live(&live.take_newest_first(), &mut text);
                client.write_messages(&messages.take(), &mut text);
                if !text.is_empty() {
                    room.send(Ok(Bytes::from(std::mem::take(&mut text))));
                    site.clients.sent.fetch_add(events, Ordering::Relaxed);
                }
            }
            Ok(Err(_)) => return,
            Err(_) => {
                site.clients.dropped.fetch_add(1, Ordering::Relaxed);
                return debug!("event client too slow; dropped");
            }
        }
    }
}

/// Client, with its position in each of its channels.
pub(super) struct ClientStream {
    channels: Vec<Subscription>,
}

struct Subscription {
    channel: String,
    reader: Arc<JournalReader>,
    /// Next position to read.
    position: u64,
    /// Cursor of the client.
    cursor: Option<Cursor>,
    /// Incarnation and number up to which updates are not sent again, until the numbering restarts.
    known: Option<Cursor>,
    /// Gap to announce first.
    gap: Option<(Option<u64>, Option<u64>)>,
    /// Whether a possible gap before the next update was announced.
    gap_announced: bool,
}

impl ClientStream {
    /// Returns a client that has everything up to the event `last`.
    pub(super) fn new(channels: Vec<(String, Arc<JournalReader>)>, last: Option<&str>) -> Self {
        let alone = channels.len() == 1;
        let parts = last.map(|last| {
            let parts = last.split(',').map(str::trim);
            parts.map(IdPart::parse).collect::<Option<Vec<IdPart>>>()
        });
        let listening = channels.into_iter().map(|(channel, reader)| {
            let parts = match &parts {
                None => return Subscription::at(channel, &reader, reader.end()),
                // An id that matches no record: all records are sent.
                Some(None) => return Subscription::lost(channel, &reader),
                Some(Some(parts)) => parts,
            };
            let mine = parts
                .iter()
                .find(|part| match (&part.channel, part.cursor) {
                    (Some(name), _) => *name == channel,
                    (None, Some(cursor)) => alone || reader.knows(cursor.incarnation),
                    (None, None) => true,
                });
            match mine {
                Some(IdPart {
                    cursor: Some(cursor),
                    ..
                }) => Subscription::after(channel, &reader, *cursor),
                Some(_) => Subscription::at(channel, &reader, reader.start()),
                // A channel new to the client.
                None => Subscription::at(channel, &reader, reader.end()),
            }
        });
        Self {
            channels: listening.collect(),
        }
    }

    /// Returns the first bytes of a stream: the current id, so that a client can return even before
    /// the first event.
    pub(super) fn greeting(&self) -> String {
        format!("retry: {RETRY_MS}\nid: {}\n\n", self.id())
    }

    /// Appends updates with a deadline of the channels that the client wants.
    fn write_live(&self, updates: &[LiveUpdate], text: &mut String) {
        let wanted = |update: &&LiveUpdate| {
            let mut names = self.channels.iter().map(|c| &c.channel);
            names.any(|name| *name == update.channel)
        };
        let wanted = updates.iter().filter(wanted);
        wanted.for_each(|update| update.write(text));
    }

    /// Appends messages of the channels that the client wants.
    fn write_messages(&self, messages: &[Arc<ReceivedMessage>], text: &mut String) {
        let wanted = messages.iter().filter(|message| {
            let mut names = self.channels.iter().map(|c| &c.channel);
            names.any(|name| *name == message.event.channel)
        });
        wanted.for_each(|message| message.write(text));
    }

    /// Returns the client's cursor over all channels. A channel without a delivered update is
    /// included; left out, it would look unsubscribed.
    fn id(&self) -> String {
        if let [only] = self.channels.as_slice() {
            return match only.cursor {
                Some(cursor) => format!("{}/{}", cursor.incarnation, cursor.seq),
                None => ALL.to_owned(),
            };
        }
        let parts = self.channels.iter().map(|listening| {
            let channel = &listening.channel;
            match listening.cursor {
                Some(cursor) => format!("{channel}:{}:{}", cursor.incarnation, cursor.seq),
                None => format!("{channel}:{ALL}"),
            }
        });
        parts.collect::<Vec<_>>().join(",")
    }

    /// Appends a portion of the pending events, of each channel in turn. Returns their number.
    /// Blocks for the disk.
    pub(super) fn pull(&mut self, text: &mut String) -> u64 {
        let mut count = 0;
        loop {
            let mut more = false;
            for at in 0..self.channels.len() {
                let before = self.id();
                let Some(listening) = self.channels.get_mut(at) else {
                    continue;
                };
                let Some(step) = listening.step() else {
                    continue;
                };
                more = true;
                let after = self.id();
                let last = step.len().saturating_sub(1);
                for (n, event) in step.iter().enumerate() {
                    // Only the last one has the new cursor.
                    let id = if n == last { &after } else { &before };
                    event.write(id, text);
                    count += 1;
                }
                if text.len() >= PORTION {
                    return count;
                }
            }
            if !more {
                return count;
            }
        }
    }
}

/// Event, without its id.
struct EventFrame {
    kind: Option<&'static str>,
    data: String,
}

impl EventFrame {
    fn write(&self, id: &str, out: &mut String) {
        let _ = writeln!(out, "id: {id}");
        if let Some(kind) = self.kind {
            let _ = writeln!(out, "event: {kind}");
        }
        // A line break in JSON is white space between values; here it would end the field.
        for line in self.data.split(['\n', '\r']) {
            let _ = writeln!(out, "data: {line}");
        }
        out.push('\n');
    }
}

impl Subscription {
    /// Returns a reader from this position on, with no gap to announce.
    fn at(channel: String, reader: &Arc<JournalReader>, position: u64) -> Self {
        Self {
            channel,
            cursor: reader.cursor_before(position),
            reader: Arc::clone(reader),
            position,
            known: None,
            gap: None,
            gap_announced: false,
        }
    }

    /// Returns a reader that continues at a client's cursor.
    fn after(channel: String, reader: &Arc<JournalReader>, cursor: Cursor) -> Self {
        let resume = reader.resume(cursor.incarnation, cursor.seq);
        Self {
            channel,
            reader: Arc::clone(reader),
            position: resume.position,
            cursor: Some(cursor),
            known: resume.known,
            gap: resume.gap.map(|(from, to)| (Some(from), to)),
            gap_announced: false,
        }
    }

    /// Returns a reader for a client of unknown position.
    fn lost(channel: String, reader: &Arc<JournalReader>) -> Self {
        Self {
            gap: Some((None, None)),
            cursor: None,
            ..Self::at(channel, reader, reader.start())
        }
    }

    /// Returns the next events; `None` if there are no more.
    fn step(&mut self) -> Option<Vec<EventFrame>> {
        let mut events = Vec::new();
        if let Some((from, to)) = self.gap.take() {
            let incarnation = self.cursor.map(|cursor| cursor.incarnation);
            events.push(self.gap(incarnation, from, to, NOT_KEPT));
            if let (Some(cursor), Some(to)) = (&mut self.cursor, to) {
                cursor.seq = to;
            }
            self.gap_announced = true;
            return Some(events);
        }
        let JournalPosition { position, header } = self.reader.next(self.position)?;
        let jumped = position != self.position;
        self.position = position + 1;
        let renumbers = matches!(header.kind, Kind::Begins { resync: true });
        let same = |cursor: &Cursor| cursor.incarnation == header.incarnation;
        if renumbers {
            self.known = None;
        }
        // First number that this record covers.
        let first = match header.kind {
            Kind::Update { .. } => header.seq,
            Kind::Missing { from, .. } => from,
            Kind::Begins { .. } => header.seq.saturating_add(1),
        };
        if self
            .known
            .filter(same)
            .is_some_and(|known| header.seq <= known.seq)
        {
            return Some(events);
        }
        let before = self.cursor;
        match before {
            Some(cursor) if same(&cursor) => {
                let next = cursor.seq.saturating_add(1);
                // A restart of the numbering announces its own start.
                if first > next && !renumbers {
                    events.push(self.gap(
                        Some(header.incarnation),
                        Some(next),
                        Some(first - 1),
                        NOT_KEPT,
                    ));
                }
            }
            Some(cursor) if jumped && !self.gap_announced => {
                let from = cursor.seq.saturating_add(1);
                events.push(self.gap(Some(cursor.incarnation), Some(from), None, NOT_KEPT));
            }
            _ => {}
        }
        if renumbers || before.is_some_and(|cursor| !same(&cursor)) {
            let after = first.saturating_sub(1);
            events.push(EventFrame {
                kind: Some("resync"),
                data: json!({
                    "channel": self.channel, "incarnation": header.incarnation, "after": after,
                })
                .to_string(),
            });
        }
        self.gap_announced = false;
        self.cursor = Some(Cursor {
            incarnation: header.incarnation,
            seq: header.seq,
        });
        events.extend(self.record(position, &header, before.filter(same)));
        Some(events)
    }

    /// Returns the event that a record makes for a client at cursor `before`.
    fn record(
        &self,
        position: u64,
        header: &RecordHeader,
        before: Option<Cursor>,
    ) -> Option<EventFrame> {
        let only = |why| {
            let seq = header.seq;
            Some(self.gap(Some(header.incarnation), Some(seq), Some(seq), why))
        };
        match header.kind {
            Kind::Begins { .. } => None,
            Kind::Missing { from, why } => {
                let from = before.map_or(from, |before| from.max(before.seq + 1));
                let (incarnation, to) = (Some(header.incarnation), Some(header.seq));
                let frame = self.gap(incarnation, Some(from), to, why.reason());
                Some(match why {
                    Missing::Expired => EventFrame {
                        kind: Some("expired"),
                        ..frame
                    },
                    Missing::Gone | Missing::Senseless | Missing::Skipped => frame,
                })
            }
            Kind::Update { .. } => match self.reader.read(position) {
                Ok(Some(record)) => match event_json(&record.encoded).map(String::from_utf8) {
                    Ok(Ok(data)) => Some(EventFrame { kind: None, data }),
                    _ => only("made no sense"),
                },
                Ok(None) => only(NOT_KEPT),
                Err(error) => {
                    let channel = &self.channel;
                    warn!(channel, %error, "journal read failed; the event client gets a gap");
                    only("cannot be read")
                }
            },
        }
    }

    fn gap(
        &self,
        incarnation: Option<Uuid>,
        from: Option<u64>,
        to: Option<u64>,
        reason: &str,
    ) -> EventFrame {
        let channel = &self.channel;
        let data = json!({
            "channel": channel, "incarnation": incarnation,
            "from": from, "to": to, "reason": reason,
        });
        EventFrame {
            kind: Some("gap"),
            data: data.to_string(),
        }
    }
}
