//! Advice where this process may not write to its data folder, for all programs with `--data` and
//! `FLEXFEED_DATA`.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Root; no program of flexfeed needs to be root.
const ROOT: u32 = 0;

/// Owners may read, write and enter a folder: without these, being the owner is of no use.
const OWNER_MAY_ENTER: u32 = 0o700;

/// The same of a file.
const OWNER_MAY_WRITE: u32 = 0o600;

/// Owner and permissions, as far as they can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    at: PathBuf,
    owner: u32,
    group: u32,
    mode: u32,
    is_folder: bool,
}

impl Found {
    /// The path, or the nearest one above it that can be looked at.
    fn nearest(path: &Path) -> Option<Found> {
        let mut above = path.ancestors().map(|at| match at.as_os_str().is_empty() {
            true => Path::new("."),
            false => at,
        });
        above.find_map(|at| {
            let about = at.metadata().ok()?;
            Some(Found {
                at: at.to_owned(),
                owner: about.uid(),
                group: about.gid(),
                mode: about.mode() & 0o7777,
                is_folder: about.is_dir(),
            })
        })
    }

    /// Returns the rights that the owner lacks, as `chmod` takes them; `None` for none.
    fn lacks(&self) -> Option<&'static str> {
        let (needed, given) = match self.is_folder {
            true => (OWNER_MAY_ENTER, "u+rwx"),
            false => (OWNER_MAY_WRITE, "u+rw"),
        };
        (self.mode & needed != needed).then_some(given)
    }
}

/// Returns advice on `problem` at `path`, which is in or above the data folder `folder`: the end of
/// a sentence, with the user to run as where that would help.
#[must_use]
pub fn remedy(folder: &Path, path: &Path, problem: &io::Error) -> String {
    let shown = folder.display();
    match problem.kind() {
        io::ErrorKind::ReadOnlyFilesystem => format!(
            "it is mounted read-only: mount it writable (in a container, a volume at {shown}), or \
             choose another with --data DIR or FLEXFEED_DATA"
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
            "make room on the file system of {shown} (or in this user's quota), then start again"
        ),
        _ => {
            let own = (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            );
            advice(folder, own, Found::nearest(path))
        }
    }
}

/// Returns advice on a file at `path` that this process may not read: the end of a sentence.
#[must_use]
pub fn remedy_to_read(path: &Path) -> String {
    let own = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    reading_advice(path, own, Found::nearest(path))
}

fn reading_advice(path: &Path, (uid, gid): (u32, u32), found: Option<Found>) -> String {
    let text = whose((uid, gid), found.as_ref());
    let shown = path.display();
    let mut ways = vec![format!("give it to this user (chown {uid}:{gid} {shown})")];
    match found {
        Some(found) if found.owner == uid => {
            let what = if found.is_folder { "u+rx" } else { "u+r" };
            let at = found.at.display();
            ways.insert(0, format!("let its owner read it (chmod {what} {at})"));
        }
        // No advice to become root.
        Some(Found { owner, group, .. }) if owner != ROOT => ways.push(format!(
            "run as its owner (in a container: docker run --user {owner}:{group} …, with a data folder \
             of that user's)"
        )),
        _ => {}
    }
    format!("{text}: {}", ways.join(", or "))
}

/// Returns the user of this process and the owner of the file.
fn whose((uid, gid): (u32, u32), found: Option<&Found>) -> String {
    let mut text = format!("this process runs as uid {uid}, gid {gid}");
    if let Some(found) = found {
        let (at, owner, group, mode) = (found.at.display(), found.owner, found.group, found.mode);
        text.push_str(&format!(
            ", and {at} belongs to {owner}:{group} with mode {mode:04o}"
        ));
    }
    text
}

fn advice(folder: &Path, (uid, gid): (u32, u32), found: Option<Found>) -> String {
    let text = whose((uid, gid), found.as_ref());
    let mut ways = vec![format!(
        "give the folder to this user (chown -R {uid}:{gid} {}; in a container, what is mounted \
         there)",
        folder.display()
    )];
    if let Some(found) = found {
        let (at, owner, group) = (found.at.display(), found.owner, found.group);
        let first = found.lacks().map(|what| format!("chmod {what} {at}"));
        if owner != uid {
            let first = first.map(|first| format!("after {first}, "));
            let way = format!(
                "{}run as its owner (in a container: docker run --user {owner}:{group} …)",
                first.unwrap_or_default()
            );
            // Root is what one has to be last.
            let place = usize::from(owner == ROOT);
            ways.insert(place, way);
        } else if let Some(first) = first {
            ways.insert(0, format!("let its owner write there ({first})"));
        }
    }
    ways.push("choose another with --data DIR or FLEXFEED_DATA".to_owned());
    format!("{text}: {}", ways.join(", or "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const OURS: &str = "chown -R 65532:65532 /data";

    fn of(owner: u32, mode: u32) -> String {
        told("/data", true, owner, mode)
    }

    fn told(at: &str, is_folder: bool, owner: u32, mode: u32) -> String {
        let found = Found {
            at: at.into(),
            owner,
            group: owner + 1,
            mode,
            is_folder,
        };
        let text = advice(Path::new("/data"), (65532, 65532), Some(found));
        assert!(text.contains("runs as uid 65532, gid 65532"), "{text}");
        assert!(text.contains(OURS), "{text}");
        assert!(text.contains("--data DIR or FLEXFEED_DATA"), "{text}");
        text
    }

    #[test]
    fn the_owner_is_named_whoever_that_is() {
        let text = of(1000, 0o755);
        let user = "docker run --user 1000:1001 ";
        assert!(text.find(user) < text.find(OURS), "{text}");
        assert!(text.contains(user), "{text}");
        // As Docker makes a folder that is missing.
        let text = of(0, 0o755);
        let user = "docker run --user 0:1 ";
        assert!(
            text.contains("/data belongs to 0:1 with mode 0755"),
            "{text}"
        );
        assert!(text.find(user) > text.find(OURS), "{text}");
        // The owner may not write either.
        let text = of(1000, 0o555);
        assert!(text.contains("after chmod u+rwx /data, run as"), "{text}");
        assert!(text.contains("--user 1000:1001"), "{text}");
        // Something in it that another user made: its mode is a file's.
        let text = told("/data/lock", false, 0, 0o600);
        assert!(text.contains("/data/lock belongs to 0:1"), "{text}");
        assert!(
            text.contains("--user 0:1 ") && !text.contains("chmod"),
            "{text}"
        );
    }

    #[test]
    fn who_may_not_read_is_told_what_would_help() {
        let told = |at: &str, is_folder, owner, mode| {
            let found = Found {
                at: at.into(),
                owner,
                group: owner,
                mode,
                is_folder,
            };
            reading_advice(Path::new("/home/link"), (65532, 65532), Some(found))
        };
        let text = told("/home/link", false, 1000, 0o600);
        assert!(
            text.contains("/home/link belongs to 1000:1000 with mode 0600"),
            "{text}"
        );
        assert!(text.contains("chown 65532:65532 /home/link"), "{text}");
        assert!(text.contains("docker run --user 1000:1000 "), "{text}");
        let text = told("/home/link", false, 0, 0o600);
        assert!(text.contains("chown 65532:65532 /home/link"), "{text}");
        assert!(!text.contains("--user"), "{text}");
        let text = told("/home/link", false, 65532, 0o200);
        assert!(text.contains("chmod u+r /home/link"), "{text}");
        let text = told("/home", true, 65532, 0o600);
        assert!(text.contains("chmod u+rx /home)"), "{text}");
        let unknown = reading_advice(Path::new("link"), (1, 2), None);
        assert!(unknown.contains("chown 1:2 link"), "{unknown}");
    }

    #[test]
    fn who_is_the_owner_need_not_become_it() {
        let text = of(65532, 0o755);
        assert!(
            !text.contains("--user") && !text.contains("chmod"),
            "{text}"
        );
        let text = of(65532, 0o500);
        assert!(!text.contains("--user"), "{text}");
        assert!(text.contains("chmod u+rwx /data"), "{text}");
        let unknown = advice(Path::new("data"), (1, 2), None);
        assert!(unknown.contains("chown -R 1:2 data"), "{unknown}");
    }

    #[test]
    fn what_is_not_there_is_judged_by_what_it_would_be_in() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        assert_eq!(Found::nearest(&inner).unwrap().at, folder.path());
        let nowhere = Found::nearest(Path::new("nowhere-at-all")).unwrap();
        assert_eq!(nowhere.at, PathBuf::from("."));
        assert!(nowhere.is_folder);
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let text = remedy(folder.path(), &inner, &denied);
        assert!(
            text.contains(&folder.path().display().to_string()),
            "{text}"
        );
    }

    #[test]
    fn where_the_owner_does_not_matter_it_is_not_spoken_of() {
        let told = |kind| {
            let problem = io::Error::from(kind);
            remedy(Path::new("/data"), Path::new("/data/state"), &problem)
        };
        let text = told(io::ErrorKind::ReadOnlyFilesystem);
        assert!(text.contains("mount it writable"), "{text}");
        assert!(!text.contains("chown"), "{text}");
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let text = told(kind);
            assert!(text.contains("make room"), "{text}");
            assert!(!text.contains("chown"), "{text}");
        }
    }
}
