//! The system programs that the lab drives.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Result, anyhow};

/// Absolute paths of the programs that build a lab.
///
/// An ordinary user's `PATH` on Debian lacks `/usr/sbin`, where `ip` and `nft` live, so these are
/// looked up there too.
#[derive(Debug, Clone)]
pub struct Tools {
    /// `unshare` of util-linux: makes namespaces.
    pub unshare: PathBuf,
    /// `nsenter` of util-linux: runs a program in a namespace.
    pub nsenter: PathBuf,
    /// `setpriv` of util-linux: gives up root.
    pub setpriv: PathBuf,
    /// `ip` of iproute2: links, addresses, routes.
    pub ip: PathBuf,
    /// `nft`: cuts and loses multicast.
    pub nft: PathBuf,
    /// `tc` of iproute2: limits rates.
    pub tc: PathBuf,
    /// `cat`: a process that lives until its input ends.
    pub cat: PathBuf,
}

impl Tools {
    /// Finds every program, once per process.
    ///
    /// # Errors
    /// Names the first missing program and the Debian package that has it.
    pub fn find() -> Result<&'static Tools> {
        static FOUND: OnceLock<std::result::Result<Tools, String>> = OnceLock::new();
        FOUND
            .get_or_init(Tools::search)
            .as_ref()
            .map_err(|text| anyhow!("{text}"))
    }

    fn search() -> std::result::Result<Tools, String> {
        Ok(Tools {
            unshare: locate("unshare", "util-linux")?,
            nsenter: locate("nsenter", "util-linux")?,
            setpriv: locate("setpriv", "util-linux")?,
            ip: locate("ip", "iproute2")?,
            nft: locate("nft", "nftables")?,
            tc: locate("tc", "iproute2")?,
            cat: locate("cat", "coreutils")?,
        })
    }
}

fn locate(name: &str, package: &str) -> std::result::Result<PathBuf, String> {
    on_path(name).ok_or_else(|| {
        format!("the lab needs `{name}`, which is not installed; run: apt-get install {package}")
    })
}

/// Looks a program up in `PATH`, then in the folders of system programs.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
