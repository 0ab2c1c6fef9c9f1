//! Prompt lookup: drafts the tokens that followed an earlier occurrence of the last tokens.

use llama_sys::Token;

/// Maximum length of a match, in tokens.
const MAX_NGRAM: u32 = 16;

/// Drafts up to `most` tokens after `tokens`, the text so far. Uses the longest match of `ngram_min` to `ngram_max`
/// tokens. If several matches are equally long, uses the last of them.
///
/// Searches the whole text, which takes about 50 microseconds for 100,000 tokens.
pub(super) fn draft(tokens: &[Token], ngram_max: u32, ngram_min: u32, most: usize, draft: &mut Vec<Token>) {
    let ngram_max = ngram_max.clamp(1, MAX_NGRAM) as usize;
    let ngram_min = (ngram_min.max(1) as usize).min(ngram_max);
    let (mut longest, mut begin) = (0, 0);
    for end in (1..tokens.len()).rev() {
        let same = tokens[..end].iter().rev().zip(tokens.iter().rev()).take(ngram_max);
        let length = same.take_while(|(a, b)| a == b).count();
        if length > longest {
            (longest, begin) = (length, end);
        }
        if longest == ngram_max {
            break;
        }
    }
    if longest >= ngram_min {
        // A repetition that reaches the end of the text continues cyclically.
        draft.extend(tokens[begin..].iter().cycle().take(most));
    }
}

#[cfg(test)]
mod tests {
    use super::draft;

    #[test]
    fn tokens_that_followed_the_last_tokens_are_drafted_again() {
        let cases: [(&[i32], usize, &[i32]); 9] = [
            (&[1, 2, 3, 4, 5, 9, 1, 2], 3, &[3, 4, 5]),
            (&[1, 2, 3, 4, 5, 9, 1, 2], 0, &[]),
            // One token is too short for a match of two, and the other texts have no repetition.
            (&[1, 2, 3, 9, 2], 3, &[]),
            (&[1, 2, 3, 4], 3, &[]),
            (&[], 3, &[]),
            // The longest match is used. If two are equally long, the later one is used.
            (&[7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 1, &[3]),
            (&[7, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2], 1, &[4]),
            // A repetition continues.
            (&[5, 5, 5], 4, &[5, 5, 5, 5]),
            (&[1, 2, 1, 2], 5, &[1, 2, 1, 2, 1]),
        ];
        for (tokens, most, expected) in cases {
            let mut drafted = Vec::new();
            draft(tokens, 3, 2, most, &mut drafted);
            assert_eq!(drafted, expected, "{tokens:?}");
        }
    }
}
