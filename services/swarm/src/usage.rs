//! The process's use of its machine.

use std::time::Duration;

use anyhow::ensure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Descriptors beside the receivers' sockets.
const OTHER_FILES: u64 = 64;

/// Raises the limit on open files so that every receiver can have a socket.
///
/// # Errors
/// The system allows fewer.
pub fn allow_sockets(receivers: u32) -> anyhow::Result<()> {
    let wanted = u64::from(receivers) + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let allowed = limit.maximum.unwrap_or(u64::MAX);
    ensure!(
        allowed >= wanted,
        "{receivers} receivers need {wanted} open files, and this process may have {allowed}: \
         raise the limit (ulimit -n, LimitNOFILE= in systemd), or start fewer with --receivers"
    );
    let raised = Rlimit {
        current: Some(wanted),
        ..limit
    };
    setrlimit(Resource::Nofile, raised)?;
    Ok(())
}

/// Processor time and memory of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time of all threads so far.
    pub cpu: Duration,
    /// Resident memory, in bytes.
    pub resident: u64,
}

impl Usage {
    /// Returns the present usage; what the system does not tell is 0.
    #[must_use]
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Usage {
            cpu: Duration::new(seconds, nanos),
            resident: resident(&status).unwrap_or_default(),
        }
    }
}

fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn usage_is_that_of_this_process() {
        let before = Usage::now();
        let filled = vec![1u8; 64 << 20];
        let after = Usage::now();
        assert!(filled.iter().all(|byte| *byte == 1));
        // Other tests of this process may release memory meanwhile.
        assert!(after.resident >= 60 << 20, "{before:?} {after:?}");
        assert!(Usage::now().cpu > before.cpu);
        assert_eq!(resident("VmPeak:\t9 kB\nVmRSS:\t  12 kB\n"), Some(12 << 10));
    }

    #[test]
    fn more_receivers_than_the_system_allows_are_refused() {
        allow_sockets(1).unwrap();
        if getrlimit(Resource::Nofile)
            .maximum
            .is_some_and(|max| max < u64::from(u32::MAX))
        {
            let error = allow_sockets(u32::MAX).unwrap_err().to_string();
            assert!(error.contains("ulimit -n"), "{error}");
        }
    }
}
