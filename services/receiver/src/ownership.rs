//! Who may write to a folder, and what to do where this process may not.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Root, whom no receiver has to be.
const ROOT: u32 = 0;

/// Owners may read, write and enter: without these, being the owner is of no use.
const OWNER_MAY: u32 = 0o700;

/// What to do about `problem` with something at `path`, in or above which `folder` is: the end of a
/// sentence, with the user to run as where that would help.
pub(crate) fn remedy(folder: &Path, path: &Path, problem: &io::Error) -> String {
    let own = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let shown = folder.display();
    if problem.kind() == io::ErrorKind::ReadOnlyFilesystem {
        return format!(
            "it is mounted read-only: mount it writable (in a container, a volume at {shown}), or \
             choose another with --data DIR or FLEXFEED_DATA"
        );
    }
    let whose = there(path).and_then(|at| {
        let about = at.metadata().ok()?;
        Some((at, about.uid(), about.gid(), about.mode() & 0o7777))
    });
    advice(shown, own, whose)
}

fn advice(
    shown: std::path::Display<'_>,
    own: (u32, u32),
    whose: Option<(PathBuf, u32, u32, u32)>,
) -> String {
    let (uid, gid) = own;
    let mut text = format!("this process runs as uid {uid}, gid {gid}");
    let mut ways = Vec::new();
    if let Some((at, owner, group, mode)) = whose {
        text.push_str(&format!(
            ", and {} belongs to {owner}:{group} with mode {mode:04o}",
            at.display()
        ));
        if owner != uid && owner != ROOT && mode & OWNER_MAY == OWNER_MAY {
            ways.push(format!(
                "run as its owner (in a container: docker run --user {owner}:{group} …)"
            ));
        }
    }
    ways.push(format!(
        "give the folder to this user (chown -R {uid}:{gid} {shown}; in a container, what is \
         mounted there)"
    ));
    ways.push("choose another with --data DIR or FLEXFEED_DATA".to_owned());
    format!("{text}: {}", ways.join(", or "))
}

/// The path, or the nearest one above it that can be looked at.
fn there(path: &Path) -> Option<PathBuf> {
    path.ancestors()
        .map(|at| match at.as_os_str().is_empty() {
            true => Path::new("."),
            false => at,
        })
        .find(|at| at.metadata().is_ok())
        .map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(owner: u32, mode: u32) -> String {
        let whose = Some((PathBuf::from("/data"), owner, owner, mode));
        advice(Path::new("/data").display(), (65532, 65532), whose)
    }

    #[test]
    fn the_owner_is_named_where_being_it_helps() {
        let text = of(1000, 0o755);
        assert!(text.contains("runs as uid 65532, gid 65532"), "{text}");
        assert!(text.contains("--user 1000:1000"), "{text}");
        assert!(text.contains("chown -R 65532:65532 /data"), "{text}");
        // Root, this user itself, and an owner who may not write either.
        for text in [of(0, 0o755), of(65532, 0o755), of(1000, 0o555)] {
            assert!(!text.contains("--user"), "{text}");
            assert!(text.contains("chown -R 65532:65532 /data"), "{text}");
        }
        let unknown = advice(Path::new("data").display(), (1, 2), None);
        assert!(unknown.contains("chown -R 1:2 data"), "{unknown}");
    }

    #[test]
    fn what_is_not_there_is_judged_by_what_it_would_be_in() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        assert_eq!(there(&inner).unwrap(), folder.path());
        assert_eq!(
            there(Path::new("nowhere-at-all")).unwrap(),
            PathBuf::from(".")
        );
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let text = remedy(folder.path(), &inner, &denied);
        assert!(
            text.contains(&folder.path().display().to_string()),
            "{text}"
        );
    }

    #[test]
    fn a_read_only_mount_needs_no_other_owner() {
        let problem = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
        let text = remedy(Path::new("/data"), Path::new("/data/state"), &problem);
        assert!(text.contains("mount it writable"), "{text}");
        assert!(!text.contains("chown"), "{text}");
    }
}
