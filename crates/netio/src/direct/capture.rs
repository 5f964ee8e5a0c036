//! Multicast packets as they are on an interface, by a packet socket with a ring in shared memory.
//!
//! The ring is of the second version (`TPACKET_V2`): each packet is there as soon as it arrives. The
//! third hands packets over by blocks, when one is full or a timer fires, and a timer has no place
//! between a packet and its gateways. Packets that are larger than a slot of the ring, such as trains
//! of this host that the card would have segmented, come by the socket's queue.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use socket2::{Domain, Socket, Type};

use super::filter;
use super::port::{enlarge, raw};
use super::sys::{check, set};
use crate::error::context;

/// A slot: a packet of an Ethernet with what the kernel notes of it.
const SLOT_BYTES: usize = 2048;

/// Slots that the kernel allocates at a time.
const BLOCK_BYTES: usize = 1 << 18;

/// 16 MiB: a tenth of a second of packets at 80,000 a second.
const BLOCKS: usize = 64;

const SLOTS: usize = BLOCKS * BLOCK_BYTES / SLOT_BYTES;

/// No packet is larger, with the headers of link and `virtio`.
const LARGEST: usize = (1 << 16) + 256;

/// The kernel's note of segmentation and checksum before each packet (`virtio_net_hdr`).
const VNET_BYTES: usize = 10;

/// UDP that is still to be segmented.
const GSO_UDP_L4: u8 = 5;

/// The checksum is still to be made.
const NEEDS_CHECKSUM: u8 = 1;

/// A packet of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured<'a> {
    /// From the IP header on; may have a few bytes more than the header says.
    pub packet: &'a [u8],
    /// It stands for several: UDP to be cut into datagrams with so many bytes of payload.
    pub segment: Option<usize>,
    /// Its UDP checksum is still to be made.
    pub checksum_missing: bool,
    /// The number of the interface.
    pub interface: u32,
    /// It came by the network; otherwise this host sends it.
    pub arrived: bool,
}

/// A packet socket that sees the multicast of one interface or of all, what this host sends included.
/// Needs CAP_NET_RAW.
#[derive(Debug)]
pub struct Capture {
    socket: Socket,
    ring: Ring,
    next: usize,
    large: Vec<u8>,
    interface: u32,
    /// Packets that were lost on the way from a slot to the caller.
    lost: u64,
}

impl Capture {
    /// Opens the socket on the interface with this number, or on all with 0.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW; there is no such interface; there is no memory for the
    /// ring.
    pub fn open(interface: u32) -> io::Result<Self> {
        let open = || {
            // With no protocol it sees nothing until the filter is in place and it is bound.
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
                "cannot capture packets without the capability CAP_NET_RAW; give it to the program (AmbientCapabilities=CAP_NET_RAW with systemd, --cap-add NET_RAW with containers) or receive by UDP ports",
            ),
            _ => context(error, format_args!("cannot capture packets")),
        })
    }

    /// Calls `each` for the packets that are there, at most for `most`. Returns how many slots of the
    /// ring that were.
    pub fn receive(&mut self, most: usize, mut each: impl FnMut(Captured<'_>)) -> usize {
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
            // It is taken from the queue whatever becomes of it: it belongs to this slot.
            let large = copied.then(|| receive_large(&self.socket, &mut self.large));
            match (found, large) {
                (Some(found), _) if found.twice => {}
                (Some(found), Some(Some(frame))) => captured(frame, &found, &mut each),
                // Without a copy, the socket's queue had no room for what the slot has none for.
                (Some(found), None) if !found.truncated => captured(found.frame, &found, &mut each),
                _ => self.lost += 1,
            }
            slot.give_back();
            self.next = (self.next + 1) % SLOTS;
        }
        most
    }

    /// The number of the interface that it was opened on; 0 for all.
    #[must_use]
    pub fn interface(&self) -> u32 {
        self.interface
    }

    /// Whether packets come by it as long as the interface is on: not any more once that was removed.
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

    /// Takes the error that makes a [`Poller`](super::Poller) report one, such as `ENETDOWN` when the
    /// interface is switched off. Packets come again once it is on, but not by an interface that was
    /// removed, whatever comes in its place.
    #[must_use]
    pub fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error().unwrap_or_else(Some)
    }

    /// Packets that were lost for want of room since the last call. A train counts as one.
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

/// Hands out a frame that begins with the kernel's note and is what `found` describes.
fn captured(frame: &[u8], found: &Found<'_>, each: &mut impl FnMut(Captured<'_>)) {
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
    each(Captured {
        packet,
        // The bit for ECN is no part of the kind.
        segment: (kind & 0x7f == GSO_UDP_L4 && size > 0).then_some(size),
        checksum_missing: flags & NEEDS_CHECKSUM != 0,
        interface: found.interface,
        arrived: found.arrived,
    });
}

/// A packet that was too large for its slot.
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
    // All protocols: only those also see what this host sends.
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

/// The memory that is shared with the kernel; unmapped when dropped.
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
        // SAFETY: a new mapping at an address of the kernel's choice; the socket has a ring of this size.
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
        // SAFETY: there are `SLOTS` slots of `SLOT_BYTES` in the mapping; blocks hold a whole number of
        // slots, so that they follow each other without gaps.
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

/// What is in a slot.
struct Found<'a> {
    /// From the kernel's note on; empty if the packet came by the queue.
    frame: &'a [u8],
    /// The length of the link's header.
    net_offset: usize,
    /// Not all of it fits.
    truncated: bool,
    /// It is what this host sends by the loopback interface, where it also arrives.
    twice: bool,
    interface: u32,
    arrived: bool,
}

impl<'a> Slot<'a> {
    fn status_word(&self) -> &'a AtomicU32 {
        // SAFETY: a slot begins with the status, a number of 32 bits, aligned, which kernel and program
        // hand to each other; it is only used as an atomic.
        unsafe { self.start.cast::<AtomicU32>().as_ref() }
    }

    fn status(&self) -> u32 {
        let status = self.status_word().load(Ordering::Acquire);
        fence(Ordering::Acquire);
        status
    }

    /// Reads a slot that is the program's.
    fn found(&self) -> Option<Found<'a>> {
        // SAFETY: a slot that is the program's begins with a `tpacket2_hdr`, behind which, aligned to
        // 16 bytes, there is a `sockaddr_ll`; both are made of integers.
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
        // SAFETY: the range is within the slot, and nobody writes there until it is given back.
        let frame =
            unsafe { std::slice::from_raw_parts(self.start.add(start).as_ptr(), end - start) };
        Some(Found {
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
