//! A network for the measurements alone.

use std::io;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testbed::lab::Tools;

/// Moves this thread, and what it starts from now on, to a network namespace of its own with
/// nothing but a loopback interface: no rule of the machine's firewall or of its containers sees
/// the packets, as each would cost time.
///
/// # Errors
/// When the system does not allow it, as to ordinary users.
pub fn isolate() -> Result<()> {
    let ip = &Tools::find()?.ip;
    // SAFETY: the call takes flags alone, and changes which network new sockets belong to.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error()).context("making a network namespace");
    }
    let status = Command::new(ip).args(["link", "set", "lo", "up"]).status();
    let status = status.with_context(|| format!("running {}", ip.display()))?;
    ensure!(status.success(), "the loopback interface stays down");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    #[test]
    fn a_loopback_interface_and_nothing_else() {
        if !kit::in_namespace!("ip link add here type veth peer name there") {
            return;
        }
        isolate().unwrap();
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let names: Vec<_> = text
            .lines()
            .filter_map(|l| Some(l.split_once(':')?.0.trim()))
            .collect();
        assert_eq!(names, ["lo"]);
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (from, to) = (bind(), bind());
        from.send_to(b"here", to.local_addr().unwrap()).unwrap();
        assert_eq!(to.recv(&mut [0; 9]).unwrap(), 4, "the interface is up");
    }
}
