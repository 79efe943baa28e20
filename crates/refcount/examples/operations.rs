//! Every operation once, for looking at the tracepoints with a debugger or tracer:
//!
//! ```text
//! cargo build -p pinfold-refcount --features usdt --example operations
//! gdb -batch -ex 'break -probe-stap pinfold_refcount:freeze' -ex run \
//!     -ex 'printf "expected %d, frozen %d\n", $_probe_arg2, $_probe_arg3' \
//!     target/debug/examples/operations
//! ```

use pinfold_refcount::{GetError, RefCount};

fn main() {
    let count = RefCount::frozen();
    count.hand_out(1);
    count.get(2);
    assert!(!count.put(2));
    assert_eq!(count.freeze(1), Ok(()));
    assert_eq!(count.try_get(1), Err(GetError::Frozen));
    count.thaw(1);
    assert_eq!(count.try_get(1), Ok(()));
    assert!(!count.put(1));
    assert!(count.put(1));
    println!("destroyed: {count:?}");
}
