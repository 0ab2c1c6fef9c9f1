//! Prompt lookup: what followed the last tokens the last time that they came.
//!
//! Tokens flow in; a guess flows out. An index maps the last `n` tokens at every place of the text to that place, for
//! each `n` in use, the later place in place of the earlier. It has a fixed size and forgets where two fall on one
//! entry, and what it says is compared with the text: so it may be wrong, and never harms.

use llama_sys::Token;

/// Tokens of a match at most.
const LONGEST: u32 = 16;

/// Entries of an index at most: 4 MiB.
const MOST_ENTRIES: usize = 1 << 20;

#[derive(Debug, Clone)]
pub(super) struct Lookup {
    ngram_max: usize,
    ngram_min: usize,
    /// By hash: how many tokens come before what followed; 0 is none.
    entries: Vec<u32>,
    /// Tokens at the beginning of the text after which all is in it.
    indexed: usize,
}

impl Lookup {
    /// Of a text that has room for `capacity` tokens.
    pub(super) fn new(ngram_max: u32, ngram_min: u32, capacity: usize) -> Self {
        let ngram_max = ngram_max.clamp(1, LONGEST) as usize;
        let ngram_min = (ngram_min.max(1) as usize).min(ngram_max);
        // Half of them free, so that few fall on one.
        let wanted = capacity.saturating_mul(2 * (ngram_max - ngram_min + 1));
        let entries = wanted.clamp(256, MOST_ENTRIES).next_power_of_two();
        Self { ngram_max, ngram_min, entries: vec![0; entries], indexed: 0 }
    }

    /// Guesses up to `most` tokens that follow `tokens`, the text so far.
    pub(super) fn draft(&mut self, tokens: &[Token], most: usize, draft: &mut Vec<Token>) {
        self.index(tokens);
        let longest_first = (self.ngram_min..=self.ngram_max).rev();
        let found = longest_first.filter_map(|n| self.find(tokens, n)).next();
        if let Some(begin) = found {
            // A repetition that reaches the end goes on as it began.
            let followed = tokens[begin..].iter().cycle();
            draft.extend(followed.take(most));
        }
    }

    /// Takes in all after which a token has followed by now.
    fn index(&mut self, tokens: &[Token]) {
        // Less than before where the text was rolled back.
        self.indexed = self.indexed.min(tokens.len());
        for end in self.indexed.max(1)..tokens.len() {
            for n in self.ngram_min..=self.ngram_max.min(end) {
                let entry = self.entry(&tokens[end - n..end]);
                self.entries[entry] = u32::try_from(end).unwrap_or(0);
            }
        }
        self.indexed = tokens.len();
    }

    /// Where what followed the last `n` tokens begins.
    fn find(&self, tokens: &[Token], n: usize) -> Option<usize> {
        let last = tokens.get(tokens.len().checked_sub(n)?..)?;
        let end = self.entries[self.entry(last)] as usize;
        let matched = tokens.get(end.checked_sub(n)?..end)?;
        (end < tokens.len() && matched == last).then_some(end)
    }

    fn entry(&self, tokens: &[Token]) -> usize {
        // Fibonacci hashing: the high bits of a product with 2^64 over the golden ratio.
        let hash = tokens.iter().fold(0_u64, |hash, &token| {
            (hash.rotate_left(5) ^ u64::from(token.cast_unsigned()).wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        });
        let bits = self.entries.len().ilog2();
        // A table has 256 entries at least.
        (hash >> (64 - bits)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Lookup;
    use proptest::prelude::*;

    #[test]
    fn what_followed_the_last_tokens_is_guessed_again() {
        let cases: [(&[i32], usize, &[i32]); 9] = [
            (&[1, 2, 3, 4, 5, 9, 1, 2], 3, &[3, 4, 5]),
            (&[1, 2, 3, 4, 5, 9, 1, 2], 0, &[]),
            // One token is no match of two, and none came twice.
            (&[1, 2, 3, 9, 2], 3, &[]),
            (&[1, 2, 3, 4], 3, &[]),
            (&[], 3, &[]),
            // The longest match counts, and of two the later.
            (&[7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 1, &[3]),
            (&[7, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2], 1, &[4]),
            // A repetition goes on.
            (&[5, 5, 5], 4, &[5, 5, 5, 5]),
            (&[1, 2, 1, 2], 5, &[1, 2, 1, 2, 1]),
        ];
        for (tokens, most, expected) in cases {
            let mut draft = Vec::new();
            Lookup::new(3, 2, 64).draft(tokens, most, &mut draft);
            assert_eq!(draft, expected, "{tokens:?}");
        }
    }

    proptest! {
        /// By search through all of the text: the index has the same answer where it is large enough, however the
        /// text came to be.
        #[test]
        fn it_is_what_a_search_would_find(
            tokens in prop::collection::vec(0..4i32, 0..60),
            cuts in prop::collection::vec((0..60usize, 0..60usize), 0..4),
        ) {
            let mut lookup = Lookup::new(3, 2, 1 << 18);
            let mut ignored = Vec::new();
            // A text that grows, and is rolled back.
            for (to, back) in cuts {
                lookup.draft(&tokens[..to.min(tokens.len())], 4, &mut ignored);
                lookup.draft(&tokens[..back.min(to).min(tokens.len())], 4, &mut ignored);
            }
            let mut draft = Vec::new();
            lookup.draft(&tokens, 4, &mut draft);
            let len = tokens.len();
            let ends = |n: usize| (n..len).rev().find(|&end| len >= n && tokens[end - n..end] == tokens[len - n..]);
            let end = [3, 2].into_iter().filter(|&n| n <= len).find_map(ends);
            let searched: Vec<i32> = match end {
                Some(end) => tokens[end..].iter().copied().cycle().take(4).collect(),
                None => Vec::new(),
            };
            prop_assert_eq!(draft, searched);
        }
    }
}
