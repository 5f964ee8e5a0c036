//! A scenario's view of its services, and its ways to wait for them.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::plan::{LORE, STATUS_PAGE};
use super::stage::Stage;
use super::tunnel::RelaySeat;
use crate::lore::{BookState, Line, read_ledger};
use crate::process::Service;
use crate::status::SourceStatus;
use crate::waiting::wait_for;

/// The longest wait for anything that normally takes a second or two; the machine may be busy, and
/// refused receivers wait longer each time.
pub const PATIENCE: Duration = Duration::from_secs(120);

impl Stage {
    /// The source's status page; `None` while it does not answer.
    pub fn source_status(&self) -> Option<SourceStatus> {
        let body = self.http("get", STATUS_PAGE, "/status.json").ok()?;
        serde_json::from_slice(&body).ok()
    }

    /// The source's status page, which must be there and as agreed.
    ///
    /// # Errors
    /// When it is not.
    pub fn source_status_now(&self) -> Result<SourceStatus> {
        let body = self.http("get", STATUS_PAGE, "/status.json")?;
        serde_json::from_slice(&body).with_context(|| {
            format!(
                "reading the source's status: {}",
                String::from_utf8_lossy(&body)
            )
        })
    }

    /// The text of the source's metrics.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn source_metrics(&self) -> Result<String> {
        let body = self.http("get", STATUS_PAGE, "/metrics")?;
        String::from_utf8(body).context("reading the source's metrics")
    }

    /// Lets the feed grow.
    ///
    /// # Errors
    /// When the generator does not answer.
    pub fn grow(&self, count: u32) -> Result<()> {
        self.control(&format!("/grow?n={count}"))
    }

    /// Lets the hour of a [`super::FeedPlan::Hour`] begin.
    ///
    /// # Errors
    /// When the generator does not answer, or there is no hour.
    pub fn play_hour(&self) -> Result<()> {
        self.control("/play")
    }

    /// Lets entries of the feed change.
    ///
    /// # Errors
    /// When the generator does not answer.
    pub fn edit(&self, count: u32) -> Result<()> {
        self.control(&format!("/edit?n={count}"))
    }

    /// Lets the feed grow by so many entries a second from now on.
    ///
    /// # Errors
    /// When the generator does not answer.
    pub fn set_rate(&self, per_second: f64) -> Result<()> {
        self.control(&format!("/rate?r={per_second}"))
    }

    /// Changes what the feed's URL answers with: `feed`, `html`, `garbage` or `error`.
    ///
    /// # Errors
    /// When the generator does not answer.
    pub fn set_mode(&self, mode: &str) -> Result<()> {
        self.control(&format!("/mode?m={mode}"))
    }

    /// The generator's counts.
    ///
    /// # Errors
    /// When the generator does not answer.
    pub fn feed_state(&self) -> Result<BookState> {
        let body = self.http("get", LORE, "/state")?;
        serde_json::from_slice(&body).context("reading the generator's state")
    }

    /// Returns the entries shown so far.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn ledger(&self) -> Result<Vec<Line>> {
        read_ledger(&self.run.path().join("lore").join("ledger.jsonl"))
    }

    /// Waits for a condition; fails at once when a service that should run has ended.
    ///
    /// # Errors
    /// The condition's, or a service's end, or the bound passed.
    pub fn wait<T>(
        &mut self,
        what: &str,
        bound: Duration,
        mut condition: impl FnMut(&mut Stage) -> Result<Option<T>>,
    ) -> Result<T> {
        wait_for(what, bound, || {
            self.check_running()?;
            condition(self)
        })
    }

    /// Waits until these receivers, by the source's account and by their own, stand on a rung.
    ///
    /// # Errors
    /// When they do not in time.
    pub fn wait_rung(&mut self, names: &[&str], rung: &str) -> Result<()> {
        let what = format!("{} on {rung}", names.join(", "));
        self.wait(&what, PATIENCE, |stage| {
            let Some(status) = stage.source_status() else {
                return Ok(None);
            };
            for name in names {
                let there = status
                    .receivers
                    .iter()
                    .any(|one| one.name == *name && one.rung == rung);
                let here = stage.seat(name)?.channel()?;
                if !there || here.is_none_or(|channel| channel.rung != rung) {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
    }

    /// Waits until the source has stored as many updates as asked for, at least.
    ///
    /// # Errors
    /// When it has not in time.
    pub fn wait_head(&mut self, head: u64) -> Result<()> {
        self.wait(&format!("update {head} stored"), PATIENCE, |stage| {
            let status = stage.source_status();
            Ok(status
                .is_some_and(|status| status.head >= head)
                .then_some(()))
        })
    }

    /// Waits until these receivers' outputs hold everything up to an update.
    ///
    /// # Errors
    /// When they do not in time.
    pub fn wait_cursor(&mut self, names: &[&str], seq: u64) -> Result<()> {
        let what = format!("update {seq} delivered to {}", names.join(", "));
        self.wait(&what, PATIENCE, |stage| {
            for name in names {
                let channel = stage.seat(name)?.channel()?;
                if channel.is_none_or(|channel| channel.cursor < seq) {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
    }

    /// Waits until everything that was asked of the feed is in every receiver's outputs. Returns
    /// how many updates that makes.
    ///
    /// # Errors
    /// When it is not in time.
    pub fn settle(&mut self) -> Result<u64> {
        self.wait("the feed shown as far as asked for", PATIENCE, |stage| {
            let state = stage.feed_state()?;
            Ok((state.pending == 0 && state.unseen == 0).then_some(()))
        })?;
        let total = self.feed_state()?.entries;
        self.wait_head(total)?;
        let names: Vec<String> = self.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.wait_cursor(&names, total)?;
        Ok(total)
    }

    /// The state of everything, for a report of what went wrong.
    pub fn describe(&mut self) -> String {
        let page = self.http("get", STATUS_PAGE, "/status.json").map_or_else(
            |error| format!("(no answer: {error:#})"),
            |body| String::from_utf8_lossy(&body).into_owned(),
        );
        let feed = self.http("get", LORE, "/state").map_or_else(
            |error| format!("(no answer: {error:#})"),
            |body| String::from_utf8_lossy(&body).into_owned(),
        );
        let source = self
            .source
            .as_ref()
            .map_or_else(|| "(stopped)".to_owned(), Service::log_tail);
        let mut text = format!(
            "--- feed\n{feed}\n{}\n--- source\nstatus: {page}\nlog ends:\n{source}\n",
            self.lore.log_tail()
        );
        for relay in &self.relays {
            text.push_str(&relay.describe());
        }
        for seat in &mut self.seats {
            text.push_str(&seat.describe());
        }
        text.push_str("--- switch\n");
        text.push_str(&self.lab.describe_ports());
        text
    }

    /// Fails if a service has ended that was not stopped on purpose.
    ///
    /// # Errors
    /// Names it and how it ended.
    pub fn check_running(&mut self) -> Result<()> {
        self.lore.check_running()?;
        if let Some(source) = &mut self.source {
            source.check_running()?;
        }
        for service in self.relays.iter_mut().filter_map(RelaySeat::service) {
            service.check_running()?;
        }
        for seat in &mut self.seats {
            if let Some(service) = seat.service() {
                service.check_running()?;
            }
        }
        Ok(())
    }

    /// Waits until the source answers with a status page as agreed.
    pub(super) fn wait_source(&mut self) -> Result<()> {
        self.wait("the source's status page", PATIENCE, |stage| {
            Ok(stage.source_status().map(|_| ()))
        })
        .or_else(|error| {
            // Tell a page that is not as agreed from none at all.
            self.source_status_now()
                .map(|_| ())
                .map_err(|reason| error.context(format!("{reason:#}")))
        })
    }

    /// The connections of each shard of the source, and the number of shards that have failed.
    ///
    /// # Errors
    /// The source's metrics cannot be read.
    pub fn shards(&self) -> Result<(Vec<u64>, u64)> {
        let text = String::from_utf8(self.http("get", STATUS_PAGE, "/metrics")?)?;
        let values = |name: &'static str| {
            let its = text.lines().filter(move |line| line.starts_with(name));
            its.filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        };
        let sessions = values("flexfeed_source_shard_sessions{").collect();
        let failures = values("flexfeed_source_shard_failures_total").next();
        Ok((sessions, failures.context("no shard failures are counted")?))
    }

    fn control(&self, path: &str) -> Result<()> {
        self.http("post", LORE, path).map(|_| ())
    }

    fn http(&self, method: &str, address: &str, path: &str) -> Result<Vec<u8>> {
        let mut command = self.source_node.command(&self.bins.lore)?;
        let output = command
            .arg(method)
            .arg(format!("http://{address}{path}"))
            .output()
            .context("starting flexfeed-lore")?;
        if !output.status.success() {
            bail!(
                "{method} {address}{path}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(output.stdout)
    }
}
