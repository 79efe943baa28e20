//! Compiles the C functions around RocksDB's cache, where they are asked for.

fn main() {
    #[cfg(feature = "hyperclock")]
    hyperclock();
}

#[cfg(feature = "hyperclock")]
fn hyperclock() {
    println!("cargo::rerun-if-changed=src/hyperclock.cc");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").file("src/hyperclock.cc").warnings(true).extra_warnings(true);
    if let Err(why) = build.try_compile("pinfold_hyperclock") {
        println!("cargo::error=cannot compile the part for RocksDB's cache: {why}");
        println!(
            "cargo::error=it needs g++ and RocksDB 7: `apt-get install g++ librocksdb-dev` on \
             Debian 12"
        );
    }
    println!("cargo::rustc-link-lib=rocksdb");
}
