//! The current time, for templates that write a date.

use std::fmt::Write;

use chrono::{Local, NaiveDate, NaiveDateTime};
use minijinja::Error;

use super::fault::failed;

/// A local date and time of day, for `strftime_now` in a template.
///
/// By default, a template gets the time at which it is rendered. If the time is fixed, the prompt will be the same
/// tomorrow, and its tokens may still be in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime(NaiveDateTime);

impl LocalTime {
    /// The time now, in the time zone of this machine.
    pub fn now() -> Self {
        Self(Local::now().naive_local())
    }

    /// A date (month and day count from 1) and a time of day; `None` if there is no such date or time.
    pub fn new(year: i32, month: u32, day: u32, hour: u32, minute: u32, second: u32) -> Option<Self> {
        NaiveDate::from_ymd_opt(year, month, day)?.and_hms_opt(hour, minute, second).map(Self)
    }

    /// Formats this time as C's `strftime` does in the C locale.
    pub(crate) fn format(self, format: &str) -> Result<String, Error> {
        let mut text = String::new();
        let written = write!(text, "{}", self.0.format(format));
        written.map_err(|_| failed(format!("strftime_now('{format}'): no such directive")))?;
        Ok(text)
    }
}
