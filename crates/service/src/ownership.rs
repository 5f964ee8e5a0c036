//! Advice if this process may not write to its data folder, for all programs with `--data` and
//! `FLEXFEED_DATA`.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// User id of root; no program of flexfeed needs to be root.
const ROOT: u32 = 0;

/// Rights to read, write and enter a folder, without which ownership does not suffice.
const OWNER_MAY_ENTER: u32 = 0o700;

/// Rights to read and write a file.
const OWNER_MAY_WRITE: u32 = 0o600;

/// Owner and permissions, as far as they can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileOwner {
    at: PathBuf,
    owner: u32,
    group: u32,
    mode: u32,
    is_folder: bool,
}

impl FileOwner {
    /// Returns the path, or the nearest one above it that can be examined.
    fn nearest(path: &Path) -> Option<FileOwner> {
        let mut above = path.ancestors().map(|at| match at.as_os_str().is_empty() {
            true => Path::new("."),
            false => at,
        });
        above.find_map(|at| {
            let about = at.metadata().ok()?;
            Some(FileOwner {
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
            advice(folder, own, FileOwner::nearest(path))
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
    reading_advice(path, own, FileOwner::nearest(path))
}

fn reading_advice(path: &Path, (uid, gid): (u32, u32), found: Option<FileOwner>) -> String {
    let text = owner_text((uid, gid), found.as_ref());
    let shown = path.display();
    let mut remedies = vec![format!("give it to this user (chown {uid}:{gid} {shown})")];
    match found {
        Some(found) if found.owner == uid => {
            let what = if found.is_folder { "u+rx" } else { "u+r" };
            let at = found.at.display();
            remedies.insert(0, format!("allow its owner to read it (chmod {what} {at})"));
        }
        // No advice to become root.
        Some(FileOwner { owner, group, .. }) if owner != ROOT => remedies.push(format!(
            "run as its owner (in a container: docker run --user {owner}:{group} …, with a data \
             folder of that user's)"
        )),
        _ => {}
    }
    format!("{text}: {}", remedies.join(", or "))
}

/// Describes the user of this process and the owner of the file.
fn owner_text((uid, gid): (u32, u32), found: Option<&FileOwner>) -> String {
    let mut text = format!("this process runs as uid {uid}, gid {gid}");
    if let Some(found) = found {
        let (at, owner, group, mode) = (found.at.display(), found.owner, found.group, found.mode);
        text.push_str(&format!(
            ", and {at} belongs to {owner}:{group} with mode {mode:04o}"
        ));
    }
    text
}

fn advice(folder: &Path, (uid, gid): (u32, u32), found: Option<FileOwner>) -> String {
    let text = owner_text((uid, gid), found.as_ref());
    let mut remedies = vec![format!(
        "give the folder to this user (chown -R {uid}:{gid} {}; in a container, what is mounted \
         there)",
        folder.display()
    )];
    if let Some(found) = found {
        let (at, owner, group) = (found.at.display(), found.owner, found.group);
        let first = found.lacks().map(|what| format!("chmod {what} {at}"));
        if owner != uid {
            let first = first.map(|first| format!("after {first}, "));
            let remedy = format!(
                "{}run as its owner (in a container: docker run --user {owner}:{group} …)",
                first.unwrap_or_default()
            );
            // Root is the last resort.
            let place = usize::from(owner == ROOT);
            remedies.insert(place, remedy);
        } else if let Some(first) = first {
            remedies.insert(0, format!("allow its owner to write there ({first})"));
        }
    }
    remedies.push("choose another with --data DIR or FLEXFEED_DATA".to_owned());
    format!("{text}: {}", remedies.join(", or "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const OURS: &str = "chown -R 65532:65532 /data";

    fn of(owner: u32, mode: u32) -> String {
        advised("/data", true, owner, mode)
    }

    fn advised(at: &str, is_folder: bool, owner: u32, mode: u32) -> String {
        let found = FileOwner {
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
    fn the_owner_is_named() {
        let text = of(1000, 0o755);
        let user = "docker run --user 1000:1001 ";
        assert!(text.find(user) < text.find(OURS), "{text}");
        assert!(text.contains(user), "{text}");
        // As Docker makes a missing folder.
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
        // A file of another user in the folder: its mode is a file's.
        let text = advised("/data/lock", false, 0, 0o600);
        assert!(text.contains("/data/lock belongs to 0:1"), "{text}");
        assert!(
            text.contains("--user 0:1 ") && !text.contains("chmod"),
            "{text}"
        );
    }

    #[test]
    fn advice_on_reading_names_owner_and_mode() {
        let advised = |at: &str, is_folder, owner, mode| {
            let found = FileOwner {
                at: at.into(),
                owner,
                group: owner,
                mode,
                is_folder,
            };
            reading_advice(Path::new("/home/link"), (65532, 65532), Some(found))
        };
        let text = advised("/home/link", false, 1000, 0o600);
        assert!(
            text.contains("/home/link belongs to 1000:1000 with mode 0600"),
            "{text}"
        );
        assert!(text.contains("chown 65532:65532 /home/link"), "{text}");
        assert!(text.contains("docker run --user 1000:1000 "), "{text}");
        let text = advised("/home/link", false, 0, 0o600);
        assert!(text.contains("chown 65532:65532 /home/link"), "{text}");
        assert!(!text.contains("--user"), "{text}");
        let text = advised("/home/link", false, 65532, 0o200);
        assert!(text.contains("chmod u+r /home/link"), "{text}");
        let text = advised("/home", true, 65532, 0o600);
        assert!(text.contains("chmod u+rx /home)"), "{text}");
        let unknown = reading_advice(Path::new("link"), (1, 2), None);
        assert!(unknown.contains("chown 1:2 link"), "{unknown}");
    }

    #[test]
    fn the_owner_is_not_advised_to_change_the_user() {
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
    fn missing_paths_are_judged_by_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        assert_eq!(FileOwner::nearest(&inner).unwrap().at, folder.path());
        let nowhere = FileOwner::nearest(Path::new("nowhere-at-all")).unwrap();
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
    fn the_owner_is_not_named_if_irrelevant() {
        let advised = |kind| {
            let problem = io::Error::from(kind);
            remedy(Path::new("/data"), Path::new("/data/state"), &problem)
        };
        let text = advised(io::ErrorKind::ReadOnlyFilesystem);
        assert!(text.contains("mount it writable"), "{text}");
        assert!(!text.contains("chown"), "{text}");
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let text = advised(kind);
            assert!(text.contains("make room"), "{text}");
            assert!(!text.contains("chown"), "{text}");
        }
    }
}
