//! The `health` command, the same for all programs: asks the one that runs with the same settings
//! whether it is alive, or ready. For containers and scripts that have nothing else to ask with.

use std::fmt::Display;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::ask::{self, Bounds};
use crate::peer_text::plain;

/// The name of the command.
pub const NAME: &str = "health";

/// Who does not answer within this time is not well; and no such page is long.
const BOUNDS: Bounds = Bounds {
    time: Duration::from_secs(3),
    longest: 1 << 20,
};

/// The most lines that are printed of what others may have written.
const MAX_LINES: usize = 1000;

const READY: &str = "ready";

const HELP: &str = "\
Prints what it answers, and waits no longer than 3 seconds for that.

Exit codes:
  0  it is well
  1  it is not, or does not answer, or the settings cannot be read
  2  this command was not called as it can be";

/// Who is asked.
#[derive(Debug, Clone, Copy)]
pub struct Whom {
    /// The program's name.
    pub program: &'static str,
    /// The flag by which it is told where to answer HTTP.
    pub flag: &'static str,
}

/// The command; `settings` are the options that say where the program answers.
#[must_use]
pub fn command(settings: impl IntoIterator<Item = Arg>) -> Command {
    Command::new(NAME)
        .about("Asks the program that runs with the same settings whether it is well")
        .after_help(HELP)
        .args(settings)
        .arg(Arg::new(READY).long(READY).action(ArgAction::SetTrue).help(
            "Asks whether it does what it is for (/readyz), not only whether it runs (/healthz)",
        ))
}

/// Whether the command line has `--ready`.
#[must_use]
pub fn asks_for_ready(given: &ArgMatches) -> bool {
    matches!(given.try_get_one::<bool>(READY), Ok(Some(true)))
}

/// Does it. `listen` is where the settings have the program answer HTTP; `None` for nowhere.
pub fn run<E: Display>(whom: Whom, listen: Result<Option<SocketAddr>, E>, ready: bool) -> ExitCode {
    let listen = listen.map_err(|problems| problems.to_string());
    match listen.and_then(|listen| ask(whom, listen, ready, BOUNDS)) {
        // Nobody reads it any more: the exit code still counts.
        Ok((text, is_well)) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            match is_well {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "{}", why.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// What it answers, for a terminal, and whether it is well.
fn ask(
    Whom { program, flag }: Whom,
    listen: Option<SocketAddr>,
    ready: bool,
    bounds: Bounds,
) -> Result<(String, bool), String> {
    let listen = listen.ok_or_else(|| {
        format!(
            "with these settings {program} answers no HTTP, so nobody can ask how it does: give it \
             an address with {flag} ADDRESS:PORT"
        )
    })?;
    if listen.port() == 0 {
        return Err(format!(
            "with port 0 {program} gets another port at each start: give it one with {flag} \
             ADDRESS:PORT"
        ));
    }
    let path = if ready { "/readyz" } else { "/healthz" };
    let page = format!("http://{}{path}", ask::reached(listen));
    let answer = ask::get(listen, path, "text/plain", bounds).map_err(|error| {
        format!(
            "{program} does not answer at {page}: {error}; is it running, with {flag} {listen}?"
        )
    })?;
    let text = String::from_utf8_lossy(&answer.body);
    let mut text: String = text
        .lines()
        .take(MAX_LINES)
        .map(|line| format!("{}\n", plain(line)))
        .collect();
    match answer.status {
        200 => Ok((text, true)),
        // As it says where it is not ready.
        503 if !text.is_empty() => Ok((text, false)),
        _ => {
            text.insert_str(0, &format!("{page}: {}\n", plain(&answer.first_line)));
            Ok((text, false))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use super::*;

    const WHOM: Whom = Whom {
        program: "flexfeed-x",
        flag: "--http",
    };

    #[test]
    fn what_is_in_the_way_is_said() {
        command([]).debug_assert();
        let refused = |listen: Option<&str>| {
            let listen = listen.map(|text| text.parse().unwrap());
            ask(WHOM, listen, true, BOUNDS).unwrap_err()
        };
        assert!(refused(None).contains("answers no HTTP"));
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
    fn only_200_is_well_and_text_of_others_harms_no_terminal() {
        let said = |answer: &'static str| {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = server.local_addr().unwrap();
            std::thread::spawn(move || {
                let (mut stream, _) = server.accept().unwrap();
                std::io::Read::read(&mut stream, &mut [0; 1000]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            });
            ask(WHOM, Some(address), false, BOUNDS).unwrap()
        };
        let well = said("HTTP/1.0 200 OK\r\n\r\nalive\n\u{1b}[2J");
        assert_eq!(well, ("alive\n [2J\n".to_owned(), true));
        let not = said("HTTP/1.0 503 Service Unavailable\r\n\r\n{\"ready\": false}");
        assert_eq!(not, ("{\"ready\": false}\n".to_owned(), false));
        let (text, is_well) = said("HTTP/1.0 404 Not Found\r\n\r\nnothing here");
        assert!(
            !is_well && text.contains("/healthz: HTTP/1.0 404 Not Found\n"),
            "{text}"
        );
    }
}
