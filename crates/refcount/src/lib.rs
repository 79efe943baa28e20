//! A reference count with its own frozen bit.
