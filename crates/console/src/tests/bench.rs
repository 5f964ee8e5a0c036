//! A console on a port of its own, its database, and its clients.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use kit::postgres::{Options, Postgres};
use serde_json::{Value, json};
use store::{
    Applicant, Batch, MoveRow, NewToken, NewUser, OverloadRow, PulseRow, ReceiverCounts, Role,
    SentBytes, SessionRow, SourceInfo, StateRow, Store,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::auth::password;
use crate::clock::now_ms;
use crate::config::SiteSettings;
use crate::site::{Parts, Site};

pub(super) const PASSWORD: &str = "correct horse battery";

/// Nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Database of a test.
pub(super) struct TestDatabase {
    _folder: TempDir,
    pub(super) url: String,
}

fn server() -> &'static Mutex<Postgres> {
    static SERVER: LazyLock<Mutex<Postgres>> =
        LazyLock::new(|| Mutex::new(Postgres::start_with(&Options::unsynced()).unwrap()));
    &SERVER
}

impl TestDatabase {
    pub(super) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/console.db", folder.path().display());
        Self {
            _folder: folder,
            url,
        }
    }

    pub(super) fn postgres() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let name = format!("console_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Self {
            _folder: tempfile::tempdir().unwrap(),
            url: server().lock().unwrap().create(&name).unwrap(),
        }
    }
}

macro_rules! on_both {
    ($($name:ident,)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::tests::bench::TestDatabase::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::tests::bench::TestDatabase::postgres()).await;
            })+
        }
    };
}
pub(super) use on_both;

/// A running console.
pub(super) struct Bench {
    _place: TestDatabase,
    pub(super) opened: Store,
    pub(super) site: Arc<Site>,
    pub(super) address: SocketAddr,
    stop: CancellationToken,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Bench {
    pub(super) async fn start(place: TestDatabase) -> Self {
        Self::with(place, SiteSettings::default()).await
    }

    pub(super) async fn with(place: TestDatabase, settings: SiteSettings) -> Self {
        let opened = store::open(&place.url).await.unwrap();
        let stop = CancellationToken::new();
        let console = crate::mount(Parts {
            store: opened.clone(),
            settings,
            stop: stop.clone(),
        });
        let site = Arc::clone(console.site());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(console.serve(listener));
        let bench = Self {
            _place: place,
            opened,
            site,
            address,
            stop,
        };
        bench.until(|site| site.board().as_of_ms.is_some()).await;
        bench
    }

    /// Waits until something is so.
    pub(super) async fn until(&self, is: impl Fn(&Site) -> bool) {
        let began = Instant::now();
        while !is(&self.site) {
            assert!(began.elapsed() < PATIENCE, "it does not come to that");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) fn anonymous(&self) -> Client {
        Client {
            address: self.address,
            cookie: None,
            csrf: None,
            more: Vec::new(),
        }
    }

    pub(super) async fn add_user(&self, name: &str, role: Role) -> i64 {
        let user = NewUser {
            name: name.to_owned(),
            password: Some(password::hash(PASSWORD).unwrap()),
            role,
            identity: None,
        };
        match self.opened.users().add(&user).await.unwrap() {
            store::UserChange::Done(row) => row.id,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn sign_in(&self, name: &str) -> Client {
        let mut client = self.anonymous();
        let body = json!({"name": name, "password": PASSWORD});
        let answer = client.post("/api/v1/session", &body).await;
        assert_eq!(answer.code, 200, "{}", answer.body);
        let cookie = answer.header("set-cookie");
        client.cookie = Some(cookie.split(';').next().unwrap().to_owned());
        client.csrf = Some(answer.json()["csrf"].as_str().unwrap().to_owned());
        client
    }

    pub(super) async fn operator(&self) -> Client {
        self.add_user("olga", Role::Operator).await;
        self.sign_in("olga").await
    }

    /// A receiver that was admitted.
    pub(super) async fn admit(&self, name: &str, channels: &[&str]) -> Uuid {
        let id = Uuid::new_v4();
        let token = *b"0123456789abcdef0123456789abcdef";
        let known = self.opened.tokens().list().await.unwrap();
        if known.is_empty() {
            let token = NewToken {
                hash: token,
                label: "for tests".into(),
                limit: None,
                expires_ms: None,
                public: false,
                channels: Vec::new(),
            };
            self.opened.tokens().add(&token).await.unwrap();
        }
        let channels: Vec<String> = channels.iter().map(|c| (*c).to_owned()).collect();
        let applicant = Applicant {
            token: Some(token),
            receiver: id,
            credential: [id.as_bytes()[0]; 32],
            name,
            software: "flexfeed-receiver/0.1.0",
            address: "192.0.2.7:4433",
            channels: &channels,
        };
        self.opened.receivers().admit(&applicant).await.unwrap();
        id
    }

    pub(super) async fn write(&self, batch: Batch) {
        self.opened.records().write(&batch).await.unwrap();
    }

    /// A channel with three receivers, and a source that says how they are.
    pub(super) async fn populate(&self) -> [Uuid; 3] {
        self.opened.channels().open("lore").await.unwrap();
        let mut ids = Vec::new();
        for name in ["alpha", "=1+1", "<script>beta</script> \u{202e}🦀"] {
            ids.push(self.admit(name, &["lore"]).await);
        }
        let states = ids
            .iter()
            .zip(["multicast", "amt", "unicast"])
            .map(|(id, rung)| state(*id, rung))
            .collect();
        let moves = vec![
            moved(ids[1], "unicast", "amt"),
            moved(ids[2], "multicast", "unicast"),
        ];
        let sessions = vec![SessionRow {
            id: SessionRow::number(now_ms(), 1),
            receiver: ids[0],
            name: "alpha".into(),
            software: "x".into(),
            address: "192.0.2.7:1".into(),
            began_ms: now_ms(),
            ended_ms: None,
            end_cause: None,
        }];
        self.write(Batch {
            states,
            moves,
            sessions,
            pulses: vec![pulse()],
            info: Some(source()),
            ..Batch::default()
        })
        .await;
        self.site.nudge();
        self.until(|site| site.fleet().counts().0.connected == 3 && site.board().source.is_some())
            .await;
        self.until(|site| site.board().channel("lore").is_some())
            .await;
        ids.try_into().unwrap()
    }
}

pub(super) fn state(receiver: Uuid, rung: &str) -> StateRow {
    StateRow {
        receiver,
        channel: "lore".into(),
        connected: true,
        rung: rung.into(),
        since_ms: now_ms(),
        cause: "joined".into(),
        cursor: Some(7),
        backlog: 0,
        key_sequence: Some(1),
        rtt_us: Some(12_345),
        address: "192.0.2.7:4433".into(),
        session: None,
        legs: String::new(),
        updated_ms: now_ms(),
        change: 0,
    }
}

pub(super) fn moved(receiver: Uuid, from: &str, to: &str) -> MoveRow {
    MoveRow {
        id: 0,
        at_ms: now_ms(),
        receiver,
        name: "as it called itself".into(),
        channel: "lore".into(),
        from: from.into(),
        to: to.into(),
        cause: "stalled".into(),
        change: 0,
    }
}

pub(super) fn pulse() -> PulseRow {
    PulseRow {
        channel: "lore".into(),
        at_ms: now_ms(),
        head: 9,
        counts: ReceiverCounts {
            receivers: 3,
            connected: 3,
            multicast: 1,
            amt: 1,
            unicast: 1,
            behind: 1,
            ..ReceiverCounts::default()
        },
        delivered: 2,
        bytes: SentBytes {
            flow: 100,
            ..SentBytes::default()
        },
        flow: "{\"key_sequence\":4,\"repair_symbols\":340,\"rebuilt\":12030}".into(),
        ..PulseRow::default()
    }
}

fn overload(since_ms: i64) -> OverloadRow {
    OverloadRow {
        since_ms,
        until_ms: Some(since_ms + 2),
        late: vec!["engine".into()],
    }
}

pub(super) fn source() -> SourceInfo {
    SourceInfo {
        holder: "source-1".into(),
        software: "flexfeed-source/0.1.0".into(),
        started_ms: now_ms(),
        public_address: vec!["feeds.example:4433".into()],
        pins: vec!["sha256:AAAA".into()],
        listen: "0.0.0.0:4433".into(),
        warnings: vec!["public-address: it is not routable".into()],
        overloads: [1, 5].map(overload).to_vec(),
        at_ms: now_ms(),
        ..SourceInfo::default()
    }
}

/// A client.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) address: SocketAddr,
    pub(super) cookie: Option<String>,
    pub(super) csrf: Option<String>,
    pub(super) more: Vec<(String, String)>,
}

/// A response.
#[derive(Debug)]
pub(super) struct TestResponse {
    pub(super) code: u16,
    pub(super) headers: String,
    pub(super) body: String,
}

impl TestResponse {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(super) fn header(&self, name: &str) -> &str {
        let lines = self
            .headers
            .lines()
            .filter_map(|line| line.split_once(": "));
        let found = lines.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value).next().unwrap_or_default()
    }

    /// Requires a problem of that kind.
    pub(super) fn is_problem(&self, code: u16, word: &str) {
        assert_eq!(self.code, code, "{}", self.body);
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(
            problem["type"],
            format!("urn:flexfeed:problem:{word}"),
            "{problem}"
        );
        assert_eq!(problem["status"], code);
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
}

impl Client {
    pub(super) fn with(&self, name: &str, value: &str) -> Self {
        let mut client = self.clone();
        client.more.push((name.to_owned(), value.to_owned()));
        client
    }

    pub(super) async fn open(&self, method: &str, path: &str, body: Option<&str>) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // HTTP/1.0: the answer ends with the connection, and is not in chunks.
        let mut request = format!("{method} {path} HTTP/1.0\r\n");
        if !self.more.iter().any(|(name, _)| name == "host") {
            request.push_str(&format!("host: {}\r\n", self.address));
        }
        if let Some(cookie) = &self.cookie {
            request.push_str(&format!("cookie: {cookie}\r\n"));
        }
        if let Some(csrf) = &self.csrf {
            request.push_str(&format!("x-csrf-token: {csrf}\r\n"));
        }
        for (name, value) in &self.more {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            if !self.more.iter().any(|(name, _)| name == "content-type") {
                request.push_str("content-type: application/json\r\n");
            }
            if !self.more.iter().any(|(name, _)| name == "content-length") {
                request.push_str(&format!("content-length: {}\r\n", body.len()));
            }
        }
        request.push_str("\r\n");
        request.push_str(body.unwrap_or_default());
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    pub(super) async fn send(&self, method: &str, path: &str, body: Option<&str>) -> TestResponse {
        let mut stream = self.open(method, path, body).await;
        let mut bytes = Vec::new();
        let reading = stream.read_to_end(&mut bytes);
        tokio::time::timeout(PATIENCE, reading)
            .await
            .unwrap()
            .unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (headers, body) = text.split_once("\r\n\r\n").unwrap();
        let code = headers.split(' ').nth(1).unwrap().parse().unwrap();
        TestResponse {
            code,
            headers: headers.to_owned(),
            body: body.to_owned(),
        }
    }

    pub(super) async fn get(&self, path: &str) -> TestResponse {
        self.send("GET", path, None).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> TestResponse {
        self.send("POST", path, Some(&body.to_string())).await
    }

    pub(super) async fn patch(&self, path: &str, body: &Value) -> TestResponse {
        self.send("PATCH", path, Some(&body.to_string())).await
    }

    pub(super) async fn delete(&self, path: &str) -> TestResponse {
        self.send("DELETE", path, None).await
    }
}
