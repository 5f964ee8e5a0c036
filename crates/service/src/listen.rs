//! HTTP listener.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket};
use tracing::warn;

use crate::values;

/// Connections that the system queues until they are accepted.
const QUEUE: u32 = 1024;

/// Settings of the HTTP listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpSettings {
    /// Address and TCP port.
    pub addr: SocketAddr,
    /// Whether the address was given: a failure to bind it is then an error.
    pub explicit: bool,
}

/// Returns a parser of an address, or `off` for none; `port` is for the example in errors.
pub fn http(port: u16) -> impl Fn(&str) -> Result<Option<HttpSettings>, String> + Clone {
    let given = |addr| HttpSettings {
        addr,
        explicit: true,
    };
    move |text| match text.trim() {
        "off" => Ok(None),
        text => match values::listen(text, port) {
            Ok(addr) => Ok(Some(given(addr))),
            Err(what) => Err(format!("{what}, and not off")),
        },
    }
}

/// Binds the address. `None`, with a warning, if that fails for a default address; `variable` sets
/// another one, like `--http`. To be called within a runtime.
///
/// # Errors
/// An address that was given cannot be bound; in words for the operator.
pub fn bind(settings: HttpSettings, variable: &str) -> Result<Option<TcpListener>, String> {
    let HttpSettings { addr, explicit } = settings;
    let error = match listen(addr) {
        Ok(listener) => return Ok(Some(listener)),
        Err(error) => error,
    };
    let refused = format!(
        "cannot answer HTTP on {addr}: {error}; choose another address with --http ADDRESS:PORT or \
         {variable}"
    );
    if explicit {
        return Err(refused);
    }
    warn!("{refused}; continuing without");
    Ok(None)
}

/// Listens at an address. `[::]` is all addresses of this machine, those of IPv4 as well, whatever
/// the system's setting for such sockets is, and even without IPv6. To be called within a runtime.
///
/// # Errors
/// The system's error.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    listen_by(addr, TcpSocket::new_v6)
}

fn listen_by(
    addr: SocketAddr,
    new_v6: impl Fn() -> io::Result<TcpSocket>,
) -> io::Result<TcpListener> {
    match addr {
        SocketAddr::V4(_) => at(addr, TcpSocket::new_v4()?),
        SocketAddr::V6(_) if !addr.ip().is_unspecified() => at(addr, new_v6()?),
        SocketAddr::V6(_) => {
            let both = new_v6().and_then(|socket| {
                set_ipv6_v6only(&socket, false)?;
                at(addr, socket)
            });
            match both {
                Err(error) if is_without_ipv6(&error) => {
                    let addr = (Ipv4Addr::UNSPECIFIED, addr.port()).into();
                    at(addr, TcpSocket::new_v4()?)
                }
                both => both,
            }
        }
    }
}

/// Whether the error means that this machine or container has no IPv6.
fn is_without_ipv6(error: &io::Error) -> bool {
    let without = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL];
    error
        .raw_os_error()
        .is_some_and(|code| without.iter().any(|errno| errno.raw_os_error() == code))
}

fn at(addr: SocketAddr, socket: TcpSocket) -> io::Result<TcpListener> {
    // Connections of an earlier process that are still closing do not count.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(QUEUE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{Ipv6Addr, TcpStream};

    use super::*;

    const ALL: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

    fn answers(listener: &TcpListener, ip: std::net::IpAddr) -> bool {
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((ip, port)).is_ok()
    }

    /// As if `net.ipv6.bindv6only` is set.
    #[tokio::test]
    async fn the_wildcard_address_serves_both_families() {
        let listener = listen_by(ALL, || {
            let socket = TcpSocket::new_v6()?;
            set_ipv6_v6only(&socket, true)?;
            Ok(socket)
        });
        let listener = listener.unwrap();
        assert!(answers(&listener, Ipv4Addr::LOCALHOST.into()));
        assert!(answers(&listener, Ipv6Addr::LOCALHOST.into()));
    }

    #[tokio::test]
    async fn without_ipv6_the_wildcard_is_ipv4() {
        let none = || Err(io::Error::from(Errno::AFNOSUPPORT));
        let listener = listen_by(ALL, none).unwrap();
        assert!(answers(&listener, Ipv4Addr::LOCALHOST.into()));
        // A single IPv6 address has no equivalent in IPv4.
        let one = (Ipv6Addr::LOCALHOST, 0).into();
        assert!(listen_by(one, none).is_err());
        // An address in use.
        let taken = listener.local_addr().unwrap().port();
        let taken = (Ipv6Addr::UNSPECIFIED, taken).into();
        assert!(listen(taken).is_err());
        let by = |explicit| {
            let settings = HttpSettings {
                addr: taken,
                explicit,
            };
            bind(settings, "FLEXFEED_X_HTTP")
        };
        assert!(by(true).unwrap_err().contains("or FLEXFEED_X_HTTP"));
        assert!(by(false).unwrap().is_none());
    }
}
