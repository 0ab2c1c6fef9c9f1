//! Times and sizes as people write them.

use std::time::Duration;

use autoplace::machine::{Bytes, ParseError};

/// The forms in which a time can be written, for errors.
pub(crate) const TIME: &str = "a number of seconds, or a text such as \"90s\", \"10m\" or \"2h\"";

/// Parses `90s`, `10m`, `2h`, or a number of seconds.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) => (number, text.get(number.len()..)?),
        None => (text, "s"),
    };
    let seconds = match unit {
        "h" => 3600,
        "m" => 60,
        _ => 1,
    };
    let number: u64 = number.trim().parse().ok()?;
    number.checked_mul(seconds).map(Duration::from_secs)
}

/// Parses a number of bytes as [`Bytes`] does.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    text.parse().map(|Bytes(bytes)| bytes).map_err(|error: ParseError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_as_people_write_them() {
        assert_eq!(
            [duration("90s"), duration("2h"), duration("7")].map(|read| read.map(|time| time.as_secs())),
            [Some(90), Some(7200), Some(7)]
        );
        assert_eq!(["soon", "-1s", "1.5h", ""].map(duration), [None; 4]);
        assert_eq!([size("1.5GiB"), size("2 GB"), size("4096")], [Ok(3 << 29), Ok(2_000_000_000), Ok(4096)]);
        for wrong in ["much", "-1GiB", "GiB", "1e300GiB", "nan", "inf"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
