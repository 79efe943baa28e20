//! The `pinfold` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    match pinfold_cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        // One line, whatever RUST_BACKTRACE says: most errors are of the command line or of a file.
        Err(error) => {
            pinfold_cli::say::tell(format_args!("error: {}", pinfold_cli::say::chain(&error)));
            ExitCode::FAILURE
        }
    }
}
