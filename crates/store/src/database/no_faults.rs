//! Stand-in for [`faults`](self) without the feature `fault-injection`: nothing is struck.

use super::Operation;
use crate::StoreError;

#[derive(Debug, Default)]
pub(crate) struct Faults(());

pub(super) struct SessionFaults;

impl Faults {
    pub(super) fn session(&self, _operation: Operation) -> SessionFaults {
        SessionFaults
    }
}

impl SessionFaults {
    pub(super) async fn before_statement(&mut self, _url: &str) -> Result<(), StoreError> {
        Ok(())
    }

    pub(super) async fn after_rows(&mut self, _rows: usize) {}

    pub(super) fn after_end(&self, _url: &str, _is_commit: bool) -> Result<(), StoreError> {
        Ok(())
    }
}
