//! One receiver of a scenario: its node, its data folder, its process.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use super::CHANNEL;
use crate::delivery::{self, Delivery};
use crate::lab::Node;
use crate::process::{Launch, Service};
use crate::readers::{Entry, Reader};
use crate::status::{ReceiverChannel, ReceiverStatus};
use crate::waiting::wait_for;

/// Longest lag of feed files behind the journal.
const FILES: Duration = Duration::from_secs(30);

/// A receiver and everything that can be seen of it.
#[derive(Debug)]
pub struct Seat {
    name: String,
    node: Node,
    data: PathBuf,
    launch: Launch,
    service: Option<Service>,
    started_ms: u64,
}

impl Seat {
    /// Prepares a receiver; [`Seat::start`] starts it.
    ///
    /// # Errors
    /// When its data folder cannot be made.
    pub fn new(
        node: Node,
        run: &Path,
        program: &Path,
        link: &str,
        args: &[&str],
        env: Vec<(String, String)>,
    ) -> Result<Seat> {
        let name = node.name().to_owned();
        let data = run.join(&name);
        std::fs::create_dir_all(&data).with_context(|| format!("making {}", data.display()))?;
        node.hand_over(&data)?;
        let text = |path: &Path| path.display().to_string();
        let mut variables = env;
        // Not as an argument: the link holds the token, and everybody can list a process's
        // arguments.
        variables.push(("FLEXFEED_LINK".to_owned(), link.to_owned()));
        // Scenarios look at the feed files; a variable, for earlier versions do not know the flag.
        variables.push(("FLEXFEED_FILE_INTERVAL".to_owned(), "0".to_owned()));
        variables.push(("HOME".to_owned(), text(&data)));
        let mut arguments = vec![
            "--data".to_owned(),
            text(&data),
            "--name".to_owned(),
            name.clone(),
            "--delivery-log".to_owned(),
            text(&data.join("delivery.jsonl")),
        ];
        arguments.extend(args.iter().map(|&one| one.to_owned()));
        let launch = Launch {
            name: name.clone(),
            program: program.to_owned(),
            args: arguments,
            env: variables,
        };
        Ok(Seat {
            name,
            node,
            data,
            launch,
            service: None,
            started_ms: 0,
        })
    }

    /// Says which program is started next.
    pub(super) fn set_program(&mut self, program: PathBuf) {
        self.launch.program = program;
    }

    /// Starts the receiver, again if it was stopped.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(&mut self, logs: &Path) -> Result<()> {
        self.started_ms = now_ms();
        self.service = Some(Service::start(&self.node, &self.launch, logs)?);
        Ok(())
    }

    /// Its name, which is also its node's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its node in the lab.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The process, unless it was stopped on purpose.
    pub fn service(&mut self) -> Option<&mut Service> {
        self.service.as_mut()
    }

    /// The process, which must not have been stopped.
    ///
    /// # Errors
    /// When it was.
    pub fn running(&mut self) -> Result<&mut Service> {
        self.service
            .as_mut()
            .ok_or_else(|| anyhow!("{} was stopped", self.name))
    }

    /// Kills the process as a power cut would.
    ///
    /// # Errors
    /// When it had ended before.
    pub fn kill(&mut self) -> Result<()> {
        self.running()?.kill()?;
        self.service = None;
        Ok(())
    }

    /// Takes the process out, so that its end is expected from now on.
    pub fn take(&mut self) -> Option<Service> {
        self.service.take()
    }

    /// Its status file, if this process (not one before it) has written one.
    ///
    /// # Errors
    /// When the file is not a status.
    pub fn status(&self) -> Result<Option<ReceiverStatus>> {
        let status = ReceiverStatus::read(&self.data)?;
        Ok(status.filter(|status| status.updated_ms >= self.started_ms))
    }

    /// The channel's part of its status.
    ///
    /// # Errors
    /// When the file is not a status.
    pub fn channel(&self) -> Result<Option<ReceiverChannel>> {
        let status = self.status()?;
        Ok(status.and_then(|status| status.channel(CHANNEL).cloned()))
    }

    /// The channel's part of its status, which must be there.
    ///
    /// # Errors
    /// When it is not.
    pub fn channel_now(&self) -> Result<ReceiverChannel> {
        self.channel()?
            .with_context(|| format!("{} has no status for {CHANNEL}", self.name))
    }

    /// Its data folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The Atom file that it keeps.
    pub fn atom_file(&self) -> PathBuf {
        self.data.join(format!("{CHANNEL}.atom"))
    }

    /// The file that says how far its feed files are.
    pub fn cursor_file(&self) -> PathBuf {
        self.data.join("state").join(format!("{CHANNEL}.json"))
    }

    /// The folder of its journal.
    pub fn journal_folder(&self) -> PathBuf {
        self.data.join("journal").join(CHANNEL)
    }

    /// Returns an independent reader's view of the Atom file, once that has caught up with the
    /// receiver, or should have.
    ///
    /// # Errors
    /// There is no reader, or it finds the file faulty.
    pub fn read_atom(&self) -> Result<Vec<Entry>> {
        if let Some(channel) = self.channel()?.filter(|channel| channel.cursor > 0) {
            // The cursor file follows the feed files.
            let text = || std::fs::read(self.cursor_file()).unwrap_or_default();
            let _ = wait_for("the feed files", FILES, || {
                let noted: Option<Value> = serde_json::from_slice(&text()).ok();
                let noted = noted.and_then(|noted| noted["seq"].as_u64());
                Ok((noted == Some(channel.cursor)).then_some(()))
            });
        }
        let reader = Reader::find()?;
        reader
            .read(&self.atom_file())
            .with_context(|| format!("{}, read by {}", self.name, reader.name()))
    }

    /// Its delivery log, over all its processes.
    ///
    /// # Errors
    /// When the log is not as agreed.
    pub fn deliveries(&self) -> Result<Vec<Delivery>> {
        delivery::read(&self.data.join("delivery.jsonl"))
    }

    /// Returns all diagnostics.
    pub fn describe(&mut self) -> String {
        let state = match self.service.as_mut().map(Service::ended) {
            None => "stopped on purpose".to_owned(),
            Some(Ok(None)) => "running".to_owned(),
            Some(Ok(Some(status))) => format!("ended: {status}"),
            Some(Err(error)) => format!("unknown: {error}"),
        };
        let file = std::fs::read_to_string(self.data.join("status.json"))
            .unwrap_or_else(|error| format!("(no status file: {error})"));
        let tail = self
            .service
            .as_ref()
            .map_or_else(String::new, Service::log_tail);
        format!(
            "--- {} ({state})\nstatus: {}\nlog ends:\n{tail}\n",
            self.name,
            file.trim()
        )
    }
}

/// Unix time in ms.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|age| u64::try_from(age.as_millis()).ok())
        .unwrap_or(0)
}
