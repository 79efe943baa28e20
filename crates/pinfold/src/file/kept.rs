//! The counted guard that owns a share of its file: `FolioOf::new(page, file)`. The arena stays as
//! long as the file. The guard gives the reference back before its share.

use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::sync::Arc;

use crate::access::borrow::FolioRef;
use crate::file::File;

mod sealed {
    /// For [`FolioOf`](super::FolioOf): all shares lead to one file, which lives as long.
    pub trait Sealed {}
    impl Sealed for std::rc::Rc<crate::File> {}
    impl Sealed for std::sync::Arc<crate::File> {}
}

/// A share in a file: `Rc<File>` or `Arc<File>`. No other type can implement it.
pub trait SharedFile: Clone + Deref<Target = File> + sealed::Sealed {}

impl SharedFile for Rc<File> {}
impl SharedFile for Arc<File> {}

/// A [`FolioRef`] with a share of its file, to be stored anywhere. Derefs to the page's bytes.
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
///         self.path.push(FolioOf::new(self.file.get(child)?, self.file.clone()));
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
/// With `Rc<File>` the guard stays on its thread, and costs one more in the count of the `Rc`,
/// which is not atomic. With `Arc<File>` it may go to other threads, and costs one atomic addition
/// and subtraction more: threads that share one `Arc` slow each other down there, so give each an
/// `Arc` of a [clone](File#impl-Clone-for-File) of the file. [`FolioRef::into_owned`] needs
/// neither; it costs the same in one count for the whole cache.
///
/// A thread that would not give an `Rc` away cannot give the guard away either:
///
/// ```compile_fail,E0277
/// # use pinfold::{Cache, FolioOf, Options, source::Memory};
/// # let cache = Cache::new(Options::new(8 << 20)).unwrap();
/// # let file = cache.attach("", std::sync::Arc::new(Memory::new(vec![7]))).unwrap();
/// let file = std::rc::Rc::new(file);
/// let page = FolioOf::new(file.get(0).unwrap(), file.clone());
/// std::thread::spawn(move || drop(page)); // it cannot be sent
/// ```
pub struct FolioOf<F: SharedFile> {
    /// Dropped before the share. Nobody gets it but by a reference.
    page: FolioRef<'static>,
    file: F,
}

impl<F: SharedFile> FolioOf<F> {
    /// `page`, which was got from `file`, with a share of it. Cost: none.
    ///
    /// # Panics
    /// If the page is of another cache than the file.
    #[inline]
    pub fn new(page: FolioRef<'_>, file: F) -> Self {
        FolioOf { page: page.kept_by(file.handle()), file }
    }

    /// The page, for as long as this is borrowed.
    #[inline]
    pub fn page(&self) -> &FolioRef<'_> {
        &self.page
    }
}

impl<F: SharedFile> Deref for FolioOf<F> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.page
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
        FolioOf { page: self.page.clone(), file: self.file.clone() }
    }
}

impl<F: SharedFile> UnwindSafe for FolioOf<F> {}
impl<F: SharedFile> RefUnwindSafe for FolioOf<F> {}

impl<F: SharedFile> std::fmt::Debug for FolioOf<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FolioOf").field(&self.page).finish()
    }
}
