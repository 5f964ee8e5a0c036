//! Packet filter of a capture: multicast that routers forward, in either IP version, except group
//! management.

use std::io;
use std::os::fd::BorrowedFd;

use super::sys::set;

/// Base of loads relative to the network header, whatever the link's header is.
const NET: u32 = libc::SKF_NET_OFF as u32;

/// Offset of the link's protocol, such as 0x0800.
const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;

const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Accepted length, larger than any packet.
const WHOLE: u32 = 0x4_0000;

const fn step(code: u32, yes: u8, no: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k,
    }
}

/// Jumps count from the next line.
const PROGRAM: [libc::sock_filter; 17] = [
    /*  0 */ step(LOAD_HALF, 0, 0, PROTOCOL),
    /*  1 */ step(EQUAL, 0, 7, libc::ETH_P_IP as u32),
    // IPv4: destination within 224.0.0.0/4, but not 224.0.0.0/24; not IGMP.
    /*  2 */
    step(LOAD_BYTE, 0, 0, NET.wrapping_add(9)),
    /*  3 */ step(EQUAL, 12, 0, 2),
    /*  4 */ step(LOAD_WORD, 0, 0, NET.wrapping_add(16)),
    /*  5 */ step(AT_LEAST, 0, 10, 0xe000_0100),
    /*  6 */ step(AT_LEAST, 9, 8, 0xf000_0000),
    /*  7 */ step(RETURN, 0, 0, 0),
    /*  8 */ step(RETURN, 0, 0, 0),
    /*  9 */ step(EQUAL, 0, 6, libc::ETH_P_IPV6 as u32),
    // IPv6: destination within ff00::/8 of a scope above the link's.
    /* 10 */
    step(LOAD_BYTE, 0, 0, NET.wrapping_add(24)),
    /* 11 */ step(EQUAL, 0, 4, 0xff),
    /* 12 */ step(LOAD_BYTE, 0, 0, NET.wrapping_add(25)),
    /* 13 */ step(AND, 0, 0, 0x0f),
    /* 14 */ step(AT_LEAST, 0, 1, 3),
    /* 15 */ step(RETURN, 0, 0, WHOLE),
    /* 16 */ step(RETURN, 0, 0, 0),
];

/// Attaches the filter to a socket.
pub(super) fn attach(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut program = PROGRAM;
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // The kernel copies the program before the call returns.
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Whether the kernel would accept an IP packet.
    fn accepts(packet: &[u8]) -> bool {
        let protocol = match packet[0] >> 4 {
            4 => 0x0800,
            6 => 0x86dd,
            _ => 0x0806,
        };
        let (mut at, mut acc) = (0, 0_u32);
        loop {
            let step = PROGRAM[at];
            at += 1;
            let from = step.k.wrapping_sub(NET) as usize;
            let jump = |yes| usize::from(if yes { step.jt } else { step.jf });
            match u32::from(step.code) {
                LOAD_HALF => acc = protocol,
                LOAD_BYTE => acc = u32::from(packet[from]),
                LOAD_WORD => {
                    acc = u32::from_be_bytes(packet[from..from + 4].try_into().unwrap());
                }
                EQUAL => at += jump(acc == step.k),
                AT_LEAST => at += jump(acc >= step.k),
                AND => acc &= step.k,
                RETURN => return step.k > 0,
                other => panic!("{other}"),
            }
        }
    }

    fn v4(to: [u8; 4], protocol: u8) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x45;
        packet[9] = protocol;
        packet[16..20].copy_from_slice(&to);
        packet
    }

    fn v6(to: &str) -> Vec<u8> {
        let mut packet = vec![0; 60];
        packet[0] = 0x60;
        let to: std::net::Ipv6Addr = to.parse().unwrap();
        packet[24..40].copy_from_slice(&to.octets());
        packet
    }

    #[test]
    fn only_forwardable_multicast_passes() {
        assert!(accepts(&v4([232, 1, 2, 3], 17)));
        assert!(accepts(&v4([239, 255, 255, 255], 17)));
        assert!(accepts(&v4([224, 0, 1, 0], 6)));
        assert!(!accepts(&v4([224, 0, 0, 251], 17)));
        assert!(!accepts(&v4([239, 1, 1, 1], 2)));
        assert!(!accepts(&v4([240, 0, 0, 1], 17)));
        assert!(!accepts(&v4([223, 255, 255, 255], 17)));
        assert!(accepts(&v6("ff3e::8000:1")));
        assert!(accepts(&v6("ff05::1")));
        assert!(!accepts(&v6("ff02::fb")));
        assert!(!accepts(&v6("2001:db8::1")));
        assert!(!accepts(&[0; 60]));
    }
}
