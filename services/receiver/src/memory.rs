//! Bounds on freed memory that the allocator keeps.
//!
//! Updates are received, decoded and put into feeds on different threads. glibc gives each thread a
//! heap of its own and returns only the end of a heap to the system: after a burst, or after hours
//! of entries that come and go, most of the process's memory was free and still resident (156 MiB
//! after 100,000 updates, of which 15 were in use). Other C libraries return memory by themselves.

use std::time::Duration;

/// Interval at which free memory is returned, which takes some milliseconds at most.
const EVERY: Duration = Duration::from_secs(10);

/// Limits all threads to two heaps, and returns large buffers as soon as they are freed. To be
/// called before threads are started.
pub fn limit() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt takes two numbers and changes settings of the allocator only.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        // Fixed, because by default it grows with each buffer that is freed, up to 32 MiB.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 10);
    }
}

/// Returns free memory to the system periodically.
pub async fn keep_trimmed() {
    loop {
        tokio::time::sleep(EVERY).await;
        if tokio::task::spawn_blocking(trim).await.is_err() {
            return;
        }
    }
}

fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim takes a number and changes nothing visible to the program.
    unsafe {
        libc::malloc_trim(0);
    }
}
