//! Updates whose deadline has passed: the flow sends nothing more of them (protocol.md section
//! 7.6).

use super::sender::FlowSender;

impl FlowSender {
    /// Sends no more of an update, neither for the first time nor again. What members lack of it
    /// is handed to their unicast paths, where those that know deadlines get no bytes. Returns
    /// whether any of it was still to be sent.
    pub fn expire(&mut self, seq: u64) -> bool {
        let was_queued = self.abandon(seq);
        self.withdraw_repairs(seq) || was_queued
    }
}
