//! `flexfeed-receiver`: see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    flexfeed_receiver::cli::PROGRAM.main()
}
