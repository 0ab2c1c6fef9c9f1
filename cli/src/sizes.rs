//! Parses sizes, rates and shares.

use autoplace::machine::bytes::decimal;
use autoplace::machine::{Bytes, ParseError, mib};
use autoplace::memory::Headroom;

/// Parses a number of bytes, in the notation of [`Bytes`].
pub(crate) fn size(text: &str) -> Result<u64, String> {
    text.parse().map(|Bytes(bytes)| bytes).map_err(|error: ParseError| error.to_string())
}

/// The text before a mark, and the text after it. `None` if the mark does not occur.
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
        0 => Err("a host must have more than 0 bytes".to_owned()),
        bytes if bytes < mib(1) => Err(format!("a host has more than {bytes} bytes: write a unit, as in 64GiB")),
        bytes => Ok((bytes, per_second)),
    }
}

/// Parses the name of a preset, a number of bytes, or a share of the total: `cautious`, `600MiB`, `15%`.
pub(crate) fn headroom(text: &str) -> Result<Headroom, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "tight" => Ok(Headroom::Tight),
        "default" => Ok(Headroom::Default),
        "cautious" => Ok(Headroom::Cautious),
        other => match other.strip_suffix('%') {
            Some(percent) => match decimal(percent.trim_end()) {
                Some(percent) if percent <= 100.0 => Ok(Headroom::Percent(percent as f32)),
                _ => Err(format!("`{text}` is not a share between 0% and 100%")),
            },
            None => size(text)
                .map(Headroom::Bytes)
                .map_err(|error| format!("{error}; or tight, default, cautious, or a share of the total such as 15%")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{headroom, ram};
    use autoplace::machine::mib;
    use autoplace::memory::Headroom;

    #[test]
    fn memory_without_a_unit_is_refused_if_it_is_too_little() {
        assert_eq!(ram("64GiB:60GB/s"), Ok((64 << 30, Some(60_000_000_000))));
        assert!(ram("64").unwrap_err().contains("as in 64GiB"));
        assert_eq!(ram("68719476736"), Ok((64 << 30, None)));
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
}
