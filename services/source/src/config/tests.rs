#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;

const FEED: &str = "https://example.org/feed.atom";

/// The result of a command line; the environment of the tests' process has no FLEXFEED_ variables.
fn config(arguments: &[&str]) -> Result<Config, clap::Error> {
    let all = ["flexfeed-source"].iter().chain(arguments);
    Arguments::try_parse_from(all)?.check()
}

fn with_feed(arguments: &[&str]) -> Result<Config, clap::Error> {
    config(&[&["--feed", FEED], arguments].concat())
}

fn refused(arguments: &[&str]) -> String {
    let error = with_feed(arguments).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{arguments:?}");
    error.to_string()
}

#[test]
fn the_definition_is_consistent_and_every_flag_has_its_variable() {
    Arguments::command().debug_assert();
    for argument in Arguments::command().get_arguments() {
        let Some(long) = argument.get_long() else {
            continue;
        };
        let expected = format!("FLEXFEED_{}", long.to_uppercase().replace('-', "_"));
        let variable = argument.get_env().map(|v| v.to_string_lossy().into_owned());
        assert_eq!(variable, Some(expected), "--{long}");
    }
}

#[test]
fn defaults() {
    let config = with_feed(&[]).unwrap();
    assert_eq!(config.feed.shown, FEED);
    assert_eq!(config.data, PathBuf::from("./flexfeed-source"));
    assert_eq!(config.listen, "0.0.0.0:4433".parse().unwrap());
    assert_eq!(config.http, "127.0.0.1:8090".parse().unwrap());
    assert_eq!(config.channel, "lore");
    assert_eq!(config.poll_interval, Duration::from_secs(20));
    assert_eq!(config.rate_bps, 10_000_000);
    assert_eq!(config.ack_delay, Duration::from_millis(25));
    assert_eq!(config.fall_back, Duration::from_millis(150));
    assert_eq!(config.heartbeat, Duration::from_secs(1));
    assert_eq!(config.log_format, LogFormat::Text);
    let flow = config.flow.unwrap();
    assert_eq!(flow.group, "232.70.70.1:4434".parse().unwrap());
    assert_eq!((flow.source, flow.asm), (None, false));
    assert_eq!(config.public_address, None);
    assert!(config.warnings[0].contains("--public-address"));
    // The word is allowed and changes nothing.
    assert_eq!(with_feed(&["run"]).unwrap().channel, "lore");
    assert!(with_feed(&["walk"]).is_err());
}

#[test]
fn a_missing_feed_is_asked_for() {
    for arguments in [&[][..], &["--feed", ""]] {
        let error = config(arguments).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(
            text.contains("--feed") && text.contains("FLEXFEED_FEED"),
            "{text}"
        );
        assert!(text.contains("https://"), "an example: {text}");
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
        assert_eq!(error.exit_code(), 2, "{bad}");
        assert!(!error.to_string().contains("hidden"), "{error}");
    }
    let config = config(&["--feed", "https://user:hidden@example.org/f#x"]).unwrap();
    assert_eq!(config.feed.shown, "https://example.org/f");
    assert!(config.feed.secret.contains("hidden"));
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
            with_feed(&["--rate", text]).unwrap().rate_bps,
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
        assert_eq!(config.poll_interval.as_millis(), ms, "{text}");
    }
    for bad in ["", "fast", "10X", "-1M", "0", "1e3M", "NaN", "1000G"] {
        refused(&["--rate", bad]);
    }
    for bad in ["", "0", "soon", "-1", "inf", "25h", "1d", "1.2.3"] {
        refused(&["--poll-interval", bad]);
    }
}

#[test]
fn groups_are_ipv4_multicast() {
    assert!(with_feed(&["--group", ""]).unwrap().flow.is_none());
    for bad in [
        "10.0.0.1:4434",
        "232.1.1.1",
        "ff3e::1:4434",
        "[ff3e::1]:4434",
        "232.1.1.1:0",
        "224.0.0.5:1",
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
    let warning = about_group(&["--group", "239.1.1.1:9"]).unwrap();
    assert!(warning.contains("232.0.0.0/8"), "{warning}");
    let warning = about_group(&["--group", "232.1.1.1:9", "--asm"]).unwrap();
    assert!(warning.contains("--asm"), "{warning}");
    for bad in ["eth0", "0.0.0.0", "232.1.1.1"] {
        refused(&["--flow-source", bad]);
    }
    let flow = with_feed(&["--flow-source", "10.1.2.3"])
        .unwrap()
        .flow
        .unwrap();
    assert_eq!(flow.source, Some(Ipv4Addr::new(10, 1, 2, 3)));
}

#[test]
fn public_addresses_are_names_or_addresses() {
    let given = |text: &str| with_feed(&["--public-address", text]).unwrap();
    for (text, link, host) in [
        (
            "feeds.example.org",
            "feeds.example.org:4433",
            "feeds.example.org",
        ),
        (
            "feeds.example.org:99",
            "feeds.example.org:99",
            "feeds.example.org",
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
        with_feed(&["--channel", "lkml_2.all-x"]).unwrap().channel,
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
fn the_help_shows_how() {
    let help = Arguments::command().render_long_help().to_string();
    assert!(help.contains("Examples:"), "{help}");
    assert!(help.contains("FLEXFEED_FEED"), "{help}");
}

#[test]
fn database_urls_are_checked() {
    let config = with_feed(&["--database-url", "sqlite:///var/lib/f.db"]).unwrap();
    assert!(config.database_url.is_some());
    for bad in ["postgres://h/d", "f.db", "sqlite://", "sqlite://:memory:"] {
        let text = refused(&["--database-url", bad]);
        assert!(text.contains("--database-url sqlite://PATH"), "{text}");
    }
}

#[test]
fn variables_that_are_no_settings_are_found() {
    let names = [
        "PATH",
        "FLEXFEED_RATE",
        "FLEXFEED_SABOTAGE",
        "FLEXFEED_RATES",
        "FLEXFEED_",
        "FLEXFEED_A\nB",
        "XFLEXFEED_A",
    ];
    let unknown = unknown_variables(names.iter().map(|name| (*name).to_owned()));
    assert_eq!(unknown, ["FLEXFEED_", "FLEXFEED_A\\nB", "FLEXFEED_RATES"]);
}
