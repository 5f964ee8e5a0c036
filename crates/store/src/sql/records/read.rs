//! Rows of records, as they come out of the database: for each kind, a SELECT that what follows is
//! added to, and a reader of its columns.

use uuid::Uuid;

use crate::StoreError;
use crate::database::{Row, Session};
use crate::model::{
    FeedEvent, ForgeryRow, MoveRow, ProgressRow, PulseRow, ReceiverCounts, RelayRow, SampleRow,
    SentBytes, SourceInfo, StateRow,
};
use crate::sql::names_from_json;

macro_rules! select_states {
    ($($then:tt)+) => {
        $crate::database::sql!(
            "SELECT receiver, channel, connected, rung, since, cause, cursor, backlog, key_sequence,
                 rtt_us, address, session, updated_at, change, legs FROM receiver_states " $($then)+
        )
    };
}
macro_rules! select_moves {
    ($($then:tt)+) => {
        $crate::database::sql!(
            "SELECT id, at, receiver, name, channel, from_rung, to_rung, cause, change FROM moves "
            $($then)+
        )
    };
}
macro_rules! select_pulses {
    ($($then:tt)+) => {
        $crate::database::sql!(
            "SELECT channel, at, head, receivers, connected, multicast, amt, replicated, unicast,
                 behind, delivered, lag_updates, lag_ms, updates_per_hour, flow_bytes, copy_bytes,
                 unicast_bytes, repair_bytes, equivalent_bytes, flow, change FROM pulses " $($then)+
        )
    };
}
macro_rules! select_progress {
    ($($then:tt)+) => {
        $crate::database::sql!(
            "SELECT channel, seq, published_at, expected, delivered, half_ms, p99_ms, all_ms, change
             FROM update_progress " $($then)+
        )
    };
}
macro_rules! select_relays {
    ($($then:tt)+) => {
        $crate::database::sql!(
            "SELECT address, asked, healthy, since, answer_us, detail, gone, at, change
             FROM relay_states " $($then)+
        )
    };
}
macro_rules! select_feed_events {
    ($($then:tt)+) => {
        $crate::database::sql!(
            "SELECT id, channel, url, at, state, detail, excerpt, change FROM \
             feed_events " $($then)+
        )
    };
}
macro_rules! select_samples {
    ($($then:tt)+) => {
        $crate::database::sql!(
            "SELECT channel, step_ms, at, weight, receivers, connected, multicast, amt, replicated,
                 unicast, behind, lag_updates, lag_ms, updates, moves, flow_bytes, copy_bytes,
                 unicast_bytes, repair_bytes, equivalent_bytes FROM samples " $($then)+
        )
    };
}
macro_rules! select_info {
    ($($then:tt)+) => {
        $crate::database::sql!(
            "SELECT holder, software, started_at, public_address, pins, listen, http, warnings,
                 draining, at, change, overloads FROM source_info " $($then)+
        )
    };
}
pub(super) use {
    select_feed_events, select_info, select_moves, select_progress, select_pulses, select_relays,
    select_samples, select_states,
};

/// The id of a receiver.
pub(in crate::sql) fn receiver_id(
    session: &Session,
    row: &Row,
    column: usize,
) -> Result<Uuid, StoreError> {
    let text: String = session.get(row, column)?;
    text.parse()
        .map_err(|error| session.damaged(format!("the id of a receiver is {text:?}: {error}")))
}

pub(super) fn read_state(session: &Session, row: &Row) -> Result<StateRow, StoreError> {
    Ok(StateRow {
        receiver: receiver_id(session, row, 0)?,
        channel: session.get(row, 1)?,
        connected: session.get(row, 2)?,
        rung: session.get(row, 3)?,
        since_ms: session.get(row, 4)?,
        cause: session.get(row, 5)?,
        cursor: session.maybe_count(row, 6)?,
        backlog: session.count(row, 7)?,
        key_sequence: session.maybe_count(row, 8)?,
        rtt_us: session.maybe_count(row, 9)?,
        address: session.get(row, 10)?,
        session: session.get(row, 11)?,
        updated_ms: session.get(row, 12)?,
        change: session.count(row, 13)?,
        legs: session.get(row, 14)?,
    })
}

pub(super) fn read_move(session: &Session, row: &Row) -> Result<MoveRow, StoreError> {
    Ok(MoveRow {
        id: session.get(row, 0)?,
        at_ms: session.get(row, 1)?,
        receiver: receiver_id(session, row, 2)?,
        name: session.get(row, 3)?,
        channel: session.get(row, 4)?,
        from: session.get(row, 5)?,
        to: session.get(row, 6)?,
        cause: session.get(row, 7)?,
        change: session.count(row, 8)?,
    })
}

pub(super) fn read_forgery(session: &Session, row: &Row) -> Result<ForgeryRow, StoreError> {
    Ok(ForgeryRow {
        receiver: receiver_id(session, row, 0)?,
        channel: session.get(row, 1)?,
        first_ms: session.get(row, 2)?,
        last_ms: session.get(row, 3)?,
        reports: session.count(row, 4)?,
    })
}

/// Reads the columns from `first` on.
fn read_counts(session: &Session, row: &Row, first: usize) -> Result<ReceiverCounts, StoreError> {
    Ok(ReceiverCounts {
        receivers: session.count(row, first)?,
        connected: session.count(row, first + 1)?,
        multicast: session.count(row, first + 2)?,
        amt: session.count(row, first + 3)?,
        replicated: session.count(row, first + 4)?,
        unicast: session.count(row, first + 5)?,
        behind: session.count(row, first + 6)?,
    })
}

/// Reads the columns from `first` on.
fn read_bytes(session: &Session, row: &Row, first: usize) -> Result<SentBytes, StoreError> {
    Ok(SentBytes {
        flow: session.count(row, first)?,
        copies: session.count(row, first + 1)?,
        unicast: session.count(row, first + 2)?,
        repairs: session.count(row, first + 3)?,
        equivalent: session.count(row, first + 4)?,
    })
}

pub(super) fn read_pulse(session: &Session, row: &Row) -> Result<PulseRow, StoreError> {
    Ok(PulseRow {
        channel: session.get(row, 0)?,
        at_ms: session.get(row, 1)?,
        head: session.count(row, 2)?,
        counts: read_counts(session, row, 3)?,
        delivered: session.count(row, 10)?,
        lag_updates: session.count(row, 11)?,
        lag_ms: session.count(row, 12)?,
        updates_per_hour: session.count(row, 13)?,
        bytes: read_bytes(session, row, 14)?,
        flow: session.get(row, 19)?,
        change: session.count(row, 20)?,
    })
}

pub(super) fn read_progress(session: &Session, row: &Row) -> Result<ProgressRow, StoreError> {
    Ok(ProgressRow {
        channel: session.get(row, 0)?,
        seq: session.count(row, 1)?,
        published_ms: session.get(row, 2)?,
        expected: session.count(row, 3)?,
        delivered: session.count(row, 4)?,
        half_ms: session.maybe_count(row, 5)?,
        p99_ms: session.maybe_count(row, 6)?,
        all_ms: session.maybe_count(row, 7)?,
        change: session.count(row, 8)?,
    })
}

pub(super) fn read_relay(session: &Session, row: &Row) -> Result<RelayRow, StoreError> {
    Ok(RelayRow {
        address: session.get(row, 0)?,
        asked: session.get(row, 1)?,
        healthy: session.get(row, 2)?,
        since_ms: session.get(row, 3)?,
        answer_us: session.maybe_count(row, 4)?,
        detail: session.get(row, 5)?,
        gone: session.get(row, 6)?,
        at_ms: session.get(row, 7)?,
        change: session.count(row, 8)?,
    })
}

pub(super) fn read_feed_event(session: &Session, row: &Row) -> Result<FeedEvent, StoreError> {
    Ok(FeedEvent {
        id: session.get(row, 0)?,
        channel: session.get(row, 1)?,
        url: session.get(row, 2)?,
        at_ms: session.get(row, 3)?,
        state: session.get(row, 4)?,
        detail: session.get(row, 5)?,
        excerpt: session.get(row, 6)?,
        change: session.count(row, 7)?,
    })
}

pub(super) fn read_sample(session: &Session, row: &Row) -> Result<SampleRow, StoreError> {
    Ok(SampleRow {
        channel: session.get(row, 0)?,
        step_ms: session.get(row, 1)?,
        at_ms: session.get(row, 2)?,
        weight: session.count(row, 3)?,
        counts: read_counts(session, row, 4)?,
        lag_updates: session.count(row, 11)?,
        lag_ms: session.count(row, 12)?,
        updates: session.count(row, 13)?,
        moves: session.count(row, 14)?,
        bytes: read_bytes(session, row, 15)?,
    })
}

pub(super) fn read_info(session: &Session, row: &Row) -> Result<SourceInfo, StoreError> {
    let list = |column| {
        let json: String = session.get(row, column)?;
        names_from_json(session, &json)
    };
    let overloads: String = session.get(row, 11)?;
    let overloads = serde_json::from_str(&overloads)
        .map_err(|error| session.damaged(format!("overloads are {overloads:?}: {error}")))?;
    Ok(SourceInfo {
        holder: session.get(row, 0)?,
        software: session.get(row, 1)?,
        started_ms: session.get(row, 2)?,
        public_address: list(3)?,
        pins: list(4)?,
        listen: session.get(row, 5)?,
        http: session.get(row, 6)?,
        warnings: list(7)?,
        overloads,
        draining: session.get(row, 8)?,
        at_ms: session.get(row, 9)?,
        change: session.count(row, 10)?,
    })
}
