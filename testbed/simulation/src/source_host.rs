//! The source's host at work: what a socket loop around `flexicast::source::Source` does.

use bytes::Bytes;
use flexicast::Cause;
use flexicast::control::{Credential, Refusal};
use flexicast::feedback::is_feedback;
use flexicast::source::{Datagram, SessionId, SourceEvent, Unicast, close};

use crate::fault::Fault;
use crate::path::{CONTROL, Down, PIECE, Up, WINDOW};
use crate::store::secret;
use crate::trace::Kind;
use crate::violation::{BrokenPromise, Promise, broken};
use crate::wake::Activity;
use crate::world::{Event, Host, World};

impl World {
    pub(crate) fn start_source(&mut self) -> Result<(), BrokenPromise> {
        if self.origin.core.is_none() {
            self.origin
                .start(&self.script, self.fault, &mut self.rng, &mut self.watch)?;
            self.say(|| "the source starts".to_owned());
        }
        self.pump_source().map(|_| ())
    }

    pub(crate) fn wake_source(&mut self) -> Result<(), BrokenPromise> {
        let now = self.now;
        if self.origin.wake.armed.is_none_or(|at| at != now) {
            return Ok(());
        }
        self.origin.wake.armed = None;
        let Some(core) = &mut self.origin.core else {
            return Ok(());
        };
        let due = core.poll_timeout(now);
        if due.is_some_and(|at| at > now) {
            self.arm(Host::Source, due);
            return Ok(());
        }
        if self.fault != Some(Fault::DeafTimers) {
            core.handle_timeout(now);
        }
        self.note(Kind::Wake, 0, &[]);
        let moved = self.pump_source()?;
        let next = self
            .origin
            .core
            .as_mut()
            .and_then(|core| core.poll_timeout(now));
        let peers = self.paths.len() * self.script.channels.len();
        self.origin
            .wake
            .rang("the source", peers, self.watch.packets, moved, next, now)
    }

    /// Moves everything that is ready at the source; returns what that was.
    pub(crate) fn pump_source(&mut self) -> Result<Activity, BrokenPromise> {
        let mut moved = Activity::Nothing;
        for round in 0.. {
            if round > 100_000 {
                return broken(Promise::Timers, "the source always has something to do");
            }
            let mut busy = false;
            while let Some(event) = self.origin.core.as_mut().and_then(|c| c.poll_event()) {
                busy = true;
                self.source_event(event)?;
            }
            while let Some(session) = self.origin.core.as_mut().and_then(|c| c.poll_dirty()) {
                moved = moved.max(Activity::Looked);
                busy |= self.fill(session)?;
            }
            busy |= self.transmit()?;
            busy |= self.feed();
            moved = moved.or(busy);
            if !busy {
                break;
            }
        }
        let now = self.now;
        let deadline = self
            .origin
            .core
            .as_mut()
            .and_then(|core| core.poll_timeout(now));
        self.arm(Host::Source, deadline);
        Ok(moved)
    }

    fn source_event(&mut self, event: SourceEvent) -> Result<(), BrokenPromise> {
        let now = self.now;
        let Some(core) = &mut self.origin.core else {
            return Ok(());
        };
        match event {
            SourceEvent::Authorise { session, hello } => {
                let known = hello.credential == Credential::Token(b"simulation".to_vec());
                let verdict = if known && !self.origin.banned.contains(&hello.receiver) {
                    Ok(())
                } else {
                    Err((Refusal::BadCredential, "not here".to_owned()))
                };
                core.authorised(session, verdict, now);
            }
            // Its receivers do not say which run of their program they are.
            SourceEvent::Ahead { .. } | SourceEvent::Probe { .. } => {}
            SourceEvent::Moved {
                session,
                channel,
                from,
                to,
                cause,
                ..
            } => {
                if cause == Cause::Forged && !self.script.is_forgery_believed() {
                    return broken(
                        Promise::Rung,
                        format!("session {session} leaves {from} for packets that cannot count"),
                    );
                }
                self.count(format!("{from} to {to}: {cause}"));
                let about = [channel as u8, from as u8, to as u8, cause as u8];
                self.note(Kind::Moved, session, &about);
                self.say(|| {
                    format!(
                        "session {session} moves in channel {channel} from {from} to {to}: {cause}"
                    )
                });
            }
            SourceEvent::Explained {
                session,
                channel,
                rung,
                on,
                cause,
            } => {
                self.count(format!("{rung} explained: {cause}"));
                let about = [channel as u8, rung as u8, on as u8, cause as u8];
                self.note(Kind::Moved, session, &about);
                self.say(|| {
                    format!("session {session} in channel {channel} is on {on}: {rung} has {cause}")
                });
            }
            SourceEvent::Leg {
                session,
                channel,
                leg,
                state,
                ..
            } => {
                self.count(format!("leg {leg} {state}"));
                self.note(
                    Kind::Moved,
                    session,
                    &[channel as u8, leg.rung as u8, state as u8],
                );
                self.say(|| format!("session {session} in channel {channel}: leg {leg} {state}"));
            }
            SourceEvent::Forged {
                session,
                channel,
                on,
                signs,
            } => {
                self.count("forgeries reported");
                self.note(Kind::Moved, session, &[channel as u8, on as u8]);
                self.say(|| {
                    format!("session {session} on {on} in channel {channel} reports {signs} forged")
                });
            }
            SourceEvent::MassFallBack {
                channel,
                members,
                cause,
            } => {
                self.count("many at once");
                self.say(|| format!("{members} fall back in channel {channel}: {cause}"));
            }
            SourceEvent::Breaker { channel, state } => {
                self.count(format!("breaker {state:?}"));
                self.say(|| format!("circuit breaker of channel {channel}: {state:?}"));
            }
            SourceEvent::SecretWanted { channel } => {
                if self.fault != Some(Fault::NoRekey) {
                    let secret = secret(&mut self.rng);
                    self.watch.secret(channel, &secret);
                    core.rekey(channel, secret, now);
                    if self.fault == Some(Fault::SpyGetsKey) {
                        self.watch.leak(channel);
                    }
                    self.say(|| format!("channel {channel} gets a new secret"));
                }
            }
            SourceEvent::Close {
                session,
                code,
                reason,
            } => {
                let expected = [close::SUPERSEDED, close::EJECTED, close::REFUSED];
                if !expected.contains(&code) {
                    return broken(
                        Promise::Protocol,
                        format!("the source closes session {session} with {code}: {reason}"),
                    );
                }
                self.count(format!("closed with {code}"));
                self.fill(session)?;
                self.hang_up(session, code)?;
            }
        }
        Ok(())
    }

    /// The source closes a connection.
    fn hang_up(&mut self, session: SessionId, code: u64) -> Result<(), BrokenPromise> {
        self.send_down(session, CONTROL, 40, Down::Closed);
        let Some(path) = self.paths.get_mut(&session) else {
            return Ok(());
        };
        if !std::mem::replace(&mut path.at_source, false) {
            return Ok(());
        }
        let receiver = path.receiver;
        if !path.at_receiver {
            self.paths.remove(&session);
        }
        self.say(|| format!("session {session} of receiver {receiver} is closed with {code}"));
        self.closed_at_source(session, receiver, code == close::EJECTED)
    }

    pub(crate) fn closed_at_source(
        &mut self,
        session: SessionId,
        receiver: usize,
        ejected: bool,
    ) -> Result<(), BrokenPromise> {
        self.watch.gone(session, receiver, ejected, self.now);
        if let Some(core) = &mut self.origin.core
            && self.fault != Some(Fault::NeverClosed)
        {
            core.closed(session, self.now);
        }
        self.pump_source().map(|_| ())
    }

    /// Sends fragments of messages, each of which may get lost or arrive twice.
    fn send_fragments(&mut self, session: SessionId, datagrams: Vec<Datagram>) {
        let Some(receiver) = self.paths.get(&session).map(|path| path.receiver) else {
            return;
        };
        for Datagram { bytes, .. } in datagrams {
            let arrivals = self.nodes[receiver]
                .unicast
                .arrivals(self.now, &mut self.rng);
            for at in arrivals.into_iter().flatten() {
                let bytes = bytes.clone();
                self.schedule(at, Event::Fragment { session, bytes });
            }
        }
    }

    /// Sends what a session has to say, as much as fits.
    fn fill(&mut self, session: SessionId) -> Result<bool, BrokenPromise> {
        let mut moved = false;
        let Some(core) = &mut self.origin.core else {
            return Ok(false);
        };
        let (control, datagrams) = (core.take_control(session), core.take_datagrams(session));
        moved |= !datagrams.is_empty();
        self.send_fragments(session, datagrams);
        if !control.is_empty() {
            moved = true;
            if let Some(path) = self.paths.get(&session) {
                self.watch.control_sent(session, path.receiver, &control)?;
            }
            self.note(Kind::Control, session, &control);
            for piece in self.pieces(&control) {
                self.send_down(session, CONTROL, piece.len(), Down::Control(piece));
            }
        }
        loop {
            let Some(path) = self.paths.get_mut(&session).filter(|p| p.at_source) else {
                return Ok(moved);
            };
            if path.in_flight >= WINDOW {
                path.blocked = true;
                return Ok(moved);
            }
            let (now, boot) = (self.now, self.origin.boot);
            let Some(core) = &mut self.origin.core else {
                return Ok(moved);
            };
            match core.poll_unicast(session, now) {
                Unicast::Stream { head, body, .. } => {
                    let stream = path.open();
                    self.stream(session, stream, head, &body, true);
                }
                Unicast::CatchUp {
                    channel,
                    head,
                    body,
                } => {
                    let stream = match path.catch_up.get(&channel) {
                        Some(stream) => *stream,
                        None => path.open(),
                    };
                    path.catch_up.insert(channel, stream);
                    self.stream(session, stream, head, &body, false);
                }
                Unicast::CatchUpEnd { channel } => {
                    if let Some(stream) = path.catch_up.remove(&channel) {
                        self.stream(session, stream, Vec::new(), &Bytes::new(), true);
                    }
                }
                Unicast::Fetch {
                    channel,
                    from,
                    limit,
                } => {
                    let (delay, _) = self.origin.store_now(now);
                    self.schedule(
                        now + delay,
                        Event::Fetched {
                            boot,
                            session,
                            channel,
                            from,
                            limit,
                        },
                    );
                }
                Unicast::Idle => return Ok(moved),
            }
            moved = true;
        }
    }

    /// Puts bytes on a server stream, in pieces as the network cuts them.
    fn stream(
        &mut self,
        session: SessionId,
        stream: u64,
        mut bytes: Vec<u8>,
        body: &[u8],
        fin: bool,
    ) {
        use rand::RngExt;
        bytes.extend_from_slice(body);
        self.say(|| {
            format!(
                "session {session} gets {} bytes on stream {stream}",
                bytes.len()
            )
        });
        let mut head = [0; 32];
        let shown = bytes.len().min(32);
        head[..shown].copy_from_slice(&bytes[..shown]);
        self.note(Kind::Stream, session << 20 | stream, &head);
        let mut rest = &bytes[..];
        loop {
            let most = match self.rng.random_range(0..40) {
                0 => self.rng.random_range(1..60),
                _ => self.rng.random_range(PIECE / 2..PIECE),
            };
            let len = rest.len().min(most);
            let (piece, after) = rest.split_at(len);
            rest = after;
            let lossy = self.fault == Some(Fault::LossyStreams);
            if !(lossy && self.rng.random_bool(0.01)) {
                if let Some(path) = self.paths.get_mut(&session) {
                    path.in_flight += len;
                }
                let message = Down::Stream {
                    bytes: piece.to_vec(),
                    fin: fin && rest.is_empty(),
                };
                self.send_down(session, stream, len + 20, message);
            }
            if rest.is_empty() {
                return;
            }
        }
    }

    /// The store answers.
    pub(crate) fn fetched(
        &mut self,
        boot: u64,
        session: SessionId,
        channel: usize,
        from: u64,
        limit: usize,
    ) -> Result<(), BrokenPromise> {
        if boot != self.origin.boot {
            return Ok(());
        }
        let (_, fails) = self.origin.store_now(self.now);
        let mut answer = (!fails).then(|| self.origin.stores[channel].query(from, limit));
        if self.fault == Some(Fault::StoreCorrupts)
            && let Some((_, bytes)) = answer.as_mut().and_then(|a| a.last_mut())
        {
            let mut wrong = bytes.to_vec();
            wrong.iter_mut().for_each(|b| *b ^= 1);
            *bytes = wrong.into();
        }
        if let Some(core) = &mut self.origin.core {
            core.provide(session, channel, from, answer, self.now);
        }
        self.pump_source().map(|_| ())
    }

    /// The next message of a control stream arrives at the source.
    pub(crate) fn arrive_up(&mut self, session: SessionId) -> Result<(), BrokenPromise> {
        let now = self.now;
        let Some(receiver) = self.paths.get(&session).map(|p| p.receiver) else {
            return Ok(());
        };
        if let Some(at) = self.is_cut(receiver) {
            self.schedule(at, Event::Up { session });
            return Ok(());
        }
        let Some(path) = self.paths.get_mut(&session) else {
            return Ok(());
        };
        let message = path.up.pop();
        let (Some(message), Some(core)) = (message, &mut self.origin.core) else {
            return Ok(());
        };
        if !path.at_source || path.boot != self.origin.boot {
            return Ok(());
        }
        if !std::mem::replace(&mut path.accepted, true) {
            core.accept(session, now);
            core.set_rtt(session, self.nodes[receiver].rtt());
        }
        match message {
            Up::Control(bytes) => {
                self.note(Kind::Control, session, &bytes);
                self.watch.said(session, receiver, &bytes, now);
                let said = self
                    .origin
                    .core
                    .as_mut()
                    .map(|core| core.on_control(session, &bytes, now));
                if let Some(Err(error)) = said {
                    return broken(
                        Promise::Protocol,
                        format!("the source does not understand receiver {receiver}: {error}"),
                    );
                }
                self.pump_source().map(|_| ())
            }
            Up::Closed => self.end(session, Host::Source),
        }
    }

    pub(crate) fn arrive_datagram(
        &mut self,
        session: SessionId,
        bytes: &[u8],
    ) -> Result<(), BrokenPromise> {
        let path = self.paths.get(&session);
        let known = path.filter(|p| p.at_source && p.accepted && p.boot == self.origin.boot);
        let (Some(path), Some(core)) = (known, &mut self.origin.core) else {
            return Ok(());
        };
        let receiver = path.receiver;
        if is_feedback(bytes) {
            let is_path = |id| id == session && path.validated;
            core.on_feedback(&mut bytes.to_vec(), self.now, is_path);
        } else if let Err(error) = core.on_datagram(session, bytes, self.now) {
            return broken(
                Promise::Protocol,
                format!(
                    "the source does not understand an acknowledgement of receiver {receiver}: \
                     {error}"
                ),
            );
        }
        self.note(Kind::Datagram, session, bytes);
        self.pump_source().map(|_| ())
    }

    pub(crate) fn arrive_credit(
        &mut self,
        session: SessionId,
        bytes: usize,
    ) -> Result<(), BrokenPromise> {
        let Some(path) = self.paths.get_mut(&session).filter(|p| p.at_source) else {
            return Ok(());
        };
        path.in_flight = path.in_flight.saturating_sub(bytes);
        if path.blocked && path.in_flight < WINDOW / 2 {
            path.blocked = false;
            self.fill(session)?;
            return self.pump_source().map(|_| ());
        }
        Ok(())
    }

    pub(crate) fn validated(&mut self, session: SessionId, yes: bool) -> Result<(), BrokenPromise> {
        let Some(path) = self
            .paths
            .get_mut(&session)
            .filter(|p| p.at_source && p.accepted)
        else {
            return Ok(());
        };
        path.validated = yes;
        if let Some(core) = &mut self.origin.core
            && self.fault != Some(Fault::NotToldOfAddresses)
        {
            core.set_validated(session, yes, self.now);
        }
        self.pump_source().map(|_| ())
    }
}
