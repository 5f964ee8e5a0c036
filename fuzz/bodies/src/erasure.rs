//! Erasure codes: an encoder and a decoder with whatever happens between them.

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::{Arbitrary, Unstructured};
use erasure::{
    Decoder, Encoder, Event, Intake, MAX_HELD, MAX_PACKET, MAX_SPAN, MAX_UNKNOWNS, RepairError,
    Scheme,
};

/// Something that happens at the source or on the way.
#[derive(Debug, Arbitrary)]
enum Step<'a> {
    /// The source sends a packet, which arrives or not.
    Send {
        skipped: u8,
        content: &'a [u8],
        copies: u8,
        arrives: bool,
    },
    /// The source sends a repair symbol, which arrives, perhaps damaged.
    Repair {
        damage: Option<(u16, u8)>,
        cut: Option<u16>,
    },
    /// A packet arrives late or again.
    Again { back: u8 },
    /// Members have settled all but the newest packets.
    Settle { back: u8 },
    /// A block ends.
    Clear,
    /// Another key epoch begins.
    Epoch { skipped: u8 },
    /// Bytes from anywhere arrive as a packet.
    ForgedPacket { pn: u64, content: &'a [u8] },
    /// Bytes from anywhere arrive as a repair symbol.
    ForgedRepair { bytes: &'a [u8] },
    /// A repair symbol with a valid header arrives.
    MadeUp {
        scheme: u8,
        key: u8,
        back: u8,
        span: u8,
        mask: Option<u64>,
        symbol: &'a [u8],
    },
}

/// As long as nothing is forged, everything rebuilt is as it was sent.
pub fn erasure(data: &[u8]) {
    let _ = play_erasure(data);
}

/// The same; returns the names of the results that there were.
pub fn play_erasure(data: &[u8]) -> BTreeSet<&'static str> {
    let mut u = Unstructured::new(data);
    let scheme = *u.choose(&Scheme::ALL).unwrap_or(&Scheme::Rlc);
    let span = u.int_in_range(1..=MAX_SPAN).unwrap_or(64);
    let density = u.int_in_range(0..=15).unwrap_or(15);
    let allows_forgery = u.arbitrary().unwrap_or(false);
    let mut play = Play {
        encoder: Encoder::new(scheme, span).with_density(density),
        decoder: Decoder::new(span, 0),
        sent: BTreeMap::new(),
        next: 0,
        allows_forgery,
        is_forged: false,
        results: BTreeSet::new(),
    };
    while let Ok(step) = Step::arbitrary(&mut u) {
        play.step(&step);
        play.check();
        if u.is_empty() {
            break;
        }
    }
    play.results
}

struct Play {
    encoder: Encoder,
    decoder: Decoder,
    sent: BTreeMap<u64, Vec<u8>>,
    next: u64,
    /// Whether anything may arrive that the source did not send.
    allows_forgery: bool,
    /// Whether anything arrived that the source did not send.
    is_forged: bool,
    results: BTreeSet<&'static str>,
}

impl Play {
    fn step(&mut self, step: &Step<'_>) {
        match *step {
            Step::Send {
                skipped,
                content,
                copies,
                arrives,
            } => {
                let pn = self.next + u64::from(skipped);
                self.next = pn + 1;
                let packet = content.repeat(1 + usize::from(copies));
                let pushed = self.encoder.push(pn, &packet);
                let fits = (1..=MAX_PACKET).contains(&packet.len());
                assert_eq!(pushed.is_ok(), fits);
                if arrives {
                    let intake = self.decoder.on_packet(pn, &packet);
                    assert!(fits || intake == Intake::Refused);
                }
                if fits {
                    self.sent.insert(pn, packet);
                }
            }
            Step::Repair { damage, cut } => self.repair(damage, cut),
            Step::Again { back } => {
                if let Some((pn, packet)) = self.sent.iter().rev().nth(back.into()) {
                    let intake = self.decoder.on_packet(*pn, packet);
                    assert!(self.is_forged || intake != Intake::Contradiction);
                }
            }
            Step::Settle { back } => self.encoder.settle(self.next.saturating_sub(back.into())),
            Step::Clear => self.encoder.clear(),
            Step::Epoch { skipped } => {
                self.next += u64::from(skipped);
                self.encoder.clear();
                self.decoder.begin_epoch(self.next);
            }
            Step::ForgedPacket { pn, content } => {
                if self.allows_forgery {
                    self.is_forged = true;
                    self.decoder.on_packet(pn, content);
                }
            }
            Step::ForgedRepair { bytes } => self.take_forged(bytes),
            Step::MadeUp {
                scheme,
                key,
                back,
                span,
                mask,
                symbol,
            } => {
                let first = self.next.saturating_sub(back.into());
                let mut bytes = vec![scheme, 0, key];
                bytes.extend((0xc0 << 56 | first).to_be_bytes());
                let span = span & 63;
                bytes.push(span | if mask.is_some() { 0x80 } else { 0 });
                if let Some(mask) = mask {
                    let mask = (mask | 1 | 1 << span) & u64::MAX >> (63 - span);
                    bytes.extend_from_slice(&mask.to_le_bytes()[..usize::from(span / 8 + 1)]);
                }
                bytes.extend_from_slice(symbol);
                self.take_forged(&bytes);
            }
        }
    }

    fn repair(&mut self, damage: Option<(u16, u8)>, cut: Option<u16>) {
        let most = self.encoder.repair_len();
        let mut repair = Vec::new();
        let window = self.encoder.repair(&mut repair);
        assert_eq!(window.is_some(), most.is_some());
        let Some(window) = window else {
            return;
        };
        assert!(most.is_some_and(|most| repair.len() <= most));
        assert!(window.packets().all(|pn| self.sent.contains_key(&pn)));
        let genuine = repair.clone();
        if let Some((at, xor)) = damage {
            let at = usize::from(at) % repair.len();
            repair[at] ^= xor;
        }
        if let Some(cut) = cut {
            repair.truncate(cut.into());
        }
        if repair != genuine {
            return self.take_forged(&repair);
        }
        let taken = self.take(&repair);
        // A source's own repair symbol is refused for what is missing alone.
        assert!(self.is_forged || matches!(taken, Ok(()) | Err(RepairError::Unknowns)));
    }

    fn take_forged(&mut self, repair: &[u8]) {
        if self.allows_forgery {
            self.is_forged = true;
            let _ = self.take(repair);
        }
    }

    fn take(&mut self, repair: &[u8]) -> Result<(), RepairError> {
        let taken = self.decoder.on_repair(repair);
        self.results.insert(match taken {
            Ok(erasure::Gain::New) => "new",
            Ok(erasure::Gain::Redundant) => "redundant",
            Err(RepairError::Header(_)) => "no header",
            Err(RepairError::Span(_)) => "another span",
            Err(RepairError::Epoch(_)) => "another epoch",
            Err(RepairError::Short(_)) => "too short",
            Err(RepairError::Unknowns) => "too many missing",
            Err(RepairError::Contradiction) => "contradiction",
        });
        taken.map(|_| ())
    }

    fn check(&mut self) {
        let (unknowns, equations) = self.decoder.unknowns();
        assert!(equations <= unknowns && unknowns <= MAX_UNKNOWNS);
        assert!(self.decoder.held() <= MAX_HELD);
        while let Some(event) = self.decoder.poll_event() {
            match event {
                Event::Rebuilt { pn, packet } => {
                    assert!((1..=MAX_PACKET).contains(&packet.len()));
                    assert!(self.is_forged || self.sent.get(&pn) == Some(&packet));
                    self.results.insert(if self.is_forged {
                        "rebuilt among forged ones"
                    } else {
                        "rebuilt as sent"
                    });
                }
                Event::Invalid { .. } => {
                    assert!(self.is_forged);
                    self.results.insert("invalid packet");
                }
            }
        }
    }
}
