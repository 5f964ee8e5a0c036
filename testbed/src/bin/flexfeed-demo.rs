//! The demo as a program: `DEMO_SECONDS` and `FEED` are its settings.

use std::process::ExitCode;

use testbed::demo::{DemoEnd, options_from_environment, run};

const HELP: &str = "Runs a source and three receivers in virtual networks and shows what happens.

Settings, as environment variables:
  DEMO_SECONDS=60   run for so long, then check what arrived: exit status 0 only if all is right
  FEED=https://…    take this live feed instead of a generated one
  FLEXFEED_BIN_DIR  folder of flexfeed-source and flexfeed-receiver; default: that of this program
  FLEXFEED_KEEP_RUNS=1  keep the folder with the Atom files and logs";

fn main() -> ExitCode {
    if let Some(argument) = std::env::args().nth(1) {
        if argument == "--help" || argument == "-h" {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        eprintln!("flexfeed-demo: {argument:?} is not understood; see --help");
        return ExitCode::from(2);
    }
    let options = match options_from_environment() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("flexfeed-demo: {error:#}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(DemoEnd::Proven) => ExitCode::SUCCESS,
        Ok(DemoEnd::Stopped) => {
            println!("ended; everything is cleaned up");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("flexfeed-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
