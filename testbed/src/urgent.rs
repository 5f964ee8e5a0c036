//! Threads that run as soon as they have something to do: what measures must not wait for what is
//! not measured.

use std::io;

/// This thread is in the scheduler's real-time class for as long as this value lives, and so is
/// every process that it starts meanwhile, for good.
#[derive(Debug)]
pub struct RealTime(());

impl RealTime {
    /// For measurements: before every ordinary thread of the machine.
    pub const MEASURED: i32 = 1;
    /// For what measurements rely on: before these, too.
    pub const APPARATUS: i32 = 2;

    /// Puts this thread, and what it starts from now on, into the real-time class.
    ///
    /// # Errors
    /// When the system does not allow it, as to ordinary users.
    pub fn begin(priority: i32) -> io::Result<RealTime> {
        schedule(libc::SCHED_RR, priority).map(|()| RealTime(()))
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        // Giving up a privilege is always allowed.
        let _ = schedule(libc::SCHED_OTHER, 0);
    }
}

fn schedule(policy: libc::c_int, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the pointer is to a live value, which the kernel copies; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, policy, &parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
