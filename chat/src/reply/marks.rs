//! Finds the marks of a format in text that arrives in pieces.

/// Marks with their meanings.
#[derive(Debug, Clone)]
pub(super) struct Marks<T>(Vec<(&'static str, T)>);

/// The result of looking for a mark at a position.
#[derive(Debug, Clone, Copy)]
pub(super) enum At<T> {
    /// No mark.
    Nothing,
    /// The text may end with the beginning of a mark.
    Undecided,
    /// A mark of this many bytes.
    Mark(T, usize),
}

impl<T: Copy> Marks<T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds marks; empty ones are skipped. A mark that exists already keeps its first meaning.
    pub(super) fn add(&mut self, texts: &[&'static str], meaning: T) {
        let texts = texts.iter().filter(|text| !text.is_empty());
        self.0.extend(texts.map(|text| (*text, meaning)));
    }

    /// Removes the marks whose meaning satisfies the predicate.
    pub(super) fn remove(&mut self, is_such: impl Fn(T) -> bool) {
        self.0.retain(|(_, meaning)| !is_such(*meaning));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The longest mark at the start of `text`. Undecided while a longer mark is possible, unless `last` says that no
    /// text follows.
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

    /// The position of the first mark in `text`, or the position from which more text is needed to decide. It is the
    /// end of the text if no mark can have begun.
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
