//! What the console shows in a real browser, against what the source does.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use postgres::Postgres;
use serde::Deserialize;

use super::plan::{STATUS_PAGE, switch};
use super::{PATIENCE, Place, Plan, SeatPlan, Side, Stage};
use crate::lab::{Multicast, on_path};
use crate::process::{Launch, Service};
use crate::scenario::Sabotage;
use crate::waiting::wait_for;

/// Where the console answers, in the source's node.
const CONSOLE: &str = "127.0.0.1:9470";
const DATABASE: &str = "console";
const USER: &str = "ada";
const PASSWORD: &str = "only for this test, and long enough";

/// The page may be so much later than the source's own move. Two seconds are promised on a machine that does nothing else; two cores that also build and run
/// other tests get more.
const LATER: f64 = 8_000.0;

/// What the browser says, line by line.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Told {
    /// It shows everybody on multicast.
    Ready,
    /// The source's own page says so.
    Source { rung: String, at_ms: f64 },
    /// The console's page shows it.
    Page {
        rung: String,
        cause: Option<String>,
        at_ms: f64,
    },
    /// What it shows of the others then.
    Others { rungs: Vec<String> },
    /// The page has shown the fall.
    Fallen,
    /// And the return.
    Done,
}

/// z: PostgreSQL, a source, a relay, a console and four receivers, one of them by the relay; multicast to one is cut: in a real browser, the console's page shows this one on
/// unicast, with the cause, soon after the source has moved it, and the others where they were; when the cut is mended, it shows it back. `Ok(false)` when there is no
/// browser on this machine.
///
/// # Errors
/// When one of these does not hold.
pub fn the_console_tells_the_truth(sabotage: Option<Sabotage>) -> Result<bool> {
    let Some((node, chromium)) = browser() else {
        ensure!(
            std::env::var_os("FLEXFEED_REQUIRE_PEERS").is_none(),
            "this scenario needs Node.js with web/node_modules (./dev web) and Chromium"
        );
        return Ok(false);
    };
    let database = Postgres::start().context("starting PostgreSQL")?;
    database.create(DATABASE)?;
    let url = database.socket_url_of(DATABASE);
    let mut plan = Plan::new("console", sabotage);
    plan.database = Some(url.clone());
    plan.relays = 1;
    plan.seats.push(SeatPlan {
        place: Place::Beyond,
        ..SeatPlan::new("r4")
    });
    // With the relay at hand it would be on unicast for a third of a second only.
    let plan = plan.with_seat("r1", |seat| seat.args.push("--no-amt"));
    Stage::play(plan, |stage| {
        stage.wait_rung(&["r1", "r2", "r3"], "multicast")?;
        stage.wait_rung(&["r4"], "amt")?;
        let mut console = start_console(stage, &url, sabotage)?;
        stage.settle()?;
        stage.set_rate(4.0)?;
        let mut page = Page::open(stage, &node, &chromium)?;
        page.until(|told| matches!(told, Told::Ready).then_some(()))?;

        stage.set_multicast("r1", Multicast::Cut)?;
        let fallen = page.shows("unicast")?;
        ensure!(
            fallen.cause.as_deref() == Some("ack-timeout"),
            "the page shows the cause {:?} of the fall-back, and it was ack-timeout",
            fallen.cause
        );
        ensure!(
            fallen.others == ["multicast", "multicast"],
            "the page shows the others on {:?}",
            fallen.others
        );
        stage.set_multicast("r1", Multicast::Open)?;
        let returned = page.shows("multicast")?;
        for (what, change) in [("the fall-back", &fallen), ("the return", &returned)] {
            eprintln!(
                "the page shows {what} {:.0} ms after the source's status",
                change.later_ms
            );
            ensure!(
                change.later_ms <= LATER,
                "the page shows {what} {:.0} ms after the source's own move",
                change.later_ms
            );
        }
        page.end()?;
        let ended = console.terminate(Duration::from_secs(20))?;
        ensure!(
            ended.success(),
            "the console ended with {ended}; its log ends:\n{}",
            console.log_tail()
        );
        stage.set_rate(0.0)?;
        stage.settle()?;
        Ok(())
    })?;
    drop(database);
    Ok(true)
}

/// Node.js and Chromium, if both are here and the front end's tools are installed.
fn browser() -> Option<(PathBuf, PathBuf)> {
    let tools = web().join("node_modules/playwright-core");
    let chromium = match std::env::var_os("CHROMIUM") {
        Some(path) => PathBuf::from(path),
        None => on_path("chromium")?,
    };
    (tools.is_dir() && chromium.is_file()).then_some((on_path("node")?, chromium))
}

fn web() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../web")
}

/// Starts the console in the source's node, with somebody who can sign in.
fn start_console(stage: &Stage, url: &str, sabotage: Option<Sabotage>) -> Result<Service> {
    let node = stage.source_node();
    let mut adding = node.service_command(&stage.bins().console)?;
    let mut adding = adding
        .args(["user", "add", USER, "--role", "operator"])
        .args(["--database-url", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting flexfeed-console")?;
    if let Some(mut stdin) = adding.stdin.take() {
        writeln!(stdin, "{PASSWORD}")?;
    }
    let added = adding.wait_with_output()?;
    ensure!(
        added.status.success(),
        "flexfeed-console user add: {}",
        String::from_utf8_lossy(&added.stderr)
    );
    let launch = Launch {
        name: "console".to_owned(),
        program: stage.bins().console.clone(),
        args: ["--database-url", url, "--listen", CONSOLE]
            .map(str::to_owned)
            .to_vec(),
        env: sabotage
            .filter(|sabotage| sabotage.breaks(Side::Console))
            .map(switch)
            .into_iter()
            .collect(),
    };
    let mut service = Service::start(node, &launch, &stage.logs())?;
    wait_for("the console to be ready", PATIENCE, || {
        service.check_running()?;
        let mut asking = node.service_command(&stage.bins().lore)?;
        let asked = asking
            .args(["get", &format!("http://{CONSOLE}/readyz")])
            .output()?;
        Ok(asked.status.success().then_some(()))
    })?;
    Ok(service)
}

/// A browser that looks at the console.
struct Page {
    child: Child,
    told: Receiver<Result<Told>>,
}

/// How a change came to the page.
struct Change {
    cause: Option<String>,
    others: Vec<String>,
    later_ms: f64,
}

impl Page {
    fn open(stage: &Stage, node: &Path, chromium: &Path) -> Result<Page> {
        let password = stage.run_folder().join("password");
        std::fs::write(&password, PASSWORD)?;
        let shots = match std::env::var_os("FLEXFEED_SHOTS") {
            Some(folder) => PathBuf::from(folder),
            None => stage.run_folder().join("shots"),
        };
        std::fs::create_dir_all(&shots)?;
        // Chromium makes a sandbox of its own, or does without; it needs the rights of the lab's owner for either.
        let mut command = stage.source_node().owner_command(node)?;
        command
            .arg(web().join("e2e/live.mjs"))
            .args(["--console", &format!("http://{CONSOLE}")])
            .args(["--source", &format!("http://{STATUS_PAGE}")])
            .args(["--user", USER, "--receiver", "r1", "--others", "r2,r3"])
            .arg("--password-file")
            .arg(&password)
            .arg("--shots")
            .arg(&shots)
            .env("CHROMIUM", chromium)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command.spawn().context("starting node")?;
        let lines = child.stdout.take().context("node has no output")?;
        let (tell, told) = sync_channel(64);
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines() {
                if tell.send(read(line)).is_err() {
                    return;
                }
            }
        });
        Ok(Page { child, told })
    }

    /// Waits for something that the browser says.
    fn until<T>(&mut self, mut what: impl FnMut(Told) -> Option<T>) -> Result<T> {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left) {
                Ok(told) => {
                    if let Some(found) = what(told?) {
                        return Ok(found);
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("the page does not show it"),
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.child.wait()?;
                    bail!("the page does not show it: the browser's script ended with {ended}")
                }
            }
        }
    }

    /// Waits until source and page agree on a rung.
    fn shows(&mut self, wanted: &str) -> Result<Change> {
        let (mut moved, mut shown) = (None, None);
        let others = self.until(|told| {
            match told {
                Told::Source { rung, at_ms } if rung == wanted => moved = Some(at_ms),
                Told::Page { rung, cause, at_ms } if rung == wanted => shown = Some((cause, at_ms)),
                Told::Others { rungs } if shown.is_some() => return Some(rungs),
                _ => {}
            }
            None
        })?;
        let (cause, at) = shown.context("the page said nothing")?;
        let moved =
            moved.ok_or_else(|| anyhow!("the page shows {wanted} before the source does"))?;
        Ok(Change {
            cause,
            others,
            later_ms: at - moved,
        })
    }

    fn end(mut self) -> Result<()> {
        let ended = wait_for("the end of the browser", PATIENCE, || {
            Ok(self.child.try_wait()?)
        })?;
        ensure!(ended.success(), "the browser's script ended with {ended}");
        Ok(())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn read(line: std::io::Result<String>) -> Result<Told> {
    let line = line.context("reading what the browser says")?;
    serde_json::from_str(&line).with_context(|| format!("the browser says {line:?}"))
}
