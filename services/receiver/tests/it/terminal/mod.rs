//! A program in a terminal of its own: a real pseudo terminal, and its screen.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::program::PATIENCE;

/// A terminal with a program in it.
pub struct Terminal {
    pub child: Child,
    keys: File,
    /// Kept open, so that the terminal's settings can be looked at after the program's end.
    other_end: File,
    screen: Arc<Mutex<Screen>>,
}

impl Terminal {
    /// Starts the program in a terminal of `columns` by `rows`.
    pub fn start(command: &Command, columns: u16, rows: u16) -> Terminal {
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&control).unwrap();
        unlockpt(&control).unwrap();
        let name = ptsname(&control, Vec::new()).unwrap();
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .open(name.to_str().unwrap())
                .unwrap()
        };
        let other_end = open();
        // The program's controlling terminal, so that it is notified of a new size.
        let mut inside = Command::new("setsid");
        inside
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::from(open()))
            .stdout(Stdio::from(open()))
            .stderr(Stdio::from(open()))
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        let terminal = File::from(control);
        let screen = Arc::new(Mutex::new(Screen::new(columns, rows)));
        resize(&terminal, columns, rows);
        let (mut reader, into) = (terminal.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                into.lock().unwrap().write(&buffer[..read]);
            }
        });
        Terminal {
            child: inside.spawn().unwrap(),
            keys: terminal,
            other_end,
            screen,
        }
    }

    pub fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        self.screen.lock().unwrap().resize(columns, rows);
        resize(&self.keys, columns, rows);
    }

    /// Waits until the screen is so; returns it.
    pub fn until(&self, what: &str, is_so: impl Fn(&Screen) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            {
                let screen = self.screen.lock().unwrap();
                if is_so(&screen) {
                    return screen.text();
                }
                let text = screen.text();
                assert!(Instant::now() < end, "never: {what}\n{text}");
            }
            // A test's own thread.
            #[allow(clippy::disallowed_methods)]
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether the terminal shows what is typed and waits for whole lines, as a shell left it.
    pub fn is_ordinary(&self) -> bool {
        let modes = tcgetattr(&self.other_end).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    /// The exit code, once the program has ended.
    pub fn exit_code(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "it does not end");
            // A test's own thread.
            #[allow(clippy::disallowed_methods)]
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}

/// Contents of a screen: the subset of terminal sequences that the program uses.
pub struct Screen {
    columns: usize,
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    pending: Vec<u8>,
    /// On the second screen, which leaves the first as it was.
    pub alternate: bool,
    pub cursor_shown: bool,
    /// Some text had a colour.
    pub coloured: bool,
}

impl Screen {
    fn new(columns: u16, rows: u16) -> Screen {
        let mut screen = Screen {
            columns: 0,
            cells: Vec::new(),
            at: (0, 0),
            pending: Vec::new(),
            alternate: false,
            cursor_shown: true,
            coloured: false,
        };
        screen.resize(columns, rows);
        screen
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        self.columns = columns.into();
        self.cells = vec![vec![' '; columns.into()]; rows.into()];
    }

    pub fn rows(&self) -> Vec<String> {
        let rows = self.cells.iter().map(|row| row.iter().collect::<String>());
        rows.map(|row| row.trim_end().to_owned()).collect()
    }

    pub fn text(&self) -> String {
        self.rows().join("\n")
    }

    fn write(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        while !rest.is_empty() {
            match self.step(rest) {
                Some(used) => rest = &rest[used..],
                // The rest of it is still to come.
                None => break,
            }
        }
        self.pending = rest.to_vec();
    }

    /// Takes one character or command; how many bytes it has.
    fn step(&mut self, bytes: &[u8]) -> Option<usize> {
        match bytes[0] {
            b'\x1b' => {
                if *bytes.get(1)? != b'[' {
                    return Some(2);
                }
                let length = bytes[2..].iter().position(|b| (0x40..0x7f).contains(b))?;
                let parameters = std::str::from_utf8(&bytes[2..2 + length]).unwrap();
                self.command(parameters, bytes[2 + length]);
                Some(3 + length)
            }
            b'\r' => {
                self.at.1 = 0;
                Some(1)
            }
            b'\n' => {
                self.at.0 += 1;
                Some(1)
            }
            first => {
                let length = match first {
                    0..0x80 => 1,
                    0xc0..0xe0 => 2,
                    0xe0..0xf0 => 3,
                    _ => 4,
                };
                let character = std::str::from_utf8(bytes.get(..length)?).unwrap();
                let (row, column) = self.at;
                if let Some(cell) = self.cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = character.chars().next().unwrap();
                }
                self.at.1 += 1;
                Some(length)
            }
        }
    }

    fn command(&mut self, parameters: &str, command: u8) {
        let numbers: Vec<usize> = parameters
            .split(';')
            .map(|number| number.parse().unwrap_or(0))
            .collect();
        match (parameters, command) {
            ("?1049", b'h' | b'l') => self.alternate = command == b'h',
            ("?25", b'h' | b'l') => self.cursor_shown = command == b'h',
            (_, b'H') => {
                let at = |n: usize| numbers.get(n).map_or(0, |n| n.saturating_sub(1));
                self.at = (at(0), at(1));
            }
            (_, b'J') => {
                for row in &mut self.cells {
                    row.fill(' ');
                }
            }
            (_, b'K') => {
                let (row, column) = self.at;
                if let Some(row) = self.cells.get_mut(row) {
                    row.iter_mut().skip(column).for_each(|cell| *cell = ' ');
                }
            }
            (_, b'm') => {
                let colour = |n: &usize| matches!(n, 30..=38 | 40..=48 | 90..=97 | 100..=107);
                self.coloured |= numbers.iter().any(colour);
            }
            _ => {}
        }
    }
}
