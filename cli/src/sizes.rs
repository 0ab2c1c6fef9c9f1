//! Sizes and shares as people write them. Text flows in, bytes flow out; nothing is computed with floats.

use autoplace::memory::Headroom;

/// Digits behind the point that are looked at; the rest is below a byte.
const FRACTION: usize = 15;

/// Bytes: `8589934592`, `24GiB`, `24G` (the same), `24GB` (1000-based), `22.6 GiB`. Parts of a byte are dropped.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is no size; sizes are 24GiB or 24G (1024-based), 24GB (1000-based), 600MiB, or bytes");
    let lower = text.trim().to_ascii_lowercase();
    let letters = lower.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(lower.len());
    let (number, unit) = (lower[..letters].trim_end(), &lower[letters..]);
    // One letter alone is what it is to llama.cpp, Docker and `dd`: 1024-based.
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
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.ends_with('.') || (unit == 1 && !fraction.is_empty()) {
        return Err(wrong());
    }
    let whole = digits(whole).ok_or_else(wrong)?;
    let fraction = match fraction {
        "" => 0,
        fraction => {
            digits(fraction).ok_or_else(wrong)?;
            let kept = &fraction[..fraction.len().min(FRACTION)];
            digits(kept).unwrap_or(0) * u128::from(unit) / 10u128.pow(kept.len() as u32)
        }
    };
    whole
        .checked_mul(u128::from(unit))
        .and_then(|bytes| bytes.checked_add(fraction))
        .and_then(|bytes| u64::try_from(bytes).ok())
        .ok_or_else(|| format!("`{text}` is more than 64 bits count"))
}

/// Bytes per second: `60GB/s`, `3.5 GB/s`.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no rate; rates are 60GB/s (1000-based) or 600MiB/s");
    let bytes = text.trim().strip_suffix("/s").ok_or_else(wrong)?;
    size(bytes).ok().filter(|&rate| rate > 0).ok_or_else(wrong)
}

/// A preset by its name, or bytes: `cautious`, `600MiB`.
pub(crate) fn headroom(text: &str) -> Result<Headroom, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "tight" => return Ok(Headroom::Tight),
        "default" => return Ok(Headroom::Default),
        "cautious" => return Ok(Headroom::Cautious),
        _ => {}
    }
    let wrong = |error| format!("{error}; or tight, default, cautious");
    size(text).map(Headroom::Bytes).map_err(wrong)
}

/// Decimal digits and nothing else: no sign, no exponent.
fn digits(text: &str) -> Option<u128> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // What does not fit here is larger than any size.
    Some(text.parse().unwrap_or(u128::MAX))
}

#[cfg(test)]
mod tests {
    use super::{headroom, size};
    use autoplace::machine::{gib, mib};
    use autoplace::memory::Headroom;

    #[test]
    fn letters_alone_and_with_ib_count_by_1024_and_with_b_by_1000() {
        for text in ["24GiB", "24gib", "24G", "24 GiB", "24.0g", "24576M", "25769803776", "25769803776B"] {
            assert_eq!(size(text), Ok(gib(24)), "{text}");
        }
        for (text, bytes) in [("24GB", 24_000_000_000), ("1kb", 1000), ("1K", 1024), ("2T", gib(2048)), ("0", 0)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_fraction_is_exact_and_what_is_below_a_byte_is_dropped() {
        assert_eq!(size("22.5GiB"), Ok(gib(22) + mib(512)));
        assert_eq!(size("1.0000000000000000000001K"), Ok(1024));
        assert_eq!(size("0.0001K"), Ok(0));
        assert_eq!(size("22.6GiB"), Ok(gib(226) / 10));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "GiB",
            "-1",
            "-1GiB",
            "+1G",
            "1e9",
            "1.5",
            "1.",
            ".5G",
            "1.5.5G",
            "0x10",
            "1GiBs",
            "NaN",
            "five",
            "1,5G",
            "٣G",
            "1.12345678901234éG",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
        for text in ["99999999999999999999", "18014398509481984K", "999999999999999999999999999999999999999999T"] {
            assert!(size(text).unwrap_err().contains("64 bits"), "{text}");
        }
        assert_eq!(size("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn a_headroom_is_a_preset_or_a_size() {
        for (text, meant) in [
            ("tight", Headroom::Tight),
            ("default", Headroom::Default),
            (" Cautious ", Headroom::Cautious),
            ("600MiB", Headroom::Bytes(mib(600))),
            ("0", Headroom::Bytes(0)),
        ] {
            assert_eq!(headroom(text), Ok(meant), "{text}");
        }
        assert!(headroom("loose").unwrap_err().contains("cautious"));
        for text in ["", "5%", "-1", "-1GiB"] {
            assert!(headroom(text).is_err(), "{text}");
        }
    }
}
