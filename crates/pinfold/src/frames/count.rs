#[cfg(not(any(loom, shuttle)))]
pub(crate) use pinfold_refcount::RefCount as Count;

pub(crate) type CountWord = pinfold_refcount::Word;

#[cfg(not(any(loom, shuttle)))]
pub(super) const fn frozen() -> Count {
    Count::frozen()
}

#[cfg(loom)]
pub(crate) type Count = pinfold_refcount::RefCount<
    pinfold_refcount::protocol::Shipped,
    pinfold_refcount::atomic::checked::CheckedWord,
>;

#[cfg(shuttle)]
pub(crate) type Count =
    pinfold_refcount::RefCount<pinfold_refcount::protocol::Shipped, crate::base::sync::AtomicU64>;

#[cfg(any(loom, shuttle))]
pub(super) fn frozen() -> Count {
    Count::new_frozen()
}
