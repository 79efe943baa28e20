//! Tests of the index, and what they share: an arena to put slabs in, and an audit that recounts a
//! whole tree.

#[cfg(not(any(loom, shuttle)))]
mod audit;
#[cfg(not(any(loom, shuttle)))]
mod cases;
#[cfg(not(any(loom, shuttle)))]
mod figures;
#[cfg(loom)]
#[path = "../../models/index.rs"]
mod interleavings;
#[cfg(not(any(loom, shuttle)))]
mod random;
#[cfg(not(any(loom, shuttle)))]
mod stress;

#[cfg(not(any(loom, shuttle)))]
mod arena {
    use crate::index::{NodePool, pool::NoNodes};
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An arena of which slabs are taken one after the other, and its pool.
    #[derive(Debug)]
    pub(crate) struct Arena<const BITS: u32> {
        pub(crate) pool: NodePool<BITS>,
        base: NonNull<u8>,
        layout: Layout,
        taken: AtomicUsize,
    }

    // SAFETY: the base is only used to compute addresses of slabs, each given out once.
    unsafe impl<const BITS: u32> Sync for Arena<BITS> {}

    impl<const BITS: u32> Arena<BITS> {
        pub(crate) fn new(bytes: usize, slab_bytes: usize) -> Self {
            let layout = Layout::from_size_align(bytes, 4096).unwrap();
            // SAFETY: the size is not 0.
            let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
            // SAFETY: freed when this is dropped, and no test keeps an index longer.
            let pool = unsafe { NodePool::new(base, bytes, slab_bytes) };
            Arena { pool, base, layout, taken: AtomicUsize::new(0) }
        }

        pub(crate) fn refill(&self, wanted: u32) -> Result<(), NoNodes> {
            self.pool.refill(wanted, || {
                let at = self.taken.fetch_add(self.pool.slab_bytes(), Ordering::Relaxed);
                if at + self.pool.slab_bytes() > self.layout.size() {
                    return None;
                }
                // SAFETY: inside the arena.
                Some(unsafe { self.base.add(at) })
            })
        }
    }

    impl<const BITS: u32> Drop for Arena<BITS> {
        fn drop(&mut self) {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.base.as_ptr(), self.layout) };
        }
    }
}
