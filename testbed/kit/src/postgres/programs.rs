//! PostgreSQL's programs, and the user to run them as.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};

/// Folder of each version's programs on Debian and Ubuntu, outside the search path.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The programs that are used, and the user that they run as.
#[derive(Debug)]
pub(crate) struct Programs {
    folder: PathBuf,
    /// User and group, if this process is the superuser: PostgreSQL refuses to run as it.
    user: Option<(u32, u32)>,
}

impl Programs {
    pub(crate) fn find() -> Result<Self> {
        let user = if rustix::process::geteuid().is_root() {
            Some(unprivileged()?)
        } else {
            None
        };
        Ok(Self {
            folder: folder()?,
            user,
        })
    }

    /// A command that runs one of the programs.
    pub(crate) fn command(&self, program: &str) -> Command {
        self.unprivileged(&self.folder.join(program))
    }

    /// A command that runs any program as the same user.
    pub(crate) fn unprivileged(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LC_ALL", "C.UTF-8").current_dir("/");
        for name in [
            "PGHOST",
            "PGPORT",
            "PGUSER",
            "PGDATABASE",
            "PGPASSWORD",
            "PGOPTIONS",
        ] {
            command.env_remove(name);
        }
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Gives a file or folder to the user that the programs run as.
    pub(crate) fn give(&self, path: &Path) -> Result<()> {
        let Some((uid, gid)) = self.user else {
            return Ok(());
        };
        std::os::unix::fs::chown(path, Some(uid), Some(gid))
            .with_context(|| format!("cannot give {} to user {uid}", path.display()))
    }
}

/// Runs a command to its end; an error quotes its output.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} failed ({}): {}",
        program.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output)
}

fn folder() -> Result<PathBuf> {
    let is_complete = |folder: &PathBuf| {
        ["initdb", "postgres", "createdb"]
            .iter()
            .all(|program| folder.join(program).is_file())
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(folder) = std::env::split_paths(&path).find(is_complete) {
        return Ok(folder);
    }
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(VERSIONS)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, folder)| is_complete(folder))
        .collect();
    versions.sort();
    match versions.pop() {
        Some((_, folder)) => Ok(folder),
        None => bail!(
            "PostgreSQL's programs are neither in PATH nor in {VERSIONS}/*/bin: \
             `apt-get install postgresql`"
        ),
    }
}

/// User and group of an account that owns nothing of value.
fn unprivileged() -> Result<(u32, u32)> {
    let accounts = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let find = |wanted: &str| {
        accounts.lines().find_map(|line| {
            let mut fields = line.split(':');
            if fields.next() != Some(wanted) {
                return None;
            }
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some((uid, gid))
        })
    };
    find("postgres").or_else(|| find("nobody")).context(
        "PostgreSQL does not run as root, and there is neither a user `postgres` nor `nobody`",
    )
}
