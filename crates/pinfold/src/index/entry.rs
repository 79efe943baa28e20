//! The words of the index: what a slot and what a root may hold.
//!
//! # A slot: 32 bits
//!
//! | top two bits | meaning | the other 30 bits |
//! |---|---|---|
//! | `00` | folio | frame number of the folio's head; 0, which no folio has: empty |
//! | `11` | node | minus its distance from the anchor, see `memory.rs` |
//!
//! With the tag at the top, *one* unsigned comparison, `word >= first`, says both "this is a node"
//! and "it lies inside the arena"; and the sign-extended word is already the node's offset. A
//! folio's word is its head's number as it stands; that of an empty slot is frame 0, which belongs
//! to the frame table and whose version is odd for ever: so a reader of pages need not ask.
//!
//! | from \ to | empty | folio | node |
//! |---|---|---|---|
//! | empty | | insert | path grows |
//! | folio | remove | replace, split | split, root grows |
//! | node | its last entry left | root shrinks | root grows or shrinks |

const TAG_SHIFT: u32 = 30;
const NODE_TAG: u32 = 0b11 << TAG_SHIFT;
const PAYLOAD_END: u32 = 1 << TAG_SHIFT;

pub(crate) use crate::frames::FrameNumber;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(pub(super) u32);

/// For writers and walks. The look-up never builds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Empty,
    Folio(FrameNumber),
    Node,
}

impl Entry {
    pub(super) const EMPTY: Entry = Entry(0);

    /// Panics if the number does not fit in 30 bits, or is 0.
    pub(super) fn folio(frame: FrameNumber) -> Entry {
        assert!(frame.0 < PAYLOAD_END, "frame number {} needs more than 30 bits", frame.0);
        assert!(frame.0 != 0, "frame 0 holds no folio");
        Entry(frame.0)
    }

    #[inline]
    pub(super) fn frame(self) -> Option<FrameNumber> {
        (self != Entry::EMPTY && self.0 < PAYLOAD_END).then_some(FrameNumber(self.0))
    }

    /// 0 for an empty slot, and for a node a number that no arena has.
    #[inline(always)]
    pub(super) fn head(self) -> FrameNumber {
        FrameNumber(self.0)
    }

    /// For anything but a folio a number that no arena has.
    #[inline(always)]
    pub(super) fn frame_or_none_such(self) -> FrameNumber {
        self.frame().unwrap_or(FrameNumber(u32::MAX))
    }

    pub(super) fn kind(self) -> Kind {
        match self.0 >> TAG_SHIFT {
            0b00 if self == Entry::EMPTY => Kind::Empty,
            0b00 => Kind::Folio(FrameNumber(self.0)),
            _ => {
                debug_assert!(self.0 >= NODE_TAG);
                Kind::Node
            }
        }
    }
}

/// The root's entry and the log2 of the pages it covers, in one word so that a reader never sees
/// one without the other. A folio may sit in the root itself (then `bits` is its order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) entry: Entry,
    pub(super) bits: u32,
}

impl Root {
    pub(super) const EMPTY: Root = Root { entry: Entry::EMPTY, bits: 0 };

    #[inline]
    pub(super) fn unpack(word: u64) -> Root {
        Root { entry: Entry(word as u32), bits: (word >> 32) as u32 }
    }

    pub(super) fn pack(self) -> u64 {
        u64::from(self.bits) << 32 | u64::from(self.entry.0)
    }

    #[inline]
    pub(super) fn covers(self, page: u64) -> bool {
        debug_assert!(self.bits < 64);
        page.wrapping_shr(self.bits) == 0
    }
}
