//! A day, as caches and machine files write it: `2026-11-21`.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A day of the Gregorian calendar, in UTC. It prints, parses and serialises as ISO 8601 writes it.
///
/// ```
/// use autoplace::machine::Date;
/// let day: Date = "2026-11-21".parse().unwrap();
/// assert!(day > Date::new(2026, 2, 28).unwrap());
/// assert_eq!(day.to_string(), "2026-11-21");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Date {
    year: u16,
    month: u8,
    day: u8,
}

/// The text was not a day.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a day such as 2026-11-21")]
pub struct DateError {
    text: String,
}

impl Date {
    /// A day, or `None` where the calendar has no such day. Years are 1 to 9999.
    #[must_use]
    pub const fn new(year: u16, month: u8, day: u8) -> Option<Self> {
        if year < 1 || year > 9999 || day < 1 || day > days_in(year, month) {
            return None;
        }
        Some(Self { year, month, day })
    }

    /// Today, in UTC. A clock before 1970 counts as its first day.
    #[must_use]
    pub fn today() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self::after_epoch(since.map_or(0, |since| since.as_secs() / 86_400))
    }

    /// The day so many days after 1970-01-01; the last that four digits can name, if it is later.
    fn after_epoch(mut days: u64) -> Self {
        let mut year = 1970;
        while year < 9999 && days >= days_of(year) {
            days -= days_of(year);
            year += 1;
        }
        let mut month = 1;
        while month < 12 && days >= u64::from(days_in(year, month)) {
            days -= u64::from(days_in(year, month));
            month += 1;
        }
        let last = days_in(year, month);
        let day = u8::try_from(days.saturating_add(1)).map_or(last, |day| day.min(last));
        Self { year, month, day }
    }
}

/// The days of a month; 0 for what is no month.
const fn days_in(year: u16, month: u8) -> u8 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    }
}

const fn days_of(year: u16) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

const fn is_leap(year: u16) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day } = self;
        f.pad(&format!("{year:04}-{month:02}-{day:02}"))
    }
}

impl FromStr for Date {
    type Err = DateError;

    fn from_str(text: &str) -> Result<Self, DateError> {
        parse(text).ok_or_else(|| DateError {
            text: text.to_owned(),
        })
    }
}

impl TryFrom<String> for Date {
    type Error = DateError;

    fn try_from(text: String) -> Result<Self, DateError> {
        text.parse()
    }
}

impl From<Date> for String {
    fn from(date: Date) -> Self {
        date.to_string()
    }
}

fn parse(text: &str) -> Option<Date> {
    let mut parts = text.split('-');
    let mut number = |digits: usize| {
        let part = parts.next()?;
        let plain = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| part.parse::<u16>().ok()).flatten()
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    if parts.next().is_some() {
        return None;
    }
    Date::new(year, u8::try_from(month).ok()?, u8::try_from(day).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::Date;

    #[test]
    fn days_are_counted_from_1970_over_leap_years_and_centuries() {
        for (days, text) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (20_778, "2026-11-21"),
            (47_541, "2100-03-01"),
            (u64::MAX, "9999-12-31"),
        ] {
            assert_eq!(Date::after_epoch(days).to_string(), text, "{days}");
        }
    }

    #[test]
    fn today_is_no_earlier_than_this_code() {
        assert!(Date::today() >= Date::new(2025, 1, 1).unwrap());
    }

    #[test]
    fn what_the_calendar_does_not_have_is_refused_with_its_text() {
        for text in [
            "",
            "2026",
            "2026-11",
            "2026-11-31",
            "2025-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-01-00",
            "0000-01-01",
            "2026-1-1",
            "+026-01-01",
            "2026-01-01-01",
            "21.11.2026",
        ] {
            let error = text.parse::<Date>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{text}");
        }
        assert!("2024-02-29".parse::<Date>().is_ok());
        assert!("1900-02-29".parse::<Date>().is_err());
    }

    proptest! {
        #[test]
        fn a_later_day_is_greater_and_every_day_survives_its_text(days in 0u64..2_900_000, later in 1u64..1000) {
            let (day, next) = (Date::after_epoch(days), Date::after_epoch(days + later));
            prop_assert!(next > day);
            prop_assert_eq!(day.to_string().parse(), Ok(day));
        }

        #[test]
        fn no_text_makes_parsing_panic(text in any::<String>()) {
            let _: Result<Date, _> = text.parse();
        }
    }
}
