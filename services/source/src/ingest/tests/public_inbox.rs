//! Tests with the archive software of the mailing lists itself: `public-inbox-httpd` with lists
//! that the test writes. If it is not installed, the test prints so and passes; with the variable
//! `FLEXFEED_REQUIRE_PEERS` it fails.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener as Probe};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use store::GapState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Variable that forbids tests without it.
const REQUIRED: &str = "FLEXFEED_REQUIRE_PEERS";

/// Number of entries in its feed.
const WINDOW: usize = 25;

/// Running server, stopped on drop, behind a proxy that counts the searches.
struct PublicInbox {
    child: Child,
    folder: tempfile::TempDir,
    address: SocketAddr,
    searches: Searches,
}

/// Searches of each list so far.
type Searches = Arc<Vec<(String, AtomicUsize)>>;

impl Drop for PublicInbox {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command without any settings of this machine.
fn program(folder: &Path, name: &str) -> Command {
    let mut command = Command::new(name);
    command
        .env("HOME", folder)
        .env("PI_CONFIG", folder.join("config"))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// Whether public-inbox is installed; prints a message if not.
fn is_installed() -> bool {
    let mut command = Command::new("public-inbox-httpd");
    command.arg("--help");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if command.status().is_ok_and(|status| status.success()) {
        return true;
    }
    let why = "no public-inbox-httpd (install public-inbox): gaps were not filled from a real one";
    assert!(std::env::var_os(REQUIRED).is_none(), "{why}");
    // Not by a macro: output of those is hidden when a test passes.
    let line = format!("\n*** SKIPPED: {why} ***\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    false
}

/// Forwards connections, and counts the searches in them.
async fn door(to: SocketAddr, searches: &Searches) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let searches = Arc::clone(searches);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let searches = Arc::clone(&searches);
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(to).await else {
                    return;
                };
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let back =
                    tokio::spawn(
                        async move { tokio::io::copy(&mut from_server, &mut to_client).await },
                    );
                let mut bytes = [0; 8192];
                while let Ok(n @ 1..) = from_client.read(&mut bytes).await {
                    let asked = String::from_utf8_lossy(&bytes[..n]);
                    for (list, count) in &*searches {
                        let found = asked.matches(&format!("/{list}/?q=")).count();
                        count.fetch_add(found, Ordering::SeqCst);
                    }
                    if to_server.write_all(&bytes[..n]).await.is_err() {
                        break;
                    }
                }
                drop(to_server);
                let _ = back.await;
            });
        }
    });
    address
}

impl PublicInbox {
    /// Starts the server with these lists, each of which has mails already.
    async fn start(lists: &[(&str, &[(usize, i64)])]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = lists.iter().map(|(list, _)| (*list).to_owned());
        let searches: Searches = Arc::new(names.map(|list| (list, AtomicUsize::new(0))).collect());
        for (list, mails) in lists {
            let url = format!("http://127.0.0.1/{list}");
            let address = format!("{list}@example.org");
            let mut init = program(folder.path(), "public-inbox-init");
            let options = ["-V2", "-L", "medium", "-j1"];
            run(init.args(options).args([*list, *list, &url, &address]));
            deliver(folder.path(), list, mails);
        }
        for _ in 0..20 {
            // Free at the moment; if it is taken before the server has it, another one is tried.
            let probe = Probe::bind("127.0.0.1:0").unwrap();
            let port = probe.local_addr().unwrap();
            drop(probe);
            let log = fs::File::create(folder.path().join("log")).unwrap();
            let mut command = program(folder.path(), "public-inbox-httpd");
            command.args(["-W0", "-l", &port.to_string()]);
            command.stdout(Stdio::null()).stderr(log);
            let mut child = command.spawn().unwrap();
            let began = Instant::now();
            while child.try_wait().unwrap().is_none() {
                if TcpStream::connect(port).await.is_ok() {
                    let address = door(port, &searches).await;
                    return Self {
                        child,
                        folder,
                        address,
                        searches,
                    };
                }
                assert!(began.elapsed() < SOON, "it does not answer");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let log = fs::read_to_string(folder.path().join("log"));
        panic!("it does not start: {log:?}");
    }

    fn url(&self, list: &str) -> String {
        format!("http://{}/{list}/new.atom", self.address)
    }

    /// Waits until each list was searched this often.
    async fn searched(&self, times: usize) {
        soon("searches", || {
            let mut counts = self.searches.iter().map(|(_, count)| count);
            counts.all(|count| count.load(Ordering::SeqCst) >= times)
        })
        .await;
    }
}

/// Delivers mails to a list: numbers, and the times of arrival in their headers. As on a mirror,
/// they arrive by git, and are then indexed.
fn deliver(folder: &Path, list: &str, mails: &[(usize, i64)]) {
    let repository = folder.join(list).join("git/0.git");
    let mut stream = Vec::new();
    let has_mails = repository.join("refs/heads/master").exists();
    for (n, (mail, second)) in mails.iter().enumerate() {
        let date = Timestamp::from_second(*second).unwrap();
        let date = jiff::fmt::rfc2822::to_string(&date.to_zoned(jiff::tz::TimeZone::UTC)).unwrap();
        let text = format!(
            "From: A <a@example.org>\nTo: {list}@example.org\nSubject: {mail}\n\
             Message-ID: <{mail}.{list}@example.org>\nDate: {date}\n\
             Received: from a by b; {date}\n\nMail {mail}.\n"
        );
        write!(
            stream,
            "commit refs/heads/master\ncommitter A <a@example.org> {second} +0000\n\
             data 4\nmail\n"
        )
        .unwrap();
        if n == 0 && has_mails {
            stream.extend_from_slice(b"from refs/heads/master^0\n");
        }
        let size = text.len();
        write!(stream, "M 100644 inline m\ndata {size}\n{text}\n").unwrap();
    }
    let file = folder.join("mails");
    fs::write(&file, stream).unwrap();
    let mut import = program(&repository, "git");
    import.args(["fast-import", "--quiet"]);
    import.stdin(fs::File::open(file).unwrap());
    run(&mut import);
    let mut index = program(folder, "public-inbox-index");
    run(index.args(["--no-fsync", "-j0", list]));
}

/// Returns the numbers of the mails that arrived, in order.
fn arrived(life: &Life) -> Vec<usize> {
    let updates = life.updates().into_iter();
    let numbers = updates.map(|update| update.entry.title.unwrap().parse().unwrap());
    let mut numbers: Vec<usize> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

/// The search answers from an index that is up to 30 s older than the feed; mails come in a burst,
/// with dates between those of others, and with dates of an hour ago. All of them arrive.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_public_inbox_hides_nothing() {
    if !is_installed() {
        return;
    }
    let now = Timestamp::now().as_second();
    let each = |numbers: std::ops::Range<usize>, from: i64, pause: i64| -> Vec<(usize, i64)> {
        let seconds = (0..).map(|n| now + from + n * pause);
        numbers.zip(seconds).collect()
    };
    // 40 mails in 20 minutes, of which the feed shows those from number 15 on.
    let old = each(0..40, -7200, 30);
    let lists = ["burst", "overlap", "late"];
    let server = PublicInbox::start(&lists.map(|list| (list, &old[..]))).await;
    let mut lives = Vec::new();
    for list in lists {
        let database = Database::new();
        let store = database.open().await;
        let mut settings = settings(server.url(list));
        settings.schedule.min = Duration::from_millis(500);
        settings.schedule.max = Duration::from_millis(500);
        settings.gaps = GapSettings {
            late: Some(Duration::from_secs(4)),
            ..GapSettings::default()
        };
        let life = Life::with(settings, store.clone()).await;
        life.stored(WINDOW).await;
        lives.push((life, store, database));
    }
    // The start of the second search shows that the first one is processed; and it makes the server
    // keep that index open.
    server.searched(2).await;

    // After all that were seen.
    let burst = each(40..100, -5000, 7);
    // From the oldest one that was seen on, between all of them and beyond; and between those that
    // were never seen.
    let mut overlap = each(40..440, -7200 + 15 * 30 + 1, 5);
    overlap.extend(each(440..450, -7200 + 1, 30));
    // An hour before all that were seen.
    let late = each(40..43, -11_000, 60);
    for (list, mails) in lists.into_iter().zip([&burst, &overlap, &late]) {
        deliver(server.folder.path(), list, mails);
    }
    let [(burst, in_burst, _), (overlap, _, _), (late, in_late, _)] = &lives[..] else {
        panic!("three lists");
    };
    soon("all mails", || {
        let counts = [burst, overlap, late].map(|life| life.seqs().len());
        counts == [85, 435, 28]
    })
    .await;
    let expected = |end: usize| (15..end).collect::<Vec<_>>();
    assert_eq!(arrived(burst), expected(100));
    assert_eq!(arrived(overlap), expected(450));
    let mut late_ones = expected(40);
    late_ones.extend(40..43);
    assert_eq!(arrived(late), late_ones);
    for (store, found) in [(in_burst, 35), (in_late, 3)] {
        let began = Instant::now();
        loop {
            let gaps = store.gaps().list(CHANNEL, 100).await.unwrap();
            let filled = gaps.iter().filter(|gap| gap.state == GapState::Filled);
            if filled.map(|gap| gap.entries).sum::<u64>() == found {
                break;
            }
            assert!(began.elapsed() < SOON, "{gaps:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    for (life, ..) in lives {
        life.end().await;
    }
}
