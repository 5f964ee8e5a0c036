//! Feeds that lead where an operator's browser has no business: into this machine and its network.
//! In namespaces, where a network of our own stands for the public one: `9.9.9.9` is a host of it,
//! `9.9.9.1` this machine's own address there.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kit::dns::{A, Answer, LOCAL_RESOLVER, NameServer, Question};
use kit::network::{Network, sh};
use kit::wait;
use serde_json::json;

use crate::console::Browser;
use crate::running::{Running, program};

/// Set in the process that serves as the public host.
const IS_HOST: &str = "SSRF_TEST_IS_HOST";

/// The public host's HTTP server, and forbidden ones: on the same port, so that only the address
/// differs.
const PUBLIC: &str = "9.9.9.9:8080";
const TRAP: &str = "[::]:8080";

const FEED: &str = "<feed xmlns=\"http://www.w3.org/2005/Atom\"><title>A feed</title>\
                    <entry><id>1</id><title>one</title></entry></feed>";

/// Answers requests: `/to/ADDRESS` redirects there, all else is a feed. Each ends its connection,
/// so that the next request looks the name up again.
fn serve(listener: &TcpListener, asked: &AtomicUsize) {
    for stream in listener.incoming() {
        asked.fetch_add(1, Ordering::SeqCst);
        answer(stream.unwrap());
    }
}

fn answer(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(first)) = lines.next() else {
        return;
    };
    while lines
        .next()
        .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
    {}
    let path = first.split(' ').nth(1).unwrap_or_default();
    // The client may be gone.
    let _ = match path.strip_prefix("/to/") {
        Some(to) => write!(
            stream,
            "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ),
        None => write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{FEED}",
            FEED.len()
        ),
    };
}

/// Answers questions for addresses: `public.…` is the public host, `inward.…` this machine, and
/// `rebind….` the public host when it is asked for the first time, and this machine from then on.
fn resolver() -> impl FnMut(&Question) -> Answer {
    let mut times: HashMap<String, usize> = HashMap::new();
    move |question| {
        let label = question.name.split('.').next().unwrap_or_default();
        let is_for_v4 = question.kind == A;
        let mut inward = label.starts_with("inward");
        if is_for_v4 && label.starts_with("rebind") {
            let asked = times.entry(label.to_owned()).or_default();
            inward = *asked > 0;
            *asked += 1;
        }
        let address = if inward { [127, 0, 0, 1] } else { [9, 9, 9, 9] };
        // Not to be remembered.
        Answer::Records {
            ttl: 0,
            data: is_for_v4.then(|| address.to_vec()).into_iter().collect(),
        }
    }
}

/// The public network and its host: they end with the test, whatever happens.
struct Beyond {
    _host: Host,
    _network: Network,
}

/// The process that serves as the public host.
struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Beyond {
    fn begin() -> Self {
        let network = Network::begin();
        sh("ip address add 9.9.9.1/24 dev here; ip link set here up");
        network.sh("ip address add 9.9.9.9/24 dev there; ip link set there up");
        let exe = std::env::current_exe().unwrap();
        let host = network
            .command(exe.to_str().unwrap())
            .args(["--exact", "ssrf::the_public_host", "--nocapture"])
            .env(IS_HOST, "1")
            .stdout(Stdio::null())
            .spawn();
        let mut host = Host(host.unwrap());
        wait::until("the public host", || {
            let ended = host.0.try_wait().unwrap();
            assert!(ended.is_none(), "the public host: {ended:?}");
            TcpStream::connect(PUBLIC).is_ok()
        });
        Beyond {
            _host: host,
            _network: network,
        }
    }
}

/// Not a test by itself: the other one starts it in the other network.
#[test]
fn the_public_host() {
    if std::env::var_os(IS_HOST).is_some() {
        let listener = TcpListener::bind(PUBLIC).unwrap();
        serve(&listener, &AtomicUsize::new(0));
    }
}

/// A source with a console, and a channel without feeds.
fn start(data: &Path, more: &[&str]) -> Running {
    let mut command = program();
    command
        .args(["--channel", "lore", "--group", "", "--console=127.0.0.1:0"])
        .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"])
        .args(["--poll-interval", "100ms"])
        .args(more)
        .arg("--data")
        .arg(data);
    Running::start(command)
}

#[test]
fn no_feed_leads_inside() {
    if !kit::in_namespace!(LOCAL_RESOLVER) {
        return;
    }
    let _names = NameServer::answering("127.0.0.1:53", resolver());
    // All addresses of this machine, of both families.
    let trap = TcpListener::bind(TRAP).unwrap();
    let caught = Arc::new(AtomicUsize::new(0));
    let catching = Arc::clone(&caught);
    thread::spawn(move || serve(&trap, &catching));
    let _beyond = Beyond::begin();

    let folder = tempfile::tempdir().unwrap();
    let mut running = start(folder.path(), &[]);
    let (browser, _) = Browser::set_up(&mut running);
    let test = |url: &str| browser.ask("POST", "/api/v1/feeds/test", Some(json!({"url": url})));
    let good = test("http://public.test:8080/feed");
    assert_eq!(
        (good.code, &good.json()["state"]),
        (200, &json!("ok")),
        "{}",
        good.body
    );

    let redirected = [
        "http://127.0.0.1:8080/",
        "http://0177.0.0.1:8080/",
        "http://0x7f000001:8080/",
        "http://2130706433:8080/",
        "http://0.0.0.0:8080/",
        "http://[::1]:8080/",
        "http://[::ffff:127.0.0.1]:8080/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]:8080/",
        "http://localhost:8080/",
        "http://inward.test:8080/",
        // Its own address, however public it looks.
        "http://9.9.9.1:8080/",
        // Once more around does not help.
        "http://9.9.9.9:8080/to/http://127.0.0.1:8080/",
    ];
    let redirected = redirected.map(|to| format!("http://{PUBLIC}/to/{to}"));
    let direct = [
        "http://inward.test:8080/feed".to_owned(),
        "http://9.9.9.1:8080/feed".to_owned(),
        // The first look at the name leads to the public host, which leads to the name again.
        "http://rebind1.test:8080/to/http://rebind1.test:8080/feed".to_owned(),
    ];
    for url in redirected.iter().chain(&direct) {
        let refused = test(url);
        assert_eq!(refused.code, 422, "{url}: {}", refused.body);
        assert!(
            refused.headers.contains("application/problem+json"),
            "{}",
            refused.headers
        );
        let problem = refused.json();
        assert_eq!(
            problem["type"], "urn:flexfeed:problem:private-address",
            "{url}"
        );
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("private network"), "{url}: {detail}");
    }

    // Added: refused at once if the address says it or the name says it now, else by the source
    // when it asks.
    let add = |url: &str| {
        let feed = json!({"channel": "lore", "url": url});
        browser.ask("POST", "/api/v1/feeds", Some(feed))
    };
    for url in [
        "http://0x7f.1:8080/f",
        "http://localhost:8080/f",
        "http://9.9.9.1:8080/f",
        "http://inward.test:8080/f",
    ] {
        let refused = add(url);
        assert_eq!(refused.code, 422, "{url}: {}", refused.body);
    }
    let later = [
        "http://rebind2.test:8080/to/http://rebind2.test:8080/feed",
        "http://9.9.9.9:8080/to/http://inward.test:8080/f",
        "http://9.9.9.9:8080/to/http://[::1]:8080/f",
    ];
    for url in later {
        let added = add(url);
        assert_eq!(added.code, 201, "{url}: {}", added.body);
    }
    running.until("the source has looked at all of them", |_| {
        let feeds = browser.get("/api/v1/feeds");
        let feeds = feeds["items"].as_array().unwrap();
        let refused = feeds.iter().filter(|feed| {
            let detail = feed["detail"].as_str().unwrap();
            feed["state"] == "error" && detail.contains("is not a public address")
        });
        refused.count() == later.len()
    });
    assert_eq!(caught.load(Ordering::SeqCst), 0, "something was fetched");
    let (_, log, _) = running.terminate();
    assert!(!log.contains("panicked"), "{log}");

    // The trap works, where it is allowed.
    let open = tempfile::tempdir().unwrap();
    let mut running = start(open.path(), &["--allow-private-feed"]);
    let (browser, _) = Browser::set_up(&mut running);
    let url = json!({"url": "http://9.9.9.9:8080/to/http://inward.test:8080/f"});
    let allowed = browser.ask("POST", "/api/v1/feeds/test", Some(url));
    assert_eq!(allowed.json()["state"], "ok", "{}", allowed.body);
    assert_eq!(caught.load(Ordering::SeqCst), 1);
}
