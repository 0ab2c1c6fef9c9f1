//! Fields of a JSON document. Each has its path, for errors.

use std::ops::RangeInclusive;

use anyhow::{Result, ensure};
use serde_json::Value;

/// Maximum length of a text in a submission.
const MAX_LETTERS: usize = 300;

/// A value and its path.
#[derive(Debug, Clone)]
pub(super) struct Field<'v> {
    path: String,
    value: &'v Value,
}

impl<'v> Field<'v> {
    pub(super) const fn root(value: &'v Value) -> Self {
        Self { path: String::new(), value }
    }

    pub(super) fn path(&self) -> &str {
        if self.path.is_empty() { "the document" } else { &self.path }
    }

    /// The field of an object; null if the field is missing.
    pub(super) fn get(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { path, value: &self.value[name] }
    }

    /// Checks that the value is an object with only these fields. Any other field might identify a person.
    pub(super) fn has_only(&self, names: &[&str]) -> Result<()> {
        let object = self.value.as_object();
        ensure!(object.is_some(), "{}: an object is needed", self.path());
        let unknown = object.into_iter().flatten().map(|(name, _)| name).find(|name| !names.contains(&name.as_str()));
        ensure!(
            unknown.is_none(),
            "{}: a submission has no field `{}`",
            self.path(),
            unknown.map_or("", String::as_str)
        );
        Ok(())
    }

    /// The value; `None` if it is null.
    pub(super) fn is_some(&self) -> Option<Self> {
        (!self.value.is_null()).then(|| self.clone())
    }

    /// The result of `read`; an empty text if the value is null.
    pub(super) fn or_none(&self, read: impl FnOnce(&Self) -> Result<String>) -> Result<String> {
        self.is_some().map_or(Ok(String::new()), |field| read(&field))
    }

    /// The items of a list with at most `most` items.
    pub(super) fn list(&self, most: usize) -> Result<Vec<Self>> {
        let Some(items) = self.value.as_array() else {
            anyhow::bail!("{}: a list is needed", self.path());
        };
        ensure!(
            items.len() <= most,
            "{}: at most {most} items are allowed, and there are {}",
            self.path(),
            items.len()
        );
        let item = |(index, value)| Self { path: format!("{}[{index}]", self.path), value };
        Ok(items.iter().enumerate().map(item).collect())
    }

    /// A text of one line without paths and without addresses.
    pub(super) fn text(&self) -> Result<String> {
        let Some(text) = self.value.as_str() else {
            anyhow::bail!("{}: a text is needed", self.path());
        };
        let length = text.chars().count();
        ensure!(
            length <= MAX_LETTERS,
            "{}: at most {MAX_LETTERS} characters are allowed, and there are {length}",
            self.path()
        );
        ensure!(!text.contains(char::is_control), "{}: the text contains a control character", self.path());
        let is_path = text.starts_with(['/', '~']) || text.contains(":\\") || text.matches('/').count() > 1;
        ensure!(!is_path && !text.contains('@'), "{}: `{text}` may identify the owner of the machine", self.path());
        Ok(text.to_owned())
    }

    pub(super) fn one_of(&self, all: &[&str]) -> Result<()> {
        let text = self.text()?;
        ensure!(all.contains(&text.as_str()), "{}: `{text}` is not one of {}", self.path(), all.join(", "));
        Ok(())
    }

    /// Checks that the value is this number of hexadecimal digits.
    pub(super) fn hexadecimal(&self, digits: usize) -> Result<()> {
        let text = self.text()?;
        let is_hex = text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit());
        ensure!(is_hex, "{}: {digits} hexadecimal digits are needed", self.path());
        Ok(())
    }

    /// A date: `2026-11-28`.
    pub(super) fn date(&self) -> Result<String> {
        let text = self.text()?;
        let parts: Vec<&str> = text.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        let is_date = lengths == [4, 2, 2] && parts.iter().all(|part| part.chars().all(|c| c.is_ascii_digit()));
        ensure!(is_date, "{}: a date is needed, such as 2026-11-28", self.path());
        Ok(text)
    }

    pub(super) fn number(&self, range: RangeInclusive<f64>) -> Result<f64> {
        let Some(number) = self.value.as_f64() else {
            anyhow::bail!("{}: a number is needed", self.path());
        };
        let (least, most) = (range.start(), range.end());
        ensure!(range.contains(&number), "{}: {number} is not between {least} and {most}", self.path());
        Ok(number)
    }

    /// A whole number, with the digits that the document has.
    pub(super) fn whole(&self, range: RangeInclusive<f64>) -> Result<String> {
        let number = self.number(range)?;
        ensure!(number.fract() == 0.0, "{}: {number} is not a whole number", self.path());
        Ok(self.value.to_string())
    }
}
