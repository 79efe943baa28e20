//! Sizes on the command line, and for people: `64M` is 64 MiB, `4096` is bytes.
//!
//! The parsing is `parse-size`'s, with K, M and G as powers of 1024, as usual for memory.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match parse_size::Config::new().with_binary().parse_size(text) {
            Ok(0) => Err("must be above 0".to_owned()),
            Ok(bytes) if bytes > i64::MAX as u64 => Err("more than a file can have".to_owned()),
            Ok(bytes) => Ok(Size(bytes)),
            Err(parse_size::Error::PosOverflow) => Err("more than a file can have".to_owned()),
            Err(_) => Err("a size is a number of bytes, or such as 64K, 256M, 1G".to_owned()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| bytes >= 1 << shift) {
            None => write!(f, "{bytes} B"),
            Some((shift, unit)) if bytes.is_multiple_of(1 << shift) => {
                write!(f, "{} {unit}", bytes >> shift)
            }
            Some((shift, unit)) => {
                write!(f, "{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_1024_with_and_without_a_unit() {
        let parsed = |text: &str| text.parse::<Size>().map(|size| size.0);
        assert_eq!(parsed("4096"), Ok(4096));
        assert_eq!(parsed("64M"), Ok(64 << 20));
        assert_eq!(parsed("1GiB"), Ok(1 << 30));
        assert_eq!(parsed("4k"), Ok(4 << 10));
        assert_eq!(parsed("1.5K"), Ok(1536));
        assert_eq!(parsed("0"), Err("must be above 0".to_owned()));
        assert_eq!(parsed("9E"), Err("more than a file can have".to_owned()));
        assert_eq!(parsed("99E"), Err("more than a file can have".to_owned()));
        assert!(parsed("much").unwrap_err().starts_with("a size is a number of bytes"));
        assert!(parsed("-1").is_err());
    }

    #[test]
    fn shown_as_short_as_is_true() {
        let shown = |bytes| Size(bytes).to_string();
        assert_eq!([shown(0), shown(1023), shown(1024)], ["0 B", "1023 B", "1 KiB"]);
        assert_eq!([shown(64 << 20), shown(3 << 29)], ["64 MiB", "1.5 GiB"]);
    }
}
