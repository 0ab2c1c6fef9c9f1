//! Finds a format's marks in a text that arrives in pieces.

/// Marks, each with its meaning.
#[derive(Debug, Clone)]
pub(super) struct Marks<T>(Vec<(&'static str, T)>);

/// What was found at a position.
#[derive(Debug, Clone, Copy)]
pub(super) enum At<T> {
    /// No mark.
    Nothing,
    /// The text may end in the middle of a mark.
    Undecided,
    /// A mark that has this many bytes.
    Mark(T, usize),
}

impl<T: Copy> Marks<T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds marks. Empty ones are left out. If a mark is already there, its meaning does not change.
    pub(super) fn add(&mut self, texts: &[&'static str], meaning: T) {
        let texts = texts.iter().filter(|text| !text.is_empty());
        self.0.extend(texts.map(|text| (*text, meaning)));
    }

    /// Removes the marks for whose meaning the predicate is true.
    pub(super) fn remove(&mut self, is_such: impl Fn(T) -> bool) {
        self.0.retain(|(_, meaning)| !is_such(*meaning));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The longest mark with which `text` begins. The result is undecided as long as a longer mark is possible, unless
    /// `last` says that no more text follows.
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

    /// The position of the first mark in `text`. If it is undecided whether there is a mark, the position where it
    /// would begin. If no mark can have begun, the position is the end of the text.
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
