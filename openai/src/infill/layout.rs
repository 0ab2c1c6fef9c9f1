//! The prompt of a fill-in-the-middle model: which tokens of the request fit, and their order.
//!
//! The order is the same as in llama-server (`format_prompt_infill`), which follows the paper on Qwen2.5-Coder (arXiv
//! 2409.12186):
//!
//! ```text
//! [BOS] [REP]myproject\n [SEP]name\n chunk .. [SEP]filename\n [PRE] prefix, prompt [SUF] suffix [MID]
//! ```

use autoplace::llama_sys::{Error, FimTokens, Token, Vocab};

use crate::error::beginning;

/// The names that llama-server gives to the repository and to the file with the cursor. A request has no fields for
/// these names.
const REPOSITORY: &str = "myproject\n";
const FILE: &str = "filename\n";
/// The mark that llama-server puts between files if the vocabulary has no token for that.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// The beginning of the prefix may be cut off, in steps: each step is the room for the prefix divided by this number.
/// So while the text before the cursor grows, most prompts begin with the same tokens, which the cache already has.
const CUTS: usize = 8;

/// The vocabulary's tokens that mark the parts of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    pre: Token,
    suf: Token,
    mid: Token,
    rep: Option<Token>,
    sep: Option<Token>,
}

impl Marks {
    /// # Errors
    ///
    /// If the vocabulary lacks some of these tokens, returns their names.
    pub(super) fn new(fim: &FimTokens) -> Result<Self, Vec<&'static str>> {
        let FimTokens { pre, suf, mid, rep, sep, .. } = *fim;
        match (pre, suf, mid) {
            (Some(pre), Some(suf), Some(mid)) => Ok(Self { pre, suf, mid, rep, sep }),
            _ => {
                let needed = [("prefix", pre), ("suffix", suf), ("middle", mid)];
                Err(needed.into_iter().filter(|(_, token)| token.is_none()).map(|(name, _)| name).collect())
            }
        }
    }
}

/// The texts of a request.
#[derive(Debug, Default)]
pub(super) struct Texts<'a> {
    pub(super) prefix: &'a str,
    /// The text between the prefix and the answer, which is never cut.
    pub(super) prompt: &'a str,
    pub(super) suffix: &'a str,
    /// Other files, by name. The most important one comes last.
    pub(super) files: Vec<(&'a str, &'a str)>,
    pub(super) is_suffix_first: bool,
}

/// A prompt that was laid out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) tokens: Vec<Token>,
    /// Whether a part of the texts was left out because it did not fit.
    pub(super) is_cut: bool,
}

/// Writes the prompt with at most `room` tokens. The prefix gets three quarters of the tokens, and the suffix one
/// quarter. If one of them needs less, the other may use the rest. The room that is left after both is used for whole
/// files. `None` if `prompt` alone does not fit.
pub(super) fn layout(vocab: &Vocab, marks: Marks, texts: &Texts<'_>, room: usize) -> Result<Option<Layout>, Error> {
    let tokenize = |before: Option<Token>, text: &str| vocab.tokenize_after(before, text, false, false);
    let bos = vocab.added_tokens().bos;
    let prompt = tokenize(None, texts.prompt)?;
    let Some(room) = room.checked_sub(prompt.len() + 3 + usize::from(bos.is_some())) else { return Ok(None) };
    let (before, suffix) = (end(texts.prefix, room), beginning(texts.suffix, room));
    let is_cut = before.len() < texts.prefix.len() || suffix.len() < texts.suffix.len();
    let (mut before, mut suffix) = (tokenize(Some(marks.pre), before)?, tokenize(Some(marks.suf), suffix)?);
    let (kept_before, kept_suffix) = shares(before.len(), suffix.len(), room);
    let mut is_cut = is_cut || kept_before < before.len() || kept_suffix < suffix.len();
    before.drain(..before.len() - kept_before);
    suffix.truncate(kept_suffix);

    let rest = room - kept_before - kept_suffix;
    let (files, left_out) = files(&tokenize, marks, &texts.files, rest)?;
    is_cut |= left_out > 0;
    let mut tokens: Vec<Token> = bos.into_iter().collect();
    tokens.extend(files);
    let before = [&[marks.pre], &before[..], &prompt].concat();
    let suffix = [&[marks.suf], &suffix[..]].concat();
    let parts = if texts.is_suffix_first { [suffix, before] } else { [before, suffix] };
    tokens.extend(parts.into_iter().flatten());
    tokens.push(marks.mid);
    Ok(Some(Layout { tokens, is_cut }))
}

/// How many tokens of the prefix (at its end) and of the suffix (at its beginning) are kept.
fn shares(prefix: usize, suffix: usize, room: usize) -> (usize, usize) {
    let of_prefix = (room - room / 4).max(room.saturating_sub(suffix));
    let step = (of_prefix / CUTS).max(1);
    let kept_prefix = match prefix.saturating_sub(of_prefix) {
        0 => prefix,
        more => prefix - (more.div_ceil(step) * step).min(prefix),
    };
    (kept_prefix, suffix.min(room - kept_prefix))
}

/// The tokens of as many of the last files as fit into `room`, and how many files were left out.
fn files(
    tokenize: &impl Fn(Option<Token>, &str) -> Result<Vec<Token>, Error>,
    marks: Marks,
    files: &[(&str, &str)],
    room: usize,
) -> Result<(Vec<Token>, usize), Error> {
    if files.is_empty() && marks.rep.is_none() && marks.sep.is_none() {
        return Ok((Vec::new(), 0));
    }
    let named = |mark: Option<Token>, name: &str| -> Result<Vec<Token>, Error> {
        let mut tokens: Vec<Token> = mark.into_iter().collect();
        if let Some(mark) = mark {
            tokens.extend(tokenize(Some(mark), name)?);
        }
        Ok(tokens)
    };
    let (head, own) = (named(marks.rep, REPOSITORY)?, named(marks.sep, FILE)?);
    let Some(mut room) = room.checked_sub(head.len() + own.len()) else { return Ok((Vec::new(), files.len())) };
    let mut kept = Vec::new();
    for (name, text) in files.iter().rev() {
        if beginning(text, room).len() < text.len() {
            break;
        }
        let mut tokens = match marks.sep {
            Some(_) => named(marks.sep, &format!("{name}\n"))?,
            None => tokenize(None, SNIPPET)?,
        };
        tokens.extend(tokenize(tokens.last().copied(), text)?);
        let Some(left) = room.checked_sub(tokens.len()) else { break };
        room = left;
        kept.push(tokens);
    }
    let left_out = files.len() - kept.len();
    Ok((head.into_iter().chain(kept.into_iter().rev().flatten()).chain(own).collect(), left_out))
}

/// The end of a text, with at most about this many tokens. The text is cut only at multiples of a step (see [`CUTS`]).
fn end(text: &str, tokens: usize) -> &str {
    let most = beginning(text, tokens).len();
    let step = (most / CUTS).max(1);
    let from = (text.len() - most).div_ceil(step) * step;
    // `str::ceil_char_boundary` is newer than the oldest supported Rust.
    let from = (from..text.len()).find(|&from| text.is_char_boundary(from)).unwrap_or(text.len());
    &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_fit_the_room_and_leave_none_of_it_that_they_need(
            prefix in 0..500_usize, suffix in 0..500_usize, room in 0..400_usize,
        ) {
            let (before, behind) = shares(prefix, suffix, room);
            prop_assert!(before + behind <= room && before <= prefix && behind <= suffix);
            prop_assert!(prefix + suffix > room || (before, behind) == (prefix, suffix));
            prop_assert!(behind == suffix || behind >= room / 4);
            prop_assert!(before == prefix || before >= (room - room / 4) * 3 / 4);
        }

        #[test]
        fn the_end_of_a_text_is_its_end(text in ".{0,200}", tokens in 0..8_usize) {
            let kept = end(&text, tokens);
            prop_assert!(text.ends_with(kept) && kept.len() <= beginning(&text, tokens).len());
        }
    }

    #[test]
    fn the_beginning_stays_where_it_is_while_the_prefix_grows() {
        let begins = |prefix: usize| prefix - shares(prefix, 40, 400).0;
        let places: std::collections::BTreeSet<usize> = (500..600).map(begins).collect();
        assert!(places.len() <= 4, "{places:?}");
        let text = "a".repeat(10_000);
        let ends: std::collections::BTreeSet<usize> =
            (9_000..9_100).map(|length| length - end(&text[..length], 100).len()).collect();
        assert!(ends.len() <= 2, "{ends:?}");
    }
}
