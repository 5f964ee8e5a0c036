#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;

use super::enrolment::{SaveOutcome, Token, save, token_hash};
use super::identity::Identity;
use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Returns a data folder inside of a temporary one.
fn folder() -> (tempfile::TempDir, DataFolder) {
    let outer = tempfile::tempdir().unwrap();
    let folder = DataFolder::open(&outer.path().join("a/b")).unwrap();
    (outer, folder)
}

fn failure(folder: &DataFolder) -> String {
    let error = Identity::load_or_make(folder, "feeds.example.org", None).unwrap_err();
    format!("{error:#}")
}

#[test]
fn a_new_folder_is_for_the_owner_only() {
    let (_outer, folder) = folder();
    assert_eq!(mode(&folder.path), 0o700);
    assert_eq!(mode(&folder.file("lock")), 0o600);
}

#[test]
fn a_folder_is_for_one_process_at_a_time() {
    let (_outer, folder) = folder();
    let path = folder.path.clone();
    let error = DataFolder::open(&path).unwrap_err().to_string();
    let pid = std::process::id().to_string();
    assert!(error.contains(&pid), "the process is named: {error}");
    assert!(error.contains("--data"), "{error}");
    drop(folder);
    // Content left in the lock by an ended process is ignored.
    fs::write(path.join("lock"), "99999999999999999999 and more").unwrap();
    let again = DataFolder::open(&path).unwrap();
    assert_eq!(
        fs::read_to_string(again.file("lock")).unwrap(),
        format!("{pid}\n")
    );
}

#[test]
fn an_unusable_folder_is_named() {
    let outer = tempfile::tempdir().unwrap();
    let file = outer.path().join("file");
    fs::write(&file, "").unwrap();
    let error = format!("{:#}", DataFolder::open(&file).unwrap_err());
    assert!(
        error.contains("file") && error.contains("--data"),
        "{error}"
    );
}

/// As in the receiver: `ownership` provides the words, for each owner.
#[test]
fn an_unwritable_file_is_reported_with_owner_and_remedy() {
    let outer = tempfile::tempdir().unwrap();
    let own = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let text_of = |error: anyhow::Error| {
        let text = format!("{error:#}");
        let runs = format!("runs as uid {}, gid {}", own.0, own.1);
        assert!(text.contains(&runs), "{text}");
        let chown = format!("chown -R {}:{} ", own.0, own.1);
        assert!(text.contains(&chown), "{text}");
        text
    };
    // Even root cannot make a folder in a file, write into a folder's place, or open one to write.
    let file = outer.path().join("file");
    fs::write(&file, "").unwrap();
    let text = text_of(DataFolder::open(&file.join("data")).unwrap_err());
    assert!(
        text.contains(&format!("{} belongs to", file.display())),
        "{text}"
    );
    let folder = outer.path().join("data");
    fs::create_dir_all(folder.join("lock")).unwrap();
    let text = text_of(DataFolder::open(&folder).unwrap_err());
    assert!(
        text.contains("cannot open") && text.contains("data/lock"),
        "{text}"
    );
    fs::remove_dir(folder.join("lock")).unwrap();
    let folder = DataFolder::open(&folder).unwrap();
    fs::create_dir(folder.file("taken")).unwrap();
    let text = text_of(folder.write("taken", b"x", PRIVATE).unwrap_err());
    assert!(text.contains("cannot write"), "{text}");
}

#[test]
fn the_second_start_reuses_the_files_of_the_first() {
    let (_outer, folder) = folder();
    let first = Identity::load_or_make(&folder, "feeds.example.org", None).unwrap();
    for (name, expected) in [
        ("cert.pem", 0o644),
        ("key.pem", 0o600),
        ("reset.key", 0o600),
    ] {
        assert_eq!(mode(&folder.file(name)), expected, "{name}");
    }
    let names = ["cert.pem", "key.pem", "reset.key"];
    let files = || names.map(|f| fs::read(folder.file(f)).unwrap());
    let before = files();
    // Another public address does not change the certificate: published pins stay valid.
    let second = Identity::load_or_make(&folder, "other.example.org", None).unwrap();
    assert_eq!(files(), before);
    assert_eq!(second.pin, first.pin);
    assert_eq!(second.reset_key, first.reset_key);
    assert_eq!(second.reset_key.as_slice(), before[2]);
}

#[test]
fn the_certificate_is_for_its_names_and_the_pin_is_of_its_key() {
    let (_outer, folder) = folder();
    let identity = Identity::load_or_make(&folder, "feeds.example.org", None).unwrap();
    let pem = fs::read(&identity.files.cert).unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let cert = pem.parse_x509().unwrap();
    let names = cert.subject_alternative_name().unwrap().unwrap();
    let names: Vec<String> = names
        .value
        .general_names
        .iter()
        .map(ToString::to_string)
        .collect();
    for expected in ["feeds.example.org", "localhost", "7f:00:00:01"] {
        assert!(
            names.iter().any(|name| name.contains(expected)),
            "{expected} in {names:?}"
        );
    }
    assert!(cert.validity().is_valid());
    // The pin from the other side: the public key of the private one.
    let key = rcgen::KeyPair::from_pem(&fs::read_to_string(&identity.files.key).unwrap()).unwrap();
    assert_eq!(key.algorithm(), &rcgen::PKCS_ECDSA_P256_SHA256);
    use rcgen::PublicKeyData;
    let spki = key.subject_public_key_info();
    let expected = ring::digest::digest(&ring::digest::SHA256, &spki);
    assert_eq!(identity.pin.as_slice(), expected.as_ref());
}

#[test]
fn the_pin_is_the_one_that_other_programs_compute() {
    // openssl x509 -in cert.pem -pubkey -noout | openssl pkey -pubin -outform der | sha256sum
    let (_outer, folder) = folder();
    let cert = include_bytes!("../../tests/known/cert.pem");
    fs::write(folder.file("cert.pem"), cert).unwrap();
    // A key in a form that only the TLS library reads, which is not asked here.
    let key = "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n";
    fs::write(folder.file("key.pem"), key).unwrap();
    let identity = Identity::load_or_make(&folder, "x", None).unwrap();
    let pin = data_encoding::HEXLOWER.encode(&identity.pin);
    assert_eq!(pin, include_str!("../../tests/known/pin.hex").trim());
}

#[test]
fn a_certificate_for_an_address_of_its_own_can_be_made() {
    for host in ["127.0.0.1", "localhost", "2001:db8::1"] {
        let (_outer, folder) = folder();
        Identity::load_or_make(&folder, host, None).unwrap();
    }
}

#[test]
fn an_interrupted_first_start_is_finished() {
    let (_outer, folder) = folder();
    let first = Identity::load_or_make(&folder, "feeds.example.org", None).unwrap();
    fs::remove_file(folder.file("cert.pem")).unwrap();
    // And one that was interrupted during the write.
    fs::write(folder.file(".cert.pem.new"), "half").unwrap();
    let second = Identity::load_or_make(&folder, "feeds.example.org", None).unwrap();
    assert_eq!(first.pin, second.pin, "the key is the same");
}

#[test]
fn damaged_files_are_named_with_a_remedy() {
    let (_outer, folder) = folder();
    Identity::load_or_make(&folder, "feeds.example.org", None).unwrap();
    let good = |name: &str| fs::read(folder.file(name)).unwrap();
    let (cert, key, reset) = (good("cert.pem"), good("key.pem"), good("reset.key"));
    let cut = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
    for (name, content, word) in [
        ("cert.pem", vec![], "empty"),
        ("cert.pem", b"hello".to_vec(), "BEGIN"),
        ("cert.pem", cut(&cert), "certificate"),
        ("cert.pem", key.clone(), "PRIVATE KEY"),
        ("cert.pem", vec![b'x'; 2 << 20], "longer"),
        ("key.pem", vec![], "empty"),
        ("key.pem", cut(&key), "private key"),
        ("key.pem", cert.clone(), "CERTIFICATE"),
        ("key.pem", other.into_bytes(), "not the key of"),
        ("reset.key", cut(&reset), "16 bytes"),
        ("reset.key", vec![], "0 bytes"),
    ] {
        fs::write(folder.file(name), &content).unwrap();
        let error = failure(&folder);
        let path = folder.file(name).display().to_string();
        assert!(error.contains(&path), "{path} in {error}");
        assert!(error.contains(word), "{word} in {error}");
        for (name, content) in [
            ("cert.pem", &cert),
            ("key.pem", &key),
            ("reset.key", &reset),
        ] {
            fs::write(folder.file(name), content).unwrap();
        }
    }
    fs::remove_file(folder.file("key.pem")).unwrap();
    let error = failure(&folder);
    assert!(error.contains("no key.pem"), "{error}");
    assert!(
        !folder.file("key.pem").exists(),
        "a key that is gone is not replaced"
    );
}

#[test]
fn the_link_has_all_that_a_receiver_needs_and_is_kept_private() {
    let (_outer, folder) = folder();
    assert!(Token::load(&folder).unwrap().is_none());
    let token = Token::make().unwrap();
    let link = token.link(
        "feeds.example.org:4433",
        &[[0xfb; 32]],
        None,
        &["lore", "net"],
    );
    let (secret, rest) = link
        .strip_prefix("flexfeed://")
        .unwrap()
        .split_once('@')
        .unwrap();
    assert_eq!(
        data_encoding::BASE64URL_NOPAD
            .decode(secret.as_bytes())
            .unwrap()
            .len(),
        32
    );
    let pin = data_encoding::BASE64URL_NOPAD.encode(&[0xfb; 32]);
    assert_eq!(
        rest,
        format!("feeds.example.org:4433?pin=sha256:{pin}&ch=lore&ch=net")
    );
    assert_eq!(token.hash(), token_hash(secret.as_bytes()));
    assert!(!format!("{token:?}").contains(secret));

    assert_eq!(save(&folder, &link).unwrap(), SaveOutcome::New);
    assert_eq!(mode(&folder.file("enrolment-link")), 0o600);
    assert_eq!(
        fs::read_to_string(folder.file("enrolment-link")).unwrap(),
        format!("{link}\n")
    );
    assert_eq!(save(&folder, &link).unwrap(), SaveOutcome::Same);
    let again = Token::load(&folder).unwrap().unwrap();
    assert_eq!(again.hash(), token.hash());
    // With other settings, the link differs and has the same token.
    let moved = again.link("[2001:db8::1]:99", &[[1; 32], [2; 32]], None, &["other"]);
    assert_eq!(save(&folder, &moved).unwrap(), SaveOutcome::Changed);
    assert_eq!(Token::load(&folder).unwrap().unwrap().hash(), token.hash());
    assert_ne!(Token::make().unwrap().hash(), token.hash());
}

#[test]
fn a_damaged_link_is_named() {
    let (_outer, folder) = folder();
    for bad in [
        "",
        "hello",
        "https://token@host/",
        "flexfeed://host:1?pin=x",
        "\u{0}",
    ] {
        fs::write(folder.file("enrolment-link"), bad).unwrap();
        let error = Token::load(&folder).unwrap_err().to_string();
        assert!(
            error.contains("enrolment-link") && error.contains("remove it"),
            "{error}"
        );
    }
    fs::write(folder.file("enrolment-link"), [0xff, 0xfe]).unwrap();
    assert!(Token::load(&folder).is_err());
}

#[test]
fn files_are_replaced_whole_and_with_their_mode() {
    let (_outer, folder) = folder();
    assert_eq!(folder.read("x").unwrap(), None);
    fs::write(folder.file(".x.new"), "left behind").unwrap();
    fs::set_permissions(folder.file(".x.new"), fs::Permissions::from_mode(0o666)).unwrap();
    folder.write("x", b"one", PRIVATE).unwrap();
    folder.write("x", b"two", PRIVATE).unwrap();
    assert_eq!(folder.read("x").unwrap().unwrap(), b"two");
    assert_eq!(mode(&folder.file("x")), 0o600);
    assert!(!folder.file(".x.new").exists());
}
