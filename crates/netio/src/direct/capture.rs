//! Capture of the multicast packets of an interface, by a packet socket with a shared ring.
//!
//! The ring is of the second version (`TPACKET_V2`): each packet is available as soon as it
//! arrives. The third version passes packets in blocks, when one is full or a timer fires, which
//! would delay packets to gateways. Packets larger than a slot, such as trains of this host that
//! the card would have segmented, arrive by the socket's queue.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use socket2::{Domain, Socket, Type};

use super::filter;
use super::port::{enlarge, raw};
use super::sys::{check, set};
use crate::error::context;

/// Size of a slot: an Ethernet packet with the kernel's metadata.
const SLOT_BYTES: usize = 2048;

/// Size of a block, which the kernel allocates at a time.
const BLOCK_BYTES: usize = 1 << 18;

/// Number of blocks: 16 MiB hold a tenth of a second of packets at 80,000 a second.
const BLOCKS: usize = 64;

const SLOTS: usize = BLOCKS * BLOCK_BYTES / SLOT_BYTES;

/// Largest packet, with the headers of link and `virtio`.
const LARGEST: usize = (1 << 16) + 256;

/// Length of the kernel's metadata of segmentation and checksum before each packet
/// (`virtio_net_hdr`).
const VNET_BYTES: usize = 10;

/// Unsegmented UDP.
const GSO_UDP_L4: u8 = 5;

/// The checksum is missing.
const NEEDS_CHECKSUM: u8 = 1;

/// A captured packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CapturedPacket<'a> {
    /// Bytes from the IP header on; possibly a few more than its length says.
    pub packet: &'a [u8],
    /// Payload size of the datagrams in an unsegmented UDP packet.
    pub segment: Option<usize>,
    /// Whether the UDP checksum is still to be computed.
    pub checksum_missing: bool,
    /// Number of the interface.
    pub interface: u32,
    /// Whether it arrived from the network, else this host sends it.
    pub arrived: bool,
}

/// A packet socket that captures the multicast of one interface or of all, including packets of
/// this host. Needs CAP_NET_RAW.
#[derive(Debug)]
pub struct Capture {
    socket: Socket,
    ring: Ring,
    next: usize,
    large: Vec<u8>,
    interface: u32,
    /// Packets lost between a slot and the caller.
    lost: u64,
}

impl Capture {
    /// Opens the socket on the interface with this number, or on all with 0.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW; there is no such interface, or no memory for the
    /// ring.
    pub fn open(interface: u32) -> io::Result<Self> {
        let open = || {
            // Without a protocol, nothing is captured until the filter is attached and the socket
            // bound.
            let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
            socket.set_nonblocking(true)?;
            enlarge(&socket);
            let fd = socket.as_fd();
            filter::attach(fd)?;
            let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
            set(fd, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
            set(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1_i32)?;
            set(fd, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, &1_i32)?;
            let ring = Ring::map(&socket)?;
            bind(&socket, interface)?;
            Ok(Self {
                socket,
                ring,
                next: 0,
                large: vec![0; LARGEST],
                interface,
                lost: 0,
            })
        };
        open().map_err(|error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => io::Error::new(
                error.kind(),
                "cannot capture packets without the capability CAP_NET_RAW; give it to the program \
                 (AmbientCapabilities=CAP_NET_RAW with systemd, --cap-add NET_RAW with containers) \
                 or receive by UDP ports",
            ),
            _ => context(error, format_args!("cannot capture packets")),
        })
    }

    /// Calls `each` for at most `most` packets. Returns the number of ring slots that they took.
    pub fn receive(&mut self, most: usize, mut each: impl FnMut(CapturedPacket<'_>)) -> usize {
        for taken in 0..most {
            let Some(slot) = self.ring.slot(self.next) else {
                return taken;
            };
            let status = slot.status();
            if status & libc::TP_STATUS_USER == 0 {
                return taken;
            }
            let found = slot.found();
            let copied = status & libc::TP_STATUS_COPY != 0;
            // The queue's head belongs to this slot, and is taken in any case.
            let large = copied.then(|| receive_large(&self.socket, &mut self.large));
            match (found, large) {
                (Some(found), _) if found.twice => {}
                (Some(found), Some(Some(frame))) => captured(frame, &found, &mut each),
                // Without a copy, the socket's queue had no room for a packet larger than its slot.
                (Some(found), None) if !found.truncated => captured(found.frame, &found, &mut each),
                _ => self.lost += 1,
            }
            slot.give_back();
            self.next = (self.next + 1) % SLOTS;
        }
        most
    }

    /// Returns the number of the interface it was opened on; 0 for all.
    #[must_use]
    pub fn interface(&self) -> u32 {
        self.interface
    }

    /// Whether the socket is still bound to its interface, as it is until that is removed.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        // SAFETY: the structure is made of integers and a byte array: all zeroes is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `address`, which is that long.
        let result = unsafe {
            libc::getsockname(raw(&self.socket), (&raw mut address).cast(), &raw mut len)
        };
        result == 0 && u32::try_from(address.sll_ifindex) == Ok(self.interface)
    }

    /// Takes the error that makes a [`Poller`](super::Poller) report one, such as `ENETDOWN` when
    /// the interface is switched off. Packets arrive again once it is on, but not from an interface
    /// that was removed, even if another one takes its place.
    #[must_use]
    pub fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error().unwrap_or_else(Some)
    }

    /// Returns the packets lost for lack of room since the last call. A train counts as one.
    pub fn take_lost(&mut self) -> u64 {
        let lost = std::mem::take(&mut self.lost);
        // SAFETY: the structure is made of integers: all zeroes is a value.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `stats`, which is that long.
        let result = unsafe {
            libc::getsockopt(
                raw(&self.socket),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        if result == 0 {
            lost + u64::from(stats.tp_drops)
        } else {
            lost
        }
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Passes on a frame that begins with the kernel's metadata and that `found` describes.
fn captured(frame: &[u8], found: &SlotContent<'_>, each: &mut impl FnMut(CapturedPacket<'_>)) {
    let offset = found.net_offset;
    let (Some(note), Some(packet)) = (frame.get(..VNET_BYTES), frame.get(VNET_BYTES + offset..))
    else {
        return;
    };
    let (flags, kind) = (
        note.first().copied().unwrap_or_default(),
        note.get(1).copied().unwrap_or_default(),
    );
    let size = match note.get(4..6) {
        Some(&[a, b]) => usize::from(u16::from_ne_bytes([a, b])),
        _ => 0,
    };
    each(CapturedPacket {
        packet,
        // The ECN bit is not part of the type.
        segment: (kind & 0x7f == GSO_UDP_L4 && size > 0).then_some(size),
        checksum_missing: flags & NEEDS_CHECKSUM != 0,
        interface: found.interface,
        arrived: found.arrived,
    });
}

/// Receives a packet that was too large for its slot.
fn receive_large<'a>(socket: &Socket, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: the kernel writes at most as many bytes as the buffer has.
    let len = unsafe {
        libc::recv(
            raw(socket),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT,
        )
    };
    buffer.get(..usize::try_from(len).ok()?)
}

fn bind(socket: &Socket, index: u32) -> io::Result<()> {
    // SAFETY: the structure is made of integers and a byte array: all zeroes is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    // Only ETH_P_ALL also captures packets of this host.
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = libc::c_int::try_from(index).unwrap_or_default();
    // SAFETY: the kernel reads a `sockaddr_ll`.
    let result = unsafe {
        libc::bind(
            raw(socket),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    check(result).map(|_| ())
}

/// Memory shared with the kernel; unmapped when dropped.
#[derive(Debug)]
struct Ring(NonNull<u8>);

// SAFETY: the memory is the process's, not a thread's, and only the owner of the ring reaches it.
unsafe impl Send for Ring {}

impl Ring {
    fn map(socket: &Socket) -> io::Result<Self> {
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as libc::c_uint,
            tp_block_nr: BLOCKS as libc::c_uint,
            tp_frame_size: SLOT_BYTES as libc::c_uint,
            tp_frame_nr: SLOTS as libc::c_uint,
        };
        set(
            socket.as_fd(),
            libc::SOL_PACKET,
            libc::PACKET_RX_RING,
            &request,
        )?;
        // SAFETY: a new mapping at an address of the kernel's choice; the socket has a ring of this
        // size.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BLOCKS * BLOCK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                raw(socket),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(memory.cast())
            .map(Ring)
            .ok_or_else(|| io::Error::other("the ring was mapped nowhere"))
    }

    fn slot(&self, number: usize) -> Option<Slot<'_>> {
        if number >= SLOTS {
            return None;
        }
        // SAFETY: there are `SLOTS` slots of `SLOT_BYTES` in the mapping; blocks hold a whole
        // number of slots, so that they follow each other without gaps.
        let start = unsafe { self.0.add(number * SLOT_BYTES) };
        Some(Slot {
            start,
            ring: std::marker::PhantomData,
        })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this size, and nothing borrows it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BLOCKS * BLOCK_BYTES) };
    }
}

/// A slot of the ring.
struct Slot<'a> {
    start: NonNull<u8>,
    ring: std::marker::PhantomData<&'a Ring>,
}

/// Content of a slot.
struct SlotContent<'a> {
    /// Bytes from the kernel's metadata on; empty if the packet is in the queue.
    frame: &'a [u8],
    /// Offset of the network header.
    net_offset: usize,
    /// Whether the packet does not fit.
    truncated: bool,
    /// Whether the packet is one that this host sends by the loopback interface, where it also
    /// arrives.
    twice: bool,
    interface: u32,
    arrived: bool,
}

impl<'a> Slot<'a> {
    fn status_word(&self) -> &'a AtomicU32 {
        // SAFETY: a slot begins with the status, a number of 32 bits, aligned, which kernel and
        // program hand to each other; it is only used as an atomic.
        unsafe { self.start.cast::<AtomicU32>().as_ref() }
    }

    fn status(&self) -> u32 {
        let status = self.status_word().load(Ordering::Acquire);
        fence(Ordering::Acquire);
        status
    }

    /// Reads a slot that the program owns.
    fn found(&self) -> Option<SlotContent<'a>> {
        // SAFETY: a slot that is the program's begins with a `tpacket2_hdr`, behind which, aligned
        // to 16 bytes, there is a `sockaddr_ll`; both are made of integers.
        let (header, link) = unsafe {
            let header = self.start.cast::<libc::tpacket2_hdr>().read();
            let behind = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
            let link = self.start.add(behind).cast::<libc::sockaddr_ll>();
            (header, link.read_unaligned())
        };
        let (mac, net) = (usize::from(header.tp_mac), usize::from(header.tp_net));
        let net_offset = net.checked_sub(mac)?;
        let start = mac.checked_sub(VNET_BYTES)?;
        let end = mac.checked_add(header.tp_snaplen as usize)?;
        if end > SLOT_BYTES {
            return None;
        }
        let outgoing = link.sll_pkttype == libc::PACKET_OUTGOING;
        let loopback = link.sll_hatype == libc::ARPHRD_LOOPBACK;
        // SAFETY: the range is within the slot, which the kernel does not write before its return.
        let frame =
            unsafe { std::slice::from_raw_parts(self.start.add(start).as_ptr(), end - start) };
        Some(SlotContent {
            frame,
            net_offset,
            truncated: header.tp_snaplen < header.tp_len,
            twice: outgoing && loopback,
            interface: u32::try_from(link.sll_ifindex).unwrap_or_default(),
            arrived: !outgoing && !loopback,
        })
    }

    fn give_back(&self) {
        self.status_word()
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}
