//! The program `evenkeel-bench`; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    evenkeel_bench::main()
}
