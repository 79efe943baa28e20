//! What makes two sources the same to a cache.
//!
//! Belongs here: the key under which a file's pages are found again, and its version. Called by
//! `Cache` and by the table of files, `mapping.rs`.

/// What object a source reads, and which version of it: [`Source::identity`](super::Source::identity).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceIdentity {
    /// Names the object, among all that are attached to one cache: a URL, say.
    pub key: String,
    /// Another one for other bytes: an `ETag`, or a number that grows with each change.
    pub version: String,
}

/// Which file it is, whatever path led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    /// Device that holds the file; of a block device, the device itself.
    pub(crate) device: u64,
    /// The file's number there; of a block device, 0.
    pub(crate) inode: u64,
}

/// What a cache finds a file again by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// What the system opened.
    File(FileId),
    /// What a source of the program's own says that it reads.
    Object(String),
}

/// The same with the version, which a file has none of.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) key: Key,
    pub(crate) version: Option<String>,
}

impl From<FileId> for Identity {
    fn from(file: FileId) -> Self {
        Identity { key: Key::File(file), version: None }
    }
}

impl From<SourceIdentity> for Identity {
    fn from(object: SourceIdentity) -> Self {
        Identity { key: Key::Object(object.key), version: Some(object.version) }
    }
}
