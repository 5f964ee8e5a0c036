//! Shows that the scenarios notice broken promises.

use std::process::ExitCode;

const HELP: &str = "Runs scenarios with services that break one promise each, and shows that every one is noticed.

Settings, as environment variables:
  FLEXFEED_BIN_DIR  the folder of flexfeed-source and flexfeed-receiver, built with their feature `sabotage`, if they are not beside this program
  FLEXFEED_KEEP_RUNS=1  keep the folder with the Atom files and logs";

fn main() -> ExitCode {
    if let Some(argument) = std::env::args().nth(1) {
        if argument == "--help" || argument == "-h" {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        eprintln!("flexfeed-sabotage: {argument:?} is not understood; see --help");
        return ExitCode::from(2);
    }
    let shown = |line: &str| println!("{line}");
    match testbed::sabotage::run(shown) {
        Ok(()) => {
            println!("every broken promise was noticed");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("flexfeed-sabotage: {error:#}");
            ExitCode::FAILURE
        }
    }
}
