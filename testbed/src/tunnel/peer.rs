//! A relay and a gateway that are not ours: the program `amt` of the crate `quicast-amt`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use crate::lab::on_path;
use crate::process::Launch;

/// The variable with the folder that `amt` is in.
const FOLDER: &str = "FLEXFEED_PEERS";
/// The variable that forbids to go without it.
const REQUIRED: &str = "FLEXFEED_REQUIRE_PEERS";

/// An independent implementation of RFC 7450. Its programs need raw sockets.
#[derive(Debug, Clone)]
pub struct Peer {
    program: PathBuf,
}

impl Peer {
    /// Looks for it in the folder that `FLEXFEED_PEERS` names, and on the `PATH`.
    pub fn find() -> Option<Peer> {
        let folder = std::env::var_os(FOLDER).map(PathBuf::from);
        let program = folder
            .map(|folder| folder.join("amt"))
            .filter(|path| path.is_file())
            .or_else(|| on_path("amt"))?;
        // Others may be called so too.
        let output = Command::new(&program).arg("--help").output().ok()?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let is_it = said.contains("amt relay") && said.contains("amt gateway");
        is_it.then_some(Peer { program })
    }

    /// Whether tests that need it must fail where it is not, rather than be skipped.
    pub fn required() -> bool {
        std::env::var_os(REQUIRED).is_some()
    }

    /// Returns how to install it, in one line.
    pub fn remedy() -> &'static str {
        "cargo install --locked --root target/tools quicast-amt@0.2.0, then \
         FLEXFEED_PEERS=target/tools/bin"
    }

    /// Its relay, at `listen`, with an address of the interface where the multicast is.
    pub fn relay(&self, listen: SocketAddr, native: IpAddr) -> Launch {
        self.launch(
            "peer-relay",
            [
                ("--bind", listen.to_string()),
                ("--relay-address", listen.ip().to_string()),
                ("--upstream-interface", native.to_string()),
            ],
        )
    }

    /// Its gateway, which sends what it gets to the network of `downstream` again.
    pub fn gateway(
        &self,
        relay: SocketAddr,
        source: Option<IpAddr>,
        group: IpAddr,
        downstream: IpAddr,
    ) -> Launch {
        let protocol = if group.is_ipv4() { "igmpv3" } else { "mldv2" };
        let mut pairs = vec![
            ("--relay", relay.to_string()),
            ("--group", group.to_string()),
            ("--downstream-interface", downstream.to_string()),
            ("--protocol", protocol.to_owned()),
            ("--downstream-ttl", "4".to_owned()),
        ];
        pairs.extend(source.map(|source| ("--source", source.to_string())));
        self.launch("peer-gateway", pairs)
    }

    fn launch(
        &self,
        name: &str,
        pairs: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Launch {
        let role = name.rsplit('-').next().unwrap_or_default().to_owned();
        let flags = pairs
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value]);
        Launch {
            name: name.to_owned(),
            program: self.program.clone(),
            args: std::iter::once(role).chain(flags).collect(),
            env: Vec::new(),
        }
    }
}
