//! Interfaces by name or address, and their numbers, by which IPv6 multicast identifies them.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// One address of one interface of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InterfaceAddress {
    name: String,
    index: u32,
    ip: IpAddr,
}

/// Returns the number of the interface with the name (`eth0`) or address `text`.
///
/// # Errors
/// There is no such interface, or several have that address; the text says what to give instead.
pub fn find_interface(text: &str) -> io::Result<u32> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return index_of(ip.to_canonical());
    }
    let found = std::ffi::CString::new(text).map_or(0, |name| {
        // SAFETY: the string is alive, and if_nametoindex(3) only reads it.
        unsafe { libc::if_nametoindex(name.as_ptr()) }
    });
    if found != 0 {
        return Ok(found);
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!(
            "this machine has no interface {text}; choose one that `ip link` lists, or an address"
        ),
    ))
}

/// Returns the number of the interface with the address `ip`.
///
/// # Errors
/// `AddrNotAvailable` if none has it; `InvalidInput` if several have it, as is common for
/// link-local addresses. The text says which address to give instead.
pub(crate) fn index_of(ip: IpAddr) -> io::Result<u32> {
    index_among(&interface_addresses()?, ip.to_canonical())
}

fn index_among(all: &[InterfaceAddress], ip: IpAddr) -> io::Result<u32> {
    let mut owners: Vec<&InterfaceAddress> = all.iter().filter(|one| one.ip == ip).collect();
    if owners.is_empty() && ip.is_loopback() {
        // All of 127.0.0.0/8 is local, but only 127.0.0.1 is listed.
        owners.extend(all.iter().filter(|one| one.ip.is_loopback()));
    }
    owners.sort_by_key(|one| one.index);
    owners.dedup_by_key(|one| one.index);
    match owners.as_slice() {
        [one] => Ok(one.index),
        [] => Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            no_such_address(ip),
        )),
        several => {
            let names: Vec<&str> = several.iter().map(|one| one.name.as_str()).collect();
            Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "the interfaces {} all have the address {ip}; give an address that only one of \
                     them has",
                    names.join(", ")
                ),
            ))
        }
    }
}

/// Returns the error text for an address that no interface has.
pub(crate) fn no_such_address(ip: IpAddr) -> String {
    let family = if ip.is_ipv4() { 4 } else { 6 };
    format!(
        "no interface of this machine has the address {ip}; choose one that `ip -{family} addr` \
         lists"
    )
}

/// Returns an address of the interface with the name (`eth0`) or address `text`. Of several
/// addresses of a family, a reachable one goes before a link-local one.
///
/// # Errors
/// There is no such interface, or it has no address of the family; the text says what to do.
pub fn interface_address(text: &str, ipv4: bool) -> io::Result<IpAddr> {
    let family = if ipv4 { 4 } else { 6 };
    let wrong = |what: String| Err(io::Error::new(io::ErrorKind::AddrNotAvailable, what));
    if let Ok(ip) = text.parse::<IpAddr>() {
        let ip = ip.to_canonical();
        if ip.is_ipv4() != ipv4 {
            return wrong(format!(
                "{ip} is no IPv{family} address, as the group needs; name the interface instead"
            ));
        }
        return index_of(ip).map(|_| ip);
    }
    let all = interface_addresses()?;
    let mut of_name = all.iter().filter(|one| one.name == text).peekable();
    if of_name.peek().is_none() {
        return wrong(format!(
            "no interface named {text} has an address; choose one that `ip addr` lists"
        ));
    }
    let is_link_local = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let of_family = of_name.map(|one| one.ip).filter(|ip| ip.is_ipv4() == ipv4);
    match of_family.min_by_key(is_link_local) {
        Some(ip) => Ok(ip),
        None => wrong(format!(
            "the interface {text} has no IPv{family} address; give it one (`ip -{family} addr \
             add`), or choose another"
        )),
    }
}

/// Returns the MTU in bytes of the interface with the address `ip`.
///
/// # Errors
/// No interface has the address, or several have it.
pub fn interface_mtu(ip: IpAddr) -> io::Result<usize> {
    let all = interface_addresses()?;
    let index = index_among(&all, ip.to_canonical())?;
    let interface = all.iter().find(|one| one.index == index);
    let name = interface.map_or("", |one| one.name.as_str());
    let any = match ip.is_ipv4() {
        true => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    // SAFETY: all fields of an `ifreq` are integers, addresses and pointers, which may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let places = request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1);
    for (place, byte) in places.zip(name.bytes()) {
        *place = byte.cast_signed() as libc::c_char;
    }
    // SAFETY: the descriptor is open, and SIOCGIFMTU reads the name and writes the MTU of an
    // `ifreq` that lives until the call returns.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has written this field.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(io::Error::other)
}

/// Returns every address of every interface.
fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let list = AddressList::get()?;
    let mut found = Vec::new();
    let mut next = list.0;
    while let Some(entry) = next {
        // SAFETY: `entry` comes from a list of getifaddrs(3) that `list` keeps alive; its entries
        // are initialised and are not changed by anybody.
        let entry = unsafe { entry.as_ref() };
        next = NonNull::new(entry.ifa_next);
        // SAFETY: as above; `ifa_addr` is null or points to a socket address of the list, as large
        // as its family says.
        let Some(ip) = (unsafe { ip_of(entry.ifa_addr) }) else {
            continue;
        };
        // SAFETY: `ifa_name` of an entry is a string of the list that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: as above; if_nametoindex(3) only reads the string.
        let index = unsafe { libc::if_nametoindex(entry.ifa_name) };
        // 0: the interface has just disappeared.
        if index != 0 {
            found.push(InterfaceAddress {
                name: name.to_string_lossy().into_owned(),
                index,
                ip,
            });
        }
    }
    Ok(found)
}

/// Returns the address in a `sockaddr` of IPv4 or IPv6.
///
/// # Safety
/// `address` is null, or points to an initialised socket address of the size that its family has.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, so a socket address by the caller's promise; each has a family.
    let family = unsafe { (*address).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a `sockaddr_in`; read without regard to alignment.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let octets = address.sin_addr.s_addr.to_ne_bytes();
            Some(Ipv4Addr::from(octets).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a `sockaddr_in6`; read without regard to
            // alignment.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// A list of getifaddrs(3); freed when dropped.
struct AddressList(Option<NonNull<libc::ifaddrs>>);

impl AddressList {
    fn get() -> io::Result<AddressList> {
        let mut first = std::ptr::null_mut();
        // SAFETY: `first` is a place for one pointer, which getifaddrs(3) sets when it answers 0.
        if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
            return Err(crate::error::context(
                io::Error::last_os_error(),
                format_args!("cannot list this machine's addresses"),
            ));
        }
        Ok(AddressList(NonNull::new(first)))
    }
}

impl Drop for AddressList {
    fn drop(&mut self) {
        if let Some(first) = self.0 {
            // SAFETY: the pointer is from getifaddrs(3) and is freed once, here.
            unsafe { libc::freeifaddrs(first.as_ptr()) }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn an_interface_has_an_address_of_the_family() {
        let lo = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(interface_address("lo", true).unwrap(), lo);
        assert_eq!(interface_address("127.0.0.1", true).unwrap(), lo);
        for (text, ipv4, why) in [
            ("127.0.0.1", false, "no IPv6 address"),
            ("nothing0", true, "no interface named nothing0"),
            ("192.0.2.77", true, "no interface of this machine"),
        ] {
            let error = interface_address(text, ipv4).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn the_loopback_interface_is_found_by_any_of_its_addresses() {
        let lo = index_of(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert!(lo > 0);
        for other in ["127.0.0.2", "127.9.9.9", "::ffff:127.0.0.1"] {
            assert_eq!(index_of(other.parse().unwrap()).unwrap(), lo, "{other}");
        }
        let listed = interface_addresses().unwrap();
        assert!(listed.iter().any(|one| one.name == "lo"), "{listed:?}");
    }

    #[test]
    fn the_mtu_is_that_of_the_interface() {
        let listed = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        let mtu = interface_mtu(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(mtu.to_string(), listed.trim());
        assert!(interface_mtu("192.0.2.77".parse().unwrap()).is_err());
    }

    #[test]
    fn an_address_of_no_or_of_several_interfaces_is_explained() {
        let one = |name: &str, index, ip: &str| InterfaceAddress {
            name: name.into(),
            index,
            ip: ip.parse().unwrap(),
        };
        let all = [
            one("eth0", 2, "fe80::1"),
            one("eth1", 3, "fe80::1"),
            one("eth1", 3, "fd00::1"),
            one("eth1", 3, "fd00::1"),
        ];
        assert_eq!(index_among(&all, "fd00::1".parse().unwrap()).unwrap(), 3);
        let error = index_among(&all, "fe80::1".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("eth0, eth1"), "{error}");
        let error = index_among(&all, "fd00::9".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(error.to_string().contains("`ip -6 addr`"), "{error}");
    }
}
