//! The program `evenkeel-doctor`; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    evenkeel_doctor::main()
}
