#![allow(clippy::unwrap_used, clippy::expect_used)]

mod file;
mod precedence;

use service::logging::LogFormat;
use service::settings::Environment;

use super::*;
use crate::commands::command;

const FEED: &str = "https://example.org/feed.atom";

/// Returns the configuration of a command line in an environment, or all mistakes.
fn read(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Config, String> {
    let all = ["flexfeed-source"].iter().chain(arguments);
    let matches = command()
        .try_get_matches_from(all)
        .map_err(|error| error.to_string())?;
    resolve(&matches, &Environment::with(variables.to_vec()))
        .config
        .map_err(|mistakes| mistakes.join("\n"))
}

pub(crate) fn config(arguments: &[&str]) -> Result<Config, String> {
    read(arguments, &[])
}

fn with_feed(arguments: &[&str]) -> Result<Config, String> {
    config(&[&["--feed", FEED], arguments].concat())
}

fn refused(arguments: &[&str]) -> String {
    with_feed(arguments).expect_err(&format!("{arguments:?}"))
}

#[test]
fn the_definition_is_consistent() {
    command().debug_assert();
}

#[test]
fn defaults() {
    let config = with_feed(&[]).unwrap();
    assert_eq!(config.channels[0].feeds[0].address.shown, FEED);
    assert_eq!(config.data, PathBuf::from("./flexfeed-source"));
    assert_eq!(config.listen, "0.0.0.0:4433".parse().unwrap());
    assert_eq!(config.http, "127.0.0.1:8090".parse().unwrap());
    assert_eq!(config.channels.len(), 1);
    assert_eq!(config.channels[0].name, "lore");
    let poll = |min, max| Intervals {
        min: Duration::from_secs(min),
        max: Duration::from_secs(max),
    };
    assert_eq!(config.feeds.poll(), poll(20, 3600));
    assert_eq!(config.flows.rate_bps, 10_000_000);
    assert_eq!(config.flows.ack_delay, Duration::from_millis(25));
    assert_eq!(config.flows.fall_back, Duration::from_millis(150));
    assert_eq!(config.flows.heartbeat, Duration::from_secs(1));
    assert_eq!(config.log.format, LogFormat::Text);
    let group = "232.70.70.1:4434".parse().unwrap();
    assert_eq!(config.channels[0].groups.all(), [group]);
    assert!(!config.channels[0].private);
    assert_eq!(config.flows.sources, None);
    assert_eq!((config.flows.asm, config.flows.replicate), (false, true));
    assert_eq!((config.keep, config.qlog), (Keep::default(), None));
    assert_eq!(config.flows.unicast_rate_bps, 200_000_000);
    assert_eq!(config.public_address, None);
    assert!(config.warnings[0].contains("--public-address"));
    // The word is allowed and changes nothing.
    assert_eq!(with_feed(&["run"]).unwrap().channels[0].name, "lore");
    assert!(with_feed(&["walk"]).is_err());
}

#[test]
fn without_a_feed_there_is_no_channel_unless_it_is_named() {
    assert_eq!(config(&[]).unwrap().channels, []);
    assert_eq!(read(&[], &[("FLEXFEED_FEED", "")]).unwrap().channels, []);
    let named = config(&["--channel", "news"]).unwrap();
    assert_eq!(named.channels[0].name, "news");
    assert_eq!(named.channels[0].feeds, []);
    let alone = config(&["--private"]).unwrap();
    assert!(alone.warnings.iter().any(|w| w.contains("--private")));
    // The groups begin with the first channel that there is.
    let specs = config(&["--channel-spec", "a,feed=http://a/ b,feed=http://b/"]).unwrap();
    let groups: Vec<_> = specs
        .channels
        .iter()
        .map(|c| c.groups.to_string())
        .collect();
    assert_eq!(groups, ["232.70.70.1:4434", "232.70.70.2:4434"]);
}

#[test]
fn polls_are_at_fixed_times_or_within_bounds() {
    let seconds = |arguments: &[&str], variables: &[(&str, &str)]| {
        let poll = read(arguments, variables).unwrap().feeds.poll();
        (poll.min.as_secs(), poll.max.as_secs())
    };
    assert_eq!(seconds(&["--poll-interval", "7"], &[]), (7, 7));
    assert_eq!(seconds(&["--min-poll-interval", "5"], &[]), (5, 3600));
    assert_eq!(seconds(&["--max-poll-interval", "30s"], &[]), (20, 30));
    // The stronger place decides whether they are fixed.
    let fixed = [("FLEXFEED_POLL_INTERVAL", "9")];
    assert_eq!(seconds(&["--max-poll-interval", "40"], &fixed), (20, 40));
    let bounds = [("FLEXFEED_MAX_POLL_INTERVAL", "40")];
    assert_eq!(seconds(&["--poll-interval", "9"], &bounds), (9, 9));
    let text = refused(&["--poll-interval", "9", "--min-poll-interval", "5"]);
    assert!(text.contains("--poll-interval"), "{text}");
    let text = refused(&["--max-poll-interval", "5"]);
    assert!(
        text.contains("--min-poll-interval") || text.contains("default"),
        "{text}"
    );
    // What is overridden itself excludes nothing.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("f.toml");
    std::fs::write(&file, "max_poll_interval = 40").unwrap();
    let weakest = ("FLEXFEED_CONFIG", file.to_str().unwrap());
    let places = [("FLEXFEED_POLL_INTERVAL", "9"), weakest];
    assert_eq!(seconds(&[], &places), (9, 9));
    assert_eq!(seconds(&["--min-poll-interval", "5"], &places), (5, 40));
    let config = config(&[]).unwrap();
    let of = |min, max| {
        let seconds = |s: Option<u64>| s.map(Duration::from_secs);
        let poll = config.feeds.intervals(seconds(min), seconds(max));
        (poll.min.as_secs(), poll.max.as_secs())
    };
    assert_eq!(of(None, None), (20, 3600));
    assert_eq!(of(Some(1), None), (1, 3600));
    assert_eq!(of(Some(7200), None), (7200, 7200));
    assert_eq!(of(None, Some(5)), (5, 5));
    assert_eq!(of(Some(60), Some(60)), (60, 60));
}

#[test]
fn own_certificates_come_with_their_keys_and_pins_are_pins() {
    let own = config(&["--cert", "a.pem", "--key", "b.pem"]).unwrap();
    let files = own.cert.zip(own.key);
    assert_eq!(files, Some(("a.pem".into(), "b.pem".into())));
    assert!(refused(&["--cert", "a.pem"]).contains("--key"));
    assert!(refused(&["--key", "a.pem"]).contains("--cert"));
    let pin = Pin([7; 32]).to_string();
    assert_eq!(
        config(&["--next-pin", &pin]).unwrap().next_pin,
        Some(Pin([7; 32]))
    );
    for bad in [
        "",
        "sha256:",
        &pin[..pin.len() - 1],
        &pin[7..],
        &format!("{pin}A"),
    ] {
        refused(&["--next-pin", bad]);
    }
}

#[test]
fn feed_addresses_are_checked_and_their_passwords_kept_secret() {
    for bad in [
        "lore.kernel.org",
        "ftp://u:hidden@example.org/",
        "http://u:hidden@:80/",
    ] {
        let error = config(&["--feed", bad]).unwrap_err();
        assert!(error.contains("--feed"), "{error}");
        assert!(!error.contains("hidden"), "{error}");
    }
    let config = config(&["--feed", "https://user:hidden@example.org/f#x"]).unwrap();
    assert_eq!(
        config.channels[0].feeds[0].address.shown,
        "https://example.org/f"
    );
    assert!(
        config.channels[0].feeds[0]
            .address
            .secret
            .contains("hidden")
    );
    assert!(!format!("{config:?}").contains("hidden"));
}

#[test]
fn rates_and_times_have_units() {
    for (text, bits) in [
        ("10M", 10_000_000),
        ("500k", 500_000),
        ("1.5G", 1_500_000_000),
        ("64000", 64_000),
        ("2 Mbit/s", 2_000_000),
    ] {
        assert_eq!(
            with_feed(&["--rate", text]).unwrap().flows.rate_bps,
            bits,
            "{text}"
        );
    }
    for (text, ms) in [
        ("20", 20_000),
        ("0.5", 500),
        ("500ms", 500),
        ("2m", 120_000),
        ("1h", 3_600_000),
    ] {
        let config = with_feed(&["--poll-interval", text]).unwrap();
        assert_eq!(config.feeds.poll().min.as_millis(), ms, "{text}");
    }
    for bad in ["", "fast", "10X", "-1M", "0", "1e3M", "NaN", "1000G"] {
        refused(&["--rate", bad]);
    }
    for bad in ["", "0", "soon", "-1", "inf", "25h", "2d", "1y", "1.2.3"] {
        refused(&["--poll-interval", bad]);
    }
}

#[test]
fn groups_are_multicast_of_either_kind() {
    let given = |text: &str| {
        let config = with_feed(&["--group", text]).unwrap();
        config.channels[0].groups.all().to_vec()
    };
    assert!(given("").is_empty());
    assert_eq!(given("[ff3e::1]:4434"), ["[ff3e::1]:4434".parse().unwrap()]);
    let both: [SocketAddr; 2] = [
        "232.1.1.1:9".parse().unwrap(),
        "[ff35::4646:1]:8".parse().unwrap(),
    ];
    assert_eq!(given("232.1.1.1:9, [ff35::4646:1]:8"), both);
    for bad in [
        "10.0.0.1:4434",
        "232.1.1.1",
        "ff3e::1:4434",
        "232.1.1.1:0",
        "[ff3e::1]:0",
        "224.0.0.5:1",
        "[ff02::1]:1",
        "[ff32::1]:1",
        "[2001:db8::1]:1",
        "232.1.1.1:1,",
        "232.1.1.1:1,232.1.1.2:1",
        "[ff3e::1]:1,[ff3e::2]:1",
    ] {
        refused(&["--group", bad]);
    }
    let about_group = |arguments: &[&str]| {
        let config = with_feed(arguments).unwrap();
        let about = |w: &&String| w.contains("the group");
        config.warnings.iter().find(about).cloned()
    };
    assert_eq!(about_group(&["--group", "232.1.1.1:9"]), None);
    assert_eq!(about_group(&["--group", "239.1.1.1:9", "--asm"]), None);
    assert_eq!(about_group(&["--group", "[ff3e::1]:9"]), None);
    let warning = about_group(&["--group", "[ff15::1]:9"]).unwrap();
    assert!(warning.contains("ff3x::/32"), "{warning}");
    let warning = about_group(&["--group", "239.1.1.1:9"]).unwrap();
    assert!(warning.contains("232.0.0.0/8"), "{warning}");
    let warning = about_group(&["--group", "232.1.1.1:9", "--asm"]).unwrap();
    assert!(warning.contains("--asm"), "{warning}");
    for bad in [
        "eth0",
        "0.0.0.0",
        "232.1.1.1",
        "10.0.0.1,10.0.0.2",
        "::",
        "ff3e::1",
    ] {
        refused(&["--flow-source", bad]);
    }
    let config = with_feed(&["--flow-source", "10.1.2.3,2001:db8::3"]).unwrap();
    let sources = HostAddresses {
        v4: Some("10.1.2.3".parse().unwrap()),
        v6: Some("2001:db8::3".parse().unwrap()),
    };
    assert_eq!(config.flows.sources, Some(sources));
    assert_eq!(
        sources.of_family(both[0]),
        Some("10.1.2.3".parse().unwrap())
    );
    assert_eq!(
        sources.of_family(both[1]),
        Some("2001:db8::3".parse().unwrap())
    );
}

#[test]
fn no_channel_takes_the_place_of_a_receivers_own_file() {
    let specs = ["--channel-spec", "status,feed=http://a/"];
    for arguments in [&["--channel", "status"], &specs] {
        let error = refused(arguments);
        assert!(error.contains("status.json"), "{error}");
    }
    assert!(config(&["--channel", "status2"]).is_ok());
}

#[test]
fn further_channels_have_their_own_settings() {
    let config = with_feed(&[
        "--group",
        "232.70.70.1:4434,[ff3e::4646:ffef]:4434",
        "--private",
        "--channel-spec",
        "net,feed=https://u:hidden@example.org/a,b?x=1,2,rate=5M,private",
        "--channel-spec",
        "bpf,group=239.1.1.1:9,[ff3e::9]:9,feed=http://b/ rust,feed=http://r/,group=",
        "--channel-spec",
        "io,feed=http://i/,packet-authentication=tags,fec=proactive:1/20,xor,private,deadline=10s",
    ])
    .unwrap();
    let names: Vec<_> = config.channels.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["lore", "net", "bpf", "rust", "io"]);
    let [first, net, bpf, rust, io] = config.channels.as_slice() else {
        panic!("{names:?}");
    };
    assert!(first.private && net.private && !bpf.private && io.private);
    let packets = [first, net, io].map(|c| c.packet_authentication.as_str());
    assert_eq!(packets, ["none", "none", "tags"]);
    let fec = [first, net, io].map(|c| c.fec.as_str());
    assert_eq!(fec, ["adaptive", "adaptive", "proactive:1/20,xor"]);
    let deadlines = [first, net, io].map(|c| c.deadline.millis());
    assert_eq!(deadlines, [None, None, Some(10_000)]);
    assert_eq!((first.rate_bps, net.rate_bps), (10_000_000, 5_000_000));
    assert_eq!(net.feeds[0].address.shown, "https://example.org/a,b?x=1,2");
    let groups = |c: &ChannelSettings| {
        let all = c.groups.all().iter().map(ToString::to_string);
        all.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(groups(net), "232.70.70.2:4434 [ff3e::4646:fff0]:4434");
    assert_eq!(groups(bpf), "239.1.1.1:9 [ff3e::9]:9");
    assert_eq!(groups(rust), "");
    assert_eq!(groups(io), "232.70.70.5:4434 [ff3e::4646:fff3]:4434");
    assert_eq!(rust.feeds[0].address.shown, "http://r/");
    assert!(!format!("{config:?}").contains("hidden"));
    // Without multicast at the first, the others have none either.
    let config = with_feed(&["--group", "", "--channel-spec", "a,feed=http://a/"]).unwrap();
    assert!(config.channels[1].groups.all().is_empty());
}

#[test]
fn wrong_further_channels_are_explained_without_their_secrets() {
    for (bad, expected) in [
        ("net", "feed=URL is missing"),
        ("feed=http://u:hidden@h/", "its name"),
        ("net,http://u:hidden@h/", "no setting"),
        ("net,feed=ftp://u:hidden@h/", "only http and https"),
        ("net,feed=http://h/,feed=http://u:hidden@h/", "twice"),
        ("net,feed=http://u:hidden@h/,rate=fast", "rate"),
        ("net,feed=http://u:hidden@h/,group=10.0.0.1:1", "multicast"),
        (
            "net,feed=http://u:hidden@h/,packet-authentication=all",
            "is neither none nor signature",
        ),
        (
            "net,feed=http://u:hidden@h/,fec=tail,ldpc",
            "is none of off, adaptive, tail, reactive",
        ),
        ("lore,feed=http://u:hidden@h/", "two channels \"lore\""),
        (
            "net,feed=http://u:hidden@h/,group=232.70.70.1:4434",
            "both have the group",
        ),
        ("../x,feed=http://h/", "its name"),
    ] {
        let text = refused(&["--channel-spec", bad]);
        assert!(text.contains(expected), "{bad}: {text}");
        assert!(
            text.contains("--channel-spec") || text.contains("channels"),
            "{text}"
        );
        assert!(!text.contains("hidden"), "{text}");
    }
    let text = refused(&[
        "--group",
        "232.1.1.255:1",
        "--channel-spec",
        "net,feed=http://h/",
    ]);
    assert!(text.contains("group=LIST"), "{text}");
    let many: Vec<String> = (0..64).map(|n| format!("c{n},feed=http://h/")).collect();
    let text = refused(&["--channel-spec", &many.join(" ")]);
    assert!(text.contains("65 channels"), "{text}");
}

#[test]
fn retention_and_rate_are_as_configured() {
    let config = with_feed(&[
        "--retention",
        "5000",
        "--unicast-rate",
        "1G",
        "--no-replicate",
        "--qlog",
        "q",
    ])
    .unwrap();
    assert_eq!(
        (config.keep.count, config.flows.unicast_rate_bps),
        (Some(5000), 1_000_000_000)
    );
    assert_eq!(
        (config.flows.replicate, config.qlog),
        (false, Some("q".into()))
    );
    let config = with_feed(&["--retention", "10"]).unwrap();
    assert!(config.warnings.iter().any(|w| w.contains("--retention 10")));
    refused(&["--retention=-1"]);
    let config = with_feed(&["--retention-age", "30d"]).unwrap();
    let month = Some(Duration::from_secs(30 * 86_400));
    assert_eq!((config.keep.age, config.keep.count), (month, None));
    for bad in ["30", "1s", "4000d", "d", ""] {
        refused(&["--retention-age", bad]);
    }
    let of = |text| values::keep(text).unwrap();
    assert_eq!(of("default"), Keep::default());
    assert_eq!(of("all").count, Some(Keep::ALL));
    assert_eq!(of("7").count, Some(7));
    assert_eq!(
        of("7, 30d"),
        Keep {
            count: Some(7),
            age: month
        }
    );
    for bad in ["", "0", "7,8", "30d,8w", "7,", "some"] {
        values::keep(bad).expect_err(bad);
    }
    refused(&["--unicast-rate", "0"]);
}

#[test]
fn public_addresses_are_names_or_addresses() {
    let given = |text: &str| with_feed(&["--public-address", text]).unwrap();
    for (text, link, host) in [
        ("lore.kernel.org", "lore.kernel.org:4433", "lore.kernel.org"),
        (
            "lore.kernel.org:99",
            "lore.kernel.org:99",
            "lore.kernel.org",
        ),
        ("8.8.4.4", "8.8.4.4:4433", "8.8.4.4"),
        ("2001:4860::8", "[2001:4860::8]:4433", "2001:4860::8"),
        ("[2001:4860::8]", "[2001:4860::8]:4433", "2001:4860::8"),
        ("[2001:4860::8]:99", "[2001:4860::8]:99", "2001:4860::8"),
    ] {
        let config = given(text);
        let address = config.public_address.unwrap();
        assert_eq!(address.with_port(4433), link, "{text}");
        assert_eq!(address.host_name(), host, "{text}");
        assert_eq!(config.warnings, Vec::<String>::new(), "{text}");
    }
    for local in [
        "127.0.0.1",
        "localhost:4433",
        "10.0.0.1",
        "192.168.1.2:99",
        "[::1]",
    ] {
        assert_eq!(given(local).warnings.len(), 1, "{local}");
    }
    for bad in [
        "",
        "a b",
        "host:port",
        "host:0",
        "host:99999",
        "https://example.org",
    ] {
        refused(&["--public-address", bad]);
    }
}

#[test]
fn channels_are_usable_as_file_names() {
    assert_eq!(
        with_feed(&["--channel", "lkml_2.all-x"]).unwrap().channels[0].name,
        "lkml_2.all-x"
    );
    for bad in ["", "../x", "a/b", ".hidden", "a b", "ä", &"x".repeat(101)] {
        refused(&["--channel", bad]);
    }
}

#[test]
fn falling_back_takes_longer_than_acknowledging() {
    let text = refused(&["--ack-delay-ms", "100", "--fall-back-ms", "100"]);
    assert!(text.contains("--ack-delay-ms"), "{text}");
    refused(&["--ack-delay-ms", "0"]);
    refused(&["--heartbeat-ms", "1"]);
}

#[test]
fn log_levels_are_directives() {
    assert!(with_feed(&["--log-level", "info,feed=debug"]).is_ok());
    let text = refused(&["--log-level", "feed=loudly"]);
    assert!(text.contains("--log-level"), "{text}");
}

#[test]
fn the_help_has_examples() {
    let help = command().render_long_help().to_string();
    assert!(help.contains("Examples:"), "{help}");
    assert!(help.contains("FLEXFEED_FEED"), "{help}");
}

#[test]
fn database_urls_are_checked_and_come_under_either_name() {
    let config = with_feed(&["--database-url", "sqlite:///var/lib/f.db"]).unwrap();
    assert!(config.database_url.is_some());
    for bad in [
        "mysql://u:hidden@h/d",
        "f.db",
        "sqlite://",
        "sqlite://:memory:",
    ] {
        let text = refused(&["--database-url", bad]);
        assert!(text.contains("--database-url"), "{text}");
        assert!(!text.contains("hidden"), "{text}");
    }
    let url = |variables: &[(&str, &str)]| read(&[], variables).unwrap().database_url;
    let (ours, theirs) = ("sqlite://ours.db", "sqlite://theirs.db");
    assert_eq!(url(&[("DATABASE_URL", theirs)]).as_deref(), Some(theirs));
    let both = [("DATABASE_URL", theirs), ("FLEXFEED_DATABASE_URL", ours)];
    assert_eq!(url(&both).as_deref(), Some(ours));
    let text = read(&[], &[("DATABASE_URL", "nonsense")]).unwrap_err();
    assert!(text.starts_with("DATABASE_URL: "), "{text}");
}

#[test]
fn secrets_come_from_files_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, "https://u:hidden@example.org/f\n").unwrap();
    let path = path.to_str().unwrap();
    let config = read(&[], &[("FLEXFEED_FEED_FILE", path)]).unwrap();
    assert!(
        config.channels[0].feeds[0]
            .address
            .secret
            .contains("hidden")
    );
    let both = [("FLEXFEED_FEED_FILE", path), ("FLEXFEED_FEED", FEED)];
    let text = read(&[], &both).unwrap_err();
    assert!(
        text.contains("FLEXFEED_FEED_FILE") && !text.contains("hidden"),
        "{text}"
    );
    let text = read(&[], &[("DATABASE_URL_FILE", path)]).unwrap_err();
    assert!(text.starts_with("DATABASE_URL_FILE: "), "{text}");
    assert!(!text.contains("hidden"), "{text}");
    let missing = folder.path().join("missing");
    let text = read(&[], &[("FLEXFEED_FEED_FILE", missing.to_str().unwrap())]).unwrap_err();
    assert!(
        text.contains("missing") && text.contains("FLEXFEED_FEED_FILE"),
        "{text}"
    );
    // What is no secret has no such variable.
    let config = read(&[], &[("FLEXFEED_RATE_FILE", path)]).unwrap();
    assert!(
        config
            .warnings
            .iter()
            .any(|w| w.contains("FLEXFEED_RATE_FILE"))
    );
}

#[test]
fn variables_that_are_no_settings_are_found() {
    let names = [
        "PATH",
        "FLEXFEED_RATE",
        "FLEXFEED_CONFIG",
        #[cfg(feature = "fault-injection")]
        ::service::faults::VARIABLE,
        "FLEXFEED_RATES",
        "FLEXFEED_",
        "FLEXFEED_A\nB",
        "XFLEXFEED_A",
        // Of another program, and of Kubernetes.
        "FLEXFEED_RELAY_UDP_PORTS",
        "FLEXFEED_SOURCE_SERVICE_HOST",
    ];
    let mut variables: Vec<_> = names.iter().map(|name| (*name, "")).collect();
    variables.push(("FLEXFEED_SOURCE_PORT", "udp://10.0.0.1:4433"));
    let unknown = TABLE.warnings(&Environment::with(variables));
    assert_eq!(unknown.len(), 3, "{unknown:?}");
    assert!(
        unknown[0].contains("FLEXFEED_ is no setting"),
        "{unknown:?}"
    );
    assert!(unknown[1].contains("FLEXFEED_A B is no"), "{unknown:?}");
    assert!(
        unknown[2].contains("FLEXFEED_RATES (is FLEXFEED_RATE meant?)"),
        "{unknown:?}"
    );
}
