//! Log-probabilities of tokens, in the form of chat completions and in the form of completions.

use autoplace::llama_sys::{Token, Vocab};
use serde_json::{Map, Value, json};

use autoplace::generate::TokenLogprobs;

/// A copy of the text of each token in a vocabulary. A copy is needed, because the model may be moving to another
/// placement when log-probabilities are written.
#[derive(Debug)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TokenTable {
    pub(super) fn new(vocab: &Vocab) -> Self {
        let n_tokens = vocab.n_tokens();
        let mut table = Self { bytes: Vec::new(), ends: Vec::with_capacity(n_tokens as usize) };
        for token in 0..n_tokens {
            // If a token has no text, its entry stays empty.
            let _ = vocab.append_piece(token as Token, true, &mut table.bytes);
            table.ends.push(table.bytes.len());
        }
        table
    }

    fn bytes(&self, token: Token) -> &[u8] {
        let end_of = |token: usize| self.ends.get(token).copied();
        let Some(end) = usize::try_from(token).ok().and_then(end_of) else {
            return &[];
        };
        let start = (token as usize).checked_sub(1).and_then(end_of);
        &self.bytes[start.unwrap_or(0)..end]
    }
}

/// A token of an answer with its log-probability, and the likeliest alternatives.
#[derive(Debug, Clone)]
pub(super) struct TokenInfo {
    bytes: Vec<u8>,
    logprob: f32,
    top: Vec<(Vec<u8>, f32)>,
}

impl TokenInfo {
    #[cfg(test)]
    pub(super) fn from_text(text: &str, logprob: f32) -> Self {
        Self { bytes: text.as_bytes().to_vec(), logprob, top: Vec::new() }
    }

    pub(super) fn new(logprobs: &TokenLogprobs, tokens: &TokenTable) -> Self {
        let bytes = |token| tokens.bytes(token).to_vec();
        let top = logprobs.top.iter();
        Self {
            bytes: bytes(logprobs.token),
            logprob: logprobs.logprob,
            top: top.map(|(token, logprob)| (bytes(*token), *logprob)).collect(),
        }
    }
}

/// Log-probabilities in the form of chat completions.
pub(super) fn chat(tokens: &[TokenInfo]) -> Value {
    json!({"content": entries(tokens), "refusal": null})
}

/// The tokens of a text, each as an object.
pub(super) fn entries(tokens: &[TokenInfo]) -> Vec<Value> {
    let entry = |bytes: &[u8], logprob: f32| json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes});
    let content = tokens.iter().map(|token| {
        let top = token.top.iter();
        let top: Value = top.map(|(bytes, logprob)| entry(bytes, *logprob)).collect();
        let mut content = entry(&token.bytes, token.logprob);
        content["top_logprobs"] = top;
        content
    });
    content.collect()
}

/// Log-probabilities in the form of completions. `offset` is the number of characters of the text so far. This call
/// adds the characters of these tokens.
pub(super) fn completion(tokens: &[TokenInfo], offset: &mut usize) -> Value {
    let mut texts = Vec::with_capacity(tokens.len());
    let mut logprobs = Vec::with_capacity(tokens.len());
    let mut tops = Vec::with_capacity(tokens.len());
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        let text = String::from_utf8_lossy(&token.bytes);
        offsets.push(*offset);
        *offset += text.chars().count();
        texts.push(text);
        logprobs.push(token.logprob);
        let mut top = Map::new();
        for (bytes, logprob) in &token.top {
            // If two tokens have the same text, the likelier one counts.
            let text = String::from_utf8_lossy(bytes).into_owned();
            top.entry(text).or_insert_with(|| json!(logprob));
        }
        tops.push(top);
    }
    json!({"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Vec<TokenInfo> {
        let token = |bytes: &[u8]| TokenInfo {
            bytes: bytes.to_vec(),
            logprob: -0.5,
            top: vec![(b"a".to_vec(), -0.25), (b"a".to_vec(), -2.0)],
        };
        vec![token(" \u{e4}".as_bytes()), token(b"\xff")]
    }

    #[test]
    fn the_table_has_no_text_for_a_number_that_is_not_a_token() {
        let table = TokenTable { bytes: b"abc".to_vec(), ends: vec![1, 1, 3] };
        let all: Vec<&[u8]> = (-1..5).map(|token| table.bytes(token)).collect();
        assert_eq!(all, [b"" as &[u8], b"a", b"", b"bc", b"", b""]);
    }

    #[test]
    fn bytes_that_are_not_text_are_reported_as_bytes() {
        let answer = chat(&tokens());
        assert_eq!(answer["content"][1]["bytes"], json!([255]));
        assert_eq!(answer["content"][1]["token"], "\u{fffd}");
        assert_eq!(answer["content"][0]["top_logprobs"][1]["logprob"], -2.0);
    }

    #[test]
    fn offsets_are_characters_and_go_on() {
        let mut offset = 3;
        let answer = completion(&tokens(), &mut offset);
        assert_eq!(answer["text_offset"], json!([3, 5]));
        assert_eq!(offset, 6);
        assert_eq!(answer["top_logprobs"][0], json!({"a": -0.25}));
    }
}
