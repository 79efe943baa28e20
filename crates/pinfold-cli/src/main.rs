//! The `pinfold` command.

fn main() -> anyhow::Result<()> {
    pinfold_cli::run()
}
