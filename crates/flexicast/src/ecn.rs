//! Explicit congestion notification (RFC 3168): marks of packets, and the counts of them that
//! members report (RFC 9000 section 13.4).

use crate::wire::{BufMutExt, Reader};

/// ECN field of a packet's IP header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Not ECN-capable, or not known.
    #[default]
    NotEct,
    /// ECT(1).
    Ect1,
    /// ECT(0), which flows are sent with.
    Ect0,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// Returns the mark of a type-of-service or traffic-class byte, whose lowest two bits it is.
    #[must_use]
    pub fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            3 => Ecn::Ce,
            _ => Ecn::NotEct,
        }
    }
}

/// Packets with each mark, as PATH_ACK reports them (protocol.md section 4.9).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EcnCounts {
    /// Packets with ECT(0).
    pub ect0: u64,
    /// Packets with ECT(1).
    pub ect1: u64,
    /// Packets with CE.
    pub ce: u64,
}

impl EcnCounts {
    /// Counts a packet.
    pub(crate) fn add(&mut self, mark: Ecn) {
        match mark {
            Ecn::NotEct => {}
            Ecn::Ect0 => self.ect0 += 1,
            Ecn::Ect1 => self.ect1 += 1,
            Ecn::Ce => self.ce += 1,
        }
    }

    /// Whether no packet was marked.
    pub(crate) fn is_empty(&self) -> bool {
        *self == EcnCounts::default()
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_varint(self.ect0);
        out.put_varint(self.ect1);
        out.put_varint(self.ce);
    }

    /// Reads counts; `None` where they are missing or cut.
    pub(crate) fn read(r: &mut Reader<'_>) -> Option<Self> {
        Some(EcnCounts {
            ect0: r.varint().ok()?,
            ect1: r.varint().ok()?,
            ce: r.varint().ok()?,
        })
    }

    /// Returns the packets counted since `before`; `None` if a count went down.
    fn since(&self, before: &EcnCounts) -> Option<EcnCounts> {
        Some(EcnCounts {
            ect0: self.ect0.checked_sub(before.ect0)?,
            ect1: self.ect1.checked_sub(before.ect1)?,
            ce: self.ce.checked_sub(before.ce)?,
        })
    }
}

/// Validation of the counts that one member reports (RFC 9000 section 13.4.2).
#[derive(Debug, Default)]
pub(crate) enum EcnValidation {
    /// No counts yet: the path may not carry marks, or the receiver not report them.
    #[default]
    Untested,
    /// The counts make sense so far.
    Capable {
        /// The first counts, and the packets that were sent before the member's first one.
        first: EcnCounts,
        sent_before: u64,
        /// The newest counts.
        last: EcnCounts,
    },
    /// The counts are impossible: the path or the receiver falsifies them, and none is believed.
    Failed,
}

/// Packets by which the counts of an acknowledgement are validated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acknowledged {
    /// Packets that it acknowledges for the first time.
    pub(crate) packets: u64,
    /// Packets of the flow sent so far.
    pub(crate) sent: u64,
    /// Those of them sent before the member's first one.
    pub(crate) sent_before: u64,
}

impl EcnValidation {
    /// Takes the counts of an acknowledgement that is newer than all before it. Returns the packets
    /// that were newly marked as having met congestion.
    pub(crate) fn on_ack(&mut self, counts: Option<EcnCounts>, acked: Acknowledged) -> u64 {
        let (first, sent_before, before) = match self {
            EcnValidation::Failed => return 0,
            EcnValidation::Untested => {
                // These may include packets from before the member's first one.
                if let Some(first) = counts.filter(|counts| !counts.is_empty()) {
                    *self = EcnValidation::Capable {
                        first,
                        sent_before: acked.sent_before,
                        last: first,
                    };
                }
                return 0;
            }
            EcnValidation::Capable {
                first,
                sent_before,
                last,
            } => (*first, *sent_before, *last),
        };
        let new = counts.and_then(|counts| counts.since(&before));
        let Some((counts, new)) = counts.zip(new) else {
            *self = EcnValidation::Failed;
            return 0;
        };
        // All packets are sent with ECT(0).
        let enough = new.ect0.saturating_add(new.ce) >= acked.packets && new.ect1 == 0;
        let total = counts.ect0.saturating_add(counts.ce);
        let counted = total.saturating_sub(first.ect0.saturating_add(first.ce));
        if !enough || counted > acked.sent.saturating_sub(sent_before) {
            *self = EcnValidation::Failed;
            return 0;
        }
        *self = EcnValidation::Capable {
            first,
            sent_before,
            last: counts,
        };
        new.ce
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ect0: u64, ect1: u64, ce: u64) -> Option<EcnCounts> {
        Some(EcnCounts { ect0, ect1, ce })
    }

    fn acked(packets: u64, sent: u64) -> Acknowledged {
        Acknowledged {
            packets,
            sent,
            sent_before: 100,
        }
    }

    /// A member whose first counts were 50 packets with ECT(0) and 3 with CE.
    fn capable() -> EcnValidation {
        let mut ecn = EcnValidation::default();
        assert_eq!(ecn.on_ack(None, acked(9, 110)), 0, "not reported");
        assert_eq!(ecn.on_ack(counts(50, 0, 3), acked(9, 120)), 0);
        ecn
    }

    #[test]
    fn the_byte_of_the_header_has_the_mark_in_its_lowest_bits() {
        let marks = [0xfc, 0xb9, 2, 0x0b].map(Ecn::from_tos);
        assert_eq!(marks, [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce]);
    }

    #[test]
    fn new_marks_are_returned_once() {
        let mut ecn = capable();
        assert_eq!(ecn.on_ack(counts(60, 0, 3), acked(10, 130)), 0);
        assert_eq!(ecn.on_ack(counts(64, 0, 5), acked(6, 140)), 2);
        // More than acknowledged: an acknowledgement was lost.
        assert_eq!(ecn.on_ack(counts(70, 0, 6), acked(0, 150)), 1);
    }

    #[test]
    fn impossible_counts_are_never_believed_again() {
        let impossible = [
            (None, acked(5, 140), "no counts any more"),
            (counts(49, 0, 9), acked(0, 140), "a count went down"),
            (counts(54, 0, 3), acked(5, 140), "fewer than acknowledged"),
            (counts(60, 1, 3), acked(5, 140), "never sent with ECT(1)"),
            (counts(50, 0, 44), acked(5, 140), "more than sent"),
            (counts(u64::MAX, 0, u64::MAX), acked(5, 140), "overflow"),
        ];
        for (reported, now, what) in impossible {
            let mut ecn = capable();
            assert_eq!(ecn.on_ack(reported, now), 0, "{what}");
            assert!(matches!(ecn, EcnValidation::Failed), "{what}");
            assert_eq!(ecn.on_ack(counts(1000, 0, 1000), acked(1, 99_999)), 0);
        }
    }
}
