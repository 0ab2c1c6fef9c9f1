//! Times and sizes as people write them.

use std::time::Duration;

/// What a time is, for errors.
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

/// Parses bytes as the program's arguments have them: `24GiB` or `24G` (1024-based), `24GB` (1000-based), `600MiB`, or
/// a number of bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a size: sizes are 24GiB or 24G (1024-based), 24GB (1000-based), 600MiB, or bytes");
    let lower = text.trim().to_ascii_lowercase();
    let (digits, unit) = lower.split_at(lower.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(lower.len()));
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
    let number: f64 = digits.trim_end().parse().map_err(|_| wrong())?;
    let bytes = (number * unit as f64).round();
    let is_size = digits.starts_with(|c: char| c.is_ascii_digit()) && bytes < u64::MAX as f64;
    if is_size { Ok(bytes as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_as_people_write_them() {
        assert_eq!(
            [duration("90s"), duration("2h"), duration("7")].map(|it| it.map(|it| it.as_secs())),
            [Some(90), Some(7200), Some(7)]
        );
        assert_eq!(["soon", "-1s", "1.5h", ""].map(duration), [None; 4]);
        assert_eq!([size("1.5GiB"), size("2 GB"), size("4096")], [Ok(3 << 29), Ok(2_000_000_000), Ok(4096)]);
        for wrong in ["much", "-1GiB", "GiB", "1e300GiB", "nan", "inf"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
