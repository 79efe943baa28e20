//! The counted guard that owns a share of its file: `FolioOf::get(&file, page)`.
//!
//! A guard of `borrow/counted.rs` borrows its file, so a struct cannot have both. Here: the same
//! guard for programs that share the file as an `Rc` or an `Arc`, with a share of it in each guard.
//!
//! # Why the bytes stay
//!
//! As in `borrow/counted.rs`: the guard owns one reference of the folio's count. The arena stays as
//! long as the file, and the guard owns a share of the file; it gives the reference back first.

use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::sync::Arc;

use crate::access::borrow::{FolioRef, PageView};
use crate::error::Result;
use crate::file::File;

mod sealed {
    /// The promise that [`FolioOf`](super::FolioOf) relies on: all shares lead to one file, which
    /// lives as long as any of them.
    pub trait Sealed {}
    impl Sealed for std::rc::Rc<crate::File> {}
    impl Sealed for std::sync::Arc<crate::File> {}
}

/// A share in a file: `Rc<File>` or `Arc<File>`. No other type can implement it.
pub trait SharedFile: Clone + Deref<Target = File> + sealed::Sealed {}

impl SharedFile for Rc<File> {}
impl SharedFile for Arc<File> {}

/// A page of a file, in place, under a counted reference, with a share of its file. Derefs to the
/// page's bytes.
///
/// It is a [`FolioRef`] that can be stored in one struct with its file, or anywhere else:
///
/// ```
/// use pinfold::{Cache, File, FolioOf, Options, source::Memory};
/// use std::rc::Rc;
///
/// /// A way down a tree. The pages stay as they are while it is there.
/// struct Cursor {
///     file: Rc<File>,
///     path: Vec<FolioOf<Rc<File>>>,
/// }
///
/// impl Cursor {
///     fn down(&mut self) -> pinfold::Result<()> {
///         let child = self.path.last().map_or(0, |parent| u64::from(parent[0]));
///         self.path.push(FolioOf::get(&self.file, child)?);
///         Ok(())
///     }
/// }
///
/// # let cache = Cache::new(Options::new(8 << 20))?;
/// # let file = cache.attach("tree", std::sync::Arc::new(Memory::new(vec![1; 9000])))?;
/// let mut cursor = Cursor { file: Rc::new(file), path: Vec::new() };
/// cursor.down()?;
/// cursor.down()?;
/// assert_eq!(cursor.path[1][..], [1; 4096]);
/// # Ok::<(), pinfold::Error>(())
/// ```
///
/// # Which share
///
/// - With `Rc<File>` the guard stays on its thread. It costs what [`File::get`] costs, and one more
///   in the count of the `Rc`, which is not atomic.
/// - With `Arc<File>` it may go to other threads. It costs one atomic addition more, and one
///   subtraction when it ends, both in the count of the `Arc`. Threads that share one `Arc` slow
///   each other down there. To avoid it, give each thread an `Arc` of a
///   [clone](File#impl-Clone-for-File) of the file.
/// - [`FolioRef::into_owned`] needs neither `Rc` nor `Arc`. It costs an atomic addition and a
///   subtraction, too, but in one count for the whole cache: there all threads with such guards
///   slow each other down.
///
/// A thread that would not give an `Rc` away cannot give the guard away either:
///
/// ```compile_fail,E0277
/// # use pinfold::{Cache, FolioOf, Options, source::Memory};
/// # let cache = Cache::new(Options::new(8 << 20)).unwrap();
/// # let file = cache.attach("", std::sync::Arc::new(Memory::new(vec![7]))).unwrap();
/// let page = FolioOf::get(&std::rc::Rc::new(file), 0).unwrap();
/// std::thread::spawn(move || drop(page)); // it cannot be sent
/// ```
pub struct FolioOf<F: SharedFile> {
    /// With a reference to its folio, which the drop gives back.
    view: PageView,
    /// Dropped after that.
    file: F,
}

// SAFETY: bytes that no thread writes, and a reference that any thread may give back; the share
// says for itself.
unsafe impl<F: SharedFile + Send> Send for FolioOf<F> {}
// SAFETY: as above; a shared guard hands out shared bytes, and the share.
unsafe impl<F: SharedFile + Sync> Sync for FolioOf<F> {}

impl<F: SharedFile> FolioOf<F> {
    /// The page number `page` (bytes `page * 4096` and up) of `file`, as [`File::get`], with
    /// another share of `file`.
    ///
    /// # Errors
    /// As [`File::get`].
    #[inline]
    pub fn get(file: &F, page: u64) -> Result<Self> {
        let view = file.handle().get(page)?.into_view();
        Ok(FolioOf { view, file: file.clone() })
    }

    /// [`get`](Self::get) without blocking the thread that polls the future, as [`File::get_async`]. The
    /// future owns its share of the file, so a task of its own can have it.
    ///
    /// # Errors
    /// As [`File::get`].
    pub async fn get_async(file: F, page: u64) -> Result<Self> {
        let view = file.get_async(page).await?.into_view();
        Ok(FolioOf { view, file })
    }

    /// All of `pages`, in their order, without blocking the thread that polls the future, as
    /// [`File::get_many_async`]. Each guard has a share of the file, and so has the future.
    ///
    /// # Errors
    /// As [`File::get_many_async`].
    pub async fn get_many_async(file: F, pages: Vec<u64>) -> Result<Vec<Self>> {
        let folios = file.get_many_async(&pages).await?;
        let of = |folio: FolioRef<'_>| FolioOf { view: folio.into_view(), file: file.clone() };
        Ok(folios.into_iter().map(of).collect())
    }

    /// The file.
    pub fn file(&self) -> &F {
        &self.file
    }

    /// As [`FolioRef::folio`].
    pub fn folio(&self) -> &[u8] {
        // SAFETY: the reference keeps the folio, and a folio with holders is never written to.
        unsafe { self.view.folio() }
    }

    /// As [`FolioRef::folio_offset`].
    pub fn folio_offset(&self) -> u64 {
        self.view.folio_offset()
    }

    /// As [`FolioRef::is_current`].
    pub fn is_current(&self) -> bool {
        self.view.is_current()
    }
}

impl<F: SharedFile> Deref for FolioOf<F> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `folio`.
        unsafe { self.view.page() }
    }
}

impl<F: SharedFile> AsRef<[u8]> for FolioOf<F> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<F: SharedFile> Clone for FolioOf<F> {
    /// # Panics
    /// If the folio has more than four million references.
    #[inline]
    fn clone(&self) -> Self {
        self.view.frame().count.get(1);
        FolioOf { view: self.view, file: self.file.clone() }
    }
}

impl<F: SharedFile> Drop for FolioOf<F> {
    #[inline]
    fn drop(&mut self) {
        drop(FolioRef::adopt(self.file.handle(), self.view));
    }
}

// As for `Cache`. The bytes do not change under the guard.
impl<F: SharedFile> UnwindSafe for FolioOf<F> {}
impl<F: SharedFile> RefUnwindSafe for FolioOf<F> {}

impl<F: SharedFile> std::fmt::Debug for FolioOf<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FolioOf").field(&self.view).finish()
    }
}
