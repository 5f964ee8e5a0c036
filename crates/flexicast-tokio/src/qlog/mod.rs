//! qlog files (draft-ietf-quic-qlog-main-schema, draft-ietf-quic-qlog-quic-events; JSON-SEQ): one
//! for each connection, written by quiche, and one for each flow in the same schema.

mod files;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use ::qlog::events::quic::{
    PacketDropped, PacketDroppedTrigger, PacketHeader, PacketReceived, PacketSent, PacketType,
    QuicFrame,
};
use ::qlog::events::{ApplicationError, EventData, EventImportance, ExData, QUIC_URI, RawInfo};
use ::qlog::streamer::{EventTimePrecision, QlogStreamer};
use ::qlog::{CommonFields, ReferenceTime, TraceSeq, VantagePoint, VantagePointType};
use data_encoding::HEXLOWER;
use flexicast::receiver::FlowInput;
use flexicast::trace::{Outcome, PacketTrace, TracedFrame};
use flexicast::{FlowId, PathId};

use files::{QlogFiles, QlogFolder};

/// Flows whose files are open at once.
const MAX_FLOWS: usize = 128;

/// Which end writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalEnd {
    Source,
    Receiver,
}

/// The qlog files of one source or receiver.
pub(crate) struct Qlog {
    folder: QlogFolder,
    end: LocalEnd,
    /// Prefix of all file names.
    name: String,
    flows: BTreeMap<FlowId, QlogStreamer>,
}

impl Qlog {
    pub(crate) fn new(path: PathBuf, end: LocalEnd, name: String) -> Self {
        Qlog {
            folder: QlogFolder::new(path),
            end,
            name,
            flows: BTreeMap::new(),
        }
    }

    /// Returns what writes down connections. All clones have to be dropped before
    /// [`Qlog::finish`].
    pub(crate) fn connections(&self) -> ConnectionLogs {
        ConnectionLogs {
            files: self.folder.files().clone(),
            name: self.name.clone(),
        }
    }

    /// Writes down what happened to flow packets.
    pub(crate) fn packets(&mut self, packets: Vec<PacketTrace>) {
        for packet in packets {
            let PacketTrace { at, flow, .. } = packet;
            if !self.flows.contains_key(&flow) {
                let Some(streamer) = self.begin(flow, at) else {
                    continue;
                };
                if self.flows.len() >= MAX_FLOWS {
                    self.flows.pop_first();
                }
                self.flows.insert(flow, streamer);
            }
            if let Some(streamer) = self.flows.get_mut(&flow) {
                let (event, extra) = event(packet);
                let _ = streamer.add_event_data_ex_with_instant(event, extra, at);
            }
        }
    }

    fn begin(&self, flow: FlowId, at: Instant) -> Option<QlogStreamer> {
        let log = self
            .folder
            .files()
            .create(&format!("{}-flow-{flow}.sqlog", self.name))?;
        let title = Some(format!("{} flow {flow}", self.name));
        let description = Some("packets of a Flexicast flow".to_owned());
        let wall = SystemTime::now().checked_sub(at.elapsed());
        let fields = CommonFields {
            reference_time: ReferenceTime::new_monotonic(wall),
            ..CommonFields::default()
        };
        let vantage = VantagePoint {
            name: None,
            ty: match self.end {
                LocalEnd::Source => VantagePointType::Server,
                LocalEnd::Receiver => VantagePointType::Client,
            },
            flow: None,
        };
        let trace = TraceSeq::new(
            title.clone(),
            description.clone(),
            Some(fields),
            Some(vantage),
            vec![QUIC_URI.to_owned()],
        );
        let mut streamer = QlogStreamer::new(
            title,
            description,
            at,
            trace,
            EventImportance::Base,
            EventTimePrecision::MicroSeconds,
            Box::new(log),
        );
        streamer.start_log().ok()?;
        Some(streamer)
    }

    /// Waits until everything is written. All connections have to be dropped before.
    pub(crate) async fn finish(mut self) {
        self.flows.clear();
        self.folder.finish().await;
    }
}

/// Writes down connections; cheap to clone.
#[derive(Clone)]
pub(crate) struct ConnectionLogs {
    files: QlogFiles,
    /// Prefix of all file names.
    name: String,
}

impl ConnectionLogs {
    /// Lets quiche write down a connection; `id` is the connection ID that this end chose.
    pub(crate) fn attach(&self, conn: &mut quiche::Connection, id: &[u8], peer: &str) {
        let id = HEXLOWER.encode(id);
        if let Some(log) = self.files.create(&format!("{}-{id}.sqlog", self.name)) {
            let title = format!("{} {id}", self.name);
            conn.set_qlog(Box::new(log), title, format!("with {peer}"));
        }
    }
}

/// A packet as qlog says it. By which path it came is our addition.
fn event(packet: PacketTrace) -> (EventData, ExData) {
    let header = PacketHeader {
        packet_type: PacketType::OneRtt,
        packet_number: packet.pn,
        key_phase: (packet.key_sequence > 0).then_some(packet.key_sequence),
        key_phase_bit: (packet.key_sequence > 0).then_some(packet.key_sequence & 1 == 1),
        dcil: Some(FlowId::LEN as u8),
        dcid: Some(packet.flow.to_string()),
        ..PacketHeader::default()
    };
    let raw = Some(RawInfo {
        length: Some(packet.len as u64),
        ..RawInfo::default()
    });
    let frames = Some(packet.frames.iter().map(frame).collect());
    let mut extra = ExData::new();
    if packet.path != PathId::UNICAST {
        let rung = packet.path.rung().map(|rung| rung.to_string());
        extra.insert("flexicast_path".to_owned(), packet.path.0.into());
        extra.insert("flexicast_rung".to_owned(), rung.into());
    }
    let event = match packet.outcome {
        Outcome::Sent => EventData::QuicPacketSent(PacketSent {
            header,
            raw,
            frames,
            ..PacketSent::default()
        }),
        Outcome::Received => EventData::QuicPacketReceived(PacketReceived {
            header,
            raw,
            frames,
            ..PacketReceived::default()
        }),
        Outcome::Dropped(input) => EventData::QuicPacketDropped(PacketDropped {
            header: Some(header),
            raw,
            details: Some(format!("{input:?}")),
            trigger: Some(trigger(input)),
            ..PacketDropped::default()
        }),
    };
    (event, extra)
}

fn trigger(input: FlowInput) -> PacketDroppedTrigger {
    match input {
        FlowInput::UnknownFlow => PacketDroppedTrigger::ConnectionUnknown,
        FlowInput::Unverified => PacketDroppedTrigger::DecryptionFailure,
        FlowInput::Invalid => PacketDroppedTrigger::Invalid,
        FlowInput::NoRoom | FlowInput::Unchecked => PacketDroppedTrigger::Rejected,
        _ => PacketDroppedTrigger::General,
    }
}

fn frame(frame: &TracedFrame) -> QuicFrame {
    // One update is one stream: 4 · seq + 3 (protocol.md section 6).
    let stream = |seq: u64| seq.saturating_mul(4).saturating_add(3);
    let raw = |len: usize| {
        Some(Box::new(RawInfo {
            payload_length: Some(len as u64),
            ..RawInfo::default()
        }))
    };
    match *frame {
        TracedFrame::Padding => QuicFrame::Padding { raw: None },
        TracedFrame::Ping => QuicFrame::Ping { raw: None },
        TracedFrame::Stream {
            seq,
            offset,
            len,
            fin,
        } => QuicFrame::Stream {
            stream_id: stream(seq),
            offset: Some(offset),
            fin: Some(fin),
            raw: raw(len),
        },
        TracedFrame::Reset { seq, code, size } => QuicFrame::ResetStream {
            stream_id: stream(seq),
            error: ApplicationError::Unknown,
            error_code: Some(code),
            final_size: size,
            raw: None,
        },
        TracedFrame::Datagram { len } => QuicFrame::Datagram { raw: raw(len) },
        // qlog has no name for it: as a frame of this type, with its length.
        TracedFrame::Repair { len } => QuicFrame::Unknown {
            frame_type_bytes: Some(0x41),
            raw: raw(len),
        },
        TracedFrame::Unknown { kind } => QuicFrame::Unknown {
            frame_type_bytes: Some(kind),
            raw: None,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use ::qlog::reader::{Event, QlogSeqReader};
    use flexicast::Rung;

    use super::*;

    #[tokio::test]
    async fn dropped_packets_are_logged_with_their_reason() {
        let place = tempfile::tempdir().unwrap();
        let mut qlog = Qlog::new(
            place.path().to_owned(),
            LocalEnd::Receiver,
            "receiver-7".into(),
        );
        let packet = |pn, outcome, frames| PacketTrace {
            at: Instant::now(),
            flow: FlowId([0xab; 8]),
            path: PathId::new(1, Rung::Replicated),
            outcome,
            pn,
            key_sequence: u64::from(pn.is_some()) * 3,
            len: 120,
            frames,
        };
        let reset = TracedFrame::Reset {
            seq: 5,
            code: 2,
            size: 900,
        };
        qlog.packets(vec![
            packet(Some(4), Outcome::Received, vec![reset]),
            packet(None, Outcome::Dropped(FlowInput::Unverified), Vec::new()),
        ]);
        qlog.finish().await;
        let path = place.path().join("receiver-7-flow-abababababababab.sqlog");
        let events: Vec<_> = QlogSeqReader::with_file(path).unwrap().collect();
        let [Event::Qlog(taken), Event::Qlog(dropped)] = &events[..] else {
            panic!("{events:?}");
        };
        let EventData::QuicPacketReceived(taken) = &taken.data else {
            panic!("{taken:?}");
        };
        let header = &taken.header;
        assert_eq!((header.packet_number, header.key_phase), (Some(4), Some(3)));
        assert_eq!(header.key_phase_bit, Some(true));
        let frames = taken.frames.as_deref().unwrap();
        assert!(
            matches!(
                frames,
                [QuicFrame::ResetStream {
                    stream_id: 23,
                    error_code: Some(2),
                    final_size: 900,
                    ..
                }]
            ),
            "{frames:?}"
        );
        assert_eq!(dropped.ex_data["flexicast_rung"], "replicated");
        let EventData::QuicPacketDropped(dropped) = &dropped.data else {
            panic!("{dropped:?}");
        };
        assert_eq!(
            dropped.trigger,
            Some(PacketDroppedTrigger::DecryptionFailure)
        );
        assert_eq!(dropped.header.as_ref().unwrap().packet_number, None);
    }
}
