//! Servers that die, hang and refuse, and what becomes of the calls: they end soon, with an
//! error that says what it is, and work again by themselves; nothing is lost, nothing is double.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kit::postgres::{Options, PASSWORD, Postgres};
use store::{Store, StoreError, StoredUpdate};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::migrations::Raw;
use crate::site::{Site, URL, draft, drafts, encode, etag};

/// No call takes longer, whatever happens. Generous: the machine may be busy.
const BOUND: Duration = Duration::from_secs(20);

pub async fn start() -> Postgres {
    tokio::task::spawn_blocking(Postgres::start)
        .await
        .unwrap()
        .unwrap()
}

/// Appends entry after entry, each again until it is stored, as ingest does. Returns what the store
/// said it stored, how many calls failed, and how long the longest one took.
fn writer(
    store: Store,
    name: &'static str,
    done: watch::Receiver<bool>,
) -> tokio::task::JoinHandle<(usize, Vec<StoredUpdate>, usize, Duration)> {
    tokio::spawn(async move {
        let (mut entries, mut stored, mut failed, mut longest) = (0, Vec::new(), 0, Duration::ZERO);
        while !*done.borrow() {
            let drafts = [draft(&format!("{name}{entries}"), 1)];
            let validators = etag(&entries.to_string());
            loop {
                let started = Instant::now();
                let appended = store
                    .updates()
                    .append("lore", URL, None, &drafts, Some(&validators), &encode)
                    .await;
                longest = longest.max(started.elapsed());
                match appended {
                    Ok(updates) => {
                        stored.extend(updates);
                        break;
                    }
                    Err(error) => {
                        assert!(error.is_unavailable(), "{error:?}");
                        assert!(!error.to_string().contains(PASSWORD), "{error}");
                        failed += 1;
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
            entries += 1;
        }
        (entries, stored, failed, longest)
    })
}

/// Waits until the store answers again.
async fn recovered(store: &Store) {
    let started = Instant::now();
    while let Err(error) = store.check().await {
        assert!(error.is_unavailable(), "{error:?}");
        assert!(started.elapsed() < 3 * BOUND, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The channel's head. Where the machine stalls while others append, one may be asked to come
/// back.
async fn head(store: &Store) -> u64 {
    let started = Instant::now();
    loop {
        match store.channels().open("lore").await {
            Ok(channel) => return channel.head,
            Err(error) => {
                assert!(error.is_unavailable(), "{error:?}");
                assert!(started.elapsed() < BOUND, "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_and_restarted_under_load_loses_and_doubles_nothing() {
    let mut server = start().await;
    let store = store::open(&server.url()).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let (done, is_done) = watch::channel(false);
    let writers: Vec<_> = ["a", "b", "c", "d"]
        .into_iter()
        .map(|name| writer(store.clone(), name, is_done.clone()))
        .collect();
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let started = Instant::now();
        let before = loop {
            let head = head(&store).await;
            if head > 0 {
                break head;
            }
            assert!(started.elapsed() < BOUND, "nothing was stored");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let stop = if round % 2 == 0 {
            Postgres::kill
        } else {
            Postgres::stop
        };
        server = tokio::task::spawn_blocking(move || {
            stop(&mut server).unwrap();
            server
        })
        .await
        .unwrap();
        let started = Instant::now();
        let error = loop {
            // A process of a killed server may answer once more before it notices.
            match store.updates().read("lore", 1, 9, 999).await {
                Ok(_) => assert!(started.elapsed() < BOUND, "it was not noticed"),
                Err(error) => break error,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert!(error.is_unavailable(), "{error:?}");
        assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
        server = tokio::task::spawn_blocking(move || {
            server.restart().unwrap();
            server
        })
        .await
        .unwrap();
        recovered(&store).await;
        let after = head(&store).await;
        assert!(after >= before);
    }
    tokio::time::sleep(Duration::from_millis(400)).await;
    done.send_replace(true);
    let (mut entries, mut failures) = (0, 0);
    let mut answered = Vec::new();
    for writer in writers {
        let (count, stored, failed, longest) = writer.await.unwrap();
        entries += count;
        failures += failed;
        answered.extend(stored);
        assert!(longest < BOUND, "{longest:?}");
    }
    assert!(failures > 0, "the outages were not noticed");
    // Each entry is there once, under a number of its own, and the answers match what is there.
    let updates = store
        .updates()
        .read("lore", 1, 65_536, usize::MAX)
        .await
        .unwrap();
    assert_eq!(updates.len(), entries);
    let seqs: Vec<_> = updates.iter().map(|update| update.seq).collect();
    assert_eq!(seqs, (1..=entries as u64).collect::<Vec<_>>());
    for update in answered {
        assert_eq!(updates[update.seq as usize - 1], update);
    }
}

/// Stands between the store and its server, and can stop forwarding without closing anything: as a
/// network does that has lost a cable.
struct Cable {
    address: SocketAddr,
    is_cut: watch::Sender<bool>,
}

impl Cable {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_cut, cut) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(forward(from_client, to_server, cut.clone()));
                tokio::spawn(forward(from_server, to_client, cut.clone()));
            }
        });
        Self { address, is_cut }
    }
}

async fn forward(
    from: tokio::net::tcp::OwnedReadHalf,
    to: tokio::net::tcp::OwnedWriteHalf,
    mut cut: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        if from.readable().await.is_err() {
            return;
        }
        if cut.wait_for(|cut| !cut).await.is_err() {
            return;
        }
        let count = match from.try_read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            if to.writable().await.is_err() {
                return;
            }
            match to.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_vanishes_is_given_up_and_found_again() {
    let server = start().await;
    let cable = Cable::to(server.port()).await;
    let url = server.url().replace(
        &server.port().to_string(),
        &cable.address.port().to_string(),
    );
    let store = store::open(&url).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let (done, is_done) = watch::channel(false);
    let writers: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .map(|name| writer(store.clone(), name, is_done.clone()))
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    cable.is_cut.send_replace(true);
    let started = Instant::now();
    for _ in 0..2 {
        let error = store.check().await.unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
    }
    assert!(started.elapsed() < 2 * BOUND, "{:?}", started.elapsed());
    let error = store::open(&url).await.err().unwrap();
    assert!(error.is_unavailable(), "{error:?}");
    cable.is_cut.send_replace(false);
    recovered(&store).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    done.send_replace(true);
    let mut entries = 0;
    for writer in writers {
        let (count, _, failed, longest) = writer.await.unwrap();
        entries += count;
        assert!(failed > 0, "no call failed");
        assert!(longest < BOUND, "{longest:?}");
    }
    let updates = store
        .updates()
        .read("lore", 1, 65_536, usize::MAX)
        .await
        .unwrap();
    assert_eq!(updates.len(), entries, "each entry once");
}

/// A source that is stopped in the middle of an append, as by SIGSTOP, holds the channel's row. The
/// server ends its transaction after a while, and another source goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_hung_transaction_does_not_block_the_others_for_ever() {
    let server = start().await;
    let store = store::open(&server.url()).await.unwrap();
    let second = store::open(&server.url()).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let hangs = Arc::new(AtomicBool::new(true));
    let reached = Arc::new(AtomicBool::new(false));
    let hanging = {
        let (hangs, reached) = (Arc::clone(&hangs), Arc::clone(&reached));
        tokio::task::spawn_blocking(move || {
            let drafts = [draft("frozen", 1)];
            let encode = |seq: u64, draft: &store::Draft| {
                reached.store(true, Ordering::Relaxed);
                while hangs.load(Ordering::Relaxed) {
                    std::thread::park_timeout(Duration::from_millis(5));
                }
                encode(seq, draft)
            };
            let append = store
                .updates()
                .append("lore", URL, None, &drafts, None, &encode);
            tokio::runtime::Handle::current().block_on(append)
        })
    };
    let started = Instant::now();
    while !reached.load(Ordering::Relaxed) {
        assert!(started.elapsed() < BOUND);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let started = Instant::now();
    let stored = loop {
        let drafts = [draft("alive", 1)];
        let asked = Instant::now();
        match second
            .updates()
            .append("lore", URL, None, &drafts, None, &encode)
            .await
        {
            Ok(stored) => break stored,
            Err(error) => {
                // The server says after 3 s that the row is locked. The store itself gives up
                // after 4 s at the earliest: that comes first only where the machine stood still.
                let is_late = asked.elapsed() >= Duration::from_secs(4);
                let is_busy = matches!(error, StoreError::Busy { .. });
                assert!(is_busy || is_late, "{error:?}");
                assert!(error.is_unavailable(), "{error:?}");
            }
        }
        assert!(started.elapsed() < 3 * BOUND);
    };
    assert_eq!(stored[0].seq, 1);
    hangs.store(false, Ordering::Relaxed);
    // The session held the row, and has lost it.
    let error = hanging.await.unwrap().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert_eq!(second.channels().open("lore").await.unwrap().head, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_is_explained_without_the_password() {
    let server = start().await;
    let url = server.url();
    let refused = async |url: &str, words: &str| {
        let started = Instant::now();
        let error = store::open(url).await.err().unwrap();
        assert!(started.elapsed() < BOUND);
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(
                !text.contains(PASSWORD) && !text.contains("sesame"),
                "{text}"
            );
        }
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        error
    };
    let wrong = url.replace(PASSWORD, "open%20sesame");
    let error = refused(&wrong, "check user, password").await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    assert!(!error.is_unavailable(), "it does not pass by itself");
    let error = refused(&server.url_of("nope"), "does not exist").await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    let error = refused(&format!("{url}?sslmode=require"), "TLS").await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    let unreachable = url.replace(&server.port().to_string(), "1");
    let error = refused(&unreachable, "cannot be reached").await;
    assert!(error.is_unavailable(), "{error:?}");

    // A user that may read and not write.
    let mut raw = Raw::to(&server.url()).await;
    raw.run("CREATE USER guest PASSWORD 'sesame'").await;
    let guest = url
        .replace("flexfeed:", "guest:")
        .replace(PASSWORD, "sesame");
    let error = refused(&guest, "permission denied").await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    // A standby server, or one that was switched over.
    let store = store::open(&url).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let read_only = format!("{url}?options=-c%20default_transaction_read_only%3Don");
    let error = refused(&read_only, "cannot be written").await;
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
    // By the socket, without any password.
    let local = store::open(&server.socket_url_of("flexfeed"))
        .await
        .unwrap();
    assert_eq!(local.channels().list().await.unwrap().len(), 1);
}

/// A certificate authority, and a certificate of it for 127.0.0.1 with its key: all as PEM.
fn certificates() -> (String, String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(authority, key).unwrap();
    let server = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names)
        .unwrap()
        .signed_by(&server, &authority)
        .unwrap();
    (authority.pem(), certificate.pem(), server.serialize_pem())
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_used_if_offered_and_verified_on_request() {
    let (authority, certificate, key) = certificates();
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (
        folder.path().join("ours.pem"),
        folder.path().join("other.pem"),
    );
    std::fs::write(&ours, authority).unwrap();
    std::fs::write(&other, certificates().0).unwrap();
    let options = Options {
        settings: vec![
            "ssl = on".to_owned(),
            "ssl_cert_file = 'tls.crt'".to_owned(),
            "ssl_key_file = 'tls.key'".to_owned(),
        ],
        files: vec![
            ("tls.crt".to_owned(), certificate.into_bytes()),
            ("tls.key".to_owned(), key.into_bytes()),
        ],
        ..Options::default()
    };
    let server = tokio::task::spawn_blocking(move || Postgres::start_with(&options))
        .await
        .unwrap()
        .unwrap();
    let url = server.url();
    let verified = format!("{url}?sslmode=verify-full&sslrootcert={}", ours.display());
    let mut raw = Raw::to(&format!("{url}?application_name=raw")).await;
    for (url, encrypted) in [
        (url.clone(), true),
        (format!("{url}?sslmode=require"), true),
        (verified.clone(), true),
        (format!("{url}?sslmode=disable"), false),
    ] {
        let store = store::open(&url).await.unwrap();
        store.check().await.unwrap();
        let connections = "SELECT COUNT(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
            WHERE application_name = 'flexfeed' AND ssl";
        assert_eq!(raw.count(connections).await > 0, encrypted, "{url}");
        store.close().await;
        // The server's processes end a moment later.
        let started = Instant::now();
        while raw.count(connections).await > 0 {
            assert!(started.elapsed() < BOUND);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let named = verified.replace("127.0.0.1", "localhost");
    let foreign = verified.replace("ours.pem", "other.pem");
    for url in [named, foreign] {
        let error = store::open(&url).await.err().unwrap();
        assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
        assert!(error.to_string().contains("TLS"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_ended_by_the_server_are_replaced() {
    let server = start().await;
    let store = store::open(&server.url()).await.unwrap();
    store.channels().open("lore").await.unwrap();
    let mut raw = Raw::to(&server.url()).await;
    let mut stored = 0;
    for round in 0..20 {
        raw.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = 'flexfeed' AND pid <> pg_backend_pid()",
        )
        .await;
        let drafts = [draft(&format!("e{round}"), 1)];
        // Nothing was begun yet: such a connection is replaced without a word.
        let appended = store
            .updates()
            .append("lore", URL, None, &drafts, None, &encode)
            .await;
        stored += appended.unwrap().len();
    }
    assert_eq!(stored, 20);
}

/// At the most talkative level, of everything that has a part in it.
#[tokio::test]
async fn no_log_line_contains_the_password() {
    use std::io::Write;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let site = Site::postgres();
    assert!(site.url.contains(PASSWORD));
    let lines = Lines::default();
    let to = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || to.clone())
        .finish();
    let guard = tracing_subscriber::util::SubscriberInitExt::set_default(subscriber);
    let store = site.lore().await;
    store
        .updates()
        .append("lore", URL, None, &drafts(0, 9), None, &encode)
        .await
        .unwrap();
    let _ = store::open(&site.url.replace("127.0.0.1", "127.0.0.2")).await;
    let _ = store::open(&format!("{}&sslmode=nonsense", site.url)).await;
    let _ = store::open(&site.url.replace(PASSWORD, &format!("{PASSWORD}-wrong"))).await;
    tracing::trace!("that was all");
    drop(guard);
    let log = String::from_utf8_lossy(&lines.0.lock().unwrap()).into_owned();
    assert!(log.contains("that was all"), "nothing is caught: {log}");
    assert!(!log.contains(PASSWORD), "{log}");
}
