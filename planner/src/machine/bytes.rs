//! Byte counts for people. Code counts bytes; output uses MiB and GiB (powers of 1024).

use std::fmt;

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
/// GiB have one decimal and MiB none, except below 10 MiB, where the decimal tells sizes apart. Integer arithmetic
/// rounds half up, so the output is the same on every machine. Width and alignment of the format string apply
/// (`{:>9}`).
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

#[cfg(test)]
mod tests {
    use super::{Bytes, gib, mib};

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
}
