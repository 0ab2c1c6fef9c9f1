//! Finds the marks of a format in text that arrives in pieces.

/// Texts that mean something, each with what it means.
#[derive(Debug, Clone)]
pub(super) struct Marks<T>(Vec<(&'static str, T)>);

/// What stands at a place.
#[derive(Debug, Clone, Copy)]
pub(super) enum At<T> {
    /// No mark.
    Nothing,
    /// The end of the text, which may be the beginning of a mark.
    Undecided,
    /// A mark of so many bytes.
    Mark(T, usize),
}

impl<T: Copy> Marks<T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds marks, but for empty ones. Of a mark that is there already, the first meaning stays.
    pub(super) fn add(&mut self, texts: &[&'static str], meaning: T) {
        let texts = texts.iter().filter(|text| !text.is_empty());
        self.0.extend(texts.map(|text| (*text, meaning)));
    }

    /// Takes out the marks of such a meaning.
    pub(super) fn remove(&mut self, is_such: impl Fn(T) -> bool) {
        self.0.retain(|(_, meaning)| !is_such(*meaning));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What `text` begins with: the longest mark, once no longer one is possible. Behind the `last` text,
    /// nothing follows.
    pub(super) fn at(&self, text: &[u8], last: bool) -> At<T> {
        let mut longest = At::Nothing;
        let mut length = 0;
        for (mark, meaning) in &self.0 {
            let mark = mark.as_bytes();
            if mark.first() != text.first() {
                continue;
            }
            if mark.len() > text.len() {
                if !last && mark.starts_with(text) {
                    return At::Undecided;
                }
            } else if mark.len() > length && text.starts_with(mark) {
                length = mark.len();
                longest = At::Mark(*meaning, length);
            }
        }
        longest
    }

    /// The first mark in `text`, or the place from which on more text is needed to say: the end, if no
    /// mark can have begun.
    pub(super) fn find(&self, text: &str, last: bool) -> (usize, At<T>) {
        let bytes = text.as_bytes();
        for place in 0..bytes.len() {
            match self.at(&bytes[place..], last) {
                At::Nothing => {}
                found => return (place, found),
            }
        }
        (bytes.len(), At::Nothing)
    }
}
