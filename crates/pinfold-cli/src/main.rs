//! The `pinfold` command.
fn main() {}
