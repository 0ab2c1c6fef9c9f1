//! What clients of llama-server ask beside answers: tokens, the prompt that a template makes, and what the server is.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::api::Api;
use super::error::{ApiError, check_length};
use super::reading::{self, List};
use autoplace::generate::Error;
use autoplace::llama_sys::{Token, Vocab};

/// Tokens of a list, and texts and tokens of a mixed one, at most.
const MOST_TOKENS: usize = 1 << 20;
const MOST_PIECES: usize = 4096;
/// A text may be as long as the context takes, and as these contexts take at least and at most: programs count tokens to
/// cut texts. A tokenizer takes some eighty times the size of its text.
const LEAST_CONTEXT: usize = 1 << 13;
const LARGEST_CONTEXT: usize = 1 << 15;
/// Tokens whose texts are said at most: each is an object.
const MOST_SHOWN: usize = 1 << 16;

#[derive(Debug, Deserialize)]
struct TokenizeBody {
    #[serde(default)]
    add_special: bool,
    #[serde(default = "yes")]
    parse_special: bool,
    #[serde(default)]
    with_pieces: bool,
}

fn yes() -> bool {
    true
}

/// A part of a mixed content.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Piece {
    Token(Token),
    Text(String),
}

impl Api {
    /// Answers `POST /tokenize`: the tokens of `content`, a text or a list of texts and tokens. `add_special` (default
    /// `false`) puts the vocabulary's own tokens around the text, `parse_special` (default `true`) reads control tokens
    /// in it, `with_pieces` says the text of each token.
    ///
    /// # Errors
    ///
    /// Of status 400 for what the request has wrong.
    pub fn tokenize(&self, body: &[u8]) -> Result<Value, ApiError> {
        let body = reading::object(body)?;
        let TokenizeBody { add_special, parse_special, with_pieces } = body.part()?;
        let Some(content) = body.get("content") else { return Ok(json!({"tokens": []})) };
        let pieces = match reading::is_text(content) {
            true => vec![Piece::Text(reading::value(content, "content")?)],
            false => reading::value::<List<Piece, MOST_PIECES>>(content, "content")?.0,
        };
        let bytes = pieces.iter().map(|piece| if let Piece::Text(text) = piece { text.len() } else { 0 }).sum();
        check_length(bytes, self.context().clamp(LEAST_CONTEXT, LARGEST_CONTEXT), "content")?;
        self.with_vocab(|vocab| {
            let mut tokens = Vec::new();
            let mut is_first = true;
            for piece in pieces {
                match piece {
                    Piece::Token(token) => tokens.push(token),
                    Piece::Text(text) => {
                        let more = vocab.tokenize(&text, add_special && is_first, parse_special);
                        tokens.extend(more.map_err(|error| ApiError::of_generation(&error.into(), "content"))?);
                        is_first = false;
                    }
                }
            }
            if !with_pieces {
                return Ok(json!({"tokens": tokens}));
            }
            if tokens.len() > MOST_SHOWN {
                let message = format!("the text has {} tokens: `with_pieces` shows {MOST_SHOWN} at most", tokens.len());
                return Err(ApiError::invalid("with_pieces", message));
            }
            let piece = |(index, token): (usize, &Token)| {
                let bytes = bytes_of(vocab, *token, &format!("content[{index}]"))?;
                // A part of a character is no text.
                let piece = String::from_utf8(bytes).map_or_else(|error| json!(error.as_bytes()), Value::from);
                Ok(json!({"id": token, "piece": piece}))
            };
            let pieces: Vec<Value> = tokens.iter().enumerate().map(piece).collect::<Result<_, ApiError>>()?;
            Ok(json!({"tokens": pieces}))
        })
    }

    /// Answers `POST /detokenize`: the text of `tokens`, control tokens written out.
    ///
    /// # Errors
    ///
    /// Of status 400 for what the request has wrong, and for a token that the vocabulary does not have.
    pub fn detokenize(&self, body: &[u8]) -> Result<Value, ApiError> {
        let body = reading::object(body)?;
        let read = |tokens: &RawValue| reading::value::<List<Token, MOST_TOKENS>>(tokens, "tokens");
        let List(tokens) = body.get("tokens").map(read).transpose()?.unwrap_or_default();
        self.with_vocab(|vocab| {
            let mut bytes = Vec::new();
            for (index, token) in tokens.iter().enumerate() {
                bytes.extend(bytes_of(vocab, *token, &format!("tokens[{index}]"))?);
            }
            Ok(json!({"content": String::from_utf8_lossy(&bytes)}))
        })
    }

    /// Answers `POST /apply-template`: the prompt that the template makes of a chat request.
    ///
    /// # Errors
    ///
    /// Of status 400 for what the request has wrong.
    pub fn apply_template(&self, body: &[u8]) -> Result<Value, ApiError> {
        Ok(json!({"prompt": self.read_chat(body)?.into_prompt()}))
    }

    /// Answers `POST /v1/chat/completions/input_tokens`: the tokens of the prompt of a chat request.
    ///
    /// # Errors
    ///
    /// Of status 400 for what the request has wrong, 404 for another model.
    pub fn count_chat_tokens(&self, body: &[u8]) -> Result<Value, ApiError> {
        Ok(json!({"object": "response.input_tokens", "input_tokens": self.count_tokens(body)?}))
    }

    /// Answers `GET /props`: what clients of llama-server read of a server. No path of this machine is in it.
    ///
    /// # Errors
    ///
    /// Of status 500 if the vocabulary cannot be read.
    pub fn props(&self) -> Result<Value, ApiError> {
        let special = |vocab: &Vocab, token: Option<Token>| {
            let piece = token.and_then(|token| vocab.piece(token, true).ok()).unwrap_or_default();
            String::from_utf8_lossy(&piece).into_owned()
        };
        let (bos, eos) = self.with_vocab(|vocab| Ok((special(vocab, vocab.bos()), special(vocab, vocab.eos()))))?;
        let [template, with_tools] = [false, true].map(|tools| self.template_source(tools).unwrap_or_default());
        let mut props = json!({
            "default_generation_settings": {"n_ctx": self.context(), "params": self.default_sampling()},
            "total_slots": self.sequences(), "model_alias": self.name(), "model_path": self.name(),
            "modalities": {"vision": false, "video": false, "audio": false},
            "endpoint_slots": true, "endpoint_props": false, "endpoint_metrics": true,
            "chat_template": template, "bos_token": bos, "eos_token": eos,
            "build_info": concat!("autoplace ", env!("CARGO_PKG_VERSION")), "is_sleeping": false,
        });
        if with_tools != template {
            props["chat_template_tool_use"] = with_tools.into();
        }
        Ok(props)
    }

    /// Answers `GET /slots`: the sequences of the engine, and how many of them are at work. What they compute is not in
    /// it.
    pub fn slots(&self) -> Value {
        let running = self.engine.metrics().running;
        let slot =
            |id: usize| json!({"id": id, "n_ctx": self.context(), "speculative": false, "is_processing": id < running});
        (0..self.sequences()).map(slot).collect()
    }

    fn with_vocab<T>(&self, read: impl FnOnce(&Vocab) -> Result<T, ApiError>) -> Result<T, ApiError> {
        let read = self.engine.with_vocab(read);
        read.map_err(|error: Error| ApiError::of_generation(&error, "content"))?
    }
}

fn bytes_of(vocab: &Vocab, token: Token, place: &str) -> Result<Vec<u8>, ApiError> {
    let unknown =
        || ApiError::invalid(place, format!("{place} is {token}: the vocabulary has {} tokens", vocab.n_tokens()));
    if !vocab.contains(token) {
        return Err(unknown());
    }
    vocab.piece(token, true).map_err(|_| unknown())
}
