//! The folder of one run: data of every service and the logs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A folder that is removed after a success and kept after a failure.
///
/// Made in the system's temporary folder (`TMPDIR`), where services of another user can reach it.
/// `FLEXFEED_KEEP_RUNS=1` keeps it always.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    keep: bool,
}

impl RunDir {
    /// Makes a folder whose name begins with `flexfeed-` and the label.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(label: &str) -> Result<RunDir> {
        let path = tempfile::Builder::new()
            .prefix(&format!("flexfeed-{label}-"))
            .tempdir()
            .with_context(|| format!("making a run folder in {}", std::env::temp_dir().display()))?
            .keep();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(RunDir { path, keep: true })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says that nothing in it is needed for finding out what went wrong.
    pub fn discard(&mut self) {
        self.keep = std::env::var_os("FLEXFEED_KEEP_RUNS").is_some();
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("run folder with data and logs: {}", self.path.display());
        } else if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("{} could not be removed: {error}", self.path.display());
        }
    }
}
