//! A day, as caches and machine files write it: `2026-11-21`.

use std::fmt;
use std::str::FromStr;

use jiff::{Timestamp, civil, tz::TimeZone};
use serde::{Deserialize, Serialize};

/// A day of the Gregorian calendar, in UTC. It prints, parses and serialises as ISO 8601 writes it.
///
/// ```
/// use autoplace_planner::machine::Date;
/// let day: Date = "2026-11-21".parse().unwrap();
/// assert!(day > Date::new(2026, 2, 28).unwrap());
/// assert_eq!(day.to_string(), "2026-11-21");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Date(civil::Date);

/// The text was not a day.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a day such as 2026-11-21")]
pub struct DateError {
    text: String,
}

impl Date {
    /// A day, or `None` where the calendar has no such day. Years are 1 to 9999.
    pub fn new(year: u16, month: u8, day: u8) -> Option<Self> {
        let year = i16::try_from(year).ok().filter(|&year| year > 0)?;
        let (month, day) = (month.try_into().ok()?, day.try_into().ok()?);
        civil::Date::new(year, month, day).ok().map(Self)
    }

    /// Today, in UTC.
    pub fn today() -> Self {
        Self(TimeZone::UTC.to_datetime(Timestamp::now()).date())
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}

impl FromStr for Date {
    type Err = DateError;

    fn from_str(text: &str) -> Result<Self, DateError> {
        let date = text.parse().ok().map(Self);
        // ISO 8601 has other years, and other ways to write a day.
        date.filter(|date| date.0.year() > 0 && date.to_string() == text)
            .ok_or_else(|| DateError { text: text.to_owned() })
    }
}

serde_as_text!(Date);

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::Date;

    #[test]
    fn a_day_is_printed_in_any_width() {
        let day = Date::new(926, 1, 2).unwrap();
        assert_eq!(format!("{day:>12}|{day:<12}"), "  0926-01-02|0926-01-02  ");
    }

    #[test]
    fn today_is_no_earlier_than_this_code() {
        assert!(Date::today() >= Date::new(2025, 1, 1).unwrap());
    }

    #[test]
    fn what_the_calendar_does_not_have_is_refused_with_its_text() {
        let wrong = "|2026|2026-11|2026-11-31|2025-02-29|2026-13-01|2026-00-01|2026-01-00|0000-01-01|2026-1-1\
                     |+026-01-01|2026-01-01-01|21.11.2026|20261121|2026-325|2026-W47-6|-2026-11-21|+002026-11-21\
                     |2026-11-21T00:00:00Z| 2026-11-21|2026-11-21 |1900-02-29";
        for text in wrong.split('|') {
            let error = text.parse::<Date>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{text}");
        }
        assert!("2024-02-29".parse::<Date>().is_ok());
    }

    proptest! {
        #[test]
        fn a_later_day_is_greater_and_every_day_survives_its_text(year in 1u16..=9999, month in 1u8..12, day in 1u8..29) {
            let (one, next) = (Date::new(year, month, day).unwrap(), Date::new(year, month + 1, day));
            prop_assert!(next.unwrap() > one);
            prop_assert_eq!(one.to_string().parse(), Ok(one));
        }

        #[test]
        fn no_text_makes_parsing_panic(text in any::<String>()) {
            let _: Result<Date, _> = text.parse();
        }
    }
}
