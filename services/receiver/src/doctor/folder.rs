//! Checks of the data folder and the HTTP port.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{Access, access, statvfs};

use super::report::{Report, Verdict};
use crate::admission::Admission;
use crate::config::Settings;
use crate::credential;
use crate::data;
use crate::status::file as status_file;
use service::listen::listen;
use service::ownership;

/// Free space that suffices many times for an ordinary feed, in bytes.
const ENOUGH: u64 = 256 << 20;

/// Free space at which writing is about to fail, in bytes.
const LITTLE: u64 = 16 << 20;

/// Checks the data folder and the HTTP port. Returns whether a receiver runs on the folder.
pub(super) fn examine(settings: &Settings, report: &mut Report) -> bool {
    let folder = &settings.data;
    let shown = folder.display();
    let running = match data::is_running(folder) {
        Ok(running) => running,
        Err(error) => {
            report.add(
                "data folder",
                Verdict::Fail,
                &error.to_string(),
                &give_it(folder),
            );
            false
        }
    };
    if folder.exists() {
        match write_into(folder) {
            Ok(()) => report.add(
                "data folder",
                Verdict::Ok,
                &format!("{shown} can be written"),
                "",
            ),
            Err(error) => {
                let what = format!("{shown} cannot be written: {error}");
                report.add("data folder", Verdict::Fail, &what, &give_it(folder));
            }
        }
    } else {
        let parent = existing_parent(folder);
        let what = format!("{shown} does not exist yet; the first start makes it");
        if access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
            report.add("data folder", Verdict::Ok, &what, "");
        } else {
            let what = format!(
                "{shown} does not exist, and cannot be made in {}",
                parent.display()
            );
            report.add("data folder", Verdict::Fail, &what, &give_it(folder));
        }
    }
    space(existing_parent(folder), report);
    credential(settings, report);
    http(settings, running, report);
    running
}

/// Returns the remedy for an unusable folder, from the error of a write into it.
pub(super) fn give_it(folder: &Path) -> String {
    let problem = write_into(folder).err();
    let problem = problem.unwrap_or_else(|| std::io::ErrorKind::PermissionDenied.into());
    ownership::remedy(folder, folder, &problem)
}

fn write_into(folder: &Path) -> std::io::Result<()> {
    let probe = folder.join(".doctor-probe");
    let written = File::create(&probe).and_then(|mut file| {
        use std::io::Write;
        file.write_all(b"probe")?;
        file.sync_all()
    });
    let removed = fs::remove_file(&probe);
    written.and(removed)
}

/// Returns the folder, or the nearest one above it that exists.
fn existing_parent(folder: &Path) -> &Path {
    let mut at = folder;
    while !at.exists() {
        match at.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => at = parent,
            _ => return Path::new("."),
        }
    }
    at
}

fn space(folder: &Path, report: &mut Report) {
    let stat = match statvfs(folder) {
        Ok(stat) => stat,
        Err(error) => {
            let what = format!("unknown: {error}");
            return report.add("disk space", Verdict::Skipped, &what, "");
        }
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let what = format!("{} MiB free at {}", free >> 20, folder.display());
    let verdict = match free {
        ..LITTLE => Verdict::Fail,
        LITTLE..ENOUGH => Verdict::Warn,
        ENOUGH.. => Verdict::Ok,
    };
    let advice = match verdict {
        Verdict::Ok => "",
        _ => "make room: nothing is lost on a full disk, but updates wait at the source",
    };
    report.add("disk space", verdict, &what, advice);
    if stat.f_files > 0 && stat.f_favail < 64 {
        let what = format!("only {} more files can be made", stat.f_favail);
        report.add("disk space", Verdict::Fail, &what, "remove files there");
    }
}

fn credential(settings: &Settings, report: &mut Report) {
    let state = data::state_folder(&settings.data);
    let id = match data::read_id(&state) {
        Ok(Some(id)) => id,
        Ok(None) => {
            let (verdict, what, advice) = if settings.link.token.as_bytes().is_empty() {
                let advice = "the first start needs a link with a token: ask the source's operator";
                (Verdict::Fail, "none yet, and the link has no token", advice)
            } else {
                (Verdict::Ok, "none yet; the first start makes it", "")
            };
            return report.add("credential", verdict, what, advice);
        }
        Err(error) => return report.add("credential", Verdict::Fail, &error.to_string(), ""),
    };
    match credential::load(&state, id) {
        Ok(Some(_)) => {
            let what = format!("receiver {id} has one");
            report.add("credential", Verdict::Ok, &what, "");
        }
        Ok(None) => {
            let what = format!("receiver {id} has none yet; the next start makes it");
            report.add("credential", Verdict::Ok, &what, "");
        }
        Err(error) => report.add("credential", Verdict::Fail, &error.to_string(), ""),
    }
}

/// Whether the source has admitted the receiver of this folder before, so that another admission is
/// no use of the token.
pub(super) fn was_admitted(settings: &Settings) -> bool {
    let state = data::state_folder(&settings.data);
    let Some(receiver_id) = data::read_id(&state).ok().flatten() else {
        return false;
    };
    // A missing credential is replaced by one unknown to the source.
    let known = matches!(credential::load(&state, receiver_id), Ok(Some(_)));
    let admission = Admission {
        state,
        receiver_id,
        source: settings.link.server(),
    };
    known && admission.is_noted()
}

fn http(settings: &Settings, running: bool, report: &mut Report) {
    let Some(http) = settings.http else {
        return report.add("http", Verdict::Ok, "off", "");
    };
    let served = status_file::read(&settings.data).ok().flatten();
    let served = served.and_then(|status| status.http).filter(|_| running);
    if let Some(address) = served {
        let what = format!("the running receiver answers at http://{address}/");
        return report.add("http", Verdict::Ok, &what, "");
    }
    match listen(http.addr) {
        Ok(_) => report.add("http", Verdict::Ok, &format!("{} is free", http.addr), ""),
        Err(error) => {
            // The receiver starts without a default address that is in use, but not without an
            // explicit one.
            let verdict = if http.explicit {
                Verdict::Fail
            } else {
                Verdict::Warn
            };
            let what = format!("cannot listen on {}: {error}", http.addr);
            let advice = "choose another with --http ADDRESS:PORT, or --http off";
            report.add("http", verdict, &what, advice);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_nearest_existing_folder() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(existing_parent(&folder.path().join("a/b")), folder.path());
        assert_eq!(existing_parent(Path::new("no/such")), Path::new("."));
        assert!(write_into(folder.path()).is_ok());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(write_into(&folder.path().join("none")).is_err());
    }
}
