#![allow(clippy::unwrap_used)]
use super::*;

const IGMP: &str = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter
1\tlo        :     1      V3
\t\t\t\t010000E0     1 0:00000000\t\t0
4\teth0      :     3      V3
\t\t\t\t014646E8     1 0:00000000\t\t0
\t\t\t\t010101EF     1 0:00000000\t\t0
\t\t\t\t010000E0     1 0:00000000\t\t0
";
const MCFILTER: &str = "Idx Device        MCA        SRC    INC    EXC
  4   eth0 0xe8464601 0xc0000201      1      0
";
const IGMP6: &str = "1    lo              ff020000000000000000000000000001     1 0000000C 0
4    eth0            ff3e0000000000000000000000000001     1 00000004 0
4    eth0            ff0200000000000000000001ff000002     1 00000004 0
";
const MCFILTER6: &str =
    "Idx Device                Multicast Address                   Source Address    INC    EXC
  4   eth0 ff3e0000000000000000000000000001 20010db8000000000000000000000001     1      0
";

struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let fixture = Fixture {
            folder: tempfile::tempdir().unwrap(),
        };
        fixture.put("proc/net/igmp", IGMP);
        fixture.put("proc/net/mcfilter", MCFILTER);
        fixture.put("proc/net/igmp6", IGMP6);
        fixture.put("proc/net/mcfilter6", MCFILTER6);
        fixture.put("sys/class/net/eth0/flags", "0x1003\n");
        fixture.count(0, 0, 0);
        fixture
    }

    fn put(&self, path: &str, content: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn count(&self, reverse_path: u64, taken: u64, frames: u64) {
        self.put(
            "proc/net/netstat",
            &format!(
                "TcpExt: SyncookiesSent IPReversePathFilter X\nTcpExt: 7 {reverse_path} 9\n\
                 IpExt: InNoRoutes InMcastPkts\nIpExt: 3 {taken}\n"
            ),
        );
        self.put(
            "proc/net/dev",
            &format!(
                "Inter-|   Receive\n face |bytes    packets errs drop fifo frame compressed \
                 multicast|bytes\n\
                 \x20 eth0: 1 2 3 4 5 6 7 {frames} 9 10\n"
            ),
        );
    }

    fn machine(&self) -> Machine {
        Machine {
            root: self.folder.path().to_owned(),
        }
    }

    /// Returns the finding for counters that grow from zero to these values.
    fn explained(&self, counts: [u64; 3]) -> String {
        let machine = self.machine();
        let before = machine.counters();
        self.count(counts[0], counts[1], counts[2]);
        let findings = machine.explain(&machine.memberships(), &before, &machine.counters());
        self.count(0, 0, 0);
        assert!(
            findings
                .iter()
                .all(|f| f.verdict == Verdict::Warn && !f.advice.is_empty())
        );
        let texts = findings
            .iter()
            .map(|f| format!("{} → {}", f.what, f.advice));
        texts.collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn memberships_of_both_families_are_found() {
    let found = Fixture::new().machine().memberships();
    let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "(192.0.2.1, 232.70.70.1) on eth0",
            "(2001:db8::1, ff3e::1) on eth0",
            "(*, 239.1.1.1) on eth0",
        ]
    );
    let empty = tempfile::tempdir().unwrap();
    let machine = Machine {
        root: empty.path().to_owned(),
    };
    assert!(machine.memberships().is_empty());
    assert_eq!(machine.counters(), Counters::default());
}

#[test]
fn counters_show_where_packets_were_dropped() {
    let fixture = Fixture::new();
    let none = fixture.explained([0, 0, 0]);
    assert!(
        none.contains("no multicast at all arrives at eth0"),
        "{none}"
    );
    let firewall = fixture.explained([0, 7, 0]);
    assert!(
        firewall.contains("7 multicast packets came in") && firewall.contains("nft list"),
        "{firewall}"
    );
    let other = fixture.explained([0, 1, 9]);
    assert!(other.contains("none of this flow"), "{other}");
    fixture.put("proc/sys/net/ipv4/conf/all/rp_filter", "0");
    fixture.put("proc/sys/net/ipv4/conf/eth0/rp_filter", "1");
    let filtered = fixture.explained([5, 0, 9]);
    assert!(
        filtered.contains("5 packets") && filtered.contains("conf.eth0.rp_filter=2"),
        "{filtered}"
    );
}

#[test]
fn interfaces_and_old_igmp_are_named() {
    let fixture = Fixture::new();
    for (flags, expected) in [
        ("0x1002", "is down"),
        ("0x9", "loopback"),
        ("0x91", "does not do multicast"),
    ] {
        fixture.put("sys/class/net/eth0/flags", flags);
        let text = fixture.explained([0, 0, 0]);
        assert!(text.contains(expected), "{text}");
    }
    fixture.put("sys/class/net/eth0/flags", "0x1003");
    fixture.put("proc/sys/net/ipv4/conf/eth0/force_igmp_version", "2");
    let forced = fixture.explained([0, 0, 0]);
    assert!(forced.contains("forced to IGMPv2"), "{forced}");
    fixture.put("proc/sys/net/ipv4/conf/eth0/force_igmp_version", "0");
    fixture.put("proc/net/igmp", &IGMP.replace("3      V3", "3      V2"));
    let old = fixture.explained([0, 0, 0]);
    assert!(old.contains("uses IGMPv2"), "{old}");
    // Groups of any source need no more than that.
    fixture.put("proc/net/mcfilter", "Idx\n");
    let any = fixture.explained([0, 0, 0]);
    assert!(!any.contains("IGMPv2"), "{any}");
}
