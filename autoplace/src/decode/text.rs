//! Assembles the bytes of tokens into pieces of text. A piece has whole characters and no part of a stop string.

use std::str;

/// Collects token bytes and releases text as soon as it is certain: complete UTF-8 that cannot be the beginning of a
/// stop string.
#[derive(Debug, Clone)]
pub(crate) struct TextAssembler {
    /// Bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Characters that are held back because a stop string may begin in them.
    held: String,
    stops: Vec<String>,
    /// Index in `stops` of the stop string that was found.
    stopped_by: Option<usize>,
}

impl TextAssembler {
    /// `stops` must not contain an empty string.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { bytes: Vec::with_capacity(64), held: String::with_capacity(64), stops, stopped_by: None }
    }

    /// The index of the stop string that was found, in the order of the request.
    pub(crate) fn stopped_by(&self) -> Option<usize> {
        self.stopped_by
    }

    /// The buffer to which the caller appends a token's bytes before it calls [`release`](Self::release).
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Takes the text that is certain, which may be empty. The flag is true if a stop string was found. No text follows
    /// a stop string.
    pub(crate) fn release(&mut self) -> (String, bool) {
        self.decode(false);
        self.take()
    }

    /// Takes all remaining text. The flag is true if a stop string was found. An incomplete character becomes U+FFFD.
    pub(crate) fn finish(&mut self) -> (String, bool) {
        self.decode(true);
        let (text, is_stopped) = self.take();
        // `held` is empty after a stop string.
        (text + &std::mem::take(&mut self.held), is_stopped)
    }

    /// Moves complete characters from `bytes` to `held`. Each maximal invalid sequence becomes one U+FFFD, as in
    /// `String::from_utf8_lossy`.
    fn decode(&mut self, last: bool) {
        let mut read = 0;
        for chunk in self.bytes.utf8_chunks() {
            read += chunk.valid().len() + chunk.invalid().len();
            self.held.push_str(chunk.valid());
            let is_begun = str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
            if is_begun && read == self.bytes.len() && !last {
                // The rest of this character is still to come.
                read -= chunk.invalid().len();
            } else if !chunk.invalid().is_empty() {
                self.held.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.bytes.drain(..read);
    }

    fn take(&mut self) -> (String, bool) {
        let found = self.stops.iter().enumerate();
        if let Some((at, which)) = found.filter_map(|(which, stop)| Some((self.held.find(stop)?, which))).min() {
            self.stopped_by = Some(which);
            self.held.truncate(at);
            self.bytes.clear();
            return (std::mem::take(&mut self.held), true);
        }
        let certain = self.held.len() - self.longest_possible_beginning();
        // This string is the only allocation per token.
        let text = self.held[..certain].to_owned();
        self.held.drain(..certain);
        (text, false)
    }

    /// Number of bytes at the end of `held` that are the beginning of a stop string.
    fn longest_possible_beginning(&self) -> usize {
        let held = self.held.as_bytes();
        self.stops
            .iter()
            .flat_map(|stop| {
                let longest = held.len().min(stop.len() - 1);
                (1..=longest).rev().find(|&n| held.ends_with(&stop.as_bytes()[..n]))
            })
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(parts: &[&[u8]], stops: &[&str]) -> (Vec<String>, bool) {
        let mut text = TextAssembler::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut pieces = Vec::new();
        for part in parts {
            text.buffer().extend_from_slice(part);
            let (piece, stopped) = text.release();
            pieces.push(piece);
            if stopped {
                return (pieces, true);
            }
        }
        let (last, stopped) = text.finish();
        pieces.push(last);
        (pieces, stopped)
    }

    #[test]
    fn certain_text_is_shown_and_never_a_stop_string() {
        // Token bytes, stop strings, the text, and whether a stop string ended it.
        type Case<'a> = (&'a [&'a [u8]], &'a [&'a str], &'a str, bool);
        let cases: [Case<'_>; 5] = [
            // Each invalid sequence is replaced by one character; the other characters stay.
            (&[b"a\xffb", b"\xe4\xbd"], &[], "a\u{fffd}b\u{fffd}", false),
            // A stop string that spans several tokens.
            (&[b"say E", b"N", b"D now"], &["END"], "say ", true),
            // The stop string that comes first in the text ends it.
            (&[b"one two three"], &["three", "two"], "one ", true),
            // A beginning that does not become a stop string is released, also at the end.
            (&[b"EN", b"EN", b"x"], &["END"], "ENENx", false),
            (&[b"almost EN"], &["END"], "almost EN", false),
        ];
        for (parts, stops, text, is_stopped) in cases {
            let (pieces, stopped) = run(parts, stops);
            assert_eq!((&*pieces.concat(), stopped), (text, is_stopped));
        }
    }

    proptest! {
        #[test]
        fn bytes_that_are_cut_anywhere_give_the_lossy_text(bytes: Vec<u8>, cuts: Vec<prop::sample::Index>) {
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let parts: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let (pieces, _) = run(&parts, &[]);
            prop_assert_eq!(pieces.concat(), String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn no_stop_string_is_ever_shown(text in "[ab]{0,40}", stop in "[ab]{1,4}", step in 1usize..5) {
            let parts: Vec<&[u8]> = text.as_bytes().chunks(step).collect();
            let (pieces, stopped) = run(&parts, &[&stop]);
            prop_assert_eq!(pieces.concat(), text.split(&stop).next().unwrap_or_default());
            prop_assert_eq!(stopped, text.contains(&stop));
        }
    }
}
