//! Tests, checks and set-up of the project itself.
fn main() {}
