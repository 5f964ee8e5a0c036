//! Shows that the scenarios notice broken promises. Takes the services from `FLEXFEED_BIN_DIR`, built with their feature `sabotage`.

use std::process::ExitCode;

fn main() -> ExitCode {
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
