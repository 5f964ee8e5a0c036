//! Locations of the programs under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::lab::{ORDINARY_USER, Tools};
use crate::run_dir::RunDir;

/// Paths of the programs that the testbed starts; empty where a run does without the program.
#[derive(Debug, Clone, Default)]
pub struct Binaries {
    /// `flexfeed-source`, the service under test.
    pub source: PathBuf,
    /// `flexfeed-receiver`, the service under test.
    pub receiver: PathBuf,
    /// `flexfeed-relay`, the service under test.
    pub relay: PathBuf,
    /// `flexfeed-gateway`, the service under test.
    pub gateway: PathBuf,
    /// `flexfeed-console`, the service under test.
    pub console: PathBuf,
    /// `flexfeed-swarm`, the service under test.
    pub swarm: PathBuf,
    /// `flexfeed-lore`, the feed generator.
    pub lore: PathBuf,
    /// `flexfeed-probe`, which sends and counts datagrams.
    pub probe: PathBuf,
    /// `flexfeed-delay`, a slow cable.
    pub delay: PathBuf,
    /// `flexfeed-stream`, which drives the transport without services.
    pub stream: PathBuf,
    /// `flexfeed-pump`, which sends many packets and counts them.
    pub pump: PathBuf,
    /// `flexfeed-tunnel`, which speaks AMT as an outsider.
    pub tunnel: PathBuf,
    /// `flexfeed-forger`, a member that forges packets of its flow.
    pub forger: PathBuf,
}

impl Binaries {
    /// Finds them: in `FLEXFEED_BIN_DIR` if that is set, otherwise beside the running test or
    /// program.
    ///
    /// Under `cargo test` without `FLEXFEED_BIN_DIR` the services are brought up to date first,
    /// once per process.
    ///
    /// # Errors
    /// When one is missing or does not build.
    pub fn find() -> Result<Binaries> {
        let own = own_folder()?;
        let services = match std::env::var_os("FLEXFEED_BIN_DIR") {
            Some(folder) => std::path::absolute(PathBuf::from(folder))?,
            None => {
                build_once(&own)?;
                own.clone()
            }
        };
        Ok(Binaries {
            source: required(&services, "flexfeed-source")?,
            receiver: required(&services, "flexfeed-receiver")?,
            relay: required(&services, "flexfeed-relay")?,
            gateway: required(&services, "flexfeed-gateway")?,
            console: required(&services, "flexfeed-console")?,
            swarm: required(&services, "flexfeed-swarm")?,
            ..Binaries::of_testbed()?
        })
    }

    /// The folder of the services.
    ///
    /// # Errors
    /// When there are none.
    pub fn folder(&self) -> Result<PathBuf> {
        let folder = self.source.parent().context("no services")?;
        Ok(folder.to_owned())
    }

    /// Only the testbed's own programs; the services' paths are empty.
    ///
    /// # Errors
    /// When one is missing.
    pub fn of_testbed() -> Result<Binaries> {
        let own = own_folder()?;
        Ok(Binaries {
            lore: required(&own, "flexfeed-lore")?,
            probe: required(&own, "flexfeed-probe")?,
            delay: required(&own, "flexfeed-delay")?,
            stream: required(&own, "flexfeed-stream")?,
            pump: required(&own, "flexfeed-pump")?,
            tunnel: required(&own, "flexfeed-tunnel")?,
            forger: required(&own, "flexfeed-forger")?,
            ..Binaries::default()
        })
    }

    /// Only the programs of the demo, next to the running program or in `FLEXFEED_BIN_DIR`: a first
    /// build is long, and the others would make it longer.
    ///
    /// # Errors
    /// When one is missing.
    pub fn of_demo() -> Result<Binaries> {
        let own = own_folder()?;
        let services = match std::env::var_os("FLEXFEED_BIN_DIR") {
            Some(folder) => std::path::absolute(PathBuf::from(folder))?,
            None => own.clone(),
        };
        Ok(Binaries {
            source: required(&services, "flexfeed-source")?,
            receiver: required(&services, "flexfeed-receiver")?,
            lore: required(&own, "flexfeed-lore")?,
            ..Binaries::default()
        })
    }

    /// Makes the programs executable for the services' user; copies them into `run` where a folder
    /// on the path is closed to that user.
    ///
    /// # Errors
    /// A copy cannot be made.
    pub fn reachable(&self, rootless: bool, run: &RunDir) -> Result<Binaries> {
        if rootless {
            return Ok(self.clone());
        }
        let place = |path: &Path| place(path, run, "");
        Ok(Binaries {
            source: place(&self.source)?,
            receiver: place(&self.receiver)?,
            relay: place(&self.relay)?,
            gateway: place(&self.gateway)?,
            console: place(&self.console)?,
            swarm: place(&self.swarm)?,
            lore: place(&self.lore)?,
            probe: place(&self.probe)?,
            delay: place(&self.delay)?,
            stream: place(&self.stream)?,
            pump: place(&self.pump)?,
            tunnel: place(&self.tunnel)?,
            forger: place(&self.forger)?,
        })
    }
}

/// The same for a program of an earlier version.
///
/// # Errors
/// When it is missing, or a copy cannot be made.
pub fn reachable_previous(path: &Path, rootless: bool, run: &RunDir) -> Result<PathBuf> {
    ensure!(path.is_file(), "{} is missing", path.display());
    if rootless {
        return Ok(path.to_owned());
    }
    place(path, run, "previous-")
}

/// A program where the services' user can start it: itself, or a copy with another name.
fn place(path: &Path, run: &RunDir, prefix: &str) -> Result<PathBuf> {
    if path.as_os_str().is_empty() || ordinary_user_can_start(path)? {
        return Ok(path.to_owned());
    }
    let name = path.file_name().context("program without a name")?;
    let copy = run.path().join(format!("{prefix}{}", name.display()));
    if !copy.exists() {
        std::fs::copy(path, &copy)
            .with_context(|| format!("copying {} to {}", path.display(), copy.display()))?;
    }
    Ok(copy)
}

/// The folder of this program; tests live one level deeper, in `deps`.
fn own_folder() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("finding the running program")?;
    let folder = exe.parent().context("program without a folder")?;
    if folder.ends_with("deps") {
        return Ok(folder.parent().context("deps without a parent")?.to_owned());
    }
    Ok(folder.to_owned())
}

fn required(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    ensure!(
        path.is_file(),
        "{} is missing; run: cargo build --workspace (or set FLEXFEED_BIN_DIR to the folder that \
         has it)",
        path.display()
    );
    Ok(path)
}

fn build_once(own: &Path) -> Result<()> {
    static BUILT: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    // Cargo sets this for the tests that it runs; a program started by hand takes what is there.
    let Some(cargo) = std::env::var_os("CARGO") else {
        return Ok(());
    };
    let build = || -> Result<()> {
        let mut command = Command::new(cargo);
        command
            .args(["build", "-p", "flexfeed-source", "-p", "flexfeed-receiver"])
            .args([
                "-p",
                "flexfeed-relay",
                "-p",
                "flexfeed-gateway",
                "-p",
                "flexfeed-console",
                "-p",
                "flexfeed-swarm",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        if own.ends_with("release") {
            command.arg("--release");
        }
        let output = command.output().context("starting cargo build")?;
        if !output.status.success() {
            bail!(
                "building the services failed:\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(())
    };
    BUILT
        .get_or_init(|| build().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|text| anyhow!(text))
}

fn ordinary_user_can_start(path: &Path) -> Result<bool> {
    let id = ORDINARY_USER.to_string();
    let status = Command::new(&Tools::find()?.setpriv)
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"])
        .args(["test", "-x"])
        .arg(path)
        .status()
        .context("starting setpriv")?;
    Ok(status.success())
}
