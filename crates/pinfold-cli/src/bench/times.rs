//! How long operations took: counts by duration, of which percentiles are read.
//!
//! Buckets are 1/64 of a power of two wide, so a percentile is at most 1.6 % above what it is said
//! to be; memory does not grow with what is counted.

use std::time::Duration;

/// Each power of two is cut into 2 to the power of this.
const CUT_SHIFT: u32 = 6;
const CUTS: u64 = 1 << CUT_SHIFT;
const BUCKETS: usize = (u64::BITS - CUT_SHIFT + 1) as usize * CUTS as usize;

/// Counts by duration.
#[derive(Debug)]
pub struct Times {
    counts: Vec<u64>,
}

impl Times {
    /// Nothing yet.
    pub fn new() -> Self {
        Times { counts: vec![0; BUCKETS] }
    }

    /// Counts one.
    pub fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)] += 1;
    }

    /// Counts those of another, too.
    pub fn merge(&mut self, other: &Times) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// The nanoseconds that `part` of the operations took at most: the lower end of the bucket.
    /// `None` if there were none.
    pub fn at_most_ns(&self, part: f64) -> Option<u64> {
        let all: u64 = self.counts.iter().sum();
        let mut seen = 0;
        let reached = self.counts.iter().position(|count| {
            seen += count;
            seen > 0 && seen as f64 >= part * all as f64
        });
        reached.map(begin_ns)
    }
}

/// Below twice `CUTS` a bucket for each nanosecond, then `CUTS` for each power of two.
fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(CUT_SHIFT + 1);
    (u64::from(shift) * CUTS + (ns >> shift)) as usize
}

/// Where a bucket begins.
fn begin_ns(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / CUTS).saturating_sub(1);
    (bucket - shift * CUTS) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_that_begins_just_below_it() {
        let near = |power: u32| (1_u64 << power).saturating_sub(2)..(1_u64 << power) + 2;
        let times = (0..1000).chain((0..63).flat_map(near)).chain([u64::MAX]);
        for ns in times {
            let at = bucket(ns);
            assert!(at < BUCKETS, "{ns}");
            assert!(begin_ns(at) <= ns, "{ns}");
            assert!(ns - begin_ns(at) <= ns / CUTS, "{ns} is counted as {}", begin_ns(at));
            assert_eq!(bucket(begin_ns(at)), at, "{ns}");
        }
    }

    #[test]
    fn a_percentile_is_of_all_that_were_counted() {
        let mut times = Times::new();
        assert_eq!(times.at_most_ns(0.99), None);
        for ns in 1..=50 {
            times.add(Duration::from_nanos(ns));
        }
        let mut others = Times::new();
        for _ in 0..50 {
            others.add(Duration::from_micros(1));
        }
        assert_eq!(times.at_most_ns(0.0), Some(1));
        assert_eq!(times.at_most_ns(0.5), Some(25));
        assert_eq!(times.at_most_ns(0.99), Some(50));
        times.merge(&others);
        assert_eq!(times.at_most_ns(0.5), Some(50));
        let slow = times.at_most_ns(0.51).unwrap();
        assert!((985..=1000).contains(&slow), "{slow}");
    }
}
