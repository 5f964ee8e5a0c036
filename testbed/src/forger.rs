//! A receiver like any other, until it has the flow's key: then it forges packets of the flow.
//!
//! Its connection is quiche alone, since the programs' transport gives no key away.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use feed::payload;
use feed::{Entry, Kind};
use flexfeed_receiver::link::Link;
use flexicast::authentication::{
    AuthenticationParameters, FlowAuthentication, PACKET_TAG_LEN, PacketSigner, SIGNATURE_LEN,
    put_tags,
};
use flexicast::control::{Control, ControlReader, Credential};
use flexicast::forgery::{FORGERIES, Forge, Knowledge};
use flexicast::merge::Output;
use flexicast::protect::{Algorithm, FlowSecret, HEADER_LEN, OVERHEAD, PacketKey, peek_flow_id};
use flexicast::receiver::{Receiver, ReceiverConfig, ReceiverEvent, Rungs};
use flexicast::signing::{self, SALT_LEN, Signer, Statement};
use flexicast::{ALPN, Cursor, FlowId, Rung};
use rand::RngExt;
use socket2::{Domain, Protocol, Socket, Type};
use uuid::Uuid;

use crate::until::StopCondition;
use crate::waiting::pause;

/// Pause between two looks at the sockets.
const SLICE: Duration = Duration::from_millis(1);
/// Interval of the forgeries of one kind: 100 a second.
const EVERY: Duration = Duration::from_millis(10);
/// Bound on the wait for admission, the flow's key and an update.
const ADMITTED_WITHIN: Duration = Duration::from_secs(60);
/// Attempts to change an update so that it is still one.
const CHANGES: usize = 200;
const CONTROL_STREAM: u64 = 0;
/// Bit of the first byte that marks a signed packet.
const SIGNED: u8 = 0x20;
/// Number of forged packets of tags, which the source does not come to.
const TAG_NUMBER: u64 = 1 << 22;

/// Kind of forgery.
#[derive(Clone, Copy)]
enum Forgery {
    /// A packet under the flow's key, without a proof that the source sent it.
    Unproved(Forge),
    /// The same, signed by another key than the source's.
    Signed(Forge),
    /// The same, with tags for all that the forger cannot make.
    Tagged(Forge),
    /// The newest packet of the source.
    Replay,
    /// The newest packet of tags of the source.
    ReplayTags,
}

/// The next update, by another key.
const NEXT: Forge = FORGERIES[3].1;
/// Packet numbers that were not sent.
const UNSENT: Forge = FORGERIES[FORGERIES.len() - 1].1;

/// Kinds against a flow whose packets are authenticated, by name.
const AGAINST_PROOFS: [(&str, Forgery); 5] = [
    (
        "packet numbers that were not sent, signed",
        Forgery::Signed(UNSENT),
    ),
    (
        "packet numbers that were not sent, with tags",
        Forgery::Tagged(UNSENT),
    ),
    ("the next update, with tags", Forgery::Tagged(NEXT)),
    ("the newest packet again", Forgery::Replay),
    ("the newest packet of tags again", Forgery::ReplayTags),
];

/// Number of kinds that a flow is attacked with, all together included.
pub fn kinds(is_authenticated: bool) -> usize {
    let more = if is_authenticated {
        AGAINST_PROOFS.len()
    } else {
        0
    };
    FORGERIES.len() + more + 1
}

/// Course of an attack.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// Address of the interface to join the group on, and to send from.
    pub interface: Ipv4Addr,
    /// Duration of each kind of forgery alone; of the first one, three times as long.
    pub each: Duration,
    /// Duration of all kinds together.
    pub all: Duration,
}

/// Enrols by a link, says so by `joined` when it could forge, forges, and stays as an ordinary
/// receiver until the end. `tell` gets the name of each kind and the number of its packets, and
/// `over` when the attack is over.
///
/// # Errors
/// When it is not admitted, gets no key, or a socket fails.
pub fn forge(
    link: &Link,
    attack: &Attack,
    until: &StopCondition,
    joined: impl FnOnce(),
    mut tell: impl FnMut(&str),
) -> Result<()> {
    let mut member = Member::connect(link, attack.interface)?;
    let by = Instant::now() + ADMITTED_WITHIN;
    while !member.is_ready() {
        ensure!(Instant::now() < by, "not admitted, or no flow: {member:?}");
        member.drive()?;
        pause(SLICE);
    }
    joined();
    let unproved = FORGERIES.map(|(name, forge)| (name, Forgery::Unproved(forge)));
    let mut kinds = unproved.to_vec();
    if member.authentication.is_some() {
        kinds.extend(AGAINST_PROOFS);
    }
    for (n, (name, kind)) in kinds.iter().enumerate() {
        // The first one needs that the others lose the very packet that it is in the place of.
        let time = attack.each * if n == 0 { 3 } else { 1 };
        let sent = member.attack(&[*kind], time, until)?;
        tell(&format!("{sent} {name}"));
    }
    let all: Vec<_> = kinds.into_iter().map(|(_, kind)| kind).collect();
    let sent = member.attack(&all, attack.all, until)?;
    tell(&format!("{sent} all kinds together"));
    tell("over");
    while !until.is_over() {
        member.drive()?;
        pause(SLICE);
    }
    Ok(())
}

/// Key of an epoch of the flow.
struct Epoch {
    key: PacketKey,
    tags: PacketKey,
    phase: bool,
    first_pn: u64,
}

/// Update of the source, and the attacker's version of it.
#[derive(Default)]
struct Newest {
    seq: u64,
    encoded: Vec<u8>,
    changed: Vec<u8>,
}

/// The receiver.
struct Member {
    conn: quiche::Connection,
    socket: UdpSocket,
    peer: SocketAddr,
    core: Receiver,
    /// Reads what the core reads, too.
    control: ControlReader,
    out: Vec<u8>,
    interface: Ipv4Addr,
    group: Option<(UdpSocket, SocketAddr)>,
    sender: UdpSocket,
    flow: Option<FlowId>,
    /// The newest two.
    epochs: Vec<Epoch>,
    next_pn: u64,
    incarnation: Uuid,
    channel: String,
    newest: Newest,
    signer: Signer,
    /// Of the flow's packets.
    authentication: Option<AuthenticationParameters>,
    packet_signer: PacketSigner,
    /// Newest packet, and newest packet of tags, as they came.
    replays: [Vec<u8>; 2],
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("established", &self.conn.is_established())
            .field("flow", &self.flow)
            .field("epochs", &self.epochs.len())
            .field("next_pn", &self.next_pn)
            .field("newest", &self.newest.seq)
            .finish_non_exhaustive()
    }
}

impl Member {
    fn connect(link: &Link, interface: Ipv4Addr) -> Result<Member> {
        let peer = (link.host.as_str(), link.port).to_socket_addrs()?.next();
        let peer = peer.context("the source's name has no address")?;
        let socket = UdpSocket::bind((interface, 0)).context("opening a UDP socket")?;
        socket.set_nonblocking(true)?;
        let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION)?;
        config.set_application_protos(&[ALPN])?;
        config.verify_peer(false);
        config.set_max_send_udp_payload_size(1200);
        config.set_max_idle_timeout(30_000);
        config.set_initial_max_data(16 << 20);
        config.set_initial_max_stream_data_bidi_local(1 << 20);
        config.set_initial_max_stream_data_uni(1 << 20);
        config.set_initial_max_streams_uni(512);
        config.enable_dgram(true, 256, 256);
        let id: [u8; 16] = rand::rng().random();
        let id = quiche::ConnectionId::from_ref(&id);
        let conn = quiche::connect(None, &id, socket.local_addr()?, peer, &mut config)?;
        let channel = link.channels.first().context("a link without a channel")?;
        let credential = Credential::Enrol {
            token: link.token.as_bytes().to_vec(),
            secret: rand::rng().random(),
            instance: rand::rng().random(),
        };
        let channels = vec![(channel.clone(), None)];
        let mut config = ReceiverConfig::new(Uuid::new_v4(), credential, channels);
        config.name = "forger".to_owned();
        config.seed = rand::rng().random();
        config.rungs = Rungs {
            multicast_v6: false,
            replicated: false,
            ..Rungs::default()
        };
        let sender = UdpSocket::bind((interface, 0)).context("opening a UDP socket")?;
        sender.set_multicast_ttl_v4(4)?;
        sender.set_multicast_loop_v4(false)?;
        socket2::SockRef::from(&sender).set_multicast_if_v4(&interface)?;
        Ok(Member {
            conn,
            socket,
            peer,
            core: Receiver::new(config),
            control: ControlReader::new(),
            out: Vec::new(),
            interface,
            group: None,
            sender,
            flow: None,
            epochs: Vec::new(),
            next_pn: 0,
            incarnation: Uuid::nil(),
            channel: channel.clone(),
            newest: Newest::default(),
            signer: Signer::from_seed(&[66; 32])?,
            authentication: None,
            packet_signer: PacketSigner::new(&FlowSecret::from([66; 32]))?,
            replays: [Vec::new(), Vec::new()],
        })
    }

    /// Whether it knows what a forger needs.
    fn is_ready(&self) -> bool {
        self.group.is_some() && self.next_pn > 0 && self.newest.seq > 0
    }

    /// Forges 100 packets a second of each of these kinds; returns how many there were.
    fn attack(&mut self, kinds: &[Forgery], time: Duration, until: &StopCondition) -> Result<u64> {
        let end = Instant::now() + time;
        let mut next = Instant::now();
        let mut sent = 0;
        while Instant::now() < end && !until.is_over() {
            self.drive()?;
            // Late rounds are made up for.
            while next <= Instant::now() {
                next += EVERY;
                for kind in kinds {
                    sent += u64::from(self.send(*kind)?);
                }
            }
            pause(SLICE);
        }
        Ok(sent)
    }

    /// Sends a forgery; returns whether there was one.
    fn send(&mut self, kind: Forgery) -> Result<bool> {
        let packets = match kind {
            Forgery::Unproved(forge) => self.forged(forge)?.map(|(_, packet)| vec![packet]),
            Forgery::Signed(forge) => self.forged(forge)?.map(|(_, mut packet)| {
                self.packet_signer.sign_packet(&mut packet, 0);
                vec![packet]
            }),
            Forgery::Tagged(forge) => match self.forged(forge)? {
                Some((pn, packet)) => Some(vec![packet, self.forged_tags(pn)?]),
                None => None,
            },
            Forgery::Replay => Some(vec![self.replays[0].clone()]),
            Forgery::ReplayTags => Some(vec![self.replays[1].clone()]),
        };
        let Some((_, group)) = &self.group else {
            bail!("the flow is gone");
        };
        let packets = packets.unwrap_or_default();
        for packet in packets.iter().filter(|packet| !packet.is_empty()) {
            self.sender.send_to(packet, group).context("forging")?;
        }
        Ok(packets.iter().any(|packet| !packet.is_empty()))
    }

    /// Makes a packet of wrong tags of a packet, for all who may listen.
    fn forged_tags(&mut self, pn: u64) -> Result<Vec<u8>> {
        let tags = [1, 2, 3, 4, 5, 6, 7, 8].map(|number| (number, [0xee; PACKET_TAG_LEN]));
        let mut packet = vec![0; HEADER_LEN];
        put_tags(&mut packet, 1_100, pn, &tags);
        let end = packet.len();
        packet.resize(end + OVERHEAD - HEADER_LEN, 0);
        let (Some(epoch), Some(known)) = (self.epochs.last_mut(), self.authentication) else {
            bail!("the flow is gone");
        };
        let sealed = epoch
            .tags
            .seal(known.tag_flow, TAG_NUMBER, epoch.phase, &mut packet, end);
        ensure!(sealed.is_some(), "a packet of tags that cannot be sealed");
        Ok(packet)
    }

    /// Makes a packet under the flow's key, and returns it with its number, if it can now.
    fn forged(&mut self, kind: Forge) -> Result<Option<(u64, Vec<u8>)>> {
        let (channel, incarnation) = (&self.channel, self.incarnation);
        let unsigned = |seq| forged_update(incarnation, seq);
        let signed = |seq| {
            let statement = Statement {
                channel,
                incarnation,
                seq,
                deadline_ms: 0,
            };
            let signed = self.signer.sign(&statement, &[7; SALT_LEN], &unsigned(seq));
            signed.unwrap_or_default()
        };
        let known = Knowledge {
            seq: self.newest.seq + 1,
            pn: self.next_pn,
            last: &self.newest.encoded,
            changed: &self.newest.changed,
            unsigned: &unsigned,
            signed: &signed,
        };
        let Some(forged) = kind(&known) else {
            return Ok(None);
        };
        let mut packet = vec![0; HEADER_LEN];
        packet.extend_from_slice(&forged.frames);
        let end = packet.len();
        packet.resize(forged.frames.len() + OVERHEAD, 0);
        let epochs = self.epochs.iter_mut().rev();
        let epoch = epochs.into_iter().find(|epoch| epoch.first_pn <= forged.pn);
        let (Some(epoch), Some(flow)) = (epoch, self.flow) else {
            bail!("the flow is gone");
        };
        let sealed = epoch
            .key
            .seal(flow, forged.pn, epoch.phase, &mut packet, end);
        ensure!(sealed.is_some(), "a packet that cannot be sealed");
        Ok(Some((forged.pn, packet)))
    }

    /// Does everything that is due.
    fn drive(&mut self) -> Result<()> {
        let now = Instant::now();
        self.receive_quic(now)?;
        self.receive_flow(now)?;
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.core.handle_timeout(now);
        }
        self.take_events(now)?;
        self.say(now)
    }

    fn receive_quic(&mut self, now: Instant) -> Result<()> {
        let mut buffer = [0; 65_536];
        let was_established = self.conn.is_established();
        while let Some((length, from)) = received(self.socket.recv_from(&mut buffer))? {
            let info = quiche::RecvInfo {
                from,
                to: self.socket.local_addr()?,
            };
            if let Some(datagram) = buffer.get_mut(..length) {
                // A packet that is none of this connection is dropped.
                let _ = self.conn.recv(datagram, info);
            }
        }
        if self.conn.timeout() == Some(Duration::ZERO) {
            self.conn.on_timeout();
        }
        ensure!(
            !self.conn.is_closed(),
            "the connection is closed: {:?}",
            self.conn.peer_error()
        );
        if !was_established && self.conn.is_established() {
            self.core.connected();
        }
        for stream in self.conn.readable() {
            loop {
                let (length, fin) = match self.conn.stream_recv(stream, &mut buffer) {
                    Ok(read) => read,
                    Err(quiche::Error::Done) => break,
                    Err(error) => return Err(error).context("reading a stream"),
                };
                let bytes = buffer.get(..length).unwrap_or_default();
                if stream == CONTROL_STREAM {
                    self.control.push(bytes);
                    self.core.on_control(bytes, now)?;
                    self.learn()?;
                } else {
                    self.core.on_unicast(stream, bytes, fin)?;
                }
                if fin {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes the flow's key out of the control frames.
    fn learn(&mut self) -> Result<()> {
        while let Some(frame) = self.control.next_frame()? {
            let key = match frame {
                Control::Announce(announce) => {
                    self.authentication = match announce.authentication {
                        Some(FlowAuthentication::Packets(parameters)) => Some(parameters),
                        _ => None,
                    };
                    continue;
                }
                Control::Key(key) => key,
                _ => continue,
            };
            let algorithm = Algorithm::from_suite(key.algorithm).context("an unknown AEAD")?;
            self.flow = Some(key.flow);
            self.epochs.push(Epoch {
                key: PacketKey::new(algorithm, &key.secret)?,
                tags: PacketKey::for_tags(algorithm, &key.secret)?,
                phase: key.sequence & 1 == 1,
                first_pn: key.first_pn,
            });
            let old = self.epochs.len().saturating_sub(2);
            self.epochs.drain(..old);
        }
        Ok(())
    }

    fn receive_flow(&mut self, now: Instant) -> Result<()> {
        let mut buffer = [0; 65_536];
        let Some((socket, _)) = &self.group else {
            return Ok(());
        };
        while let Some((length, _)) = received(socket.recv_from(&mut buffer))? {
            let datagram = buffer.get_mut(..length).unwrap_or_default();
            let mut packet = datagram.to_vec();
            let tag_flow = self.authentication.map(|known| known.tag_flow);
            let is_tags = tag_flow.is_some() && peek_flow_id(&packet) == tag_flow;
            self.replays[usize::from(is_tags)].clone_from(&packet);
            if self.authentication.is_some() && packet.first().is_some_and(|b| b & SIGNED != 0) {
                packet.truncate(packet.len().saturating_sub(SIGNATURE_LEN));
                packet[0] &= !SIGNED;
            }
            for epoch in self.epochs.iter_mut().rev() {
                let mut copy = packet.clone();
                let opened = epoch.key.open(self.next_pn, &mut copy);
                if let Ok(opened) = opened
                    && opened.key_phase == epoch.phase
                {
                    self.next_pn = self.next_pn.max(opened.pn + 1);
                    break;
                }
            }
            self.core.on_flow_datagram(Rung::Multicast, datagram, now);
        }
        Ok(())
    }

    fn take_events(&mut self, now: Instant) -> Result<()> {
        while let Some(event) = self.core.poll_event() {
            match event {
                ReceiverEvent::Welcome { incarnation, .. } => self.incarnation = incarnation,
                ReceiverEvent::Join { endpoints, .. } => {
                    let groups = endpoints.iter().find_map(|at| match at.group {
                        SocketAddr::V4(group) => Some(group),
                        SocketAddr::V6(_) => None,
                    });
                    let group = groups.context("a flow without an IPv4 group")?;
                    self.group = Some((join(group, self.interface)?, group.into()));
                }
                ReceiverEvent::Refused { reason, .. } => bail!("refused: {reason}"),
                _ => {}
            }
        }
        while let Some((_, incarnation, output)) = self.core.poll_update() {
            let seq = match output {
                Output::Update(update) => {
                    self.newest = Newest {
                        seq: update.seq,
                        changed: changed(update.seq, &update.encoded),
                        encoded: update.encoded.to_vec(),
                    };
                    update.seq
                }
                Output::Gap { to, .. } | Output::Expired { to, .. } => to,
            };
            let cursor = Cursor { incarnation, seq };
            self.core.confirm(&self.channel, cursor, now);
        }
        Ok(())
    }

    fn say(&mut self, now: Instant) -> Result<()> {
        if self.conn.is_established() {
            self.out.extend_from_slice(&self.core.take_control());
            match self.conn.stream_send(CONTROL_STREAM, &self.out, false) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(quiche::Error::Done) => {}
                Err(error) => return Err(error).context("writing the control stream"),
            }
            while let Some((_, acknowledgement)) = self.core.poll_datagram(now) {
                // What does not fit is repeated by the next one.
                let _ = self.conn.dgram_send(&acknowledgement);
            }
        }
        let mut buffer = [0; 1500];
        loop {
            match self.conn.send(&mut buffer) {
                Ok((length, _)) => {
                    let datagram = buffer.get(..length).unwrap_or_default();
                    let _ = self.socket.send_to(datagram, self.peer);
                }
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(error).context("sending to the source"),
            }
        }
    }
}

/// Returns a datagram that was there, if any.
fn received<T>(result: std::io::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(datagram) => Ok(Some(datagram)),
        // A port that is closed for a moment is no end.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(None),
        Err(error) => Err(error).context("receiving"),
    }
}

fn join(group: SocketAddrV4, interface: Ipv4Addr) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from(group).into())?;
    socket.join_multicast_v4(group.ip(), &interface)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Returns an update that is valid but for a signature.
fn forged_update(incarnation: Uuid, seq: u64) -> Vec<u8> {
    let entry = Entry {
        id: format!("urn:forged:{seq}"),
        title: Some("forged".to_owned()),
        ..Entry::default()
    };
    let now = jiff::Timestamp::now();
    let url = "https://example.org/forged";
    payload::encode(&entry, Kind::Created, url, incarnation, seq, now)
}

/// Returns the update with something changed behind its header, so that receivers that compare no
/// hashes take it; empty if that was not found.
fn changed(seq: u64, encoded: &[u8]) -> Vec<u8> {
    let Some(header) = signing::header_len(encoded) else {
        return Vec::new();
    };
    // The end of a longer update is in a packet of its own: few bytes, but at first those before
    // the last ones, which are the lengths of compressed data.
    let places = encoded.len().saturating_sub(header) / 4;
    for attempt in 0..CHANGES {
        let mut changed = encoded.to_vec();
        let back = (places * 3 / 4 + attempt * 7) % places.max(1);
        if let Some(byte) = changed.iter_mut().rev().nth(back) {
            *byte ^= 1 << (attempt % 8);
        }
        let is_update = payload::decode(&changed).is_ok_and(|update| update.seq == seq);
        if is_update {
            return changed;
        }
    }
    Vec::new()
}
