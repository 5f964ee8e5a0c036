//! A throw-away PostgreSQL server, a real one, for tests and benchmarks.
//!
//! [`Postgres::start`] makes a new cluster in a folder of its own and runs a server on it, on a
//! Unix socket and on a port of the loopback interface. It syncs to disk as in production, unless
//! its options say otherwise. The server and its folder go when the value is dropped, and also when
//! the process that has it is killed.

mod programs;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use programs::{Programs, run};

/// The user that owns the databases, and its password for connections to the port. (The URL needs
/// no escapes for it, and nothing else is called so: a test may look for it in logs.)
pub const USER: &str = "flexfeed";
/// See [`USER`].
pub const PASSWORD: &str = "xyzzy-plugh-plover";

/// The database that is there from the beginning.
pub const DATABASE: &str = "flexfeed";

/// Longest wait for a server to start or to end. After a kill it has to replay its log.
const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(20);

/// Ends the server when its standard input ends, that is when the process at the other end dies. A
/// line read first means that nothing is left to do.
const KEEPER: &str = r#"trap '' INT HUP
read -r word
[ "$word" = done ] && exit
kill -QUIT "$1"
while kill -0 "$1" 2>/dev/null; do sleep 0.1; done
rm -rf "$2"
"#;

/// Options of a server.
#[derive(Debug, Default)]
pub struct Options {
    /// Parent of its data folder; by default the folder for temporary files.
    pub place: Option<PathBuf>,
    /// Lines of `postgresql.conf`, such as `ssl = on`. File names are relative to the data folder.
    pub settings: Vec<String>,
    /// Files for the data folder, readable by the server only.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Options {
    /// Options of a server that does not wait for the disk: its data survives the end of any
    /// process, not that of the machine.
    #[must_use]
    pub fn unsynced() -> Self {
        Self {
            settings: vec!["fsync = off".to_owned()],
            ..Self::default()
        }
    }
}

/// A running (or stopped) server.
#[derive(Debug)]
pub struct Postgres {
    programs: Programs,
    folder: TempDir,
    port: Port,
    running: Option<Running>,
}

/// A reserved port, kept also while the server does not run.
#[derive(Debug)]
struct Port {
    number: u16,
    _held_by: OwnedFd,
}

impl Port {
    /// Reserves a free port. Its socket never listens, so another one with address reuse, as
    /// PostgreSQL's, may bind there and listen; a request for any port gets another.
    fn hold() -> Result<Self> {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let address = SocketAddrV4::try_from(rustix::net::getsockname(&socket)?)?;
        Ok(Self {
            number: address.port(),
            _held_by: socket,
        })
    }
}

/// The server process, and its keeper.
#[derive(Debug)]
struct Running {
    server: Child,
    keeper: Child,
    input: ChildStdin,
}

impl Postgres {
    /// Makes a cluster and starts a server on it.
    ///
    /// # Errors
    /// PostgreSQL is not installed (the text says how to), or does not start.
    pub fn start() -> Result<Self> {
        Self::start_with(&Options::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`Postgres::start`].
    pub fn start_with(options: &Options) -> Result<Self> {
        let programs = Programs::find()?;
        let place = options.place.clone().unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new()
            .prefix("flexfeed-postgres-")
            .tempdir_in(&place)
            .with_context(|| format!("cannot make a folder in {}", place.display()))?;
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))?;
        programs.give(folder.path())?;
        let mut postgres = Self {
            programs,
            folder,
            port: Port::hold()?,
            running: None,
        };
        postgres.make_cluster(options)?;
        postgres.run_server()?;
        postgres.create(DATABASE)?;
        Ok(postgres)
    }

    fn make_cluster(&self, options: &Options) -> Result<()> {
        let password = self.folder.path().join("password");
        std::fs::write(&password, PASSWORD)?;
        run(self
            .programs
            .command("initdb")
            .args(["--no-sync", "--encoding=UTF8", "--locale=C"])
            .args(["--auth-local=trust", "--auth-host=scram-sha-256"])
            .arg("--username")
            .arg(USER)
            .arg("--pwfile")
            .arg(&password)
            .arg(self.data()))?;
        for (name, content) in &options.files {
            let path = self.data().join(name);
            std::fs::write(&path, content)?;
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
            self.programs.give(&path)?;
        }
        let mut settings = format!(
            "listen_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nfsync = on\n",
            self.folder.path().display()
        );
        for setting in &options.settings {
            settings.push_str(setting);
            settings.push('\n');
        }
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(self.data().join("postgresql.conf"))?;
        file.write_all(settings.as_bytes())?;
        Ok(())
    }

    /// The URL of the database that is there from the beginning, by the port.
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// The URL of a database, by the port and with a password.
    pub fn url_of(&self, database: &str) -> String {
        format!(
            "postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{database}",
            self.port()
        )
    }

    /// The URL of a database, by the Unix socket and without a password.
    pub fn socket_url_of(&self, database: &str) -> String {
        let folder = self.folder.path().display().to_string();
        format!(
            "postgres://{USER}@{}:{}/{database}",
            folder.replace('/', "%2F"),
            self.port()
        )
    }

    /// The port on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Makes an empty database, and returns its URL.
    ///
    /// # Errors
    /// There is one of that name already, or the server is not running.
    pub fn create(&self, database: &str) -> Result<String> {
        run(self
            .programs
            .command("createdb")
            .args(["--username", USER, "--maintenance-db", "postgres"])
            .arg("--host")
            .arg(self.folder.path())
            .arg("--port")
            .arg(self.port().to_string())
            .arg(database))?;
        Ok(self.url_of(database))
    }

    /// Gives a folder to the server's user, for a tablespace.
    ///
    /// # Errors
    /// The folder cannot be given.
    pub fn give(&self, folder: &Path) -> Result<()> {
        self.programs.give(folder)
    }

    /// Shuts the server down in an orderly way; connections are broken.
    ///
    /// # Errors
    /// The server is not running, or does not end.
    pub fn stop(&mut self) -> Result<()> {
        self.end(Signal::INT)
    }

    /// Kills the server, as a power failure would.
    ///
    /// # Errors
    /// The server is not running.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::KILL)
    }

    /// Suspends or resumes the server's main process: while suspended, its port accepts connections
    /// without an answer.
    ///
    /// # Errors
    /// The server is not running.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        self.signal(if frozen { Signal::STOP } else { Signal::CONT })
    }

    /// Restarts the server on the same data and port.
    ///
    /// # Errors
    /// The server does not start.
    pub fn restart(&mut self) -> Result<()> {
        if self.running.is_some() {
            self.stop()?;
        }
        // The processes of a killed server may take a moment to notice.
        let started = Instant::now();
        loop {
            match self.run_server() {
                Err(error) if started.elapsed() > PATIENCE => return Err(error),
                Err(_) => pause(),
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn run_server(&mut self) -> Result<()> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))?;
        let server = self
            .programs
            .command("postgres")
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port().to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run postgres")?;
        let mut keeper = self
            .programs
            .unprivileged(Path::new("/bin/sh"))
            .args(["-c", KEEPER, "keeper", &server.id().to_string()])
            .arg(self.folder.path())
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot run /bin/sh")?;
        let input = keeper.stdin.take().context("the keeper has no input")?;
        let mut running = Running {
            server,
            keeper,
            input,
        };
        let started = wait("PostgreSQL to start", || {
            if let Some(status) = running.server.try_wait()? {
                bail!("PostgreSQL does not start ({status}): {}", self.log());
            }
            Ok(self.is_ready(running.server.id()))
        });
        self.running = Some(running);
        if started.is_err() {
            self.end(Signal::QUIT)?;
        }
        started
    }

    /// Whether the server says so in its file: pid, data folder, start, port, socket folder,
    /// address, shared memory, state. A killed one leaves its file behind.
    fn is_ready(&self, pid: u32) -> bool {
        let file = self.data().join("postmaster.pid");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.first() == Some(&pid.to_string().as_str()) && lines.get(7) == Some(&"ready")
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self
            .running
            .as_ref()
            .and_then(|running| Pid::from_raw(i32::try_from(running.server.id()).ok()?))
            .context("PostgreSQL is not running")?;
        kill_process(pid, signal).with_context(|| format!("cannot signal PostgreSQL ({pid:?})"))
    }

    fn end(&mut self, signal: Signal) -> Result<()> {
        // The server may have ended by itself; it is waited for below.
        let _ = self.signal(signal);
        let mut running = self.running.take().context("PostgreSQL is not running")?;
        let ended = wait("PostgreSQL to end", || {
            Ok(running.server.try_wait()?.is_some())
        });
        if ended.is_ok() {
            // The keeper may be gone already.
            let _ = running.input.write_all(b"done\n");
        }
        drop(running.input);
        running
            .keeper
            .wait()
            .context("cannot wait for the keeper")?;
        ended
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.running.is_some() {
            // A frozen one would not end. The folder goes with its value.
            let _ = self.freeze(false);
            let _ = self.end(Signal::QUIT);
        }
    }
}

fn wait(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !done()? {
        if started.elapsed() > PATIENCE {
            bail!("gave up waiting for {what}");
        }
        pause();
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "starting a server blocks its thread anyway"
)]
fn pause() {
    std::thread::sleep(PAUSE);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn ask(postgres: &Postgres, question: &str) -> Result<String> {
        let output = run(postgres
            .programs
            .command("psql")
            .args(["-X", "-A", "-t", "-c", question])
            .arg(postgres.url()))?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    #[test]
    fn a_server_starts_survives_and_stops() {
        let mut postgres = Postgres::start().unwrap();
        let folder = postgres.folder.path().to_owned();
        assert_eq!(ask(&postgres, "SHOW fsync").unwrap(), "on");
        ask(&postgres, "CREATE TABLE kept AS SELECT 7 AS seven").unwrap();
        assert!(postgres.create(DATABASE).is_err(), "it is there already");
        postgres.create("other").unwrap();
        postgres.stop().unwrap();
        assert!(ask(&postgres, "SELECT 1").is_err());
        // No answer, and the port stays reserved.
        let stranger = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, postgres.port());
        let refused = rustix::net::bind(&stranger, &address);
        assert_eq!(refused, Err(rustix::io::Errno::ADDRINUSE));
        postgres.restart().unwrap();
        assert_eq!(ask(&postgres, "SELECT seven FROM kept").unwrap(), "7");
        postgres.kill().unwrap();
        assert!(ask(&postgres, "SELECT 1").is_err());
        postgres.restart().unwrap();
        assert_eq!(ask(&postgres, "SELECT seven FROM kept").unwrap(), "7");
        let port = postgres.port();
        drop(postgres);
        assert!(!folder.exists());
        assert!(std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
    }

    /// Marks the child process of the test below.
    const VICTIM: &str = "FLEXFEED_TEST_POSTGRES_VICTIM";

    #[test]
    fn victim() {
        if std::env::var_os(VICTIM).is_some() {
            let postgres = Postgres::start().unwrap();
            println!("\nstarted {}", postgres.folder.path().display());
            let _ = std::io::stdin().read_line(&mut String::new());
        }
    }

    #[test]
    fn a_server_ends_with_a_killed_process() {
        let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "postgres::tests::victim", "--nocapture"])
            .env(VICTIM, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = std::io::BufReader::new(victim.stdout.take().unwrap());
        let folder = std::io::BufRead::lines(output)
            .map_while(std::result::Result::ok)
            .find_map(|line| Some(PathBuf::from(line.strip_prefix("started ")?)))
            .unwrap();
        assert!(folder.join("data/postmaster.pid").exists());
        victim.kill().unwrap();
        victim.wait().unwrap();
        wait("the folder to go", || Ok(!folder.exists())).unwrap();
    }
}
