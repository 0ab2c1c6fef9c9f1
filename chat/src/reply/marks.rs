//! Finds the marks of a format in text that arrives in pieces.

/// Texts that mean something, each with what it means.
#[derive(Debug, Clone)]
pub(super) struct Marks<T> {
    marks: Vec<(String, T)>,
}

/// What stands at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        Self { marks: Vec::new() }
    }

    /// Adds a mark, unless it is empty or there already: the first meaning stays.
    pub(super) fn add(&mut self, text: &str, meaning: T) {
        if !text.is_empty() && self.marks.iter().all(|(mark, _)| mark != text) {
            self.marks.push((text.to_owned(), meaning));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// What `text` begins with: the longest mark, once no longer one is possible. Behind the `last` text,
    /// nothing follows.
    pub(super) fn at(&self, text: &[u8], last: bool) -> At<T> {
        let mut longest = At::Nothing;
        let mut length = 0;
        for (mark, meaning) in &self.marks {
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

#[cfg(test)]
mod tests {
    use super::{At, Marks};

    fn marks() -> Marks<char> {
        let mut marks = Marks::new();
        marks.add("<a>", 'a');
        marks.add("<a><b>", 'b');
        marks.add("", 'e');
        marks.add("<a>", 'x');
        marks
    }

    #[test]
    fn the_longest_mark_counts_once_it_is_certain() {
        assert_eq!(marks().find("x<a>", false), (1, At::Undecided));
        assert_eq!(marks().find("x<a><", false), (1, At::Undecided));
        assert_eq!(marks().find("x<a>y", false), (1, At::Mark('a', 3)));
        assert_eq!(marks().find("x<a><b>", false), (1, At::Mark('b', 6)));
        assert_eq!(marks().find("x<a><", true), (1, At::Mark('a', 3)));
    }

    #[test]
    fn text_without_a_mark_is_held_back_nowhere() {
        assert_eq!(marks().find("x < a > é", false), (10, At::Nothing));
        assert_eq!(marks().find("x <", false), (2, At::Undecided));
    }
}
