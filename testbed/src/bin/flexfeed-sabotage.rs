//! Shows that the scenarios notice broken promises.

use std::process::ExitCode;

const HELP: &str = "\
Runs scenarios with services that break one promise each, and shows that every one is noticed.

Usage: flexfeed-sabotage [LETTER...]   only the scenarios with these letters, such as h j

Settings, as environment variables:
  FLEXFEED_BIN_DIR  folder of flexfeed-source and flexfeed-receiver, built with their feature
                    `fault-injection`; default: that of this program
  FLEXFEED_KEEP_RUNS=1  keep the folder with the Atom files and logs";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|one| one == "--help" || one == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    if let Some(flag) = arguments.iter().find(|one| one.starts_with('-')) {
        eprintln!("flexfeed-sabotage: {flag:?} is not understood; see --help");
        return ExitCode::from(2);
    }
    let shown = |line: &str| println!("{line}");
    match testbed::faults::run(&arguments, shown) {
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
