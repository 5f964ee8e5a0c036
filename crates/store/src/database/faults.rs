//! Faults that tests inject into the sessions of one open database.
//!
//! A [`FaultRule`] names operations as error messages do ("store updates", "read a feed") and
//! strikes while one of their sessions runs a statement or ends its transaction. Everything around
//! the fault is the real store on a real database: what a failed statement leaves is what a
//! rollback leaves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::Operation;
use crate::StoreError;

/// Error that an injected fault reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The disk is full.
    DiskFull,
    /// The database cannot be reached.
    Unreachable,
}

/// Effect of a [`FaultRule`] on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The statement fails. The transaction is rolled back.
    Fail(Failure),
    /// The transaction ends as it should, and is reported as failed.
    LostReply(Failure),
    /// The statement is never answered.
    Hang,
    /// The statement waits for [`Faults::resume`].
    Pause,
    /// The statement panics.
    Panic,
    /// The statement takes longer.
    Slow {
        /// Extra time of every statement.
        each: Duration,
        /// Extra time of every row read.
        per_row: Duration,
    },
}

/// Fault, and the sessions that it strikes: all of them, unless restricted.
#[derive(Clone, Debug)]
pub struct FaultRule {
    fault: Fault,
    operations: Vec<&'static str>,
    statement: Option<usize>,
    skip: usize,
    every: usize,
    /// Sessions of these operations since the rule was added.
    sessions: usize,
}

impl FaultRule {
    /// Strikes every statement of every session.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            operations: Vec::new(),
            statement: None,
            skip: 0,
            every: 1,
            sessions: 0,
        }
    }

    /// Restricts the rule to sessions of these operations, named as in error messages.
    #[must_use]
    pub fn on(mut self, operations: &[&'static str]) -> Self {
        self.operations.extend_from_slice(operations);
        self
    }

    /// Restricts the rule to the statement with this number in its session, counted from 1.
    /// [`Fault::LostReply`] and `per_row` of [`Fault::Slow`] apply whatever the number.
    #[must_use]
    pub fn at_statement(mut self, number: usize) -> Self {
        self.statement = Some(number);
        self
    }

    /// Lets this many sessions pass first.
    #[must_use]
    pub fn after(mut self, sessions: usize) -> Self {
        self.skip = sessions;
        self
    }

    /// Strikes only the first of every `sessions` sessions.
    #[must_use]
    pub fn every(mut self, sessions: usize) -> Self {
        self.every = sessions.max(1);
        self
    }

    /// Counts a new session of `operation`. Returns whether the rule strikes it.
    fn strikes(&mut self, operation: Operation) -> bool {
        if !self.operations.is_empty() && !self.operations.contains(&operation) {
            return false;
        }
        self.sessions += 1;
        let number = self.sessions;
        number > self.skip && (number - self.skip - 1).is_multiple_of(self.every)
    }
}

/// Faults of one open database. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    paused: Notify,
    resume: Notify,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<FaultRule>,
    /// Errors reported so far.
    failures: usize,
    open_sessions: usize,
    operations: HashMap<Operation, OperationLog>,
}

#[derive(Debug, Default)]
struct OperationLog {
    sessions: usize,
    committed_rows: Vec<usize>,
}

impl Faults {
    /// Adds a rule. Sessions that are open already are not struck.
    pub fn inject(&self, rule: FaultRule) {
        self.state().rules.push(rule);
    }

    /// Removes all rules. Sessions that were struck keep their faults.
    pub fn clear(&self) {
        self.state().rules.clear();
    }

    /// Number of errors reported by injected faults.
    #[must_use]
    pub fn failures(&self) -> usize {
        self.state().failures
    }

    /// Number of sessions that are open.
    #[must_use]
    pub fn open_sessions(&self) -> usize {
        self.state().open_sessions
    }

    /// Number of sessions opened for an operation.
    #[must_use]
    pub fn sessions(&self, operation: &str) -> usize {
        let state = self.state();
        state
            .operations
            .get(operation)
            .map_or(0, |log| log.sessions)
    }

    /// Sizes of the largest results read in the committed transactions of an operation.
    #[must_use]
    pub fn committed_rows(&self, operation: &str) -> Vec<usize> {
        let state = self.state();
        let log = state.operations.get(operation);
        log.map_or_else(Vec::new, |log| log.committed_rows.clone())
    }

    /// Waits until a statement is held by [`Fault::Pause`].
    pub async fn paused(&self) {
        self.shared.paused.notified().await;
    }

    /// Lets one statement continue that [`Fault::Pause`] holds.
    pub fn resume(&self) {
        self.shared.resume.notify_one();
    }

    pub(super) fn session(&self, operation: Operation) -> SessionFaults {
        let mut state = self.state();
        state.open_sessions += 1;
        state.operations.entry(operation).or_default().sessions += 1;
        let rules = state.rules.iter_mut();
        let struck = rules.filter_map(|rule| {
            rule.strikes(operation)
                .then_some((rule.fault, rule.statement))
        });
        let struck = struck.collect();
        drop(state);
        SessionFaults {
            faults: self.clone(),
            operation,
            struck,
            statements: 0,
            rows: 0,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, url: &str, failure: Failure) -> StoreError {
        self.state().failures += 1;
        let url = url.to_owned();
        match failure {
            Failure::DiskFull => StoreError::Full { url },
            Failure::Unreachable => StoreError::Unavailable {
                url,
                detail: "injected by a test".to_owned(),
            },
        }
    }
}

/// Faults that strike one session.
#[derive(Debug)]
pub(super) struct SessionFaults {
    faults: Faults,
    operation: Operation,
    /// With the number of the statement that is struck, if it is only one.
    struck: Vec<(Fault, Option<usize>)>,
    /// Statements so far.
    statements: usize,
    /// Size of the largest result so far.
    rows: usize,
}

impl SessionFaults {
    /// Strikes a statement before the database gets it.
    pub(super) async fn before_statement(&mut self, url: &str) -> Result<(), StoreError> {
        self.statements += 1;
        for (fault, statement) in &self.struck {
            if statement.is_some_and(|number| number != self.statements) {
                continue;
            }
            match *fault {
                Fault::Fail(failure) => return Err(self.faults.error(url, failure)),
                Fault::Hang => std::future::pending().await,
                Fault::Pause => {
                    self.faults.shared.paused.notify_one();
                    self.faults.shared.resume.notified().await;
                }
                #[allow(clippy::panic)]
                Fault::Panic => panic!("injected by a test"),
                Fault::Slow { each, .. } => sleep(each).await,
                Fault::LostReply(_) => {}
            }
        }
        Ok(())
    }

    /// Holds back the answer to a statement that read so many rows.
    pub(super) async fn after_rows(&mut self, rows: usize) {
        self.rows = self.rows.max(rows);
        for (fault, _) in &self.struck {
            if let Fault::Slow { per_row, .. } = fault {
                sleep(per_row.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX))).await;
            }
        }
    }

    /// Strikes the answer to the end of a transaction.
    pub(super) fn after_end(&self, url: &str, is_commit: bool) -> Result<(), StoreError> {
        if is_commit {
            let mut state = self.faults.state();
            let log = state.operations.entry(self.operation).or_default();
            log.committed_rows.push(self.rows);
        }
        for (fault, _) in &self.struck {
            if let Fault::LostReply(failure) = *fault {
                return Err(self.faults.error(url, failure));
            }
        }
        Ok(())
    }
}

impl Drop for SessionFaults {
    fn drop(&mut self) {
        self.faults.state().open_sessions -= 1;
    }
}
