//! What the policy knows about a folio: the trait through which the caller lends its table, the
//! folio's place, and a plain table for simulators and tests.

/// Identifies a folio: the cache's frame number of its head, or a simulator's page.
pub type Id = u32;

/// No folio: the end of a list.
pub const NONE: Id = Id::MAX;

/// The use count stops here; a reader that finds it stores nothing.
pub const USES_MAX: u8 = 3;

/// The heaviest folio: 2 MiB in pages of 4 KiB.
pub const PAGES_MAX: u32 = 512;

/// The queues a folio can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// Newcomers.
    Small,
    /// Folios that were used again.
    Main,
}

impl Queue {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Small, Self::Main];
}

/// Where the policy has a folio.
///
/// ```text
/// Out --insert--> Queued --next_victim--> Offered --answer(Busy | Pinned)--> Queued
///  ^                 |                       |
///  +-----------------+----- remove, replace, answer(Evicted)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Place {
    /// Not held by the policy: free, or not inserted yet.
    #[default]
    Out,
    /// In this queue.
    Queued(Queue),
    /// Taken from this queue and offered to a caller that has not answered yet.
    Offered(Queue),
}

impl Place {
    /// Packs the place into three bits, for a table that stores it with other flags.
    pub const fn to_bits(self) -> u8 {
        match self {
            Self::Out => 0,
            Self::Queued(Queue::Small) => 1,
            Self::Queued(Queue::Main) => 2,
            Self::Offered(Queue::Small) => 3,
            Self::Offered(Queue::Main) => 4,
        }
    }

    /// Undoes [`Self::to_bits`].
    ///
    /// # Panics
    /// If `bits` is not a value that `to_bits` gives.
    pub const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Out,
            1 => Self::Queued(Queue::Small),
            2 => Self::Queued(Queue::Main),
            3 => Self::Offered(Queue::Small),
            4 => Self::Offered(Queue::Main),
            _ => panic!("these bits are no folio's place"),
        }
    }
}

/// The caller's table of folios, as far as the policy is concerned.
///
/// A shared table (the cache's, whose fields are atomics) implements this for `&Table`. All fields
/// but `uses` belong to the policy: accessed only inside its calls, under the caller's lock, so
/// relaxed accesses suffice. Readers raise `uses` without it; some may be lost.
pub trait Residents {
    /// How often the folio was used since the policy last looked, at most [`USES_MAX`].
    fn uses(&self, id: Id) -> u8;
    /// Sets the use count; may race with readers that raise it.
    fn set_uses(&mut self, id: Id, uses: u8);
    /// Whether a large folio was used in a few of its parts alone: then only these stay.
    fn is_partly_used(&self, _: Id) -> bool {
        false
    }
    /// The folio's weight in pages, `1..=PAGES_MAX`.
    fn pages(&self, id: Id) -> u32;
    /// Where the policy has the folio.
    fn place(&self, id: Id) -> Place;
    /// Moves the folio; called by the policy only.
    fn set_place(&mut self, id: Id, place: Place);
    /// The neighbour towards the evicting end, or [`NONE`].
    fn prev(&self, id: Id) -> Id;
    /// Sets that neighbour.
    fn set_prev(&mut self, id: Id, prev: Id);
    /// The neighbour towards the newest, or [`NONE`].
    fn next(&self, id: Id) -> Id;
    /// Sets that neighbour.
    fn set_next(&mut self, id: Id, next: Id);
}

#[derive(Clone, Copy, Debug)]
struct Row {
    prev: Id,
    next: Id,
    pages: u16,
    uses: u8,
    place: Place,
}

/// A table of folios in a `Vec`, for one thread: the simulator's and the tests'. 16 bytes a folio.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// A table for ids `0..folios`, each of one page.
    ///
    /// # Panics
    /// If `folios` is [`NONE`] or more.
    pub fn new(folios: usize) -> Self {
        assert!(folios < NONE as usize, "{folios} folios do not fit 32-bit ids");
        let row = Row { prev: NONE, next: NONE, pages: 1, uses: 0, place: Place::Out };
        Self { rows: vec![row; folios] }
    }

    /// A hit: raises the use count if it is below its maximum.
    #[inline]
    pub fn touch(&mut self, id: Id) {
        let row = &mut self.rows[id as usize];
        if row.uses < USES_MAX {
            row.uses += 1;
        }
    }

    /// Sets a folio's weight. Only while the folio is `Out`, or right before
    /// [`crate::S3Fifo::split`].
    ///
    /// # Panics
    /// If `pages` is not in `1..=PAGES_MAX`.
    pub fn set_pages(&mut self, id: Id, pages: u32) {
        assert!((1..=PAGES_MAX).contains(&pages), "{pages} pages in one folio");
        self.rows[id as usize].pages = pages as u16;
    }
}

impl Residents for Table {
    #[inline]
    fn uses(&self, id: Id) -> u8 {
        self.rows[id as usize].uses
    }
    #[inline]
    fn set_uses(&mut self, id: Id, uses: u8) {
        self.rows[id as usize].uses = uses;
    }
    #[inline]
    fn pages(&self, id: Id) -> u32 {
        u32::from(self.rows[id as usize].pages)
    }
    #[inline]
    fn place(&self, id: Id) -> Place {
        self.rows[id as usize].place
    }
    #[inline]
    fn set_place(&mut self, id: Id, place: Place) {
        self.rows[id as usize].place = place;
    }
    #[inline]
    fn prev(&self, id: Id) -> Id {
        self.rows[id as usize].prev
    }
    #[inline]
    fn set_prev(&mut self, id: Id, prev: Id) {
        self.rows[id as usize].prev = prev;
    }
    #[inline]
    fn next(&self, id: Id) -> Id {
        self.rows[id as usize].next
    }
    #[inline]
    fn set_next(&mut self, id: Id, next: Id) {
        self.rows[id as usize].next = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_survives_packing() {
        let queues = Queue::ALL.iter().flat_map(|&q| [Place::Queued(q), Place::Offered(q)]);
        for place in queues.chain([Place::Out]) {
            assert!(place.to_bits() < 8, "{place:?} needs more than three bits");
            assert_eq!(Place::from_bits(place.to_bits()), place);
        }
    }

    #[test]
    fn touch_stops_at_the_maximum() {
        let mut table = Table::new(1);
        for expected in [1, 2, 3, 3] {
            table.touch(0);
            assert_eq!(table.uses(0), expected);
        }
    }
}
