//! Limits on the lines of a text: llama-server's `n_indent` and `t_max_predict_ms`.

use std::time::{Duration, Instant};

/// Ends a text at a line. In: pieces of the text. Out: how many bytes of each piece belong to the text, and whether the
/// text has ended.
#[derive(Debug, Default)]
pub(super) struct LineLimits {
    /// Minimum number of white-space characters at the beginning of every line but the first; 0 means no limit.
    min_indent: usize,
    /// After this time, the next end of a line ends the text.
    max_time: Option<Duration>,
    began: Option<Instant>,
    has_new_line: bool,
    /// The white space so far at the beginning of the line; `None` once another character has come.
    indent: Option<usize>,
}

impl LineLimits {
    pub(super) fn new(min_indent: usize, max_time: Option<Duration>) -> Self {
        Self { min_indent, max_time, ..Self::default() }
    }

    /// Takes a piece of the text. If the text ends in this piece, returns how many bytes of the piece still belong to
    /// it; otherwise `None`.
    pub(super) fn end(&mut self, piece: &str) -> Option<usize> {
        if piece.is_empty() {
            return None;
        }
        let began = *self.began.get_or_insert_with(Instant::now);
        for (at, c) in piece.char_indices() {
            match (c, self.indent) {
                ('\n', _) => {
                    self.has_new_line = true;
                    self.indent = Some(0);
                }
                (' ' | '\t', Some(indent)) => self.indent = Some(indent + 1),
                // An empty line does not end the text.
                ('\r', _) | (_, None) => {}
                (_, Some(indent)) if indent < self.min_indent => return Some(at),
                (_, Some(_)) => self.indent = None,
            }
        }
        let is_late = self.max_time.is_some_and(|most| began.elapsed() > most);
        (is_late && self.has_new_line && piece.contains('\n')).then_some(piece.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of the text that is kept if the text arrives in pieces of this many bytes.
    fn ended(text: &str, min_indent: usize, pieces: usize) -> String {
        let mut limits = LineLimits::new(min_indent, None);
        let mut kept = String::new();
        for piece in text.as_bytes().chunks(pieces) {
            let piece = std::str::from_utf8(piece).unwrap();
            match limits.end(piece) {
                Some(end) => return kept + &piece[..end],
                None => kept.push_str(piece),
            }
        }
        kept
    }

    #[test]
    fn a_line_with_less_white_space_ends_the_text_before_its_first_letter() {
        for pieces in [1, 2, 3, 100] {
            for (text, min_indent, expected) in [
                ("a\n  b\nc", 2, "a\n  b\n"),
                ("a\n  b\n c", 2, "a\n  b\n "),
                ("a\n\n\t\tb\r\n\r\n  c\nd", 2, "a\n\n\t\tb\r\n\r\n  c\n"),
                ("a\nb", 0, "a\nb"),
                ("a b", 4, "a b"),
            ] {
                assert_eq!(ended(text, min_indent, pieces), expected, "{text:?}");
            }
        }
    }

    #[test]
    fn after_its_time_a_text_ends_with_its_line() {
        let mut limits = LineLimits::new(0, Some(Duration::ZERO));
        assert_eq!(["a", " b", "", "c\nd", "e"].map(|piece| limits.end(piece)), [None, None, None, Some(3), None]);
        let mut limits = LineLimits::new(0, Some(Duration::MAX));
        assert_eq!(limits.end("a\n"), None);
    }
}
