//! Zipf-distributed blocks: which are likely, and where they lie in a file.

use anyhow::{Result, ensure};
use rand::Rng;
use rand_distr::{Distribution, Zipf};

/// A prime, so that the popular blocks lie scattered in the file.
const SCATTER: u64 = 2_654_435_761;

/// A distribution of blocks: the block of rank `n` is drawn with a probability that is proportional
/// to `n` to the power of minus the skew. Block 0 is the most popular one.
#[derive(Debug, Clone, Copy)]
pub struct Ranks {
    zipf: Zipf<f64>,
    blocks: u64,
}

/// Whether `--skew` is an exponent.
pub fn check_skew(skew: f64) -> Result<()> {
    ensure!(skew.is_finite() && skew >= 0.0, "--skew {skew}: must be a number from 0 up");
    Ok(())
}

impl Ranks {
    /// Of this many blocks; at least one.
    pub fn new(blocks: u64, skew: f64) -> Result<Self> {
        check_skew(skew)?;
        Ok(Ranks { zipf: Zipf::new(blocks as f64, skew)?, blocks })
    }

    /// Draws a block.
    #[expect(clippy::cast_sign_loss, reason = "ranks are whole numbers from 1 up")]
    pub fn draw(&self, random: &mut impl Rng) -> u64 {
        let rank = self.zipf.sample(random) as u64 - 1;
        assert!(rank < self.blocks, "a rank beyond the number of blocks");
        (u128::from(rank) * u128::from(SCATTER) % u128::from(self.blocks)) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    use super::*;

    const DRAWS: usize = 100_000;

    fn counts(blocks: u64, skew: f64) -> BTreeMap<u64, usize> {
        let ranks = Ranks::new(blocks, skew).unwrap();
        let mut random = Pcg64Mcg::seed_from_u64(7);
        let mut counts = BTreeMap::new();
        for _ in 0..DRAWS {
            *counts.entry(ranks.draw(&mut random)).or_default() += 1;
        }
        counts
    }

    #[test]
    fn every_block_has_one_rank_and_block_0_the_first() {
        let counts = counts(100, 0.9);
        assert_eq!(counts.len(), 100);
        assert!(counts.keys().all(|&block| block < 100));
        assert_eq!(counts.iter().max_by_key(|(_, count)| **count).unwrap().0, &0);
    }

    #[test]
    fn the_skew_is_an_exponent() {
        let of = |skew: f64| {
            let counts = counts(1000, skew);
            let second = SCATTER % 1000;
            counts[&0] as f64 / counts[&second] as f64
        };
        // The first rank is drawn 2 to the power of the skew times as often as the second.
        assert!((of(1.0) - 2.0).abs() < 0.2, "{}", of(1.0));
        assert!((of(0.0) - 1.0).abs() < 0.4, "{}", of(0.0));
    }

    #[test]
    fn what_is_no_exponent_is_refused() {
        for skew in [-0.1, f64::NAN, f64::INFINITY] {
            let error = Ranks::new(10, skew).unwrap_err().to_string();
            assert!(error.contains("--skew") && error.contains("from 0 up"), "{error}");
        }
    }
}
