//! The `health` command of all programs: asks the program that runs with the same settings whether
//! it is alive, or ready. For containers and scripts without another HTTP client.

use std::fmt::{self, Display};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::ask::{self, Bounds};
use crate::outcome::{Answer, Failure};
use crate::peer_text::plain;
use crate::settings::Problems;
use crate::values;

/// The name of the command.
pub const NAME: &str = "health";

/// Bounds on an answer; a program that exceeds them is unhealthy.
const BOUNDS: Bounds = Bounds {
    time: Duration::from_secs(3),
    longest: 1 << 20,
};

/// Bound on the lines that are printed of an answer.
const MAX_LINES: usize = 1000;

/// Bound on the addresses of a name that are asked.
const MAX_ADDRESSES: usize = 8;

const READY: &str = "ready";

const AT: &str = "at";

const HELP: &str = "\
Prints the answer, and waits no longer than 3 seconds for it.

Exit codes:
  0  healthy
  1  not healthy, no answer, or settings that cannot be read
  2  invalid command line";

/// The program to ask.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the program.
    pub program: &'static str,
    /// Setting with its HTTP address.
    pub setting: &'static str,
}

/// HTTP address of a program as reached from another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// An address; a wildcard address stands for this machine.
    Address(SocketAddr),
    /// A name, and a port.
    Name(String, u16),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Ok(address) = values::listen(text, 8080) {
            return Ok(Place::Address(address));
        }
        let named = text.rsplit_once(':').filter(|(name, _)| {
            let fits = |c: char| !c.is_whitespace() && !c.is_control() && !"[]:/@?#".contains(c);
            !name.is_empty() && name.chars().all(fits) && name.parse::<IpAddr>().is_err()
        });
        let named = named.and_then(|(name, port)| Some((name.to_owned(), port.parse().ok()?)));
        named
            .map(|(name, port)| Place::Name(name, port))
            .ok_or_else(|| {
                "write a name or an address, and a port, such as feeds.example.org:8080, \
                 192.0.2.1:8080 or [2001:db8::1]:8080"
                    .to_owned()
            })
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Address(address) => address.fmt(f),
            Place::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl Place {
    /// Returns its addresses. Blocks no longer than `time`, whatever the name service does.
    fn addresses(&self, time: Duration) -> io::Result<Vec<SocketAddr>> {
        let (name, port) = match self {
            Place::Address(address) => return Ok(vec![*address]),
            Place::Name(name, port) => (name.clone(), *port),
        };
        let (answer, answered) = mpsc::sync_channel(1);
        // The system's resolver knows no bound; the thread ends with the program.
        std::thread::spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs();
            let found = found.map(|found| found.take(MAX_ADDRESSES).collect::<Vec<_>>());
            // The caller may have given up.
            let _ = answer.send(found);
        });
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the name service does not answer");
        match answered.recv_timeout(time).map_err(late)? {
            Ok(found) if found.is_empty() => Err(io::Error::other("the name has no address")),
            found => found,
        }
    }
}

/// A question about the health of a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Question {
    /// Whether to ask for readiness, not only for liveness.
    pub ready: bool,
    /// Place to ask instead of the settings' address.
    pub at: Option<Place>,
}

impl Question {
    /// Returns the question of a command line.
    #[must_use]
    pub fn of(given: &ArgMatches) -> Self {
        let at = given.try_get_one::<Place>(AT).ok().flatten();
        Self {
            ready: matches!(given.try_get_one::<bool>(READY), Ok(Some(true))),
            at: at.cloned(),
        }
    }
}

/// Returns the command; `settings` are the options that name the HTTP address.
#[must_use]
pub fn command(settings: impl IntoIterator<Item = Arg>) -> Command {
    Command::new(NAME)
        .about("Ask the program that runs with the same settings for its health")
        .after_help(HELP)
        .args(settings)
        .arg(
            Arg::new(READY)
                .long(READY)
                .action(ArgAction::SetTrue)
                .help("Ask for readiness (/readyz), not only for liveness (/healthz)"),
        )
        .arg(
            Arg::new(AT)
                .long(AT)
                .value_name("HOST:PORT")
                .value_parser(Place::from_str)
                .help("Ask this name or address instead of the one in the settings"),
        )
}

/// Asks, and returns the answer. `listen` reads the HTTP address of the settings, `None` for no
/// HTTP; not called if the question names a place.
///
/// # Errors
/// The program does not answer, or the settings name no place.
pub fn answer(
    target: Target,
    Question { ready, at }: Question,
    listen: impl FnOnce() -> Result<Option<SocketAddr>, Problems>,
) -> Result<Answer, Failure> {
    let place = match at {
        Some(place) => place,
        // Exit code 2 is for the command line alone.
        None => target.place(listen().map_err(Failure::other)?)?,
    };
    ask(target, &place, ready, BOUNDS)
}

impl Target {
    /// Returns the place of an HTTP address.
    fn place(self, listen: Option<SocketAddr>) -> Result<Place, Failure> {
        let Target { program, setting } = self;
        let listen = listen.ok_or_else(|| {
            Failure::Other(format!(
                "with these settings {program} does not answer HTTP, so its health is unknown: \
                 give it an address with --{setting} ADDRESS:PORT"
            ))
        })?;
        if listen.port() == 0 {
            return Err(Failure::Other(format!(
                "with port 0 {program} gets another port at each start: give it one with \
                 --{setting} ADDRESS:PORT"
            )));
        }
        Ok(Place::Address(listen))
    }
}

/// Returns the answer of the first address that answers.
fn get(place: &Place, path: &str, bounds: Bounds) -> io::Result<ask::Answer> {
    let end = Instant::now() + bounds.time;
    let mut failure = None;
    for address in place.addresses(bounds.time)? {
        let left = Bounds {
            time: end.saturating_duration_since(Instant::now()),
            ..bounds
        };
        match ask::get(address, path, "text/plain", left) {
            Ok(answer) => return Ok(answer),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// Returns the answer, fit for a terminal.
fn ask(
    Target { program, setting }: Target,
    place: &Place,
    ready: bool,
    bounds: Bounds,
) -> Result<Answer, Failure> {
    let path = if ready { "/readyz" } else { "/healthz" };
    let page = match place {
        Place::Address(address) => format!("http://{}{path}", ask::reached(*address)),
        Place::Name(..) => format!("http://{place}{path}"),
    };
    let answer = get(place, path, bounds).map_err(|error| {
        Failure::Other(format!(
            "{program} does not answer at {page}: {error}; is it running, with --{setting} {place}?"
        ))
    })?;
    let text = String::from_utf8_lossy(&answer.body);
    let mut text: String = text
        .lines()
        .take(MAX_LINES)
        .map(|line| format!("{}\n", plain(line)))
        .collect();
    let well = answer.status == 200;
    // A program that is not ready says why.
    if !well && (answer.status != 503 || text.is_empty()) {
        text.insert_str(0, &format!("{page}: {}\n", plain(&answer.first_line)));
    }
    Ok(Answer { text, well })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    /// For answers that certainly arrive, even if the machine stalls for some seconds.
    const PATIENT: Bounds = Bounds {
        time: Duration::from_secs(60),
        ..BOUNDS
    };

    const TARGET: Target = Target {
        program: "flexfeed-x",
        setting: "http",
    };

    #[test]
    fn obstacles_are_named() {
        command([]).debug_assert();
        let refused = |listen: Option<&str>| {
            let listen = listen.map(|text| text.parse().unwrap());
            let place = TARGET.place(listen);
            let asked = place.and_then(|place| ask(TARGET, &place, true, PATIENT));
            asked.unwrap_err().to_string()
        };
        assert!(refused(None).contains("does not answer HTTP"));
        assert!(refused(Some("[::]:0")).contains("port 0"));
        // A port that was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let why = refused(Some(&address));
        let page = format!("does not answer at http://{address}/readyz: ");
        assert!(why.contains(&page), "{why}");
        assert!(why.contains("is it running, with --http"), "{why}");
    }

    #[test]
    fn only_200_is_healthy_and_peer_text_harms_no_terminal() {
        let asked = |answer: &'static str| {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = server.local_addr().unwrap();
            std::thread::spawn(move || {
                let (mut stream, _) = server.accept().unwrap();
                std::io::Read::read(&mut stream, &mut [0; 1000]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            });
            let answer = ask(TARGET, &Place::Address(address), false, PATIENT).unwrap();
            (answer.text, answer.well)
        };
        let well = asked("HTTP/1.0 200 OK\r\n\r\nalive\n\u{1b}[2J");
        assert_eq!(well, ("alive\n [2J\n".to_owned(), true));
        let not = asked("HTTP/1.0 503 Service Unavailable\r\n\r\n{\"ready\": false}");
        assert_eq!(not, ("{\"ready\": false}\n".to_owned(), false));
        let (text, is_well) = asked("HTTP/1.0 404 Not Found\r\n\r\nnothing here");
        assert!(
            !is_well && text.contains("/healthz: HTTP/1.0 404 Not Found\n"),
            "{text}"
        );
    }

    #[test]
    fn places_are_names_or_addresses_with_a_port() {
        let at = |text: &str| text.parse::<Place>().map(|place| place.to_string());
        for (text, shown) in [
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("[192.0.2.1]:80", "192.0.2.1:80"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
            (":80", "[::]:80"),
            (" feeds.example.org:80 ", "feeds.example.org:80"),
        ] {
            assert_eq!(at(text).as_deref(), Ok(shown));
        }
        for wrong in [
            "",
            "feeds",
            "feeds:",
            "feeds:65536",
            "fe eds:80",
            "2001:db8::1:80",
            "[feeds]:80",
            "http://feeds:80",
            "a/b:80",
        ] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }

    /// By a name that every machine has, and whatever the settings are.
    #[test]
    fn another_machine_is_asked_by_name() {
        let given = |line: &[&str]| {
            let line = std::iter::once(&NAME).chain(line);
            Question::of(&command([]).try_get_matches_from(line).unwrap())
        };
        assert_eq!(given(&[]), Question::default());
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = format!("localhost:{}", server.local_addr().unwrap().port());
        let question = given(&["--ready", "--at", &at]);
        assert!(question.ready);
        std::thread::spawn(move || {
            for stream in server.incoming() {
                let mut stream = stream.unwrap();
                std::io::Read::read(&mut stream, &mut [0; 1000]).unwrap();
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nready\n");
            }
        });
        let place = question.at.clone().unwrap();
        let well = ask(TARGET, &place, true, PATIENT).unwrap();
        assert_eq!(well, "ready\n".to_owned().into());
        let wrong = || Err(Problems(vec!["wrong settings".to_owned()]));
        assert!(answer(TARGET, question, wrong).unwrap().well);
        let wrong = answer(TARGET, Question::default(), wrong);
        assert_eq!(wrong, Err(Failure::Other("wrong settings".to_owned())));
        // RFC 6761: there is no such name.
        let absent = Place::Name("flexfeed.invalid".into(), 1);
        let why = ask(TARGET, &absent, true, BOUNDS).unwrap_err().to_string();
        assert!(why.contains("http://flexfeed.invalid:1/readyz: "), "{why}");
    }
}
