//! The program of the flexfeed source; see the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    flexfeed_source::main()
}
