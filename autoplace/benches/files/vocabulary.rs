//! Vocabularies of real length, with tokens about as long as real ones. All tokens differ, because llama.cpp ends the
//! process on a duplicate.

use autoplace::gguf::Builder;

/// The kind of a vocabulary.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Vocabulary {
    /// Byte pairs, with this number of merges.
    Bpe { pre: &'static str, merges: usize },
    /// Pieces with scores.
    SentencePiece,
}

/// Number of control tokens at the end, as in Llama 3.
const CONTROL: u32 = 256;

impl Vocabulary {
    /// Adds a vocabulary of `n` tokens to a file.
    pub(crate) fn put(self, builder: Builder, n: u32) -> Builder {
        let words = (0..n - CONTROL).map(|token| self.token(token));
        let control = (0..CONTROL).map(|token| format!("<|reserved_special_token_{token}|>"));
        let tokens: Vec<String> = words.chain(control).collect();
        let builder = match self {
            Self::Bpe { pre, merges } => builder
                .str("tokenizer.ggml.model", "gpt2")
                .str("tokenizer.ggml.pre", pre)
                .array_str("tokenizer.ggml.merges", splits(&tokens).take(merges)),
            Self::SentencePiece => {
                #[allow(clippy::cast_precision_loss, reason = "a vocabulary has less than 2^24 tokens")]
                let scores: Vec<f32> = (0..n).map(|token| -(token as f32)).collect();
                builder.str("tokenizer.ggml.model", "llama").array_f32("tokenizer.ggml.scores", &scores)
            }
        };
        let types: Vec<i32> = (0..n).map(|token| self.token_type(token, n)).collect();
        builder
            .array_str("tokenizer.ggml.tokens", &tokens)
            .array_i32("tokenizer.ggml.token_type", &types)
            .u32("tokenizer.ggml.bos_token_id", n - CONTROL)
            .u32("tokenizer.ggml.eos_token_id", n - CONTROL + 1)
    }

    /// The text of a token: a byte or a word. Every second word begins with a space, in the notation of this kind.
    fn token(self, token: u32) -> String {
        if token < 256 {
            return match self {
                Self::Bpe { .. } => byte(token).to_string(),
                Self::SentencePiece => format!("<0x{token:02X}>"),
            };
        }
        let space = match self {
            _ if token % 2 == 1 => "",
            Self::Bpe { .. } => "\u{120}",
            Self::SentencePiece => "\u{2581}",
        };
        format!("{space}{}", word(token))
    }

    /// The type of a token (llama.h, `llama_token_type`).
    fn token_type(self, token: u32, n: u32) -> i32 {
        match self {
            _ if token >= n - CONTROL => 3,
            Self::SentencePiece if token < 256 => 6,
            _ => 1,
        }
    }
}

/// The character for a byte in GPT-2's alphabet (unicode.cpp, unicode_byte_to_utf8_map): the byte itself if it is
/// printable.
fn byte(byte: u32) -> char {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let code = if printable(byte) {
        byte
    } else {
        256 + u32::try_from((0..byte).filter(|&below| !printable(below)).count()).unwrap()
    };
    char::from_u32(code).unwrap()
}

/// Spells a number in syllables; at least two, so that a word is never a byte.
fn word(mut number: u32) -> String {
    const CONSONANTS: &[u8] = b"bcdfghjklmnpqrstvwxz";
    const VOWELS: &[u8] = b"aeiou";
    let mut word = String::new();
    while number > 0 || word.len() < 4 {
        let syllable = (number % 100) as usize;
        word.push(char::from(CONSONANTS[syllable / 5]));
        word.push(char::from(VOWELS[syllable % 5]));
        number /= 100;
    }
    word
}

/// Splits of each token into two parts, in the notation of merges: `Ġda te`.
fn splits(tokens: &[String]) -> impl Iterator<Item = String> {
    (1..4).flat_map(move |at| {
        let words = tokens.iter().skip(256);
        words.filter_map(move |token| {
            let (at, _) = token.char_indices().nth(at)?;
            let (left, right) = token.split_at(at);
            Some(format!("{left} {right}"))
        })
    })
}
