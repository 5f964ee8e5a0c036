//! Start of a scenario: its feed, its receivers, and the resulting command lines.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{CHANNEL, Fault, Side};
use crate::binaries::Binaries;
use crate::lab::{Families, Multicast, Node};
use crate::lore::FEED_PATH;
use crate::process::{Launch, Service};

/// Time that flow data may stay unacknowledged, in ms: ten times the default, because two cores
/// that also build and run other tests delay acknowledgements now and then, and well below three
/// heartbeats, which mean something else.
pub const FALL_BACK_MS: u32 = 1_500;

/// Maximum acknowledgement delay, in ms: ten times the default, too. Packets unacknowledged after
/// twice that are repaired, and so arrive not by the flow alone, although they may only lie unread
/// at a receiver that gets no processor.
pub const ACK_DELAY_MS: u32 = 250;

/// The same as the source has it by itself, where repairs are what is looked at.
pub const QUICK_ACK_MS: u32 = 25;

/// The same for the time that flow data may stay unacknowledged, in ms.
const QUICK_FALL_BACK_MS: u32 = 150;

/// The group of source-specific scenarios (RFC 4607 gives 232/8 to these).
pub const SSM_GROUP: &str = "232.70.70.1:4434";
/// The group of any-source scenarios, from the range for use within a site (RFC 2365).
pub const ASM_GROUP: &str = "239.70.70.1:4434";
/// The group of source-specific scenarios over IPv6 (RFC 4607 gives ff3x::/32 to these), of global
/// scope.
pub const SSM_GROUP6: &str = "[ff3e::4646:1]:4434";
/// The group of any-source scenarios over IPv6, of site-local scope (RFC 4291).
pub const ASM_GROUP6: &str = "[ff15::4646:1]:4434";

/// QUIC port of the source.
pub(super) const PORT: u16 = 4433;

/// Address of the feed generator, in the source's node.
pub(super) const LORE: &str = "127.0.0.1:8070";
/// Address of the source's status page, in its node.
pub(super) const STATUS_PAGE: &str = "127.0.0.1:8090";

/// Origin of a scenario's feed.
#[derive(Debug, Clone)]
pub enum FeedPlan {
    /// Made-up mails from a seed, with this many at the start.
    Generated {
        /// Seed of the mails.
        seed: u64,
        /// Entries at the start, at most 25.
        initial: u32,
    },
    /// The entries of a recorded document, none at the start.
    Recorded(PathBuf),
    /// A file in the run folder that the scenario keeps up to date.
    Followed(PathBuf),
    /// An hour of a busy archive, which begins when the scenario says so.
    Hour {
        /// Seed of the hour.
        seed: u64,
        /// Speed-up over real time.
        speed: f64,
    },
}

/// Location of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// On the switch, with the source.
    #[default]
    Switch,
    /// Behind a router of its own that translates addresses and forwards no multicast.
    BehindNat,
    /// On the network beyond the border, where there is no multicast.
    Beyond,
    /// Behind one router on that network, which translates addresses, together with all others of
    /// this place.
    BehindOneNat,
}

/// One receiver to start with.
#[derive(Debug, Clone)]
pub struct SeatPlan {
    /// Its name and its node's.
    pub name: &'static str,
    /// Initial treatment of multicast by its port.
    pub multicast: Multicast,
    /// Address families of its node; `None` for all of the lab's.
    pub families: Option<Families>,
    /// Location of its node.
    pub place: Place,
    /// Further arguments.
    pub args: Vec<&'static str>,
    /// The program at first, if it is not the one of this build.
    pub program: Option<PathBuf>,
}

impl SeatPlan {
    /// A receiver on the switch with an open port.
    pub fn new(name: &'static str) -> SeatPlan {
        SeatPlan {
            name,
            multicast: Multicast::Open,
            families: None,
            place: Place::Switch,
            args: Vec::new(),
            program: None,
        }
    }
}

/// Parameters of the start.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Names the run folder.
    pub name: &'static str,
    /// The receivers.
    pub seats: Vec<SeatPlan>,
    /// The feed.
    pub feed: FeedPlan,
    /// Bound on new entries shown at once, at most the 25 of its window; more wait for the next
    /// poll.
    pub new_at_once: u32,
    /// Address families of the network; the flow goes to a group of each.
    pub families: Families,
    /// Whether the flow is announced for any source.
    pub asm: bool,
    /// Whether the source offers replication to receivers without multicast.
    ///
    /// Most scenarios are about multicast and its absence, and go without.
    pub replicate: bool,
    /// Relays between the two networks; the source announces them, the first as the best. That one
    /// runs from the start.
    pub relays: u8,
    /// Whether there is a relay in the source's own node, which the source announces.
    pub relay_beside: bool,
    /// Further arguments of every relay.
    pub relay_args: Vec<&'static str>,
    /// Seconds between two polls of the feed.
    pub poll_interval: f64,
    /// Time that flow data may stay unacknowledged, in ms.
    pub fall_back_ms: u32,
    /// Maximum acknowledgement delay, in ms.
    pub ack_delay_ms: u32,
    /// The source's program at first, if it is not the one of this build.
    pub source: Option<PathBuf>,
    /// The source's database; its own file if there is none.
    pub database: Option<String>,
    /// Settings of the channel that no flag has; with any, the source is given it in a file.
    pub channel_settings: Vec<(&'static str, &'static str)>,
    /// Further arguments of the source.
    pub source_args: Vec<&'static str>,
    /// A promise to break.
    pub fault: Option<Fault>,
}

impl Plan {
    /// Three receivers `r1`, `r2`, `r3` with open ports and a generated feed.
    pub fn new(name: &'static str, fault: Option<Fault>) -> Plan {
        Plan {
            name,
            seats: ["r1", "r2", "r3"].map(SeatPlan::new).to_vec(),
            families: Families::V4,
            feed: FeedPlan::Generated {
                seed: 20,
                initial: 5,
            },
            new_at_once: 10,
            asm: false,
            replicate: false,
            relays: 0,
            relay_beside: false,
            relay_args: Vec::new(),
            poll_interval: 0.2,
            fall_back_ms: FALL_BACK_MS,
            ack_delay_ms: ACK_DELAY_MS,
            source: None,
            database: None,
            channel_settings: Vec::new(),
            source_args: Vec::new(),
            fault,
        }
    }

    /// The same plan with the times that the source has by itself, which busy machines miss now and
    /// then.
    #[must_use]
    pub fn with_default_timing(mut self) -> Plan {
        (self.fall_back_ms, self.ack_delay_ms) = (QUICK_FALL_BACK_MS, QUICK_ACK_MS);
        self
    }

    /// The same plan with another state of one receiver's port from the start.
    #[must_use]
    pub fn with_port(self, name: &str, multicast: Multicast) -> Plan {
        self.with_seat(name, |seat| seat.multicast = multicast)
    }

    /// The same plan with something changed about one receiver.
    #[must_use]
    pub fn with_seat(mut self, name: &str, change: impl Fn(&mut SeatPlan)) -> Plan {
        self.seats
            .iter_mut()
            .filter(|seat| seat.name == name)
            .for_each(change);
        self
    }

    /// Whether its channel has a setting that no flag has.
    fn has_channel_file(&self) -> bool {
        !self.channel_settings.is_empty()
    }

    /// The groups that the flow goes to, as the source's command line has them.
    fn groups(&self) -> String {
        let v4 = if self.asm { ASM_GROUP } else { SSM_GROUP };
        let v6 = if self.asm { ASM_GROUP6 } else { SSM_GROUP6 };
        match self.families {
            Families::V4 => v4.to_owned(),
            Families::V6 => v6.to_owned(),
            Families::Dual => format!("{v4},{v6}"),
        }
    }
}

/// The variable that breaks a promise.
pub(super) fn switch(fault: Fault) -> (String, String) {
    ("FLEXFEED_FAULTS".to_owned(), fault.switch().to_owned())
}

/// Starts the generator.
pub(super) fn start_lore(node: &Node, plan: &Plan, bins: &Binaries, run: &Path) -> Result<Service> {
    let data = run.join("lore");
    std::fs::create_dir(&data)?;
    node.hand_over(&data)?;
    let mut args = vec![
        "--listen".to_owned(),
        LORE.to_owned(),
        "--ledger".to_owned(),
        data.join("ledger.jsonl").display().to_string(),
    ];
    args.extend(["--max-unseen".to_owned(), plan.new_at_once.to_string()]);
    let more = match &plan.feed {
        FeedPlan::Generated { seed, initial } => vec![
            "--seed".to_owned(),
            seed.to_string(),
            "--initial".to_owned(),
            initial.to_string(),
        ],
        FeedPlan::Recorded(path) => {
            // The generator's user may not be able to read the original.
            let copy = data.join("recorded.atom");
            std::fs::copy(path, &copy).with_context(|| format!("copying {}", path.display()))?;
            node.hand_over(&copy)?;
            vec![
                "--serve-file".to_owned(),
                copy.display().to_string(),
                "--initial".to_owned(),
                "0".to_owned(),
            ]
        }
        FeedPlan::Hour { seed, speed } => {
            let pairs = [
                ("--seed", seed.to_string()),
                ("--initial", "0".to_owned()),
                ("--hour", speed.to_string()),
            ];
            pairs
                .into_iter()
                .flat_map(|(flag, value)| [flag.to_owned(), value])
                .collect()
        }
        FeedPlan::Followed(name) => {
            vec!["--follow".to_owned(), run.join(name).display().to_string()]
        }
    };
    args.extend(more);
    let launch = Launch {
        name: "lore".to_owned(),
        program: bins.lore.clone(),
        args,
        env: Vec::new(),
    };
    Service::start(node, &launch, &run.join("logs"))
}

/// Writes the file with the channel, where that has a setting that no flag has.
pub(super) fn write_channel(plan: &Plan, data: &Path) -> Result<()> {
    if !plan.has_channel_file() {
        return Ok(());
    }
    let groups = plan.groups().replace(',', "\", \"");
    let settings = plan.channel_settings.iter();
    let settings: String = settings
        .map(|(key, value)| format!("{key} = \"{value}\"\n"))
        .collect();
    let text = format!(
        "[[channel]]\nname = \"{CHANNEL}\"\ngroups = [\"{groups}\"]\n{settings}\n\
         [[channel.feed]]\nurl = \"http://{LORE}{FEED_PATH}\"\nlocal = true\n"
    );
    let path = channel_file(data);
    std::fs::write(&path, text).with_context(|| path.display().to_string())
}

fn channel_file(data: &Path) -> PathBuf {
    data.with_extension("toml")
}

/// The source's command line.
pub(super) fn source_launch(
    plan: &Plan,
    bins: &Binaries,
    data: &Path,
    public: SocketAddr,
    relays: &[SocketAddr],
) -> Launch {
    let any = if plan.families.v6() {
        "[::]"
    } else {
        "0.0.0.0"
    };
    let channel = match plan.has_channel_file() {
        true => vec![("--config", channel_file(data).display().to_string())],
        false => vec![
            ("--feed", format!("http://{LORE}{FEED_PATH}")),
            ("--channel", CHANNEL.to_owned()),
            ("--group", plan.groups()),
        ],
    };
    let pairs = [
        ("--data", data.display().to_string()),
        ("--listen", format!("{any}:{PORT}")),
        ("--public-address", public.to_string()),
        ("--http", STATUS_PAGE.to_owned()),
        ("--poll-interval", plan.poll_interval.to_string()),
        ("--fall-back-ms", plan.fall_back_ms.to_string()),
        ("--ack-delay-ms", plan.ack_delay_ms.to_string()),
    ];
    let mut args: Vec<String> = channel
        .into_iter()
        .chain(pairs)
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
    args.push("--allow-private-feed".to_owned());
    if let Some(url) = &plan.database {
        args.extend(["--database-url".to_owned(), url.clone()]);
    }
    args.extend(plan.source_args.iter().map(ToString::to_string));
    if !relays.is_empty() {
        let relays: Vec<String> = relays.iter().map(ToString::to_string).collect();
        args.extend(["--relay".to_owned(), relays.join(",")]);
    }
    if plan.asm {
        args.push("--asm".to_owned());
    }
    if !plan.replicate {
        args.push("--no-replicate".to_owned());
    }
    let env = match plan.fault {
        Some(fault) if fault.breaks(Side::Source) => vec![switch(fault)],
        _ => Vec::new(),
    };
    let program = plan.source.as_ref().unwrap_or(&bins.source);
    Launch {
        name: "source".to_owned(),
        program: program.clone(),
        args,
        env,
    }
}
