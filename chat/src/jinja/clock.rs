//! What time it is, for templates that say so.

use minijinja::Error;

use super::fault::failed;

/// A date and a time of day where the application runs, to which `strftime_now` in a template refers.
///
/// Without one, a template gets the time of the rendering. With one, the same conversation gives the same prompt
/// tomorrow, of which the tokens may still be in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime(jiff::civil::DateTime);

impl LocalTime {
    /// The time now, in the time zone of this machine.
    pub fn now() -> Self {
        Self(jiff::Zoned::now().datetime())
    }

    /// A date (month and day from 1) and a time of day; `None` if there is no such date or time.
    pub fn new(year: i16, month: i8, day: i8, hour: i8, minute: i8, second: i8) -> Option<Self> {
        jiff::civil::DateTime::new(year, month, day, hour, minute, second, 0).ok().map(Self)
    }

    /// As C's `strftime`, in its own locale.
    pub(super) fn format(self, format: &str) -> Result<String, Error> {
        match jiff::fmt::strtime::format(format, self.0) {
            Ok(text) => Ok(text),
            Err(error) => Err(failed(format!("strftime_now('{format}'): {error}"))),
        }
    }
}
