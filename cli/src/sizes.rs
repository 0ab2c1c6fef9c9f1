//! Parses sizes and shares. Text flows in, bytes flow out.

use autoplace::memory::Headroom;

/// Parses bytes: `8589934592`, `24GiB`, `24G` (the same), `24GB` (1000-based), `22.6 GiB`, rounded to the nearest byte.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a size; sizes are 24GiB or 24G (1024-based), 24GB (1000-based), 600MiB, or bytes");
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
    let number = number(digits.trim_end()).ok_or_else(wrong)?;
    if unit == 1 && number.fract() > 0.0 {
        return Err(wrong());
    }
    // Exact up to 2^53 bytes, 8 PiB.
    let bytes = (number * unit as f64).round();
    if bytes >= u64::MAX as f64 {
        return Err(format!("`{text}` is more than 64 bits count"));
    }
    Ok(bytes as u64)
}

/// The text before a mark, and the text behind it if the mark occurs.
pub(crate) fn cut(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(before, behind)| (before, Some(behind)))
}

/// Parses bytes per second: `60GB/s`, `3.5 GB/s`.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a rate; rates are 60GB/s (1000-based) or 600MiB/s");
    let bytes = text.trim().strip_suffix("/s").ok_or_else(wrong)?;
    size(bytes).ok().filter(|&rate| rate > 0).ok_or_else(wrong)
}

/// Parses memory with an optional bandwidth: `64GiB`, `64GiB:60GB/s`.
pub(crate) fn ram(text: &str) -> Result<(u64, Option<u64>), String> {
    let (bytes, per_second) = cut(text, ':');
    let per_second = per_second.map(rate).transpose()?;
    match size(bytes)? {
        0 => Err("a host has more than 0 bytes".to_owned()),
        bytes => Ok((bytes, per_second)),
    }
}

/// Parses a preset name, bytes, or a share of the total: `cautious`, `600MiB`, `15%`.
pub(crate) fn headroom(text: &str) -> Result<Headroom, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "tight" => Ok(Headroom::Tight),
        "default" => Ok(Headroom::Default),
        "cautious" => Ok(Headroom::Cautious),
        other => match other.strip_suffix('%') {
            Some(percent) => match number(percent.trim_end()) {
                Some(percent) if percent <= 100.0 => Ok(Headroom::Percent(percent as f32)),
                _ => Err(format!("`{text}` is not a share between 0% and 100%")),
            },
            None => size(text)
                .map(Headroom::Bytes)
                .map_err(|error| format!("{error}; or tight, default, cautious, or a share of the total such as 15%")),
        },
    }
}

/// Parses decimal digits with an optional point between them: no sign, no exponent.
fn number(text: &str) -> Option<f64> {
    let is_digit = |c: char| c.is_ascii_digit();
    let is_plain = text.starts_with(is_digit) && text.ends_with(is_digit);
    let is_plain = is_plain && text.chars().all(|c| is_digit(c) || c == '.');
    text.parse().ok().filter(|_| is_plain)
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
    fn a_headroom_is_a_preset_a_size_or_a_share() {
        for (text, meant) in [
            ("tight", Headroom::Tight),
            (" Cautious ", Headroom::Cautious),
            ("600MiB", Headroom::Bytes(mib(600))),
            ("0", Headroom::Bytes(0)),
            ("15%", Headroom::Percent(15.0)),
            ("7.5 %", Headroom::Percent(7.5)),
            ("100%", Headroom::Percent(100.0)),
        ] {
            assert_eq!(headroom(text), Ok(meant), "{text}");
        }
        assert!(headroom("loose").unwrap_err().contains("15%"));
        for text in
            ["", "200%", "-1", "-1GiB", "-1%", "100.1%", "%", "nan%", "inf%", "1e1%", "+5%", "..%", "10 percent"]
        {
            assert!(headroom(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        let wrong = "GiB -1 -1GiB +1G 1e9 1.5 1. .5G 1.5.5G 0x10 1GiBs NaN five 1,5G ٣G 1.12345678901234éG";
        for text in wrong.split(' ').chain([""]) {
            assert!(size(text).is_err(), "{text}");
        }
        for text in ["99999999999999999999", "18014398509481984K", "999999999999999999999999999999999999999999T"] {
            assert!(size(text).unwrap_err().contains("64 bits"), "{text}");
        }
    }
}
