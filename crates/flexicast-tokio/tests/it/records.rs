//! Output for other tools: qlog files, and captures that a packet analyser dissects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flexicast_tokio::Rung;
use netio::RecvBatch;
use qlog::events::EventData;
use qlog::events::quic::{PacketHeader, PacketType, QuicFrame};
use qlog::reader::{Event, QlogSeqReader};
use tokio::time::timeout;

use crate::site::{LIMIT, Site, any_port, body};

struct Packet {
    header: PacketHeader,
    frames: Vec<QuicFrame>,
}

#[derive(Default)]
struct Record {
    sent: Vec<Packet>,
    received: Vec<Packet>,
}

fn read(path: &Path) -> Record {
    let mut record = Record::default();
    for event in QlogSeqReader::with_file(path).expect("a qlog file") {
        let Event::Qlog(event) = event else { continue };
        match event.data {
            EventData::QuicPacketSent(sent) => record.sent.push(Packet {
                header: sent.header,
                frames: sent.frames.unwrap_or_default(),
            }),
            EventData::QuicPacketReceived(received) => record.received.push(Packet {
                header: received.header,
                frames: received.frames.unwrap_or_default(),
            }),
            _ => {}
        }
    }
    record
}

/// The files of a folder, those of flows apart.
fn files(folder: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap();
    let all = entries.map(|entry| entry.unwrap().path());
    all.partition(|path| path.to_string_lossy().contains("-flow-"))
}

/// The bytes of each update that frames carry, by stream.
fn streams(packets: &[Packet]) -> BTreeMap<u64, u64> {
    let mut ends = BTreeMap::<u64, u64>::new();
    for frame in packets.iter().flat_map(|p| &p.frames) {
        if let QuicFrame::Stream {
            stream_id,
            offset,
            raw,
            ..
        } = frame
        {
            let len = raw.as_ref().and_then(|raw| raw.payload_length);
            let end = offset.unwrap_or(0) + len.unwrap_or(0);
            let known = ends.entry(*stream_id).or_default();
            *known = end.max(*known);
        }
    }
    ends
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn qlog_files_record_the_events() {
    let site = Site::new();
    let mut config = site.config(any_port());
    config.qlog = Some(site.path("qlog-source"));
    let source = site.start(config).await;
    let mut config = site.receiver_config(source.addr);
    config.qlog = Some(site.path("qlog-receiver"));
    let id = config.receiver_id.to_string();
    let mut probe = site.start_receiver(config);
    probe.until_rung(Rung::Multicast).await;
    site.publish(&source.handle, 60).await;
    probe.until_seq(60).await;
    let flow = source.status().await.channels.remove(0).flow.unwrap();
    probe.handle.shutdown().await;
    source.handle.shutdown().await;
    timeout(LIMIT, source.task).await.unwrap().unwrap();

    let (flows, connections) = files(&site.path("qlog-source"));
    assert_eq!((flows.len(), connections.len()), (1, 1));
    assert!(flows[0].ends_with(format!("source-flow-{}.sqlog", flow.id)));
    let sent = read(&flows[0]).sent;
    assert!(sent.len() as u64 >= flow.packets, "{}", sent.len());
    for (pn, packet) in sent.iter().enumerate() {
        let header = &packet.header;
        assert_eq!(header.packet_type, PacketType::OneRtt);
        assert_eq!(header.dcid.as_deref(), Some(flow.id.as_str()));
        assert_eq!(header.packet_number, Some(pn as u64), "none is left out");
        assert!(header.key_phase.is_some() && !packet.frames.is_empty());
    }
    let carried = streams(&sent);
    for seq in 1..=60 {
        let len = body("lore", seq).len() as u64;
        let end = carried.get(&(4 * seq + 3));
        assert!(end.is_some_and(|end| *end >= len), "{seq}: {end:?}");
    }

    let (flows, connections) = files(&site.path("qlog-receiver"));
    assert_eq!((flows.len(), connections.len()), (1, 1));
    for path in flows.iter().chain(&connections) {
        assert!(path.to_string_lossy().contains(&id), "{path:?}");
    }
    let received = read(&flows[0]).received;
    let numbers: BTreeSet<_> = received.iter().map(|p| p.header.packet_number).collect();
    let all: BTreeSet<_> = sent.iter().map(|p| p.header.packet_number).collect();
    assert!(numbers.is_subset(&all) && numbers.len() >= 60);

    // quiche's own: what one end sent in 1-RTT packets, the other received.
    let (flows, mine) = (connections, files(&site.path("qlog-source")).1);
    let (receiver, source) = (read(&flows[0]), read(&mine[0]));
    let short = |packets: &[Packet]| -> BTreeSet<Option<u64>> {
        let short = packets
            .iter()
            .filter(|p| p.header.packet_type == PacketType::OneRtt);
        short.map(|p| p.header.packet_number).collect()
    };
    assert!(!short(&receiver.received).is_empty());
    assert!(short(&receiver.received).is_subset(&short(&source.sent)));
}

/// A pcap file of UDP datagrams over IPv4 (LINKTYPE_RAW).
fn pcap(path: &Path, to: SocketAddr, datagrams: &[Vec<u8>]) {
    let SocketAddr::V4(to) = to else {
        panic!("IPv4 only")
    };
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    for (second, data) in datagrams.iter().enumerate() {
        let len = 28 + data.len();
        for word in [second as u32, 0, len as u32, len as u32] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&[0x45, 0]);
        file.extend_from_slice(&(len as u16).to_be_bytes());
        file.extend_from_slice(&[0, 0, 0, 0, 1, 17, 0, 0]);
        file.extend_from_slice(&Ipv4Addr::LOCALHOST.octets());
        file.extend_from_slice(&to.ip().octets());
        file.extend_from_slice(&40_000u16.to_be_bytes());
        file.extend_from_slice(&to.port().to_be_bytes());
        file.extend_from_slice(&((len - 20) as u16).to_be_bytes());
        file.extend_from_slice(&[0, 0]);
        file.extend_from_slice(data);
    }
    std::fs::write(path, file).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_analyser_takes_flow_packets_for_quic_short_headers() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("NOT TESTED: tshark is not installed");
        assert!(std::env::var_os("CI").is_none(), "CI has to install tshark");
        return;
    }
    let site = Site::new();
    let source = site.source().await;
    let (group, here) = (site.group(0), Ipv4Addr::LOCALHOST.into());
    let tap = netio::join(group, Some(here), Some(here)).unwrap();
    let mut probe = site.receiver(source.addr);
    probe.until_rung(Rung::Multicast).await;
    site.publish(&source.handle, 40).await;
    probe.until_seq(40).await;
    let flow = source.status().await.channels.remove(0).flow.unwrap();
    let (mut batch, mut captured) = (RecvBatch::new(), Vec::new());
    let capture = async {
        while captured.len() < 40 {
            tap.readable().await.unwrap();
            let _ = tap.try_recv(&mut batch, |d| captured.push(d.data.to_vec()));
        }
    };
    timeout(Duration::from_secs(10), capture).await.unwrap();
    let file = site.path("flow.pcap");
    pcap(&file, group, &captured);
    let output = Command::new("tshark")
        .arg("-r")
        .arg(&file)
        .args(["-d", &format!("udp.port=={},quic", group.port())])
        .args(["-T", "fields", "-e", "frame.protocols"])
        .args(["-e", "quic.header_form", "-e", "quic.fixed_bit"])
        .args(["-e", "quic.remaining_payload", "-e", "_ws.malformed"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().count(), captured.len());
    for (line, packet) in lines.lines().zip(&captured) {
        let fields: Vec<_> = line.split('\t').collect();
        assert!(fields[0].ends_with(":udp:quic"), "{line}");
        // Header form 0 is the short header; the fixed bit of QUIC version 1 is set.
        let set = |field: &str| field == "1" || field == "True";
        assert!(!set(fields[1]) && set(fields[2]), "{line}");
        assert!(fields[3].starts_with(&flow.id), "{line}");
        assert_eq!(fields.get(4), Some(&""), "not malformed: {line}");
        assert_eq!(packet[0] & 0xc0, 0x40);
    }
}
