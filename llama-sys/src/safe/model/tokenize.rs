//! Conversion of texts of any length to tokens, by llama.cpp's tokenizers.
//!
//! If the caller's stack is too small for llama.cpp, a thread with a larger stack tokenises. If llama.cpp's time would
//! grow with the square of the text's length, the text is cut, but only at places where a cut changes no token.

use std::collections::HashSet;
use std::ffi::CStr;

use super::vocab::{Token, Vocab};
use crate::raw;
use crate::safe::call::{self, Error};
use crate::safe::system::with_stack;

/// Bytes of stack that are reserved for each character of a match. llama.cpp has its own code for some expressions that
/// split words, and uses `std::regex` for the others (unicode.cpp, unicode_regex_split_stl). In libstdc++, `std::regex`
/// recurses once for each character of a match, and each level takes 320 bytes of stack (measured on x86-64).
const STACK_PER_CHARACTER: usize = 1 << 10;

/// Bytes of stack for everything else.
const STACK: usize = 1 << 20;

/// Matches of at most this many characters run on the caller's stack.
const SHALLOW: usize = 1 << 9;

/// SentencePiece texts of at most this many bytes are tokenised in one piece.
const WHOLE: usize = 1 << 14;

/// A longer text is cut into pieces of at least this many bytes. For each character that is not a token, llama.cpp
/// copies all tokens before it (llama-vocab.cpp, llm_tokenizer_spm_session::resegment).
const PIECE: usize = 1 << 11;

/// This character is put before each piece but the first. Without it, SentencePiece would put a space before the piece.
/// The vocabularies of text models do not contain it.
const LEAD: char = '\u{2}';

impl Vocab {
    /// Tokens of `text`. With `add_special`, BOS and EOS are added if the model's header requires them. With
    /// `parse_special`, a control token's name in the text is read as that token. Leave it off for text from a user.
    ///
    /// # Errors
    ///
    /// [`Error::NoVocabulary`]; [`Error::InvalidParameter`] for a text over 2 GiB; [`Error::NoStack`]; [`Error::Call`].
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>, Error> {
        if !self.has_tokenizer() {
            return Err(Error::NoVocabulary);
        }
        match self.kind() {
            raw::LLAMA_VOCAB_TYPE_BPE if text.len() > SHALLOW => self.tokenize_deep(text, add_special, parse_special),
            raw::LLAMA_VOCAB_TYPE_SPM if text.len() > WHOLE => {
                self.tokenize_in_pieces(text, add_special, parse_special, PIECE)
            }
            _ => self.tokenize_whole(text, add_special, parse_special),
        }
    }

    /// Tokens of a text that continues an earlier part, whose last token is `before`. SentencePiece puts a space before
    /// a text and after a special token, but not elsewhere (llama-vocab.cpp, `llama_vocab::impl::tokenize`,
    /// `is_prev_special`). If there is a `before`, `add_special` has no effect.
    ///
    /// # Errors
    ///
    /// The errors of [`tokenize`](Self::tokenize).
    pub fn tokenize_after(
        &self,
        before: Option<Token>,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<Token>, Error> {
        const SPECIAL: raw::llama_token_attr =
            raw::LLAMA_TOKEN_ATTR_CONTROL | raw::LLAMA_TOKEN_ATTR_USER_DEFINED | raw::LLAMA_TOKEN_ATTR_UNKNOWN;
        // SAFETY: the model is held and has a vocabulary, and the token belongs to it: llama.cpp asserts both.
        let is_special = |token| unsafe { raw::llama_vocab_get_attr(self.as_ptr(), token) } & SPECIAL != 0;
        let goes_on = |token| self.contains(token) && !is_special(token);
        if self.kind() == raw::LLAMA_VOCAB_TYPE_SPM
            && before.is_some_and(goes_on)
            && let Some(lead) = self.lead()?
        {
            let mut tokens = self.tokenize(&format!("{LEAD}{text}"), false, parse_special)?;
            if let Some(at) = tokens.iter().position(|token| *token == lead) {
                tokens.drain(..=at);
                return Ok(tokens);
            }
        }
        self.tokenize(text, add_special && before.is_none(), parse_special)
    }

    /// The token for [`LEAD`], if [`LEAD`] is exactly one token.
    fn lead(&self) -> Result<Option<Token>, Error> {
        let lead = self.tokenize_whole(LEAD.encode_utf8(&mut [0; 4]), false, false)?;
        let Some(&lead) = lead.last() else { return Ok(None) };
        Ok((self.piece(lead, false)? == [LEAD as u8]).then_some(lead))
    }

    /// Tokenises on a stack that is large enough for the text.
    fn tokenize_deep(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>, Error> {
        self.with_stack_for(&[text], || self.tokenize_whole(text, add_special, parse_special))?
    }

    /// Runs `tokenize` on a stack that is large enough for the longest of these texts.
    pub(in crate::safe) fn with_stack_for<T: Send>(
        &self,
        texts: &[&str],
        tokenize: impl FnOnce() -> T + Send,
    ) -> Result<T, Error> {
        let long = texts.iter().filter(|text| text.len() > SHALLOW && self.kind() == raw::LLAMA_VOCAB_TYPE_BPE);
        let Some((depth, text)) = long.map(|text| (longest_match(text), text.len())).max() else {
            return Ok(tokenize());
        };
        if depth <= SHALLOW {
            return Ok(tokenize());
        }
        let stack = depth.saturating_mul(STACK_PER_CHARACTER).saturating_add(STACK);
        with_stack(stack, tokenize).map_err(|error| Error::NoStack { text, stack, reason: error.to_string() })
    }

    /// Tokenises in pieces. Each piece ends after a character that is in no token: llama.cpp merges nothing with such a
    /// character, and no special token contains it.
    fn tokenize_in_pieces(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
        piece: usize,
    ) -> Result<Vec<Token>, Error> {
        let whole = || self.tokenize_whole(text, add_special, parse_special);
        let Some(known) = self.characters() else {
            return whole();
        };
        let Some(lead) = self.lead()? else {
            return whole();
        };
        // If the model adds an EOS to each text, the text is not cut: there would be an EOS after the first piece.
        // SAFETY: the model is held, and its vocabulary with it.
        let adds_eos = unsafe { raw::llama_vocab_get_add_eos(self.as_ptr()) };
        if known.contains(&LEAD) || (add_special && adds_eos) {
            return whole();
        }
        let mut pieces = cut(text, piece, |character| !known.contains(&character));
        let first = pieces.next().unwrap_or_default();
        let mut tokens = self.tokenize_whole(first, add_special, parse_special)?;
        let mut led = String::new();
        for piece in pieces {
            led.clear();
            led.push(LEAD);
            led.push_str(piece);
            let of_piece = self.tokenize_whole(&led, false, parse_special)?;
            let Some(at) = of_piece.iter().position(|token| *token == lead) else {
                return whole();
            };
            tokens.extend_from_slice(&of_piece[at + 1..]);
        }
        Ok(tokens)
    }

    /// All characters that occur in the tokens' texts; `None` if tokens strip the whitespace around them.
    fn characters(&self) -> Option<HashSet<char>> {
        const STRIPS: raw::llama_token_attr = raw::LLAMA_TOKEN_ATTR_LSTRIP | raw::LLAMA_TOKEN_ATTR_RSTRIP;
        // SentencePiece writes a space as U+2581, and tokens contain that character.
        let mut characters = HashSet::from([' ']);
        for token in 0..self.n_tokens() as Token {
            // SAFETY: the model is held, and the token belongs to the vocabulary; its text lives as long and ends with
            // a NUL.
            let (attributes, text) = unsafe {
                let attributes = raw::llama_vocab_get_attr(self.as_ptr(), token);
                let text = raw::llama_vocab_get_text(self.as_ptr(), token);
                (attributes, CStr::from_ptr(text))
            };
            if attributes & STRIPS != 0 {
                return None;
            }
            // The text of a byte token, such as `<0x0A>`, stands for another character.
            if attributes & raw::LLAMA_TOKEN_ATTR_BYTE == 0 {
                characters.extend(text.to_string_lossy().chars());
            }
        }
        Some(characters)
    }

    fn tokenize_whole(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>, Error> {
        let length = i32::try_from(text.len())
            .map_err(|_| Error::parameter("text_len", text.len(), "a text must have at most 2147483647 bytes"))?;
        // A token usually covers three bytes or more. If there is too little room, the loop runs again.
        let mut tokens: Vec<Token> = vec![0; text.len() / 3 + 8];
        loop {
            let room = i32::try_from(tokens.len()).unwrap_or(i32::MAX);
            let count = call::checked(|error| {
                // SAFETY: the text and the slice are valid for the lengths given; at most `room` tokens are written.
                unsafe {
                    raw::shim_tokenize(
                        self.as_ptr(),
                        text.as_ptr().cast(),
                        length,
                        tokens.as_mut_ptr(),
                        room,
                        add_special,
                        parse_special,
                        error,
                    )
                }
            })
            .map_err(|failure| Error::Call { what: "tokenising", failure })?;
            if let Ok(count) = usize::try_from(count) {
                tokens.truncate(count);
                return Ok(tokens);
            }
            // llama_tokenize returns the needed number as a negative number, or INT32_MIN if that number overflows.
            let needed = count.checked_neg().ok_or_else(|| {
                Error::parameter("text_len", text.len(), "the text makes more than 2147483647 tokens")
            })?;
            tokens.resize(needed as usize, 0);
        }
    }
}

/// The maximum number of characters that one match of a word expression can have. In all of llama.cpp's expressions,
/// only whitespace can match across the end of a line.
fn longest_match(text: &str) -> usize {
    let (mut line, mut space) = (0_usize, 0_usize);
    let (mut longest_line, mut longest_space) = (0, 0);
    for character in text.chars() {
        line = if character == '\n' { 0 } else { line + 1 };
        space = if character.is_whitespace() { space + 1 } else { 0 };
        longest_line = longest_line.max(line);
        longest_space = longest_space.max(space);
    }
    longest_line.saturating_add(longest_space)
}

/// Cuts a text into pieces of at least `piece` bytes, except for the last piece. Each piece but the last ends after a
/// character for which `is_foreign` is true, and no piece is empty.
fn cut(text: &str, piece: usize, is_foreign: impl Fn(char) -> bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut characters = rest.char_indices();
        let end = characters.find_map(|(at, character)| {
            let end = at + character.len_utf8();
            (end >= piece && is_foreign(character)).then_some(end)
        });
        let (first, others) = rest.split_at(end.unwrap_or(rest.len()));
        rest = others;
        (!first.is_empty()).then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, ModelParams};

    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");

    fn vocab() -> Vocab {
        let params = ModelParams { devices: Some(Vec::new()), ..ModelParams::default() };
        Model::load(DEMO, params).unwrap().vocab()
    }

    /// Texts with known and unknown characters, spaces and special tokens.
    fn texts() -> Vec<String> {
        let parts = "And the king| said|  |\n|7|日|<s>|</s>|unto|\u{2}|é| |<unk>|a|\n |\u{2581}|😀|.";
        let parts: Vec<&str> = parts.split('|').collect();
        let mut state = 5_u32;
        let text = |_| {
            let part = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                parts[(state >> 16) as usize % parts.len()]
            };
            (0..60).map(part).collect()
        };
        (0..40).map(text).collect()
    }

    #[test]
    fn no_cut_changes_a_token() {
        let vocab = vocab();
        let mut cuts = 0;
        let known = vocab.characters().unwrap();
        for text in texts() {
            for (add_special, parse_special) in [(true, false), (false, true), (false, false)] {
                let whole = vocab.tokenize_whole(&text, add_special, parse_special);
                let whole = whole.unwrap();
                for piece in [1, 3, 10, 40] {
                    let in_pieces = vocab.tokenize_in_pieces(&text, add_special, parse_special, piece);
                    assert_eq!(in_pieces.unwrap(), whole, "{text:?} in {piece}");
                    cuts += cut(&text, piece, |character| !known.contains(&character)).count();
                }
            }
        }
        assert!(cuts > 1000, "{cuts} pieces");
    }

    #[test]
    fn a_text_that_goes_on_has_the_spaces_of_the_whole() {
        let vocab = vocab();
        let text_of = |tokens: &[Token]| -> Vec<u8> {
            tokens.iter().flat_map(|&token| vocab.piece(token, true).unwrap()).collect()
        };
        for (text, parse_special) in texts().iter().flat_map(|text| [(text, true), (text, false)]) {
            let whole = text_of(&vocab.tokenize(text, false, parse_special).unwrap());
            let is_outside = |at: &usize| text[..*at].matches('<').count() == text[..*at].matches('>').count();
            for at in text.char_indices().map(|(at, _)| at).skip(1).filter(is_outside) {
                let mut tokens = vocab.tokenize(&text[..at], false, parse_special).unwrap();
                let before = tokens.last().copied();
                tokens.extend(vocab.tokenize_after(before, &text[at..], false, parse_special).unwrap());
                assert_eq!(text_of(&tokens), whole, "{text:?} at {at}");
            }
        }
    }

    #[test]
    fn a_model_without_a_vocabulary_has_no_text_that_goes_on() {
        let bare = autoplace_planner::gguf::Builder::new("llama").str("tokenizer.ggml.model", "no_vocab");
        let keys = ["vocab_size", "context_length", "embedding_length", "feed_forward_length", "block_count"];
        let bare = keys.iter().fold(bare, |bare, key| bare.u32(&format!("llama.{key}"), 32));
        let bare = bare.u32("llama.attention.head_count", 1).f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bare.gguf");
        bare.write_sparse(&path).unwrap();
        let vocab = Model::from_metadata(path).unwrap().vocab();
        assert!(vocab.contains(5));
        assert!(matches!(vocab.tokenize_after(Some(5), "x", false, false), Err(Error::NoVocabulary)));
    }

    #[test]
    fn pieces_end_behind_foreign_characters_and_lose_nothing() {
        let pieces = |text, piece| -> Vec<&str> { cut(text, piece, |character| character == '.').collect() };
        assert_eq!(pieces("ab.c.def", 1), ["ab.", "c.", "def"]);
        assert_eq!(pieces("ab.c.def", 4), ["ab.c.", "def"]);
        assert_eq!(pieces("abc", 1), ["abc"]);
        assert_eq!(pieces("a.", 1), ["a."]);
        assert_eq!(pieces("", 1), [""; 0]);
    }

    #[test]
    fn a_match_is_at_most_a_line_and_the_whitespace_around_it() {
        assert_eq!(longest_match(""), 0);
        assert_eq!(longest_match("ab cd\nefg"), 5 + 1);
        assert_eq!(longest_match("a\n \n\t b"), 3 + 5);
        assert_eq!(longest_match("日本\u{3000}"), 3 + 1);
    }
}
