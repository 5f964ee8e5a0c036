//! One processor for all that a measurement starts.

use std::io;

/// Pins this thread to one processor for the lifetime of the value, and every process started
/// meanwhile for good.
///
/// Whether a packet's reader is woken on the sender's processor or on another is the scheduler's
/// choice, and makes a difference of several microseconds: more than the compared times. Here both
/// sides share the sender's.
pub struct OneProcessor {
    before: libc::cpu_set_t,
    /// Number of the processor.
    number: usize,
}

/// The processors that are left beside one: those of what is not measured.
#[derive(Clone, Copy)]
pub struct OtherProcessors(libc::cpu_set_t);

impl OneProcessor {
    /// Moves to the last of the processors that this thread may run on: the first has more of the
    /// machine's other work.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub fn begin() -> io::Result<OneProcessor> {
        // SAFETY: the structure is an array of integers, for which all zeroes is a value.
        let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live value of the size given; 0 is the calling thread.
        let result = unsafe { libc::sched_getaffinity(0, size_of_val(&before), &raw mut before) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let all = 0..libc::CPU_SETSIZE as usize;
        // SAFETY: the numbers are below the size of the set.
        let last = all.rev().find(|n| unsafe { libc::CPU_ISSET(*n, &before) });
        let last = last.ok_or_else(|| io::Error::other("no processor is allowed"))?;
        // SAFETY: as above.
        let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        unsafe { libc::CPU_SET(last, &mut one) };
        keep_to(&one)?;
        Ok(OneProcessor {
            before,
            number: last,
        })
    }

    /// Returns the others; the same one if there are none.
    pub fn others(&self) -> OtherProcessors {
        let mut others = self.before;
        // SAFETY: the number is below the size of the set.
        unsafe { libc::CPU_CLR(self.number, &mut others) };
        // SAFETY: the sets are live.
        let any = unsafe { libc::CPU_COUNT(&others) } > 0;
        OtherProcessors(if any { others } else { self.before })
    }
}

impl OtherProcessors {
    /// Does a piece of work there; the processes that it starts stay.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub fn run<T: Send>(self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let there = move || keep_to(&self.0).map(|()| work());
        let done = std::thread::scope(|threads| threads.spawn(there).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        // Restores the previous affinity.
        let _ = keep_to(&self.before);
    }
}

fn keep_to(processors: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the pointer is to a live value of the size given, which the kernel copies; 0 is the
    // calling thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(processors), processors) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("Cpus_allowed_list"));
        line.unwrap().split_whitespace().nth(1).unwrap().to_owned()
    }

    #[test]
    fn one_processor_and_then_all_again() {
        let before = allowed();
        let one = OneProcessor::begin().unwrap();
        let number: u32 = allowed().parse().expect("one number, not a list");
        assert!(
            before.ends_with(&number.to_string()),
            "{number} of {before}"
        );
        let others = one.others().run(allowed).unwrap();
        let alone = before == number.to_string();
        assert_eq!(others == before, alone, "{others}");
        assert!(alone || !others.ends_with(&number.to_string()), "{others}");
        drop(one);
        assert_eq!(allowed(), before);
    }
}
