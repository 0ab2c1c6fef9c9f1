//! Byte counts for people: sizes are bytes in code and MiB or GiB (1024) in print.

use std::fmt;

/// The bytes in `n` mebibytes (1024 * 1024 each), or `u64::MAX` where that does not fit.
#[must_use]
pub const fn mib(n: u64) -> u64 {
    n.saturating_mul(1 << 20)
}

/// The bytes in `n` gibibytes (1024 * 1024 * 1024 each), or `u64::MAX` where that does not fit.
#[must_use]
pub const fn gib(n: u64) -> u64 {
    n.saturating_mul(1 << 30)
}

/// A byte count that prints for people: `19.9 GiB`, `312 MiB`, `4.0 KiB`, `17 B`.
///
/// From one GiB on with one decimal, below it in whole MiB; under 10 MiB with one decimal again, since there the
/// decimal is what distinguishes two sizes. Rounded to nearest, half up, with integer arithmetic: the same bytes
/// print the same on every machine. Width and alignment of the format string apply (`{:>9}`).
///
/// ```
/// use autoplace_planner::machine::bytes::{Bytes, gib, mib};
/// assert_eq!(Bytes(gib(24)).to_string(), "24.0 GiB");
/// assert_eq!(Bytes(mib(312)).to_string(), "312 MiB");
/// ```
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
        // A size that would round up to the next unit ("1024 MiB") is printed in that unit ("1.0 GiB").
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

#[cfg(test)]
mod tests {
    use super::{Bytes, gib, mib};

    fn text(bytes: u64) -> String {
        Bytes(bytes).to_string()
    }

    #[test]
    fn a_gibibyte_and_more_prints_with_one_decimal() {
        assert_eq!(text(gib(24)), "24.0 GiB");
        assert_eq!(text(gib(20) - mib(100)), "19.9 GiB");
        assert_eq!(text(gib(1)), "1.0 GiB");
    }

    #[test]
    fn mebibytes_print_whole_and_below_ten_with_a_decimal() {
        assert_eq!(text(mib(312)), "312 MiB");
        assert_eq!(text(mib(10)), "10 MiB");
        assert_eq!(text(mib(4) + mib(1) / 2), "4.5 MiB");
    }

    #[test]
    fn small_sizes_print_in_kibibytes_and_bytes() {
        assert_eq!(text(4096), "4.0 KiB");
        assert_eq!(text(17), "17 B");
        assert_eq!(text(0), "0 B");
    }

    #[test]
    fn a_size_that_rounds_up_to_the_next_unit_prints_in_that_unit() {
        assert_eq!(text(gib(1) - 1), "1.0 GiB");
        assert_eq!(text(mib(10) - 1), "10 MiB");
        assert_eq!(text(mib(1) - 1), "1.0 MiB");
    }

    #[test]
    fn the_largest_count_prints_without_overflow() {
        assert_eq!(text(u64::MAX), "17179869184.0 GiB");
        assert_eq!(gib(u64::MAX), u64::MAX);
    }

    #[test]
    fn width_and_alignment_apply() {
        assert_eq!(
            format!("{:>9}|{:<9}", Bytes(mib(312)), Bytes(gib(2))),
            "  312 MiB|2.0 GiB  "
        );
    }
}
