//! Webhooks against real servers, commands by a real shell.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use url::Url;

use super::exec::Exec;
use super::webhook::Webhook;
use super::{Event, SigningKey, Target, Verdict};
use crate::deliver::tests::{encoded, incarnation};

const TIME: Duration = Duration::from_secs(20);

/// Answer of the test server to a request.
#[derive(Clone)]
enum Answer {
    /// Bytes, then the end of the connection.
    Bytes(String),
    /// No answer.
    Hang,
    /// End of the connection.
    Close,
    /// Header with an endless body.
    Endless,
    /// Bytes on a connection that stays open.
    Open(String),
}

fn answer(status: &str, more: &str) -> Answer {
    Answer::Bytes(format!(
        "HTTP/1.1 {status}\r\nContent-Length: 4\r\n{more}Connection: close\r\n\r\nsaid"
    ))
}

/// Answers each request with the next answer; keeps the requests.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(answers: impl IntoIterator<Item = Answer>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut answers: VecDeque<Answer> = answers.into_iter().collect();
        let known = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answers.pop_front().unwrap_or(Answer::Close);
                let known = Arc::clone(&known);
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    while !is_whole(&request) {
                        let mut buffer = [0; 4096];
                        match stream.read(&mut buffer).await {
                            Ok(n) if n > 0 => request.extend_from_slice(&buffer[..n]),
                            _ => return,
                        }
                    }
                    known
                        .lock()
                        .unwrap()
                        .push(String::from_utf8(request).unwrap());
                    match answer {
                        Answer::Bytes(bytes) => {
                            stream.write_all(bytes.as_bytes()).await.unwrap();
                            stream.shutdown().await.unwrap();
                        }
                        Answer::Hang => std::future::pending().await,
                        Answer::Close => {}
                        Answer::Open(bytes) => {
                            stream.write_all(bytes.as_bytes()).await.unwrap();
                            std::future::pending().await
                        }
                        Answer::Endless => {
                            let head = b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n";
                            let mut going = stream.write_all(head).await;
                            while going.is_ok() {
                                going = stream.write_all(b"4\r\nmore\r\n").await;
                            }
                        }
                    }
                });
            }
        });
        Server { address, seen }
    }

    fn url(&self) -> Url {
        format!("http://{}/hook?token=t0ken", self.address)
            .parse()
            .unwrap()
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    header(head, "content-length").is_some_and(|n| body.len() >= n.parse().unwrap())
}

fn header(head: &str, name: &str) -> Option<String> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.trim().to_owned())
}

fn event(seq: u64) -> Event {
    Event::of("lore", seq, &encoded(seq)).unwrap()
}

fn webhook(url: Url, secret: Option<&[u8]>, time: Duration) -> Webhook {
    Webhook::new(url, secret.map(SigningKey::new), time).unwrap()
}

fn reason(verdict: Verdict) -> String {
    match verdict {
        Verdict::Again { reason, .. } | Verdict::Disable { reason } => reason,
        Verdict::Done => panic!("it succeeded"),
    }
}

#[tokio::test]
async fn a_webhook_is_a_cloud_event_in_binary_mode() {
    let server = Server::start([answer("204 No Content", "")]).await;
    let verdict = webhook(server.url(), None, TIME)
        .attempt(&event(7), 1)
        .await;
    assert_eq!(verdict, Verdict::Done);
    let request = server.seen().remove(0);
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("POST /hook?token=t0ken HTTP/1.1"),
        "{head}"
    );
    let id = format!("{}/7", incarnation());
    for (name, value) in [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-type", "org.flexfeed.entry.created.v1"),
        ("ce-source", "https://example.org/f"),
        ("ce-id", &id),
        ("ce-time", "1970-01-01T00:16:40.000Z"),
        ("ce-subject", "urn:7"),
        ("ce-channel", "lore"),
        ("ce-sequence", "7"),
        ("webhook-id", &id),
    ] {
        assert_eq!(
            header(head, name).as_deref(),
            Some(value),
            "{name} in {head}"
        );
    }
    assert!(
        header(head, "user-agent")
            .unwrap()
            .starts_with("flexfeed-receiver/")
    );
    assert_eq!(header(head, "webhook-signature"), None);
    let item: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(item["id"], "urn:7");
    assert!(item.get("content_text").is_some(), "{item}");
}

/// Compares the signature with another implementation's, computed from the request.
#[tokio::test]
async fn signatures_match_pythons_hmac() {
    let secret = b"0123456789abcdef\xff\x00more";
    let server = Server::start([answer("200 OK", ""), answer("200 OK", "")]).await;
    let webhook = webhook(server.url(), Some(secret), TIME);
    for seq in [1, 2] {
        assert_eq!(webhook.attempt(&event(seq), 1).await, Verdict::Done);
    }
    let mut signatures = Vec::new();
    for request in server.seen() {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let program = "import base64,hashlib,hmac,sys\n\
             key=bytes.fromhex(sys.argv[1])\n\
             text=(sys.argv[2]+'.'+sys.argv[3]+'.').encode()+sys.stdin.buffer.read()\n\
             print('v1,'+base64.b64encode(hmac.new(key,text,hashlib.sha256).digest()).decode())";
        let timestamp = header(head, "webhook-timestamp").unwrap();
        let age = jiff::Timestamp::now().as_second() - timestamp.parse::<i64>().unwrap();
        assert!((0..600).contains(&age), "{age}");
        let mut python = Command::new("python3")
            .args(["-c", program, &data_encoding::HEXLOWER.encode(secret)])
            .args([header(head, "webhook-id").unwrap(), timestamp])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut python.stdin.take().unwrap(), body.as_bytes()).unwrap();
        let said = python.wait_with_output().unwrap().stdout;
        let signature = header(head, "webhook-signature").unwrap();
        assert_eq!(signature, String::from_utf8(said).unwrap().trim());
        signatures.push(signature);
    }
    assert_ne!(signatures[0], signatures[1]);
}

/// A request that was accepted is not repeated because its response never ends.
#[tokio::test]
async fn the_status_decides_even_without_the_end_of_the_body() {
    let head = "Transfer-Encoding: chunked\r\n\r\n4\r\nsaid\r\n";
    let taken = format!("HTTP/1.1 200 OK\r\n{head}");
    let gone = format!("HTTP/1.1 410 Gone\r\n{head}");
    let server = Server::start([Answer::Open(taken), Answer::Open(gone)]).await;
    let webhook = webhook(server.url(), None, Duration::from_secs(5));
    assert_eq!(webhook.attempt(&event(1), 1).await, Verdict::Done);
    let verdict = webhook.attempt(&event(2), 1).await;
    assert!(
        matches!(&verdict, Verdict::Disable { reason } if reason.ends_with(": said")),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn only_2xx_is_success_and_410_is_the_end() {
    let later = "Retry-After: 7\r\n";
    let redirect = "Location: http://127.0.0.1:1/\r\n";
    let server = Server::start([
        answer("500 Internal Server Error", ""),
        answer("429 Too Many Requests", later),
        answer("404 Not Found", ""),
        answer("302 Found", redirect),
        answer("308 Permanent Redirect", redirect),
        answer("410 Gone", ""),
        Answer::Close,
        Answer::Bytes("this is no HTTP at all\r\n\r\n".into()),
    ])
    .await;
    let webhook = webhook(server.url(), None, TIME);
    let mut verdicts = Vec::new();
    for n in 1..=8 {
        verdicts.push(webhook.attempt(&event(n), 1).await);
    }
    for (at, verdict) in verdicts.iter().enumerate() {
        let after = (at == 1).then_some(Duration::from_secs(7));
        match verdict {
            Verdict::Again { after: asked, .. } if at != 5 => assert_eq!(*asked, after, "{at}"),
            Verdict::Disable { .. } if at == 5 => {}
            other => panic!("{at}: {other:?}"),
        }
    }
    // One request each: no redirect was followed, and nothing was retried by the client.
    assert_eq!(server.seen().len(), 8);
    let reasons: Vec<String> = verdicts.into_iter().map(reason).collect();
    for (reason, word) in reasons
        .iter()
        .zip(["500", "429", "404", "302", "308", "410"])
    {
        assert!(reason.contains(word), "{reason}");
    }
    assert!(reasons[0].contains("said"), "{reasons:?}");
    assert!(reasons[3].contains("not followed"), "{reasons:?}");
    // Parts of a URL that may be secret are not shown.
    let secret = |r: &String| r.contains("t0ken") || r.contains("/hook");
    assert!(!reasons.iter().any(secret), "{reasons:?}");
}

#[tokio::test]
async fn requests_take_bounded_time() {
    let server = Server::start([Answer::Hang, Answer::Endless]).await;
    let webhook = webhook(server.url(), None, Duration::from_millis(300));
    let text = reason(webhook.attempt(&event(1), 1).await);
    assert!(text.contains("did not answer within 0.3 s"), "{text}");
    // The body is cut off, and the status counts.
    let text = reason(webhook.attempt(&event(2), 1).await);
    assert!(
        text.contains("500") || text.contains("did not answer"),
        "{text}"
    );
    // Without a server.
    let url = "http://127.0.0.1:1/".parse().unwrap();
    let webhook = self::webhook(url, None, TIME);
    let text = reason(webhook.attempt(&event(3), 1).await);
    assert!(text.contains("refused"), "{text}");
}

async fn run(command: &str, time: Duration, attempt: u32) -> Verdict {
    let target = Exec::new(command.to_owned(), time);
    target.attempt(&event(7), attempt).await
}

#[tokio::test]
async fn a_command_gets_the_event_and_its_variables() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let command = format!(
        "cat > {0}.json; env | grep ^FLEXFEED_ | sort > {0}.env; echo noise",
        out.display()
    );
    assert_eq!(run(&command, TIME, 3).await, Verdict::Done);
    let read = |kind: &str| std::fs::read_to_string(out.with_extension(kind)).unwrap();
    let event: serde_json::Value = serde_json::from_str(&read("json")).unwrap();
    assert_eq!(event["specversion"], "1.0");
    assert_eq!(event["data"]["id"], "urn:7");
    let i = incarnation();
    let expected = format!(
        "FLEXFEED_ATTEMPT=3\nFLEXFEED_CHANNEL=lore\nFLEXFEED_ENTRY_ID=urn:7\n\
         FLEXFEED_ENTRY_TITLE=\nFLEXFEED_ENTRY_URL=\n\
         FLEXFEED_EVENT_ID={i}/7\nFLEXFEED_EVENT_TYPE=org.flexfeed.entry.created.v1\n\
         FLEXFEED_FEED=https://example.org/f\n\
         FLEXFEED_INCARNATION={i}\nFLEXFEED_SEQ=7\nFLEXFEED_TIME=1970-01-01T00:16:40.000Z\n"
    );
    assert_eq!(read("env"), expected);
}

#[test]
fn variables_that_lead_to_secrets_are_withheld_from_commands() {
    for name in ["FLEXFEED_LINK", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET"] {
        assert!(super::exec::is_own(name), "{name}");
    }
    assert!(!super::exec::is_own("PATH"));
}

#[tokio::test]
async fn a_failed_command_is_reported_with_the_end_of_standard_error() {
    let text = reason(run("echo why >&2; exit 3", TIME, 1).await);
    assert_eq!(
        text,
        "the command failed with exit status 3; standard error: why"
    );
    let text = reason(run("kill -9 $$", TIME, 1).await);
    assert_eq!(text, "the command was killed by signal 9");
    // Much of it, and no reading of standard input.
    let text = reason(run("yes no | head -c 300000 >&2; exit 1", TIME, 1).await);
    assert!(text.len() < 600 && text.ends_with("no"), "{text}");
    let text = reason(run("/no/such/program", TIME, 1).await);
    assert!(text.contains("127"), "{text}");
}

#[tokio::test]
async fn a_hanging_command_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    // Ignores SIGTERM, as does its child in the background.
    let command = format!(
        "trap '' TERM; sleep 1000 & echo $! > {}; wait; sleep 1000",
        pid.display()
    );
    // On a busy machine a shell may take long to start.
    for time in [300, 5_000, 15_000].map(Duration::from_millis) {
        let text = reason(run(&command, time, 1).await);
        let expected = format!("timed out after {} s", time.as_secs_f64());
        assert!(text.contains(&expected), "{text}");
        if std::fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n')) {
            break;
        }
    }
    gone(&pid).await;
}

#[tokio::test]
async fn a_command_ends_when_its_attempt_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let command = format!("sleep 1000 & echo $! > {}; wait", pid.display());
    let running = tokio::spawn(async move { run(&command, TIME * 50, 1).await });
    let begun = Instant::now();
    while std::fs::read_to_string(&pid).unwrap_or_default().is_empty() {
        assert!(begun.elapsed() < TIME);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.abort();
    gone(&pid).await;
}

#[tokio::test]
async fn a_command_gets_sigterm_before_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let new = folder.path().join("new");
    let (to, by) = (pid.display(), new.display());
    let command = format!(
        "exec 2>/dev/null; trap 'echo $$ > {by}; mv {by} {to}' TERM; while :; do sleep 0.05; done"
    );
    // On a busy machine a shell may take long to start.
    for time in [1, 5, 15].map(Duration::from_secs) {
        let asked = async {
            while !pid.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            biased;
            () = asked => break,
            _ = run(&command, time, 1) => {}
        }
    }
    gone(&pid).await;
}

#[tokio::test]
async fn children_of_a_command_do_not_delay_its_hook() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    // The child keeps standard error open.
    let command = format!("sleep 1000 & echo $! > {}; exit 0", pid.display());
    let begun = Instant::now();
    assert_eq!(run(&command, TIME * 50, 1).await, Verdict::Done);
    assert!(begun.elapsed() < TIME);
    let left = std::fs::read_to_string(&pid).unwrap();
    let ended = Command::new("kill").arg(left.trim()).status().unwrap();
    assert!(ended.success());
}

/// Waits for the end of the process whose id is in the file.
async fn gone(pid: &std::path::Path) {
    let pid = std::fs::read_to_string(pid).unwrap();
    let state = format!("/proc/{}/stat", pid.trim());
    let begun = Instant::now();
    // The zombie may not have been reaped yet.
    while std::fs::read_to_string(&state).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(begun.elapsed() < TIME, "process {pid} still runs");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
