#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;

const PIN: &str = "sha256:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
const OTHER: &str = "sha256:IAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
const SECRET: &str = "s3cret-Token_.~";

fn parse(text: &str) -> Result<Link, LinkError> {
    Link::parse(text).map(|(link, _)| link)
}

fn problem(text: &str) -> Problem {
    parse(text).unwrap_err().0
}

#[test]
fn a_whole_link() {
    let text = format!("flexfeed://{SECRET}@feeds.example.org:5000?pin={PIN}&ch=lore");
    let link = parse(&text).unwrap();
    assert_eq!(link.token.as_bytes(), SECRET.as_bytes());
    assert_eq!(link.server(), "feeds.example.org:5000");
    assert_eq!(link.pins, [Pin(std::array::from_fn(|i| i as u8))]);
    assert_eq!(link.channels, ["lore"]);
    assert_eq!(link.to_secret_text(), text);
}

#[test]
fn a_link_without_token_or_pin() {
    let text = "flexfeed://feeds.example.org:4433?ch=lore";
    let link = parse(text).unwrap();
    assert!(link.token.as_bytes().is_empty() && link.pins.is_empty());
    assert_eq!(link.to_secret_text(), text);
    let text = format!("flexfeed://h:4433?pin={PIN}&ch=lore");
    assert_eq!(parse(&text).unwrap().to_secret_text(), text);
}

#[test]
fn signing_keys_are_pinned() {
    let keys: Vec<VerifyingKey> = (0..5).map(|i| VerifyingKey([i; 32])).collect();
    let link = |keys: &[VerifyingKey]| {
        let keys = keys.iter().map(|key| format!("key={key}&"));
        format!(
            "flexfeed://t@h:4433?pin={PIN}&{}ch=lore",
            keys.collect::<String>()
        )
    };
    assert!(parse(&link(&[])).unwrap().keys.is_empty());
    let text = link(&keys[..4]);
    let parsed = parse(&text).unwrap();
    assert_eq!(parsed.keys, keys[..4]);
    assert_eq!(parsed.to_secret_text(), text);
    let twice = [keys[1], keys[1]];
    assert_eq!(parse(&link(&twice)).unwrap().keys, twice[..1]);
    assert_eq!(problem(&link(&keys)), Problem::Keys);
    let wrong = format!("flexfeed://t@h:4433?key={PIN}&ch=lore");
    let error = parse(&wrong).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("key={PIN}: not ed25519:")),
        "{error}"
    );
}

#[test]
fn the_port_has_a_default_and_ipv6_has_brackets() {
    let link = parse(&format!("flexfeed://t@127.0.0.1?pin={PIN}&ch=lore")).unwrap();
    assert_eq!(link.server(), "127.0.0.1:4433");
    let text = format!("flexfeed://t@[2001:db8::1]:4444?pin={PIN}&ch=lore");
    let link = parse(&text).unwrap();
    assert_eq!((link.host.as_str(), link.port), ("2001:db8::1", 4444));
    assert_eq!(link.server(), "[2001:db8::1]:4444");
    assert_eq!(link.to_secret_text(), text);
    assert_eq!(
        problem(&format!("flexfeed://t@2001:db8::1?pin={PIN}&ch=lore")),
        Problem::Port
    );
}

#[test]
fn two_pins_several_channels_and_white_space_around() {
    let text = format!(
        "\n  flexfeed://t@h/?ch=lore&pin={PIN}&ch=net.dev-2&pin={OTHER}&ch=lore&pin={PIN} \n"
    );
    let link = parse(&text).unwrap();
    assert_eq!(link.pins.len(), 2);
    assert_eq!(link.channels, ["lore", "net.dev-2"]);
    assert_eq!(
        problem(&format!(
            "flexfeed://t@h?ch=lore&pin={PIN}&pin={OTHER}&pin={}",
            PIN.replace("AAEC", "AAED")
        )),
        Problem::Pins
    );
}

#[test]
fn unknown_parameters_are_named_and_ignored() {
    let text = format!("flexfeed://t@h?pin={PIN}&relay=x&ch=lore&ca=1");
    let (link, unknown) = Link::parse(&text).unwrap();
    assert_eq!(unknown, ["relay", "ca"]);
    assert_eq!(link.channels, ["lore"]);
}

#[test]
fn each_wrong_part_is_named() {
    let ok = format!("pin={PIN}&ch=lore");
    let cases = [
        ("".to_owned(), Problem::Empty),
        (format!("https://t@h?{ok}"), Problem::Scheme),
        ("status".to_owned(), Problem::Command("status")),
        (format!("flexfeed://@h:4433?{ok}"), Problem::NoToken),
        (format!("flexfeed://t:u@h:4433?{ok}"), Problem::Password),
        (format!("flexfeed://t%00@h:4433?{ok}"), Problem::Token),
        (format!("flexfeed://t@:4433?{ok}"), Problem::Host),
        (format!("flexfeed://t@?{ok}"), Problem::Host),
        (format!("flexfeed://t@h%2fx:4433?{ok}"), Problem::Host),
        (format!("flexfeed://t@[::g]:4433?{ok}"), Problem::Host),
        (format!("flexfeed://t@h:0?{ok}"), Problem::Port),
        (format!("flexfeed://t@h:70000?{ok}"), Problem::Port),
        (
            format!("flexfeed://t@h:4433/x?{ok}"),
            Problem::Extra("path"),
        ),
        (
            format!("flexfeed://t@h:4433?{ok}#x"),
            Problem::Extra("fragment (#…)"),
        ),
        (format!("flexfeed://t@h?pin={PIN}"), Problem::NoChannel),
        (
            "flexfeed://t@h?pin=sha256:AAAA&ch=lore".to_owned(),
            Problem::Pin("sha256:AAAA".to_owned()),
        ),
        (
            format!("flexfeed://t@h?pin={}&ch=lore", &PIN[7..]),
            Problem::Pin(PIN[7..].to_owned()),
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problem(&text), expected, "{text}");
    }
    for name in ["", "..", ".x", "a/b", "ä", &"x".repeat(129)] {
        let text = format!("flexfeed://t@h?pin={PIN}&ch={name}");
        assert_eq!(problem(&text), Problem::Channel(name.to_owned()));
    }
    // Its files would be the receiver's own.
    let text = format!("flexfeed://t@h?pin={PIN}&ch=lore&ch=status");
    assert_eq!(problem(&text), Problem::Reserved);
    let text = parse(&text).unwrap_err().to_string();
    assert!(text.contains("status.json"), "{text}");
    let text = format!("flexfeed://t@h?pin={PIN}&ch=status.2&ch=Status");
    assert!(parse(&text).is_ok());
    let many: String = (0..65).map(|n| format!("&ch=c{n}")).collect();
    let text = format!("flexfeed://t@h?pin={PIN}{many}");
    assert_eq!(problem(&text), Problem::Channels);
    assert_eq!(problem(&"x".repeat(5000)), Problem::TooLong);
}

#[test]
fn errors_show_the_form_of_a_link() {
    let error = parse("flexfeed://t@h?pin=x&ch=lore")
        .unwrap_err()
        .to_string();
    assert!(error.contains("pin=x"), "{error}");
    assert!(error.contains(FORM), "{error}");
}

#[test]
fn the_token_is_never_shown() {
    let rest = [
        format!("@h:x?pin={PIN}&ch=lore"),
        format!("@h?pin={PIN}"),
        "@h?pin=sha256:AA&ch=lore".to_owned(),
        format!("%20@h?pin={PIN}&ch=lore"),
        format!(":x@h?pin={PIN}&ch=lore"),
        format!("@h/?pin={PIN}&ch=x/y"),
    ];
    for rest in rest {
        let error = parse(&format!("flexfeed://{SECRET}{rest}")).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(SECRET), "{rest}");
    }
    for text in ["", "flexfeed:", "x://"] {
        let error = parse(&format!("{text}{SECRET}@h")).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(SECRET));
    }
    let link = parse(&format!("flexfeed://{SECRET}@h?pin={PIN}&ch=lore")).unwrap();
    assert!(!format!("{link:?}").contains(SECRET));
    assert!(!format!("{:?}", link.token).contains(SECRET));
}

#[test]
fn quoted_links_lose_their_token() {
    let text = format!("bad 'FlexFeed://{SECRET}@h?x' and flexfeed://{SECRET} and flexfeed://a@b");
    assert_eq!(
        redact(&text),
        "bad 'FlexFeed://…@h?x' and flexfeed://… and flexfeed://…@b"
    );
    assert_eq!(redact("nothing"), "nothing");
}
