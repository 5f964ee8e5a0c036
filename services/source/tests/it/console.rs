//! One program is a whole installation: a source with a console inside, set up by the link that it
//! prints.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use flexicast_tokio::receiver::Event;
use kit::postgres::Postgres;
use serde_json::{Value, json};

use crate::receiving::{Listening, configuration};
use crate::running::{Feed, Running, SOON, fails, source};

/// A browser, as far as it matters.
pub struct Browser {
    address: String,
    cookie: String,
    csrf: String,
}

/// A response.
pub struct Answer {
    pub code: u16,
    pub headers: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Browser {
    /// Waits for the link that a source with a console prints, and sets the console up by it. Also
    /// returns the link's secret.
    pub fn set_up(running: &mut Running) -> (Self, String) {
        running.until("the link", |running| running.printed().contains("/setup#"));
        let printed = running.printed();
        let link = printed.lines().find(|line| line.contains("/setup#"));
        let link = link.unwrap().trim().strip_prefix("http://").unwrap();
        let (address, token) = link.split_once("/setup#").unwrap();
        let mut browser = Browser {
            address: address.to_owned(),
            cookie: String::new(),
            csrf: String::new(),
        };
        assert!(browser.ask("GET", "/", None).body.contains("<html"));
        assert_eq!(browser.ask("GET", "/api/v1/overview", None).code, 401);
        let first = json!({"token": token, "name": "ann", "password": "correct horse battery"});
        let begun = browser.ask("POST", "/api/v1/setup", Some(first.clone()));
        assert_eq!(begun.code, 201, "{}", begun.body);
        let (_, cookie) = begun.headers.split_once("et-cookie: ").unwrap();
        browser.cookie = cookie.split(';').next().unwrap().to_owned();
        browser.csrf = begun.json()["csrf"].as_str().unwrap().to_owned();
        assert_eq!(browser.ask("POST", "/api/v1/setup", Some(first)).code, 409);
        (browser, token.to_owned())
    }

    /// HTTP/1.0: the answer ends with the connection, and is not in chunks.
    fn open(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nCookie: {}\r\nX-CSRF-Token: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            self.cookie,
            self.csrf,
            body.len()
        )
        .unwrap();
        stream
    }

    pub fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let body = body.map_or_else(String::new, |body| body.to_string());
        let mut text = String::new();
        let mut stream = self.open(method, path, &body);
        stream.read_to_string(&mut text).unwrap();
        let (headers, body) = text.split_once("\r\n\r\n").unwrap();
        Answer {
            code: headers.split(' ').nth(1).unwrap().parse().unwrap(),
            headers: headers.to_owned(),
            body: body.to_owned(),
        }
    }

    pub fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, None);
        assert_eq!(answer.code, 200, "{path}: {}", answer.body);
        answer.json()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_sqlite_one_program_is_everything() {
    everything(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_postgresql_it_is_the_same() {
    let server = Postgres::start().unwrap();
    everything(Some(server.create("inside").unwrap())).await;
}

async fn everything(database: Option<String>) {
    let folder = tempfile::tempdir().unwrap();
    let feed = Feed::with(3);
    let with_console = || {
        let mut program = source(folder.path(), &feed);
        // Receivers need none of the time; a hung shutdown would last to the test's own limit.
        program.args(["--console=127.0.0.1:0", "--drain-time", "60s"]);
        if let Some(url) = &database {
            program.env("DATABASE_URL", url);
        }
        program
    };
    let mut running = Running::start(with_console());
    let (mut browser, token) = Browser::set_up(&mut running);

    let config = configuration(folder.path());
    let id = config.receiver_id;
    let mut listening = Listening::start(config);
    let third = |event: &Event| matches!(event, Event::Update { seq: 3, .. }).then_some(());
    listening.until("all updates", third).await;
    let mut seen = Value::Null;
    running.until("the receiver is on the page", |_| {
        seen = browser.get("/api/v1/overview");
        let channel = &seen["channels"][0];
        channel["delivered"] == 1 && channel["receivers"]["unicast"] == 1
    });
    assert_eq!(seen["channels"][0]["head"], 3, "{seen}");
    assert_eq!(seen["source"]["state"], "ok", "{seen}");
    let its = browser.get(&format!("/api/v1/receivers/{id}"));
    assert_eq!(
        (&its["name"], &its["connected"]),
        (&json!("r1"), &json!(true))
    );

    // This source executes commands given there.
    let ask = format!("/api/v1/receivers/{id}/disconnect");
    let asked = browser.ask("POST", &ask, Some(json!({})));
    assert_eq!(asked.code, 202, "{}", asked.body);
    let command = format!("/api/v1/commands/{}", asked.json()["command_id"]);
    running.until("it is done", |_| browser.get(&command)["state"] == "done");

    // A page that is open does not hold up the end.
    let mut events = BufReader::new(browser.open("GET", "/api/v1/events", ""));
    let mut line = String::new();
    while !line.contains("event: snapshot") {
        line.clear();
        assert!(events.read_line(&mut line).unwrap() > 0, "no events");
    }
    let (status, log, printed) = running.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("not everything was closed"), "{log}");
    assert!(!log.contains(&token), "{log}");
    assert_eq!(printed.matches("/setup#").count(), 1, "{printed}");

    // Users and sessions survive.
    let mut running = Running::start(with_console());
    running.until("where it is", |running| {
        running.log().contains("the console is at")
    });
    let log = running.log();
    let at = log.split("the console is at http://").nth(1).unwrap();
    browser.address = at.split('/').next().unwrap().to_owned();
    assert_eq!(browser.get("/api/v1/session")["user"]["name"], "ann");
    let (_, _, printed) = running.terminate();
    assert!(!printed.contains("/setup#"), "{printed}");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let mut command = source(folder.path(), &Feed::with(1));
    // In the usual notation.
    command.args(["--console", &at]);
    let (code, said) = fails(command);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("--console") && said.contains(&at), "{said}");
    let mut command = source(folder.path(), &Feed::with(1));
    command.args(["--console=everywhere"]);
    let (code, said) = fails(command);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--console: "), "{said}");
}
