//! A thread that runs as soon as it has something to do.

use std::io;

/// Above measurements that are in the real-time class themselves, below everything else there.
const PRIORITY: libc::c_int = 2;

/// Puts this thread into the scheduler's real-time class: it runs before every ordinary thread of the machine.
///
/// # Errors
/// When the system does not allow it, as to ordinary users.
pub fn run_before_others() -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the pointer is to a live value, which the kernel copies; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
