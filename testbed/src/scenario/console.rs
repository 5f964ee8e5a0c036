//! The console in a real browser, compared with the source's state.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kit::postgres::Postgres;
use serde::Deserialize;

use super::plan::{STATUS_PAGE, switch};
use super::{PATIENCE, Place, Plan, SeatPlan, Side, Stage, now_ms};
use crate::lab::{Multicast, on_path};
use crate::process::{Launch, Service};
use crate::scenario::Fault;
use crate::waiting::{pause, wait_for};

/// Address of the console, in the source's node.
const CONSOLE: &str = "127.0.0.1:9470";
const DATABASE: &str = "console";
const USER: &str = "ada";
const PASSWORD: &str = "only for this test, and long enough";

/// The page may be so much later than the source's own move, in ms.
const LATER: f64 = 2_000.0;
/// A receiver that hears nothing any more is shown off multicast so soon after the cut, in ms, when
/// nothing flows but heartbeats: three of them have to stay away first.
const SINCE_CUT: f64 = 6_000.0;
/// Both limits are promised for an idle machine: a delay caused by tests that run at the same time
/// may vanish at the next cut, a slow console stays slow. The same holds for the cause: on a
/// stalled machine, more than one is right.
const TRIES: u32 = 3;
/// Longer than two heartbeats and than a probe for what was sent last: what comes now is a
/// heartbeat.
const QUIET: Duration = Duration::from_secs(3);

/// Output of the browser script, line by line.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum PageEvent {
    /// The page shows all receivers on multicast.
    Ready,
    /// From now on it looks at source and page.
    Watching,
    /// The source's own page says so.
    Source { rung: String },
    /// The console's page shows it.
    Page {
        rung: String,
        cause: Option<String>,
        at_ms: f64,
    },
    /// Rungs of the other receivers at that time.
    Others { rungs: Vec<String> },
    /// Pictures were taken of that.
    Seen,
}

/// One way to be cut off.
struct Cut {
    what: &'static str,
    /// Cause given by the source for moving the receiver.
    cause: &'static str,
    /// Whether updates flow.
    busy: bool,
    /// Names of the screenshots.
    shots: [&'static str; 2],
}

const CUTS: [Cut; 2] = [
    Cut {
        what: "while updates flow",
        cause: "ack-timeout",
        busy: true,
        shots: ["fallen", "returned"],
    },
    Cut {
        what: "while nothing flows",
        cause: "heartbeat-lost",
        busy: false,
        shots: ["idle-fallen", "idle-returned"],
    },
];

/// z: PostgreSQL, a source, a relay, a console and four receivers, one of them by the relay;
/// multicast to one is cut, first while updates flow and then while none do: in a real browser, the
/// console's page shows it on unicast, with the cause, within two seconds of the source's own move
/// (and within six of the cut when nothing flows), and the others unchanged; after the cut, it
/// shows the return as soon. `Ok(false)` without a browser on this machine.
///
/// # Errors
/// One of these does not hold.
pub fn the_console_shows_the_real_rungs(fault: Option<Fault>) -> Result<bool> {
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
    let mut plan = Plan::new("console", fault);
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
        let mut console = start_console(stage, &url, fault)?;
        stage.settle()?;
        let mut page = Page::open(stage, &node, &chromium)?;
        page.until(|event| matches!(event, PageEvent::Ready).then_some(()))?;
        for cut in &CUTS {
            shown_in_time(stage, &mut page, cut)?;
        }
        page.end()?;
        let ended = console.terminate(Duration::from_secs(20))?;
        ensure!(
            ended.success(),
            "the console ended with {ended}; its log ends:\n{}",
            console.log_tail()
        );
        stage.settle()?;
        Ok(())
    })?;
    drop(database);
    Ok(true)
}

/// Cuts and restores multicast to r1; repeats if the page was late or another cause applied.
fn shown_in_time(stage: &mut Stage, page: &mut Page, cut: &Cut) -> Result<()> {
    for left in (0..TRIES).rev() {
        let late = cut_and_repair(stage, page, cut)?;
        let what = cut.what;
        match late.as_slice() {
            [] => return Ok(()),
            late if left == 0 => {
                bail!("{what}, the page was late or the cause wrong {TRIES} times: {late:?}")
            }
            late => eprintln!("{what}, the page was late or the cause wrong, once more: {late:?}"),
        }
    }
    Ok(())
}

/// Cuts and restores multicast to r1. Returns the page's late changes and wrong causes.
fn cut_and_repair(stage: &mut Stage, page: &mut Page, cut: &Cut) -> Result<Vec<String>> {
    if cut.busy {
        let head = stage.source_status_now()?.head;
        stage.set_rate(4.0)?;
        stage.wait_cursor(&["r1"], head + 4)?;
    } else {
        pause(QUIET);
    }
    let head = stage.source_status_now()?.head;
    let (what, [fallen, returned]) = (cut.what, cut.shots);

    page.follow("unicast", fallen)?;
    let cut_ms = now_ms() as f64;
    stage.set_multicast("r1", Multicast::Cut)?;
    let fall = page.shows("unicast")?;
    let (fell_ms, cause) = last_move(stage, "unicast")?;
    ensure!(
        fall.cause.as_ref() == Some(&cause),
        "{what}, the cause of the fall-back is {cause:?} by the source, and {:?} by the page",
        fall.cause
    );
    let mut late = Vec::new();
    if cause != cut.cause {
        late.push(format!(
            "the fall-back: its cause is {cause}, and should be {}",
            cut.cause
        ));
    }

    page.follow("multicast", returned)?;
    let mended_ms = now_ms() as f64;
    stage.set_multicast("r1", Multicast::Open)?;
    let back = page.shows("multicast")?;
    let (back_ms, _) = last_move(stage, "multicast")?;
    let now = stage.source_status_now()?.head;
    ensure!(
        cut.busy == (now > head),
        "{what}, the updates went from {head} to {now}"
    );
    stage.set_rate(0.0)?;
    stage.settle()?;

    let since_cut = if cut.busy { f64::MAX } else { SINCE_CUT };
    let changes = [
        ("the fall-back", &fall, fell_ms, ("cut", cut_ms, since_cut)),
        (
            "the return",
            &back,
            back_ms,
            ("repair", mended_ms, f64::MAX),
        ),
    ];
    for (name, change, moved_ms, (event, event_ms, bound)) in changes {
        ensure!(
            change.others == ["multicast", "multicast"],
            "{what}, the page shows the others on {:?}",
            change.others
        );
        let (move_later, event_later) = (change.at_ms - moved_ms, change.at_ms - event_ms);
        let shown = format!(
            "{name}: {move_later:.0} ms after the source's move, {event_later:.0} ms after the \
             {event}"
        );
        eprintln!("{what}, the page shows {shown}");
        if move_later > LATER || event_later > bound {
            late.push(shown);
        }
    }
    Ok(late)
}

/// When and why the source moved r1 to this rung last, in Unix ms.
fn last_move(stage: &Stage, to: &str) -> Result<(f64, String)> {
    let status = stage.source_status_now()?;
    let moves = status.moves_of("r1");
    let last = moves.last().filter(|step| step.to == to);
    let last = last.with_context(|| format!("the source has not moved r1 to {to} last"))?;
    Ok((last.at_ms, last.cause.clone()))
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

/// Starts the console in the source's node, with a user who can sign in.
fn start_console(stage: &Stage, url: &str, fault: Option<Fault>) -> Result<Service> {
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
        env: fault
            .filter(|fault| fault.breaks(Side::Console))
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
    /// Commands to the browser script.
    orders: Option<ChildStdin>,
    events: Receiver<Result<PageEvent>>,
}

/// Arrival of a change on the page.
struct Change {
    cause: Option<String>,
    others: Vec<String>,
    /// When the page showed it, in Unix ms.
    at_ms: f64,
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
        // Chromium makes a sandbox of its own, or does without; it needs the rights of the lab's
        // owner for either.
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
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command.spawn().context("starting node")?;
        let lines = child.stdout.take().context("node has no output")?;
        let orders = child.stdin.take();
        let (tell, events) = sync_channel(64);
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines() {
                if tell.send(read(line)).is_err() {
                    return;
                }
            }
        });
        Ok(Page {
            child,
            orders,
            events,
        })
    }

    /// Waits for something that the browser says.
    fn until<T>(&mut self, mut what: impl FnMut(PageEvent) -> Option<T>) -> Result<T> {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) => {
                    if let Some(found) = what(event?) {
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

    /// Has it look out for r1 on a rung, at the source and in the page, and take pictures by this
    /// name then.
    fn follow(&mut self, rung: &str, shots: &str) -> Result<()> {
        let orders = self.orders.as_mut().context("the browser has ended")?;
        writeln!(orders, "follow {rung} {shots}").context("asking the browser")?;
        self.until(|event| matches!(event, PageEvent::Watching).then_some(()))
    }

    /// Waits until source and page agree on a rung.
    fn shows(&mut self, wanted: &str) -> Result<Change> {
        let (mut at_source, mut shown, mut others) = (false, None, Vec::new());
        self.until(|event| {
            match event {
                PageEvent::Source { rung } => at_source = rung == wanted,
                PageEvent::Page { rung, cause, at_ms } if rung == wanted => {
                    shown = Some((cause, at_ms));
                }
                PageEvent::Others { rungs } => others = rungs,
                PageEvent::Seen => return Some(()),
                _ => {}
            }
            None
        })?;
        ensure!(at_source, "the source does not show r1 on {wanted}");
        let (cause, at_ms) = shown.context("the page said nothing")?;
        Ok(Change {
            cause,
            others,
            at_ms,
        })
    }

    fn end(mut self) -> Result<()> {
        // Nothing more is asked of it: it takes the last pictures and ends.
        self.orders = None;
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

fn read(line: std::io::Result<String>) -> Result<PageEvent> {
    let line = line.context("reading what the browser says")?;
    serde_json::from_str(&line).with_context(|| format!("the browser says {line:?}"))
}
