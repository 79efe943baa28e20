//! The `pinfold` command.

mod sim;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "pinfold", version, about = "A page cache that a program links")]
enum Command {
    /// Replay traces of page numbers against replacement policies and print their hit ratios.
    Sim(sim::SimArgs),
}

fn main() -> std::process::ExitCode {
    let Command::Sim(args) = Command::parse();
    match sim::run(&args) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pinfold sim: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
