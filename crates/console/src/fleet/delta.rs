//! Differences of two pages.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Receiver;

/// Difference of two pages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// Those that are new or changed.
    pub receivers: Vec<Receiver>,
    /// Those that are not on the page any more.
    pub gone: Vec<Uuid>,
    /// All of them in their order, if that is another one.
    pub order: Option<Vec<Uuid>>,
}

impl Delta {
    /// Whether nothing is different.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.receivers.is_empty() && self.gone.is_empty() && self.order.is_none()
    }
}

/// Returns the difference from `old` to `new`.
#[must_use]
pub fn delta(old: &[Receiver], new: &[Receiver]) -> Delta {
    let known: HashMap<Uuid, &Receiver> = old.iter().map(|row| (row.id, row)).collect();
    let present: HashMap<Uuid, ()> = new.iter().map(|row| (row.id, ())).collect();
    let same_order = old.len() == new.len() && old.iter().zip(new).all(|(a, b)| a.id == b.id);
    Delta {
        receivers: new
            .iter()
            .filter(|row| known.get(&row.id) != Some(row))
            .cloned()
            .collect(),
        gone: old
            .iter()
            .map(|row| row.id)
            .filter(|id| !present.contains_key(id))
            .collect(),
        order: (!same_order).then(|| new.iter().map(|row| row.id).collect()),
    }
}
