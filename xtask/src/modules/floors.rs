//! The pictures of floors that documents have, as rows of modules.
//!
//! A picture is the first block of plain text (```` ```text ````) in the head of a folder's `mod.rs`,
//! or after a line `<!-- floors: FOLDER -->` of a document. Each row names the modules of one floor,
//! with spaces between them; two spaces or more, then what the floor has. A row that begins with a
//! space continues the one before. Each floor stands on those below it.

use std::collections::BTreeMap;

/// The floor of each module, by its name as [`plain`] makes it. The lowest has the highest number.
pub(super) type Floors = BTreeMap<String, usize>;

/// A module's name as it is compared: `fill/` and `fill.rs` are `fill`.
pub(super) fn plain(name: &str) -> &str {
    name.strip_suffix(".rs").unwrap_or(name).trim_end_matches('/')
}

/// The picture in the head comment of a module.
pub(super) fn in_comment(text: &str) -> Result<Floors, String> {
    let head = text.lines().take_while(|line| line.is_empty() || line.starts_with("//"));
    let words = head.map(|line| line.trim_start_matches(['/', '!']));
    picture(words.map(|line| line.strip_prefix(' ').unwrap_or(line)))
}

/// The picture of `folder` in a document.
pub(super) fn in_document(text: &str, folder: &str) -> Result<Floors, String> {
    let mark = format!("<!-- floors: {folder} -->");
    picture(text.lines().skip_while(|line| *line != mark))
}

fn picture<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Floors, String> {
    let mut rows = lines.skip_while(|line| *line != "```text").skip(1);
    let mut floors = Floors::new();
    let mut floor = 0;
    loop {
        let row = rows.next().ok_or("there is no picture of its floors")?;
        if row == "```" {
            return Ok(floors);
        }
        if row.starts_with(' ') || row.is_empty() {
            continue;
        }
        floor += 1;
        let names = row.split_once("  ").map_or(row, |(names, _)| names);
        for name in names.split(' ') {
            if floors.insert(plain(name).to_owned(), floor).is_some() {
                return Err(format!("{name} is on two floors"));
            }
        }
    }
}
