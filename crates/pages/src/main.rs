//! `evenkeel-pages DIR DATE`: writes the manual pages and completions into a directory. `DATE` is shown in
//! the pages.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, date] = &args[..] else {
        eprintln!("Usage: evenkeel-pages DIR DATE");
        return ExitCode::FAILURE;
    };
    match evenkeel_pages::write(Path::new(dir), date) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel-pages: cannot write {dir}: {error}");
            ExitCode::FAILURE
        }
    }
}
