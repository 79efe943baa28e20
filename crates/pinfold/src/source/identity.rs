//! The identity of a source: a file's key, and its version.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::contents::Contents;

/// The object that a source reads, and its version: [`Source::identity`](super::Source::identity).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceIdentity {
    /// Names the object among all that are attached to one cache: a URL, for example.
    pub key: String,
    /// Differs whenever the bytes differ: an `ETag`, or a number that grows with each change.
    pub version: String,
}

/// By whatever path it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    /// For a block device, the device itself.
    pub(crate) device: u64,
    /// For a block device, 0.
    pub(crate) inode: u64,
}

/// The key by which a cache finds a file again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileKey {
    File(FileId),
    /// An object named by a source that the program implements.
    Object(String),
}

/// As of the time at which it was opened.
#[derive(Clone, Debug)]
pub(crate) struct FileIdentity {
    pub(crate) key: FileKey,
    pub(crate) version: Option<String>,
    /// Of a file; a block device has none.
    pub(crate) contents: Option<Contents>,
}

impl FileIdentity {
    /// Stands for what it names, whatever a file's contents are.
    pub(crate) fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.key, &self.version).hash(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn of_file(file: FileId, contents: Option<Contents>) -> Self {
        FileIdentity { key: FileKey::File(file), version: None, contents }
    }
}

impl From<SourceIdentity> for FileIdentity {
    fn from(object: SourceIdentity) -> Self {
        FileIdentity {
            key: FileKey::Object(object.key),
            version: Some(object.version),
            contents: None,
        }
    }
}
