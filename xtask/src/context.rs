//! Surroundings of a step: folders, environment, and the commands that it runs.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};

use crate::failure::Failure;

/// Pauses between attempts to get something from a registry, in seconds.
const RETRY_PAUSES_S: [&str; 2] = ["5", "30"];

/// Prints a line for the person at the terminal, on standard error: standard output is for results.
pub fn say(text: impl AsRef<str>) {
    eprintln!("{}", text.as_ref());
}

/// Announces the next step.
pub fn step(text: impl AsRef<str>) {
    eprintln!("\n==> {}", text.as_ref());
}

/// Where the repository and its build results are, and what the commands of a step get to know.
#[derive(Debug)]
pub struct Context {
    /// The repository.
    pub root: PathBuf,
    /// Folder of build results.
    pub target: PathBuf,
    variables: Vec<(OsString, OsString)>,
}

impl Context {
    /// Takes the repository from the current folder, where `./dev` goes before it calls a step.
    ///
    /// # Errors
    ///
    /// The current folder is not the repository.
    pub fn new() -> Result<Self> {
        let root = env::current_dir().context("current folder")?;
        if !root.join("dev").is_file() {
            return Err(Failure::usage("run ./dev, which calls this program"));
        }
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
        Ok(Self {
            root,
            target,
            variables: Vec::new(),
        })
    }

    /// Sets an environment variable for all commands that follow.
    pub fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.variables.retain(|(other, _)| other != name);
        self.variables.push((name.into(), value.as_ref().into()));
    }

    /// Returns an environment variable; `None` if it is empty.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<OsString> {
        let set = self.variables.iter().find(|(other, _)| other == name);
        set.map(|(_, value)| value.clone())
            .or_else(|| env::var_os(name))
            .filter(|value| !value.is_empty())
    }

    /// Whether everything has to be tested here, as in CI: what is missing fails instead of being
    /// skipped.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.variable("FLEXFEED_REQUIRE_PEERS").is_some()
    }

    /// Returns a command with the variables of this context, to be run in the repository.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns `cargo` with these arguments.
    #[must_use]
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("cargo");
        command.args(arguments);
        command
    }

    /// Finds a program on the `PATH`.
    #[must_use]
    pub fn find(&self, program: &str) -> Option<PathBuf> {
        let path = self.variable("PATH")?;
        env::split_paths(&path)
            .map(|folder| folder.join(program))
            .find(|path| path.is_file())
    }

    /// Warns of the long wait when nothing has been built yet in that profile. The minutes are
    /// measured on two cores.
    pub fn announce_first_build(&self, profile: &str, minutes: &str) {
        let built = fs::read_dir(self.target.join(profile).join("deps"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                name.starts_with("libquiche-") && name.ends_with(".rlib")
            });
        if !built {
            say(format!(
                "The first build compiles BoringSSL, SQLite and all crates: about {minutes} \
                 minutes on 2 cores. Later ones take seconds."
            ));
        }
    }

    /// Builds a tool of the registry into the target folder.
    ///
    /// # Errors
    ///
    /// The tool could not be fetched or built.
    pub fn install_tool(&self, name: &str, version: &str) -> Result<()> {
        let tools = self.target.join("tools");
        let build = tools.join("build");
        let result = retry(|| {
            // Other steps run meanwhile, and some of them watch clocks.
            let mut command = self.command("nice");
            command.args([
                "-n", "19", "cargo", "install", "--locked", "--debug", "--force",
            ]);
            command.arg("--root");
            command.arg(&tools).arg(format!("{name}@{version}"));
            // Without optimisation and debug information: it runs for seconds and is built sooner.
            command.env("CARGO_TARGET_DIR", &build);
            command.env("CARGO_PROFILE_DEV_DEBUG", "0");
            command
        });
        let _ = fs::remove_dir_all(build);
        result
    }
}

/// Runs a command.
///
/// # Errors
///
/// Fails with the command's exit code and no reason: the command has said it.
pub fn run(command: &mut Command) -> Result<()> {
    judge(start(command.status(), command)?)
}

/// Runs a command that gets something from a registry, up to three times: registries are not
/// always there.
///
/// # Errors
///
/// The exit code of the last attempt.
pub fn retry(mut command: impl FnMut() -> Command) -> Result<()> {
    for pause in RETRY_PAUSES_S {
        if run(&mut command()).is_ok() {
            return Ok(());
        }
        say(format!("dev: that did not work; once more in {pause} s"));
        // A program, not a sleep of this thread: Ctrl-C ends both.
        let _ = Command::new("sleep").arg(pause).status();
    }
    run(&mut command())
}

/// Returns what a command prints on standard output, without the last newline; `None` if it fails.
#[must_use]
pub fn output(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned();
    output.status.success().then_some(text)
}

/// Runs a command; shows what it prints and keeps it in a file.
///
/// # Errors
///
/// The program could not be started, or the file not written.
pub fn run_logged(command: &mut Command, log: &Path) -> Result<ExitStatus> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut file = File::create(log).with_context(|| log.display().to_string())?;
    let (mut reader, writer) = io::pipe().context("pipe")?;
    command.stdout(writer.try_clone().context("pipe")?);
    command.stderr(writer);
    let mut child = start(command.spawn(), command)?;
    // The command holds the other end of the pipe until it is given another one.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut buffer = [0; 8192];
    loop {
        let length = reader.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        // The reader may be gone; the file is written all the same.
        let _ = io::stdout().write_all(&buffer[..length]);
        let _ = io::stdout().flush();
        file.write_all(&buffer[..length])?;
    }
    Ok(child.wait()?)
}

/// Turns the end of a command into a result.
///
/// # Errors
///
/// Its exit code, if that is not 0.
pub fn judge(status: ExitStatus) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Err(Failure::silent(code.unwrap_or(1)))
}

/// Names the command that could not be started.
fn start<T>(result: io::Result<T>, command: &Command) -> Result<T> {
    result.with_context(|| format!("{}", command.get_program().display()))
}
