//! One end of the cable: every frame of an interface, read and written as it is.

use std::io::{self, Read, Write};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Bytes before each frame: `struct virtio_net_hdr`, which says what the network card of the sender
/// left to do, that is, checksums and segmentation.
const VNET_HEADER: usize = 10;
/// The largest frame: a segmented packet of 64 KiB with its headers.
pub const MAX_FRAME: usize = VNET_HEADER + (64 << 10) + 64;
/// Kernel buffer for the time that this process does not run, in bytes.
const SOCKET_BUFFER: usize = 8 << 20;

/// A raw socket on one interface.
///
/// Frames are read with a header that describes pending checksums and segmentation; writing the
/// same bytes to another port passes it on, so that frames are unchanged whatever the interfaces
/// offload.
#[derive(Debug)]
pub struct Port {
    socket: Socket,
}

impl Port {
    /// Opens an interface of this network namespace. Needs the capability `CAP_NET_RAW` there.
    ///
    /// # Errors
    /// When there is no such interface or the kernel refuses.
    pub fn open(interface: &str) -> io::Result<Port> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // No protocol until it is bound: nothing of other interfaces comes in between.
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
        let index = rustix::net::netdevice::name_to_index(&socket, interface)?;
        set(&socket, libc::PACKET_VNET_HDR, &1)?;
        // Only what comes in: what this port sends, or the namespace itself, does not come back.
        set(&socket, libc::PACKET_IGNORE_OUTGOING, &1)?;
        socket.set_recv_buffer_size(SOCKET_BUFFER)?;
        socket.set_send_buffer_size(SOCKET_BUFFER)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address(all, index)?)?;
        let every_frame = libc::packet_mreq {
            mr_ifindex: i32::try_from(index).map_err(io::Error::other)?,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set(&socket, libc::PACKET_ADD_MEMBERSHIP, &every_frame)?;
        Ok(Port { socket })
    }

    /// Reads the next frame that waits; `None` when none does.
    ///
    /// # Errors
    /// When the interface is gone.
    pub fn read<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        match (&self.socket).read(buffer) {
            Ok(length) => Ok(Some(&buffer[..length])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a frame as returned by [`Port::read`]; returns whether it was taken.
    pub fn write(&self, frame: &[u8]) -> bool {
        (&self.socket).write(frame).is_ok()
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The link-layer address of an interface, for frames of one protocol (in network byte order).
fn address(protocol: u16, index: u32) -> io::Result<SockAddr> {
    let index = i32::try_from(index).map_err(io::Error::other)?;
    // SAFETY: the storage is zeroed and larger than a sockaddr_ll, whose fields are plain integers;
    // the length that is set is that of the value written.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let link = storage.cast::<libc::sockaddr_ll>();
            (*link).sll_family = libc::AF_PACKET as libc::sa_family_t;
            (*link).sll_protocol = protocol;
            (*link).sll_ifindex = index;
            *length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })
    }?;
    Ok(address)
}

/// Sets an option of the packet level.
fn set<T>(socket: &Socket, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of a live value, which the kernel copies.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
