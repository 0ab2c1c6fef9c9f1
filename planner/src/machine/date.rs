//! A day, as caches and machine files write it: `2026-11-21`.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::ParseError;

/// A day of the Gregorian calendar, in UTC. It prints, parses and serialises as ISO 8601 writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Date {
    year: u16,
    month: u8,
    day: u8,
}

impl Date {
    /// A day, or `None` where the calendar has no such day. Years are 1 to 9999.
    pub fn new(year: u16, month: u8, day: u8) -> Option<Self> {
        let is_there = (1..=9999).contains(&year) && (1..=days_of(year, month)).contains(&day);
        is_there.then_some(Self { year, month, day })
    }

    /// Today, in UTC.
    pub fn today() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::after(since.as_secs() / (24 * 60 * 60))
    }

    /// The day that is so many after 1970-01-01.
    fn after(mut days: u64) -> Self {
        let months = (1970..=9999).flat_map(|year| (1..=12).map(move |month| (year, month)));
        for (year, month) in months {
            let length = days_of(year, month);
            match u8::try_from(days) {
                Ok(day) if day < length => return Self { year, month, day: day + 1 },
                _ => days -= u64::from(length),
            }
        }
        Self { year: 9999, month: 12, day: 31 }
    }
}

/// 0 for a month that there is not.
fn days_of(year: u16, month: u8) -> u8 {
    let is_leap = year.is_multiple_of(if year.is_multiple_of(100) { 400 } else { 4 });
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u8::from(is_leap),
        _ => 0,
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:04}-{:02}-{:02}", self.year, self.month, self.day))
    }
}

impl FromStr for Date {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parts: Vec<u16> = text.split('-').map_while(|part| part.parse().ok()).collect();
        let date = match parts[..] {
            [year, month, day] => {
                u8::try_from(month).ok().zip(u8::try_from(day).ok()).and_then(|(m, d)| Self::new(year, m, d))
            }
            _ => None,
        };
        // Signs, and missing zeros.
        let date = date.filter(|date| date.to_string() == text);
        date.ok_or_else(|| ParseError::new(text, "not a day such as 2026-11-21"))
    }
}

serde_as_text!(Date);

#[cfg(test)]
mod tests {
    use super::Date;

    #[test]
    fn today_is_no_earlier_than_this_code() {
        assert!(Date::today() >= Date::new(2025, 1, 1).unwrap());
        // `date -u -d @86400...`: the last days before a leap day, after it, and of all.
        for (days, text) in [
            (0, "1970-01-01"),
            (11_015, "2000-02-28"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_780, "2026-11-23"),
            (u64::MAX, "9999-12-31"),
        ] {
            assert_eq!(Date::after(days).to_string(), text);
            assert_eq!(text.parse(), Ok(Date::after(days)));
        }
    }

    #[test]
    fn what_the_calendar_does_not_have_is_refused_with_its_text() {
        let wrong = "|2026|2026-11|2026-11-31|2025-02-29|2026-13-01|2026-00-01|2026-01-00|0000-01-01|2026-1-1\
                     |+026-01-01|2026-01-01-01|21.11.2026|-2026-11-21|2026-11-21T00:00:00Z| 2026-11-21|1900-02-29";
        for text in wrong.split('|') {
            let error = text.parse::<Date>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{text}");
        }
    }
}
