//! Which folios have bytes that the source may lose or does not have.
//!
//! | a folio is | its marks | it becomes so | by |
//! |---|---|---|---|
//! | dirty | `Dirty` | when its bytes are changed; when their write has failed, or a sync that began after it | [`make_dirty`], [`again`] |
//! | written | `Writeback` | when its bytes are about to be given to the source | [`begin`] |
//! | clean | none | when a sync has succeeded that began after they were | [`clean`] |
//!
//! Only clean folios leave memory. So of a sync that has failed it does not matter what the source
//! has lost: all that was written since the last good one is dirty again.
//!
//! Marks change under the `change` mutex. All but [`make_dirty`] are called by the thread that has
//! the file's turn (`written.rs`): so nothing becomes written while the source syncs, and of no
//! bytes are two writes under way.

use std::ops::Range;

use crate::base::mutant::{self, Mutant};
use crate::error::{Cause, Result};
use crate::frames::{Flags, FrameNumber};
use crate::index::{FolioAt, Mark, PAGES_END};
use crate::pages::core::{Core, Held};
use crate::pages::mapping::{Changing, Mapping};

/// Marks of so many folios change under one hold of the mutex.
const AT_ONCE: usize = 256;

fn pages_of(folio: FolioAt) -> i64 {
    1 << folio.order
}

/// The folio at `head`, which has `page`, and of which these bytes have changed.
pub(crate) fn make_dirty(
    core: &Core,
    changing: &mut Changing<'_>,
    head: FrameNumber,
    page: u64,
    bytes: &Range<usize>,
) {
    let frame = core.frames.frame(head);
    let (flags, changed) = (frame.flags(), Flags::changed(frame.order(), bytes));
    if flags.contains(Flags::DIRTY) {
        let all = !flags.intersects(Flags::CHANGED);
        if !all && !flags.contains(changed) && !mutant::on(Mutant::ChangeUnnoted) {
            frame.set_flags(changed);
        }
        return;
    }
    let mut writer = changing.writer(&core.nodes);
    let is_lost = || {
        mutant::on(Mutant::DirtUnmarked)
            || mutant::on(Mutant::RedirtLost) && writer.is_marked(page, Mark::Writeback)
    };
    if is_lost() {
        return;
    }
    let was_dirty = writer.set_mark(page, Mark::Dirty) != Some(true);
    let was_written = writer.clear_mark(page, Mark::Writeback) == Some(true);
    let folio = writer.folio(page).expect("it was marked");
    drop(writer);
    if was_dirty || was_written {
        let all = !flags.intersects(Flags::CHANGED);
        frame.set_flags(if all { Flags::DIRTY } else { Flags::DIRTY | changed });
    } else {
        frame.set_flags(Flags::DIRTY | changed);
        core.add_unsynced(changing.mapping(), pages_of(folio));
    }
}

/// The folio, which was written, is dirty again: where it was changed since it was clean.
fn make_dirty_again(core: &Core, changing: &mut Changing<'_>, folio: FolioAt) {
    core.frames.frame(folio.frame).set_flags(Flags::DIRTY);
    let mut writer = changing.writer(&core.nodes);
    writer.set_mark(folio.page, Mark::Dirty);
    writer.clear_mark(folio.page, Mark::Writeback);
}

/// A folio that is written, and where. While its bytes are on their way, its reference is kept.
#[derive(Debug)]
pub(crate) struct BegunWrite<'a> {
    pub(crate) folio: FolioAt,
    pub(crate) held: Held<'a>,
    /// When it became written.
    pub(crate) flags: Flags,
}

/// The next dirty folios of `pages`, at most `most` of them, and of about `most_pages`: from here on
/// they are written. As long as the references are kept, who changes one changes a copy.
pub(crate) fn begin<'a>(
    core: &'a Core,
    mapping: &Mapping,
    pages: Range<u64>,
    (most, most_pages): (usize, i64),
) -> Result<Vec<BegunWrite<'a>>> {
    let mut begun: Vec<BegunWrite<'a>> = Vec::new();
    let (mut from, mut left) = (pages.start, most_pages);
    let mut changing = mapping.change();
    // Ends: each turn begins after the last folio of the one before.
    while begun.len() < most && left > 0 {
        let mut writer = changing.writer(&core.nodes);
        let Some(folio) = writer.next_marked(from..pages.end, Mark::Dirty) else { break };
        let flags = core.frames.frame(folio.frame).clear_flags(Flags::DIRTY);
        writer.clear_mark(folio.page, Mark::Dirty);
        writer.set_mark(folio.page, Mark::Writeback);
        drop(writer);
        let Some(held) = core.hold_under_change(folio.frame) else {
            make_dirty_again(core, &mut changing, folio);
            let (path, page) = (mapping.path.clone(), folio.page);
            drop(changing);
            let pages = begun.first().map_or(page, |first| first.folio.page)..page;
            again(core, mapping, pages);
            return Err(Cause::TooManyReferences { path, page }.into());
        };
        from = folio.end();
        left -= pages_of(folio);
        begun.push(BegunWrite { folio, held, flags });
    }
    Ok(begun)
}

/// What is written of `pages` is dirty again.
pub(crate) fn again(core: &Core, mapping: &Mapping, pages: Range<u64>) {
    if !mutant::on(Mutant::FailedStaysWritten) {
        each_written(core, mapping, pages, |changing, folio| {
            make_dirty_again(core, changing, folio);
        });
    }
}

/// A sync has succeeded that began after all of this was written.
pub(crate) fn clean(core: &Core, mapping: &Mapping) {
    each_written(core, mapping, 0..PAGES_END, |changing, folio| {
        changing.writer(&core.nodes).clear_mark(folio.page, Mark::Writeback);
        core.frames.frame(folio.frame).clear_flags(Flags::CHANGED);
        core.add_unsynced(changing.mapping(), -pages_of(folio));
    });
    core.pressure.progress();
}

fn each_written(
    core: &Core,
    mapping: &Mapping,
    pages: Range<u64>,
    mut change: impl FnMut(&mut Changing<'_>, FolioAt),
) {
    let mut from = pages.start;
    // Ends: as in `begin`.
    loop {
        let mut changing = mapping.change();
        for _ in 0..AT_ONCE {
            let writer = changing.writer(&core.nodes);
            let next = writer.next_marked(from..pages.end, Mark::Writeback);
            drop(writer);
            let Some(folio) = next else { return };
            change(&mut changing, folio);
            from = folio.end();
        }
    }
}
