//! The past, in steps of time.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use store::{SampleRow, StoreError};
use utoipa::{IntoParams, ToSchema};

use super::extract::Query;
use super::problem::Problem;
use crate::auth::caller::Caller;
use crate::auth::rights::Scope;
use crate::clock::now_ms;
use crate::site::Site;

/// The most points of an answer.
const MOST: i64 = 2_000;

/// Age limits of each step, in milliseconds.
const KEPT: [i64; SampleRow::STEPS.len()] = [48 * HOUR, 30 * 24 * HOUR, 2 * 365 * 24 * HOUR];

const HOUR: i64 = 3_600_000;

/// Period up to now that larger steps take from the smallest ones.
const TAIL: i64 = 4 * HOUR;

/// Period of time.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SamplesQuery {
    /// Of this channel; of all together if it is left out.
    pub channel: Option<String>,
    /// From then on; Unix milliseconds. An hour before `to_ms` if it is left out.
    pub from_ms: Option<i64>,
    /// Until then; Unix milliseconds. Now if it is left out.
    pub to_ms: Option<i64>,
    /// Maximum number of points.
    #[param(minimum = 1, maximum = 2000, default = 300)]
    pub points: Option<i64>,
}

/// A part of the past.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Samples {
    /// Of this channel; null for all together.
    pub channel: Option<String>,
    /// Length of each step.
    pub step_ms: i64,
    /// From then on; Unix milliseconds.
    pub from_ms: i64,
    /// Until then; Unix milliseconds.
    pub to_ms: i64,
    /// By time; without the steps of which nothing is known.
    pub points: Vec<Point>,
}

/// One step: averages of counts of receivers, and sums of the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Point {
    /// Start of the step; Unix milliseconds.
    pub at_ms: i64,
    /// Known receivers.
    pub receivers: f64,
    /// Connected ones.
    pub connected: f64,
    /// Those on the rung `multicast`.
    pub multicast: f64,
    /// … on the rung `amt`.
    pub amt: f64,
    /// … on the rung `replicated`.
    pub replicated: f64,
    /// … on the rung `unicast`.
    pub unicast: f64,
    /// Those that were not connected.
    pub offline: f64,
    /// Connected ones that did not have everything.
    pub behind: f64,
    /// Largest lag of a connected receiver within the step, in updates.
    pub lag_updates: u64,
    /// For how long, in milliseconds, at worst.
    pub lag_ms: u64,
    /// Updates that were published.
    pub updates: u64,
    /// Moves between rungs.
    pub moves: u64,
    /// Bytes sent on the flow, each packet counted once.
    pub flow_bytes: u64,
    /// Bytes sent as copies of the flow's packets.
    pub copy_bytes: u64,
    /// Bytes sent by unicast to receivers that are not on the flow.
    pub unicast_bytes: u64,
    /// Bytes sent by unicast to repair what members of the flow missed.
    pub repair_bytes: u64,
    /// Bytes that unicast alone would have taken.
    pub unicast_equivalent_bytes: u64,
}

/// The past, in steps of time
///
/// The step is the smallest that gives no more points than asked for.
#[utoipa::path(get, path = "/api/v1/samples", tag = "overview", operation_id = "samples",
    params(SamplesQuery), responses((status = 200, body = Samples)))]
pub async fn samples(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Query(query): Query<SamplesQuery>,
) -> Result<Json<Samples>, Problem> {
    caller.may(Scope::Read)?;
    let now = now_ms();
    let to_ms = query
        .to_ms
        .unwrap_or(now)
        .clamp(0, now.saturating_add(HOUR));
    let from_ms = query.from_ms.unwrap_or(to_ms - HOUR).max(0);
    if from_ms >= to_ms {
        return Err(Problem::malformed("from_ms has to be before to_ms").of_field("from_ms"));
    }
    let points = query.points.unwrap_or(300);
    if !(1..=MOST).contains(&points) {
        let what = format!("points is a number from 1 to {MOST}");
        return Err(Problem::malformed(what).of_field("points"));
    }
    if let Some(channel) = &query.channel
        && site.board().channel(channel).is_none()
    {
        return Err(Problem::not_found(format!(
            "there is no channel {channel:?}"
        )));
    }
    let channel = query.channel.as_deref().unwrap_or_default();
    let (step, times) = choose(from_ms, to_ms, points, now);
    let rows = read(&site, channel, step, from_ms, to_ms).await?;
    Ok(Json(Samples {
        channel: query.channel.clone(),
        step_ms: step * times,
        from_ms,
        to_ms,
        points: join(&rows, step * times),
    }))
}

/// Returns the stored step to read, and how many of them make one of the answer.
fn choose(from_ms: i64, to_ms: i64, points: i64, now: i64) -> (i64, i64) {
    let span = to_ms - from_ms;
    let steps = SampleRow::STEPS.iter().zip(KEPT);
    let fits = steps
        .filter(|(_, kept)| from_ms >= now - kept)
        .map(|(step, _)| *step)
        .find(|step| span / step <= points);
    match fits {
        Some(step) => (step, 1),
        None => {
            // Several of the largest step make one.
            let step = SampleRow::STEPS.last().copied().unwrap_or(HOUR);
            (step, ((span / step + points - 1) / points).max(1))
        }
    }
}

/// The steps of a time. Larger ones are made when they are over: what is still missing is read in
/// the smallest.
async fn read(
    site: &Site,
    channel: &str,
    step: i64,
    from_ms: i64,
    to_ms: i64,
) -> Result<Vec<SampleRow>, StoreError> {
    let first = from_ms - from_ms.rem_euclid(step);
    let mut rows = site
        .store
        .records()
        .samples(channel, step, first, to_ms)
        .await?;
    let smallest = SampleRow::STEPS.first().copied().unwrap_or(step);
    if step > smallest {
        let had = rows.last().map_or(first, |row| row.at_ms + step);
        let begin = had.max(to_ms - TAIL);
        let begin = begin + (had - begin).rem_euclid(step);
        let tail = site
            .store
            .records()
            .samples(channel, smallest, begin, to_ms)
            .await?;
        rows.extend(tail);
    }
    Ok(rows)
}

/// Points of that step.
fn join(rows: &[SampleRow], step: i64) -> Vec<Point> {
    let begin = |row: &SampleRow| row.at_ms - row.at_ms.rem_euclid(step);
    rows.chunk_by(|a, b| begin(a) == begin(b))
        .filter_map(|rows| Some((begin(rows.first()?), rows)))
        .map(|(at_ms, rows)| {
            let sum = |of: fn(&SampleRow) -> u64| {
                rows.iter()
                    .fold(0u64, |sum, row| sum.saturating_add(of(row)))
            };
            let most = |of: fn(&SampleRow) -> u64| rows.iter().map(of).max().unwrap_or(0);
            let weight = sum(|row| row.weight).max(1);
            let average = |of: fn(&SampleRow) -> u64| tenths(sum(of), weight);
            Point {
                at_ms,
                receivers: average(|row| row.counts.receivers),
                connected: average(|row| row.counts.connected),
                multicast: average(|row| row.counts.multicast),
                amt: average(|row| row.counts.amt),
                replicated: average(|row| row.counts.replicated),
                unicast: average(|row| row.counts.unicast),
                offline: average(|row| row.counts.receivers.saturating_sub(row.counts.connected)),
                behind: average(|row| row.counts.behind),
                lag_updates: most(|row| row.lag_updates),
                lag_ms: most(|row| row.lag_ms),
                updates: sum(|row| row.updates),
                moves: sum(|row| row.moves),
                flow_bytes: sum(|row| row.bytes.flow),
                copy_bytes: sum(|row| row.bytes.copies),
                unicast_bytes: sum(|row| row.bytes.unicast),
                repair_bytes: sum(|row| row.bytes.repairs),
                unicast_equivalent_bytes: sum(|row| row.bytes.equivalent),
            }
        })
        .collect()
}

/// An average to a tenth.
fn tenths(sum: u64, weight: u64) -> f64 {
    let tenths = sum.saturating_mul(10).saturating_add(weight / 2) / weight;
    f64::from(u32::try_from(tenths).unwrap_or(u32::MAX)) / 10.0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::{ReceiverCounts, SentBytes};

    use super::*;

    #[test]
    fn the_smallest_step_that_fits_is_chosen() {
        let now = 1_000 * 24 * HOUR;
        let of = |span: i64, points: i64| choose(now - span, now, points, now);
        assert_eq!(of(HOUR, 360), (10_000, 1));
        assert_eq!(of(HOUR, 300), (300_000, 1));
        assert_eq!(of(24 * HOUR, 300), (300_000, 1));
        assert_eq!(of(7 * 24 * HOUR, 300), (3_600_000, 1));
        // The small steps are not kept for so long.
        assert_eq!(of(49 * HOUR, 2_000), (300_000, 1));
        assert_eq!(of(60 * 24 * HOUR, 2_000), (3_600_000, 1));
        assert_eq!(of(700 * 24 * HOUR, 300), (3_600_000, 56));
        assert_eq!(choose(0, now, 1, now), (3_600_000, 24_000));
    }

    #[test]
    fn steps_are_joined() {
        let row = |at_ms, connected, flow, lag_ms| SampleRow {
            at_ms,
            weight: 2,
            counts: ReceiverCounts {
                receivers: 20,
                connected,
                ..ReceiverCounts::default()
            },
            bytes: SentBytes {
                flow,
                ..SentBytes::default()
            },
            lag_ms,
            ..SampleRow::default()
        };
        let rows = [
            row(0, 10, 5, 7),
            row(10_000, 15, 6, 3),
            row(60_000, 1, 1, 1),
        ];
        let points = join(&rows, 60_000);
        assert_eq!(points.len(), 2);
        assert_eq!((points[0].at_ms, points[1].at_ms), (0, 60_000));
        assert_eq!(points[0].connected, 6.3);
        assert_eq!(points[0].offline, 3.8);
        assert_eq!((points[0].flow_bytes, points[0].lag_ms), (11, 7));
        assert_eq!(points[1].receivers, 10.0);
        assert!(join(&[], 10).is_empty());
    }
}
