//! Password input.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write, stderr, stdin};

use console::auth::password::MOST;
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, read as next};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};

use crate::cli::Password;

/// Reads the password.
///
/// # Errors
/// The password cannot be read; in words for the operator.
pub(super) fn read(from: &Password) -> Result<String, String> {
    match &from.file {
        Some(path) => {
            let file = File::open(path);
            let file = file.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            first_line(file)
        }
        None if stdin().is_terminal() => {
            let once = ask("Password: ")?;
            match ask("Once more: ")? == once {
                true => Ok(once),
                false => Err("the two passwords differ".to_owned()),
            }
        }
        None => first_line(stdin()),
    }
}

fn first_line(from: impl Read) -> Result<String, String> {
    // One more than the longest password: a longer line is rejected, not cut.
    let mut line = String::new();
    let limit = MOST as u64 + 2;
    BufReader::new(from.take(limit))
        .read_line(&mut line)
        .map_err(|error| format!("cannot read the password: {error}"))?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Asks on the terminal, without showing what is typed.
fn ask(words: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot ask for the password: {error}");
    let mut out = stderr();
    out.write_all(words.as_bytes()).map_err(failed)?;
    out.flush().map_err(failed)?;
    enable_raw_mode().map_err(failed)?;
    let typed = typed();
    let _ = disable_raw_mode();
    let _ = out.write_all(b"\n");
    typed.map_err(failed)?.ok_or_else(|| "cancelled".to_owned())
}

/// Reads from the terminal up to Enter; `None` for Ctrl-C.
fn typed() -> std::io::Result<Option<String>> {
    let mut text = String::new();
    loop {
        let Event::Key(key) = next()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => return Ok(Some(text)),
            KeyCode::Char('c' | 'd') if control => return Ok(None),
            KeyCode::Char('u') if control => text.clear(),
            KeyCode::Backspace => {
                text.pop();
            }
            KeyCode::Char(c) if text.len() <= MOST => text.push(c),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_password_is_the_first_line() {
        let read = |text: &str| first_line(text.as_bytes()).unwrap();
        assert_eq!(read("secret\r\nmore"), "secret");
        assert_eq!(read(" with space \n"), " with space ");
        assert_eq!(read(""), "");
        assert!(read(&"x".repeat(9_999)).len() > MOST);
        assert!(first_line(&b"\xff\n"[..]).is_err());
    }
}
