//! A source that keeps this receiver on its unicast path (protocol.md section 8.7).

use std::time::Instant;

use super::{Receiver, ReceiverEvent};
use crate::FlowId;

impl Receiver {
    /// The source has said whether this receiver is to do without the flow for now. Until it says otherwise, the receiver listens by no way and proves nothing.
    pub(super) fn set_held(&mut self, id: FlowId, held: bool, now: Instant) {
        let Some(flow) = self.flows.get_mut(&id).filter(|f| f.held != held) else {
            return;
        };
        if flow.left {
            return;
        }
        flow.held = held;
        if !held {
            let announce = flow.announce.clone();
            return self.join(id, self.can_join(&announce), now);
        }
        flow.stop_asking();
        flow.native.end();
        if std::mem::take(&mut flow.joined) {
            self.events.push_back(ReceiverEvent::Leave { flow: id });
        }
        self.close_tunnel(id);
    }
}
