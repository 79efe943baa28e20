//! The tables of `pinfold bench read`, and what has a line in them.

use super::by_engine::{ByEngine, distinct};
use super::report::{self, Row};
use super::workers::Crew;
use crate::size::Size;

/// One thing that is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The workers.
    pub crew: Crew,
    /// The case.
    pub case: &'static str,
    /// The length of the file.
    pub file_bytes: u64,
    /// The length of a read.
    pub block_bytes: u64,
    /// The engine.
    pub engine: &'static str,
}

/// A cell's row of operations, and its row of MiB.
type Rows = Vec<Vec<Row>>;

/// Ratios that are shown where both engines were measured: over, under.
const RATIOS: [(&str, &str); 3] =
    [("pinfold", "pread"), ("memcpy", "pinfold"), ("pinfold-counted", "pinfold-cas")];

/// A table for each case and length of file and read: engines down, workers across.
pub fn all(cells: &[Cell], rows: &Rows) -> String {
    let what = |cell: &Cell| (cell.case, cell.file_bytes, cell.block_bytes);
    let tables = distinct(cells.iter().map(what)).into_iter().map(|(case, file, block)| {
        let here = cells.iter().zip(rows).filter(|(cell, _)| what(cell) == (case, file, block));
        let title = format!("{case}: {} of {}, reads per second", Size(block), Size(file));
        let table = ByEngine::new(here.map(|(_, rows)| &rows[0]));
        table.ratios(&RATIOS).scaling("pinfold").draw(&title)
    });
    tables.collect::<Vec<_>>().join("\n\n") + &report::footnote(&crews(cells))
}

fn crews(cells: &[Cell]) -> Vec<Crew> {
    distinct(cells.iter().map(|cell| cell.crew))
}

/// A table for each length of file and each crew: block sizes down, cases across, in MiB/s.
pub fn seed(cells: &[Cell], rows: &Rows) -> String {
    let engines = distinct(cells.iter().map(|cell| cell.engine));
    let cases = distinct(cells.iter().map(|cell| cell.case));
    let crews = crews(cells);
    let both = engines.contains(&"pread") && engines.contains(&"pinfold");
    let mut text = String::new();
    for file_bytes in distinct(cells.iter().map(|cell| cell.file_bytes)) {
        for &crew in &crews {
            let of = |cell: &&Cell| cell.file_bytes == file_bytes && cell.crew == crew;
            let here: Vec<Cell> = cells.iter().filter(of).cloned().collect();
            let mut header = vec!["block".to_owned()];
            for case in &cases {
                header.extend(engines.iter().map(|engine| format!("{case} {engine}")));
                header.extend(both.then(|| "boost %".to_owned()));
            }
            let lines =
                distinct(here.iter().map(|cell| cell.block_bytes)).into_iter().map(|block_bytes| {
                    let mut line = vec![Size(block_bytes).to_string()];
                    for &case in &cases {
                        let at = |engine| {
                            let wanted = Cell { crew, case, file_bytes, block_bytes, engine };
                            cells.iter().position(|cell| *cell == wanted).expect("it was measured")
                        };
                        line.extend(engines.iter().map(|&engine| mib(&rows[at(engine)][1])));
                        line.extend(both.then(|| {
                            let boost = rows[at("pinfold")][0].ratio(&rows[at("pread")][0]);
                            format!("{:+.1}", 100.0 * (boost - 1.0))
                        }));
                    }
                    line
                });
            let title =
                format!("{} {}, files of {}, MiB/s", crew.label(), crew.kind(), Size(file_bytes));
            text += &[&title, "\n", &report::table(header, lines.collect()), "\n\n"].concat();
        }
    }
    text.trim_end().to_owned() + &report::footnote(&crews)
}

fn mib(row: &Row) -> String {
    format!("{:.*}", usize::from(row.median < 100.0), row.median)
}
