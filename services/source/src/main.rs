//! The program of the flexfeed source; see the library of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    flexfeed_source::main()
}
