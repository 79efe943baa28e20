//! The tables of `pinfold bench read`. Called by `read.rs`, with a pair of rows for each cell.

use super::read::Cell;
use super::report::{self, Row, rate};
use super::workers::Crew;
use crate::size::Size;

/// A cell's row of operations, and its row of MiB.
type Rows = Vec<Vec<Row>>;

/// Ratios that are shown where both engines were measured: over, under.
const RATIOS: [(&str, &str); 3] =
    [("pinfold", "pread"), ("memcpy", "pinfold"), ("pinfold-counted", "pinfold-cas")];

/// The distinct values of one dimension, in the order in which they were measured.
fn distinct<T: PartialEq>(cells: &[Cell], of: impl Fn(&Cell) -> T) -> Vec<T> {
    let mut found = Vec::new();
    for value in cells.iter().map(of) {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// The row of operations of the cell that is like `like` but with this engine and crew.
fn find<'a>(
    cells: &[Cell],
    rows: &'a Rows,
    like: &Cell,
    engine: &str,
    crew: Crew,
) -> Option<&'a Row> {
    let is = |cell: &Cell| {
        Cell { engine: like.engine, crew: like.crew, ..cell.clone() } == *like
            && cell.engine == engine
            && cell.crew == crew
    };
    cells.iter().position(is).map(|at| &rows[at][0])
}

/// One table of everything: engines across, the rest down.
pub fn all(cells: &[Cell], rows: &Rows) -> String {
    let engines = distinct(cells, |cell| cell.engine);
    let crews = distinct(cells, |cell| cell.crew);
    let ratios: Vec<_> = RATIOS
        .into_iter()
        .filter(|(over, under)| engines.contains(over) && engines.contains(under))
        .collect();
    let one = crews.iter().copied().find(|crew| crew.workers() == 1);
    let scaling = one.filter(|_| crews.len() > 1 && engines.contains(&"pinfold"));
    let mut header: Vec<String> =
        ["case", "file", "block", crews[0].kind()].map(String::from).into();
    header.extend(engines.iter().map(|&engine| engine.to_owned()));
    header.extend(ratios.iter().map(|(over, under)| format!("{over}/{under}")));
    header.extend(scaling.map(|_| "pinfold/its 1".to_owned()));
    let lines =
        distinct(cells, |cell| Cell { engine: "", ..cell.clone() }).into_iter().map(|line| {
            let of = |engine, crew| {
                find(cells, rows, &Cell { engine, ..line.clone() }, engine, crew)
                    .expect("every engine was measured in every cell")
            };
            let mut texts = vec![
                line.case.to_owned(),
                Size(line.file_bytes).to_string(),
                Size(line.block_bytes).to_string(),
                line.crew.label(),
            ];
            texts.extend(engines.iter().map(|&engine| rate(of(engine, line.crew))));
            texts.extend(ratios.iter().map(|&(over, under)| {
                format!("{:.2}", of(over, line.crew).ratio(of(under, line.crew)))
            }));
            texts.extend(
                scaling.map(|one| {
                    format!("{:.2}", of("pinfold", line.crew).ratio(of("pinfold", one)))
                }),
            );
            texts
        });
    let table = report::table(header, lines.collect());
    format!(
        "Reads of what is in memory, operations per second\n{table}{}",
        report::footnote(&crews)
    )
}

/// A table for each length of file and each crew: block sizes down, cases across, in MiB/s.
pub fn seed(cells: &[Cell], rows: &Rows) -> String {
    let engines = distinct(cells, |cell| cell.engine);
    let cases = distinct(cells, |cell| cell.case);
    let crews = distinct(cells, |cell| cell.crew);
    let both = engines.contains(&"pread") && engines.contains(&"pinfold");
    let mut text = String::new();
    for file_bytes in distinct(cells, |cell| cell.file_bytes) {
        for &crew in &crews {
            let of = |cell: &&Cell| cell.file_bytes == file_bytes && cell.crew == crew;
            let here: Vec<Cell> = cells.iter().filter(of).cloned().collect();
            let mut header = vec!["block".to_owned()];
            for case in &cases {
                header.extend(engines.iter().map(|engine| format!("{case} {engine}")));
                header.extend(both.then(|| "boost %".to_owned()));
            }
            let lines = distinct(&here, |cell| cell.block_bytes).into_iter().map(|block_bytes| {
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
