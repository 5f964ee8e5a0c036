//! `flexfeed-gateway`: see the library of the same name.

use std::process::ExitCode;

use clap::Parser;
use flexfeed_gateway::cli::Options;
use flexfeed_gateway::run::run;
use service::logging::{self, LogFormat};
use service::program::{FAILURE, USAGE, complain};

fn main() -> ExitCode {
    service::core_dumps::forbid();
    let options = Options::parse();
    let filter = logging::filter("--log-level", &options.log_level);
    let begun = filter.and_then(|filter| logging::start(LogFormat::Text, filter));
    if let Err(error) = begun {
        return complain(USAGE, &format!("error: {error}"));
    }
    // Packets are received and sent on one thread, which is enough for a handful of flows.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(run(&options));
            // Otherwise the exit would wait for a pending name resolution.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(error.into()),
    };
    logging::sum_up();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(FAILURE, &format!("error: {error:#}")),
    }
}
