//! `flexfeed-relay`: see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    flexfeed_relay::cli::PROGRAM.main()
}
