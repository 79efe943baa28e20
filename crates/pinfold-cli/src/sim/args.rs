//! The arguments of `pinfold sim`.

use std::path::PathBuf;
use std::str::FromStr;

use pinfold_policy::{S3FifoOptions, USES_MAX};

use super::trace::Format;

/// Arguments of `pinfold sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Generators:
  zipf       pages drawn from a Zipf distribution
  zipf-scan  the same over one half of the pages; now and then a scan of the other half beside it
  loop       all pages in turn, again and again
  oltp       transactions: hot index pages, Zipf rows, appends to a history, and some range scans

A file holds one page number a line (blank lines and lines that start with # are skipped), or page
numbers as 64-bit little-endian words. To read a file that has the name of a generator, write
./zipf.")]
pub(crate) struct SimArgs {
    /// Files or generators (zipf, zipf-scan, loop, oltp); each gets a table.
    #[arg(required = true, value_name = "TRACE")]
    pub(super) traces: Vec<String>,

    /// Format of a file; auto takes a file with a NUL byte near its start for binary.
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub(super) format: Format,

    /// Capacities: numbers of pages, or percentages of the trace's distinct pages.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1%,5%,10%,25%")]
    pub(super) capacity: Vec<Capacity>,

    /// Generators: number of pages.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pub(super) pages: u32,

    /// Generators: number of requests.
    #[arg(long, default_value_t = 2_000_000, value_name = "N")]
    pub(super) requests: u32,

    /// Generators: the exponent of the Zipf distribution; 0 is uniform.
    #[arg(long, default_value_t = 0.9, value_name = "S")]
    pub(super) skew: f64,

    /// Generators: seed; the same seed gives the same trace.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(super) seed: u64,

    /// Write the figures as JSON to FILE; to standard output if FILE is - (the table then goes to
    /// standard error).
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    #[command(flatten)]
    pub(super) tuning: Tuning,
}

/// The options of pinfold's own policy.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Parameters of pinfold's policy")]
pub(super) struct Tuning {
    /// The small queue's share of the capacity.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100),
          default_value_t = S3FifoOptions::default().small_percent)]
    pub(super) small_percent: u32,

    /// How many evicted pages the ghosts cover, as a share of the capacity.
    #[arg(long, value_name = "PERCENT", default_value_t = S3FifoOptions::default().ghost_percent)]
    pub(super) ghost_percent: u32,

    /// Share of the capacity up to which the main queue takes newcomers.
    #[arg(long, value_name = "PERCENT", default_value_t = S3FifoOptions::default().main_fill_percent)]
    pub(super) main_fill_percent: u32,

    /// Number of uses that moves a newcomer to the main queue.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(USES_MAX)),
          default_value_t = S3FifoOptions::default().promote_uses)]
    pub(super) promote_uses: u8,

    /// The most pages spared in one search for a victim.
    #[arg(long, value_name = "N", default_value_t = S3FifoOptions::default().reprieves_max)]
    pub(super) reprieves_max: u32,

    /// Whether pages evicted from the main queue leave a ghost too.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set,
          default_value_t = S3FifoOptions::default().main_ghosts)]
    pub(super) main_ghosts: bool,
}

impl From<Tuning> for S3FifoOptions {
    fn from(tuning: Tuning) -> Self {
        Self {
            small_percent: tuning.small_percent,
            ghost_percent: tuning.ghost_percent,
            main_fill_percent: tuning.main_fill_percent,
            promote_uses: tuning.promote_uses,
            main_ghosts: tuning.main_ghosts,
            reprieves_max: tuning.reprieves_max,
        }
    }
}

/// A capacity as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Capacity {
    Pages(u32),
    Percent(f64),
}

impl Capacity {
    /// In pages of a trace; a percentage is rounded, but never to nothing.
    pub(super) fn pages(self, distinct: u32) -> u32 {
        match self {
            Self::Pages(pages) => pages,
            Self::Percent(percent) => {
                let pages = (f64::from(distinct) * percent / 100.0).round();
                // A float cast saturates; the percentage is finite and above zero.
                #[expect(clippy::cast_sign_loss)]
                let pages = pages as u32;
                pages.max(1)
            }
        }
    }
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let zero = || format!("capacity {text} is zero: a cache needs at least one page");
        if let Some(number) = text.strip_suffix('%') {
            let percent = number.trim().parse::<f64>().ok().filter(|p| p.is_finite() && *p >= 0.0);
            let percent = percent.ok_or_else(|| format!("{text:?} is no percentage"))?;
            return if percent > 0.0 { Ok(Self::Percent(percent)) } else { Err(zero()) };
        }
        let pages = text
            .parse::<u32>()
            .map_err(|e| format!("{text:?} is neither a number of pages nor a percentage: {e}"))?;
        if pages == 0 { Err(zero()) } else { Ok(Self::Pages(pages)) }
    }
}
