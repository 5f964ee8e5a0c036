//! No core dumps: they would put the program's keys and tokens on a disk.

use std::io::{Write, stderr};

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};

/// Forbids core dumps of this process; call it first in `main`. Commands that the process starts
/// may raise the limit again for their own.
///
/// The limit alone does not suffice: a handler that the system pipes dumps to may ignore it. The
/// dumpable flag also keeps the program's own user from reading its memory; root can still take a
/// dump on purpose. If the system refuses both, as a filter of system calls may, a warning goes to
/// standard error: there is no log yet.
pub fn forbid() {
    let (limited, hidden) = (
        limit(),
        set_dumpable_behavior(DumpableBehavior::NotDumpable),
    );
    if let (Err(error), Err(_)) = (limited, hidden) {
        let _ = writeln!(stderr(), "warning: core dumps cannot be forbidden: {error}");
    }
}

fn limit() -> rustix::io::Result<()> {
    let none = Rlimit {
        current: Some(0),
        ..getrlimit(Resource::Core)
    };
    setrlimit(Resource::Core, none)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use rustix::process::dumpable_behavior;

    use super::*;

    const TEST: &str = "core_dumps::tests::a_crash_leaves_no_core_dump";

    /// Crashes, in the process that this test starts of itself.
    fn crash() -> ! {
        // The test runner's limit may be zero already.
        let before = getrlimit(Resource::Core);
        let most = Rlimit {
            current: before.maximum,
            ..before
        };
        setrlimit(Resource::Core, most).unwrap();
        forbid();
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
        let behavior = dumpable_behavior().unwrap();
        assert_eq!(behavior, DumpableBehavior::NotDumpable);
        std::process::abort()
    }

    #[test]
    fn a_crash_leaves_no_core_dump() {
        if std::env::var_os("FLEXFEED_TEST_CRASH").is_some() {
            crash();
        }
        let folder = tempfile::tempdir().unwrap();
        let crashed = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST])
            .env("FLEXFEED_TEST_CRASH", "1")
            .current_dir(&folder)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&crashed.stderr);
        assert_eq!(crashed.status.signal(), Some(6), "{text}");
        assert!(!crashed.status.core_dumped());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    }
}
