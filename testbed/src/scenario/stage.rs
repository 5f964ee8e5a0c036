//! Common start of all scenarios: a lab with a growing feed, a source and receivers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::checks;
use super::plan::{PORT, Place, Plan, SeatPlan, source_launch, start_lore, switch, write_channel};
use super::seat::Seat;
use super::tunnel::RelaySeat;
use super::{Fault, Side};
use crate::binaries::{Binaries, reachable_previous};
use crate::lab::{Beyond, Families, Lab, Multicast, Nat, Node, Rebinding};
use crate::process::{Launch, Service};
use crate::run_dir::RunDir;

/// The places of the border and of the first relay on the switch.
const BORDER: u8 = 3;
const FIRST_RELAY: u8 = 5;
/// Time limit for a service to end.
const END: Duration = Duration::from_secs(20);

/// A running scenario.
#[derive(Debug)]
pub struct Stage {
    // Services end before their lab, and the run folder goes last.
    pub(super) seats: Vec<Seat>,
    pub(super) source: Option<Service>,
    pub(super) lore: Service,
    pub(super) relays: Vec<RelaySeat>,
    pub(super) lab: Lab,
    nats: BTreeMap<String, Nat>,
    beyond: Option<Beyond>,
    /// Shared router of the receivers behind one.
    home: Option<Nat>,
    source_launch: Launch,
    pub(super) source_node: Node,
    source_data: PathBuf,
    pub(super) bins: Binaries,
    plan: Plan,
    next_host: u8,
    pub(super) run: RunDir,
}

impl Stage {
    /// Begins by a plan, does `act`, ends everything in order and looks for panics. A failure
    /// carries the state of everything, and the run folder is kept.
    ///
    /// # Errors
    /// Whatever `act` fails with, or a start or an end that goes wrong.
    pub fn play(plan: Plan, act: impl FnOnce(&mut Stage) -> Result<()>) -> Result<()> {
        let mut stage = Stage::up(plan)?;
        let result = act(&mut stage)
            .and_then(|()| stage.end())
            .and_then(|()| checks::require_no_panic(&stage.logs()));
        match result {
            Ok(()) => {
                stage.run.discard();
                Ok(())
            }
            Err(error) => {
                let state = stage.describe();
                if stage.plan.fault.is_some() {
                    // This failure was wanted.
                    stage.run.discard();
                }
                Err(anyhow!(
                    "{error:#}\n\n===== state when it failed =====\n{state}"
                ))
            }
        }
    }

    /// Makes the lab and starts everything, of relays the first alone; receivers are started but
    /// need not be connected yet.
    ///
    /// # Errors
    /// When something does not start.
    pub fn up(plan: Plan) -> Result<Stage> {
        Stage::up_with(plan, &Binaries::find()?)
    }

    /// The same with these programs.
    ///
    /// # Errors
    /// When something does not start.
    pub fn up_with(mut plan: Plan, bins: &Binaries) -> Result<Stage> {
        let run = RunDir::new(plan.name)?;
        let mut lab = Lab::with(plan.families)?;
        let previous = plan.seats.iter_mut().map(|seat| &mut seat.program);
        for program in previous.chain([&mut plan.source]).flatten() {
            *program = reachable_previous(program, lab.rootless(), &run)?;
        }
        let bins = bins.reachable(lab.rootless(), &run)?;
        let logs = run.path().join("logs");
        std::fs::create_dir(&logs)?;
        let source_node = lab.add_node("source", 2)?;
        let far = |seat: &SeatPlan| matches!(seat.place, Place::Beyond | Place::BehindOneNat);
        let beyond = if plan.relays > 0 || plan.seats.iter().any(far) {
            let beyond = lab.add_beyond(BORDER)?;
            lab.route_beyond(&source_node, &beyond)?;
            Some(beyond)
        } else {
            None
        };
        let mut relays = start_relays(&plan, &mut lab, &bins, &source_node, beyond.as_ref())?;
        if let Some(first) = relays.first_mut() {
            first.start(&logs)?;
        }
        let announced: Vec<SocketAddr> = relays
            .iter()
            .map(|relay| relay.address(source_node.ip()))
            .collect();
        let lore = start_lore(&source_node, &plan, &bins, run.path())?;
        let source_data = run.path().join("source");
        std::fs::create_dir(&source_data)?;
        source_node.hand_over(&source_data)?;
        write_channel(&plan, &source_data)?;
        let source_launch = source_launch(
            &plan,
            &bins,
            &source_data,
            SocketAddr::new(source_node.ip(), PORT),
            &announced,
        );
        let source = Service::start(&source_node, &source_launch, &logs)?;
        let seats = plan.seats.clone();
        let mut stage = Stage {
            seats: Vec::new(),
            source: Some(source),
            lore,
            relays,
            lab,
            nats: BTreeMap::new(),
            beyond,
            home: None,
            source_launch,
            source_node,
            source_data,
            bins,
            plan,
            next_host: 11,
            run,
        };
        let started = stage
            .wait_source()
            .and_then(|()| seats.iter().try_for_each(|seat| stage.seat_down(seat)));
        match started {
            Ok(()) => Ok(stage),
            Err(error) => {
                let state = stage.describe();
                Err(anyhow!("{error:#}\n\n===== state =====\n{state}"))
            }
        }
    }

    /// The network.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The folder of this run.
    pub fn run_folder(&self) -> &Path {
        self.run.path()
    }

    /// Says that the run folder is not needed any more.
    pub fn discard(&mut self) {
        self.run.discard();
    }

    /// The folder of all logs.
    pub fn logs(&self) -> PathBuf {
        self.run.path().join("logs")
    }

    /// The programs that this run uses.
    pub fn bins(&self) -> &Binaries {
        &self.bins
    }

    /// All receivers of the plan.
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// A receiver by name.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn seat(&self, name: &str) -> Result<&Seat> {
        let found = self.seats.iter().find(|seat| seat.name() == name);
        found.ok_or_else(|| anyhow!("there is no receiver {name}"))
    }

    /// A receiver by name, to do something to it.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn seat_mut(&mut self, name: &str) -> Result<&mut Seat> {
        let found = self.seats.iter_mut().find(|seat| seat.name() == name);
        found.ok_or_else(|| anyhow!("there is no receiver {name}"))
    }

    /// Changes what reaches a receiver by multicast.
    ///
    /// # Errors
    /// When there is no such receiver or nft refuses.
    pub fn set_multicast(&self, name: &str, multicast: Multicast) -> Result<()> {
        self.lab.set_multicast(self.seat(name)?.node(), multicast)
    }

    /// Limits the line to a receiver to so many kbit/s.
    ///
    /// # Errors
    /// When there is no such receiver or tc refuses.
    pub fn set_bandwidth(&self, name: &str, kbit_per_s: Option<u32>) -> Result<()> {
        let node = self.seat(name)?.node();
        self.lab.set_bandwidth(node, kbit_per_s)
    }

    /// Changes the largest IP packet in bytes that passes the line to a receiver.
    ///
    /// # Errors
    /// When there is no such receiver or the kernel refuses.
    pub fn set_mtu(&self, name: &str, mtu: u16) -> Result<()> {
        self.lab.set_mtu(self.seat(name)?.node(), mtu)
    }

    /// Changes what a relay's port on the switch does with multicast.
    ///
    /// # Errors
    /// When there is no such relay or nft refuses.
    pub fn set_relay_multicast(&self, number: usize, multicast: Multicast) -> Result<()> {
        let relay = self.relays.get(number);
        let relay = relay.with_context(|| format!("there is no relay {number}"))?;
        self.lab.set_multicast(relay.node(), multicast)
    }

    /// A further node on the switch.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn add_node(&mut self, name: &str) -> Result<Node> {
        let host = self.take_host();
        self.lab.add_node(name, host)
    }

    /// A further node beyond the border.
    ///
    /// # Errors
    /// When there is no border, or the node cannot be made.
    pub fn add_far(&mut self, name: &str) -> Result<Node> {
        let host = self.take_host();
        let families = self.plan.families;
        let beyond = self.beyond.as_ref().context("there is no border")?;
        beyond.add_node(&mut self.lab, name, host, families)
    }

    /// A further node on the switch, which can be reached from beyond the border.
    ///
    /// # Errors
    /// When there is no border, or the node cannot be made.
    pub fn add_between(&mut self, name: &str, host: u8) -> Result<Node> {
        let node = self.lab.add_node(name, host)?;
        let beyond = self.beyond.as_ref().context("there is no border")?;
        self.lab.route_beyond(&node, beyond)?;
        Ok(node)
    }

    /// Makes a receiver's node and starts it there.
    fn seat_down(&mut self, plan: &SeatPlan) -> Result<()> {
        let families = plan.families.unwrap_or(self.plan.families);
        let node = match plan.place {
            Place::Switch => {
                let host = self.take_host();
                let node = self.lab.add_node_with(plan.name, host, families)?;
                self.lab.set_multicast(&node, plan.multicast)?;
                node
            }
            Place::BehindNat => {
                let host = self.take_host();
                let (nat, node) = self.lab.add_behind_nat(plan.name, host, host + 100)?;
                self.nats.insert(plan.name.to_owned(), nat);
                node
            }
            Place::Beyond => {
                let host = self.take_host();
                let beyond = self.beyond.as_ref().context("there is no border")?;
                beyond.add_node(&mut self.lab, plan.name, host, families)?
            }
            Place::BehindOneNat => {
                if self.home.is_none() {
                    let host = self.take_host();
                    let beyond = self.beyond.as_ref().context("there is no border")?;
                    let home = beyond.add_nat(&mut self.lab, "home", host, host + 100)?;
                    self.home = Some(home);
                }
                let home = self.home.as_mut().context("there is no router")?;
                home.add_node(&mut self.lab, plan.name)?
            }
        };
        let link = self.link_for(node.families())?;
        let seat = self.make_seat_with(node, &link, &plan.args, plan.program.as_deref())?;
        self.seats.push(seat);
        Ok(())
    }

    fn take_host(&mut self) -> u8 {
        let host = self.next_host;
        self.next_host += 1;
        host
    }

    /// Lets the router of a receiver forget its translations and lose everything for a time.
    /// Returns the address that the receiver is seen with from then on.
    ///
    /// # Errors
    /// When it has no router, or the kernel refuses.
    pub fn rebind(&mut self, name: &str, to: Rebinding, outage: Duration) -> Result<IpAddr> {
        let nat = self
            .nats
            .get_mut(name)
            .with_context(|| format!("{name} is not behind a router"))?;
        nat.rebind(to, outage)?;
        Ok(nat.outside().into())
    }

    /// The same for the shared router.
    ///
    /// # Errors
    /// There is no such router, or the kernel refuses.
    pub fn rebind_home(&mut self, to: Rebinding, outage: Duration) -> Result<IpAddr> {
        let home = self.home.as_mut().context("no home network was planned")?;
        home.rebind(to, outage)?;
        Ok(home.outside().into())
    }

    /// A relay, counted from 0.
    ///
    /// # Errors
    /// When there are not so many.
    pub fn relay(&mut self, number: usize) -> Result<&mut RelaySeat> {
        let relay = self.relays.get_mut(number);
        relay.with_context(|| format!("there is no relay {number}"))
    }

    /// Starts a relay that was killed, or not started yet.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn start_relay(&mut self, number: usize) -> Result<()> {
        let logs = self.logs();
        self.relay(number)?.start(&logs)
    }

    /// The node of the source and of the feed.
    pub fn source_node(&self) -> &Node {
        &self.source_node
    }

    /// A receiver in a node, started with a link; it is not among [`Stage::seats`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn make_seat(&self, node: Node, link: &str) -> Result<Seat> {
        self.make_seat_with(node, link, &[], None)
    }

    fn make_seat_with(
        &self,
        node: Node,
        link: &str,
        args: &[&str],
        program: Option<&Path>,
    ) -> Result<Seat> {
        let program = program.unwrap_or(&self.bins.receiver);
        let env = match self.plan.fault {
            Some(fault) if fault.breaks(Side::Receiver) => vec![switch(fault)],
            _ => Vec::new(),
        };
        let mut seat = Seat::new(node, self.run.path(), program, link, args, env)?;
        seat.start(&self.logs())?;
        Ok(seat)
    }

    /// Starts a stopped receiver again.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart_seat(&mut self, name: &str) -> Result<()> {
        let logs = self.logs();
        self.seat_mut(name)?.start(&logs)
    }

    /// The enrolment link that the source made at its first start.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn link(&self) -> Result<String> {
        let path = self.source_data.join("enrolment-link");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        let link = text
            .split_whitespace()
            .find(|word| word.starts_with("flexfeed://"))
            .with_context(|| format!("{} holds no link", path.display()))?;
        Ok(link.to_owned())
    }

    /// The source's data folder.
    pub fn source_data(&self) -> &Path {
        &self.source_data
    }

    /// The link for a node that speaks these families: with an address of the source that such a
    /// node can reach.
    ///
    /// # Errors
    /// When there is no link or it does not have the source's address.
    pub fn link_for(&self, families: Families) -> Result<String> {
        let link = self.link()?;
        let written = format!("@{}", SocketAddr::new(self.source_node.ip(), PORT));
        ensure!(
            link.contains(&written),
            "the link {link:?} has no {written:?}"
        );
        let ip: IpAddr = if families.v4() {
            self.source_node.address().into()
        } else {
            self.source_node.address6().into()
        };
        let wanted = format!("@{}", SocketAddr::new(ip, PORT));
        Ok(link.replacen(&written, &wanted, 1))
    }

    /// The promise that is broken, if any.
    pub fn fault(&self) -> Option<Fault> {
        self.plan.fault
    }

    /// The source's process.
    ///
    /// # Errors
    /// When the source was stopped.
    pub fn source_service(&mut self) -> Result<&mut Service> {
        self.source.as_mut().context("the source was stopped")
    }

    /// Kills the source as a power cut would.
    ///
    /// # Errors
    /// When it had ended before.
    pub fn kill_source(&mut self) -> Result<()> {
        let mut source = self.source.take().context("the source was stopped")?;
        source.kill()
    }

    /// Starts the source again and waits until it answers.
    ///
    /// # Errors
    /// When it does not.
    pub fn restart_source(&mut self) -> Result<()> {
        let logs = self.logs();
        self.source = Some(Service::start(
            &self.source_node,
            &self.source_launch,
            &logs,
        )?);
        self.wait_source()
    }

    /// Ends a receiver, and starts this build's in its place.
    ///
    /// # Errors
    /// When it does not end well, or the other one cannot be started.
    pub fn replace_seat(&mut self, name: &str) -> Result<()> {
        let (logs, program) = (self.logs(), self.bins.receiver.clone());
        let seat = self.seat_mut(name)?;
        let mut service = seat.take().context("the receiver was stopped")?;
        end_well(&mut service)?;
        seat.set_program(program);
        seat.start(&logs)
    }

    /// Ends the source, and starts this build's in its place.
    ///
    /// # Errors
    /// When it does not end well, or the other one does not answer.
    pub fn replace_source(&mut self) -> Result<()> {
        let mut source = self.source.take().context("the source was stopped")?;
        end_well(&mut source)?;
        self.source_launch.program.clone_from(&self.bins.source);
        self.restart_source()
    }

    /// The names of all receivers.
    pub fn names(&self) -> Vec<String> {
        self.seats
            .iter()
            .map(|seat| seat.name().to_owned())
            .collect()
    }

    /// Stops everything with SIGTERM: receivers, source; each must end with success.
    ///
    /// # Errors
    /// When one does not.
    pub fn end(&mut self) -> Result<()> {
        for seat in &mut self.seats {
            end_well(seat.running()?)?;
        }
        for service in self.relays.iter_mut().filter_map(RelaySeat::service) {
            end_well(service)?;
        }
        end_well(self.source.as_mut().context("the source was stopped")?)
    }
}

/// Ends a service with SIGTERM; it has to succeed.
fn end_well(service: &mut Service) -> Result<()> {
    let status = service.terminate(END)?;
    ensure!(
        status.success(),
        "{} ended with {status} after SIGTERM; its log ends:\n{}",
        service.name(),
        service.log_tail()
    );
    Ok(())
}

/// Makes the relays of a plan; the one beside the source comes first.
fn start_relays(
    plan: &Plan,
    lab: &mut Lab,
    bins: &Binaries,
    source: &Node,
    beyond: Option<&Beyond>,
) -> Result<Vec<RelaySeat>> {
    let fault = plan.fault.filter(|one: &Fault| one.breaks(Side::Relay));
    let mut relays = Vec::new();
    if plan.relay_beside {
        let seat = RelaySeat::new(source.clone(), "relay", bins, &plan.relay_args, fault);
        relays.push(seat);
    }
    for number in 0..plan.relays {
        let name = format!("relay{}", number + 1);
        let node = lab.add_node(&name, FIRST_RELAY + number)?;
        if let Some(beyond) = beyond {
            lab.route_beyond(&node, beyond)?;
        }
        let seat = RelaySeat::new(node, &name, bins, &plan.relay_args, fault);
        relays.push(seat);
    }
    Ok(relays)
}
