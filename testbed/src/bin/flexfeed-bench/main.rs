//! `flexfeed-bench [PREFIX]` measures flexfeed's performance claims, as ratios taken side by side
//! in one run, and prints `NAME VALUE UNIT` per figure.
//!
//! `docs/benchmarks.md` defines the figures. Every value is reported, good or bad; the exit code is
//! 1 only if a measured program did not do its work: both sides' output is decrypted and hashed.

mod acks;
mod auth;
mod auth_process;
mod authentication;
mod catchup;
mod ccr;
mod console;
mod cpu;
mod crowd;
mod fec;
mod fec_flow;
mod figures;
mod flow;
mod gateway;
mod generation;
mod hitless;
mod idle;
mod intake;
mod ladder;
mod latency;
mod mcquic;
mod mcquic_fec;
mod network;
mod pair;
mod parcel;
mod plots;
mod processor;
mod publishing;
mod rate;
mod reading;
mod receiver;
mod receiving;
mod relay;
mod replicated;
mod segments;
mod sending;
mod shards;
mod site;
mod swarm;
mod swarmed;
mod unicast;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use figures::Figures;

/// Measures flexfeed: prints `NAME VALUE UNIT` per figure and writes target/bench.json.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Only the figures whose names begin with this
    #[arg(default_value = "")]
    prefix: String,
    /// Measure what this folder's benchmarks.md has tables and charts of, and rewrite those; the
    /// prefix selects them: million, goodput, failures, authentication, codes, losses,
    /// mcquic-fec, mcquic-video, mcquic-file
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// Draw the last results of --plots again
    #[arg(long, requires = "plots")]
    redraw: bool,
}

fn main() -> ExitCode {
    let Arguments {
        prefix,
        plots,
        redraw,
    } = Arguments::parse();
    if let Some(docs) = plots {
        return match plots::run(&docs, &prefix, redraw) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("flexfeed-bench: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let names = [
        &generation::NAMES[..],
        &sending::NAMES,
        &receiving::NAMES,
        &latency::NAMES,
        &idle::NAMES,
        &swarmed::NAMES,
        &replicated::NAMES,
        &hitless::NAMES,
        &ladder::NAMES,
        &ccr::NAMES,
        &rate::NAMES,
        &acks::NAMES,
        &crowd::NAMES,
        &fec::NAMES,
        &fec_flow::NAMES,
        &mcquic::NAMES,
        &reading::NAMES,
        &intake::NAMES,
        &publishing::NAMES,
        &auth::NAMES,
        &auth_process::NAMES,
        &authentication::NAMES,
        &catchup::NAMES,
        &shards::NAMES,
        &relay::NAMES,
        &gateway::NAMES,
        &console::NAMES,
        &receiver::NAMES,
        &swarm::NAMES,
    ]
    .concat();
    if !names.iter().any(|name| name.starts_with(&prefix)) {
        let names = names.join(", ");
        eprintln!("flexfeed-bench: no figure begins with \"{prefix}\"; there are {names}");
        return ExitCode::from(2);
    }
    if let Err(error) = network::isolate() {
        eprintln!("this machine's firewall will show in the figures: {error:#}");
    }
    let mut figures = Figures::new(prefix);
    let generation = generation::measure(&mut figures);
    let sending = sending::measure(&mut figures);
    let receiving = receiving::measure(&mut figures);
    let latency = latency::measure(&mut figures);
    let idle = idle::measure(&mut figures);
    let swarmed = swarmed::measure(&mut figures);
    let reading = reading::measure(&mut figures);
    let replicated = replicated::measure(&mut figures);
    let hitless = hitless::measure(&mut figures);
    let ladder = ladder::measure(&mut figures);
    let ccr = ccr::measure(&mut figures);
    let rate = rate::measure(&mut figures);
    let acks = acks::measure(&mut figures);
    let crowd = crowd::measure(&mut figures);
    let fec = fec::measure(&mut figures);
    let fec_flow = fec_flow::measure(&mut figures);
    let mcquic = mcquic::measure(&mut figures);
    let relay = relay::measure(&mut figures);
    let gateway = gateway::measure(&mut figures);
    let console = console::measure(&mut figures);
    let catchup = catchup::measure(&mut figures);
    let shards = shards::measure(&mut figures);
    let intake = intake::measure(&mut figures);
    let publishing = publishing::measure(&mut figures);
    let auth = auth::measure(&mut figures);
    let auth_process = auth_process::measure(&mut figures);
    let authentication = authentication::measure(&mut figures);
    let receiver = receiver::measure(&mut figures);
    let swarm = swarm::measure(&mut figures);
    let failed = [
        generation,
        sending,
        receiving,
        latency,
        idle,
        swarmed,
        replicated,
        reading,
        hitless,
        ladder,
        ccr,
        rate,
        acks,
        crowd,
        fec,
        fec_flow,
        mcquic,
        relay,
        gateway,
        console,
        catchup,
        shards,
        intake,
        publishing,
        auth,
        auth_process,
        authentication,
        receiver,
        swarm,
        figures.write(),
    ]
    .into_iter()
    .filter_map(Result::err);
    let mut code = ExitCode::SUCCESS;
    for error in failed {
        eprintln!("flexfeed-bench: {error:#}");
        code = ExitCode::FAILURE;
    }
    code
}
