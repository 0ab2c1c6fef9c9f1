//! Byte counts for people. Code counts bytes; output uses MiB and GiB (powers of 1024).

use std::fmt;
use std::str::FromStr;

use super::ParseError;

/// The bytes of `n` mebibytes (1024 * 1024 each), or `u64::MAX` on overflow.
pub const fn mib(n: u64) -> u64 {
    n.saturating_mul(1 << 20)
}

/// The bytes of `n` gibibytes (1024 * 1024 * 1024 each), or `u64::MAX` on overflow.
pub const fn gib(n: u64) -> u64 {
    n.saturating_mul(1 << 30)
}

/// A byte count with a `Display` for people: `19.9 GiB`, `312 MiB`, `4.0 KiB`, `17 B`.
///
/// GiB have one decimal. MiB have no decimal, except below 10 MiB, where one is needed to distinguish sizes. Integer
/// arithmetic rounds half up, so the output is the same on every machine. Width and alignment of the format string
/// apply (`{:>9}`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl Bytes {
    fn text(self) -> String {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        // A size that rounds up to the next unit ("1024 MiB") is displayed in that unit ("1.0 GiB").
        if self.0 >= GIB - MIB / 2 {
            self.tenths(GIB, "GiB")
        } else if self.0 >= 10 * MIB - MIB / 20 {
            format!("{} MiB", (self.0 + MIB / 2) / MIB)
        } else if self.0 >= MIB - KIB / 20 {
            self.tenths(MIB, "MiB")
        } else if self.0 >= KIB {
            self.tenths(KIB, "KiB")
        } else {
            format!("{} B", self.0)
        }
    }

    fn tenths(self, unit: u64, name: &str) -> String {
        let tenths = (u128::from(self.0) * 10 + u128::from(unit) / 2) / u128::from(unit);
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }
}

impl FromStr for Bytes {
    type Err = ParseError;

    /// Parses `8589934592`, `24GiB`, `24G` (the same as `24GiB`), `24GB` (1000-based) and `22.6 GiB`, and rounds to the
    /// nearest byte.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || {
            let what = "not a size; sizes are 24GiB or 24G (1024-based), 24GB (1000-based), 600MiB, or bytes";
            ParseError::new(text, what)
        };
        let lower = text.trim().to_ascii_lowercase();
        let (digits, unit) = lower.split_at(lower.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(lower.len()));
        // A single letter is 1024-based, as in llama.cpp, Docker and `dd`.
        let unit: u64 = match unit {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(wrong()),
        };
        let number = decimal(digits.trim_end()).ok_or_else(wrong)?;
        if unit == 1 && number.fract() > 0.0 {
            return Err(wrong());
        }
        // This is exact up to 2^53 bytes, which is 8 PiB.
        let bytes = (number * unit as f64).round();
        if bytes >= u64::MAX as f64 {
            return Err(ParseError::new(text, "more than 64 bits can hold"));
        }
        Ok(Self(bytes as u64))
    }
}

/// Parses decimal digits with an optional point between them. A sign or an exponent is not accepted.
pub fn decimal(text: &str) -> Option<f64> {
    let is_digit = |c: char| c.is_ascii_digit();
    let is_plain = text.starts_with(is_digit) && text.ends_with(is_digit);
    let is_plain = is_plain && text.chars().all(|c| is_digit(c) || c == '.');
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::{Bytes, gib, mib};

    fn size(text: &str) -> Result<u64, String> {
        text.parse().map(|Bytes(bytes)| bytes).map_err(|error: super::ParseError| error.to_string())
    }

    #[test]
    fn sizes_print_in_their_unit_or_in_the_next_if_they_round_up_to_it() {
        for (bytes, text) in [
            (gib(24), "24.0 GiB"),
            (gib(20) - mib(100), "19.9 GiB"),
            (gib(1), "1.0 GiB"),
            (gib(1) - 1, "1.0 GiB"),
            (mib(312), "312 MiB"),
            (mib(10), "10 MiB"),
            (mib(10) - 1, "10 MiB"),
            (mib(4) + mib(1) / 2, "4.5 MiB"),
            (mib(1) - 1, "1.0 MiB"),
            (4096, "4.0 KiB"),
            (17, "17 B"),
            (0, "0 B"),
            (u64::MAX, "17179869184.0 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(gib(u64::MAX), u64::MAX);
        assert_eq!(format!("{:>9}", Bytes(mib(312))), "  312 MiB");
    }

    #[test]
    fn letters_alone_and_with_ib_count_by_1024_and_with_b_by_1000() {
        for text in ["24GiB", "24gib", "24G", "24 GiB", "24.0g", "24576M", "25769803776", "25769803776B"] {
            assert_eq!(size(text), Ok(gib(24)), "{text}");
        }
        // Fractions are rounded to the nearest byte.
        for (text, bytes) in [
            ("24GB", 24_000_000_000),
            ("1kb", 1000),
            ("1K", 1024),
            ("2T", gib(2048)),
            ("0", 0),
            ("22.5GiB", gib(22) + mib(512)),
            ("1.0000000000000000000001K", 1024),
            ("0.0001K", 0),
            ("22.6GiB", gib(226) / 10),
            ("4.35GB", 4_350_000_000),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_a_size_is_refused() {
        let wrong = "GiB -1 -1GiB +1G 1e9 1.5 1. .5G 1.5.5G 0x10 1GiBs NaN five 1,5G ٣G 1.12345678901234éG";
        for text in wrong.split(' ').chain([""]) {
            assert!(size(text).is_err(), "{text}");
        }
        for text in ["99999999999999999999", "18014398509481984K", "999999999999999999999999999999999999999999T"] {
            assert!(size(text).unwrap_err().contains("64 bits"), "{text}");
        }
    }
}
