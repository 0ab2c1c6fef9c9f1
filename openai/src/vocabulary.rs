//! The other requests that llama-server's clients send, besides those for answers: for tokens, for rendered prompts,
//! and for facts about the server.

use serde::Deserialize;
use serde_json::{Value, json};

use super::api::Api;
use super::error::{ApiError, check_length};
use super::reading::{self, List};
use autoplace::Model;
use autoplace::chat::ChatTemplate;
use autoplace::generate::{Error, Speculation};
use autoplace::llama_sys::{Token, Vocab};

/// Maximum number of tokens in a list, and in a mixed list maximum number of texts and tokens together.
const MAX_TOKENS: usize = 1 << 20;
const MAX_PIECES: usize = 4096;
/// The maximum length of a text depends on the context, as if the context had at least `MIN_CONTEXT` and at most
/// `MAX_CONTEXT` tokens. Programs count tokens in order to cut long texts, so with a small context they must be able to
/// send longer texts. A tokenizer needs up to 120 times as much memory as the text.
const MIN_CONTEXT: usize = 1 << 13;
const MAX_CONTEXT: usize = 1 << 15;
/// Maximum number of tokens that are listed together with their texts, because each becomes a JSON object.
const MAX_SHOWN: usize = 1 << 16;

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

/// A part of a content that mixes texts and tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Piece {
    Token(Token),
    Text(String),
}

impl Api {
    /// Answers `POST /tokenize`: the tokens of `content`, a text or a list of texts and tokens. `add_special` (default
    /// `false`) adds the vocabulary's own tokens around the text. `parse_special` (default `true`) parses control
    /// tokens in the text. `with_pieces` adds the text of each token.
    ///
    /// # Errors
    ///
    /// Status 400 for an invalid request.
    pub fn tokenize(&self, body: &[u8]) -> Result<Value, ApiError> {
        tokenize(&self.model, body)
    }

    /// Answers `POST /detokenize`: the text of `tokens`, with control tokens written out.
    ///
    /// # Errors
    ///
    /// Status 400 for an invalid request, and for a token that the vocabulary does not have.
    pub fn detokenize(&self, body: &[u8]) -> Result<Value, ApiError> {
        detokenize(&self.model, body)
    }

    /// Answers `POST /apply-template`: the rendered prompt of a chat request.
    ///
    /// # Errors
    ///
    /// Status 400 for an invalid request.
    pub fn apply_template(&self, body: &[u8]) -> Result<Value, ApiError> {
        Ok(json!({"prompt": self.read_chat(body)?.into_prompt()}))
    }

    /// Answers `POST /v1/chat/completions/input_tokens`: the number of tokens in a chat request's prompt.
    ///
    /// # Errors
    ///
    /// Status 400 for an invalid request, 404 for another model.
    pub fn count_chat_tokens(&self, body: &[u8]) -> Result<Value, ApiError> {
        Ok(json!({"object": "response.input_tokens", "input_tokens": self.count_tokens(body)?}))
    }

    /// Answers `GET /props` with the facts that clients of llama-server read. The answer contains no path of this
    /// machine.
    ///
    /// # Errors
    ///
    /// Status 500 if reading the vocabulary fails.
    pub fn props(&self) -> Result<Value, ApiError> {
        let template = self.template.as_ref().ok();
        Facts { name: self.name(), slots: self.sequences(), sampling: json!(self.default_sampling()), template }
            .props(&self.model)
    }

    /// Answers `GET /slots`: lists the engine's sequences, and says how many of them are running. The answer does not
    /// contain their texts.
    pub fn slots(&self) -> Value {
        let running = self.engine.metrics().running;
        slots(&self.model, self.sequences(), self.speculation() != Speculation::Off, running)
    }
}

/// Facts about a served model that its file does not tell.
pub(super) struct Facts<'a> {
    pub(super) name: &'a str,
    /// The number of requests that are computed at once.
    pub(super) slots: usize,
    /// The default sampling parameters.
    pub(super) sampling: Value,
    pub(super) template: Option<&'a ChatTemplate>,
}

impl Facts<'_> {
    /// See [`Api::props`].
    pub(super) fn props(self, model: &Model) -> Result<Value, ApiError> {
        let Self { name, slots, sampling, template } = self;
        let special = |vocab: &Vocab, token: Option<Token>| {
            let piece = token.and_then(|token| vocab.piece(token, true).ok()).unwrap_or_default();
            String::from_utf8_lossy(&piece).into_owned()
        };
        let (bos, eos) = with_vocab(model, |vocab| Ok((special(vocab, vocab.bos()), special(vocab, vocab.eos()))))?;
        let modalities = model.modalities();
        let source = |tools| template.and_then(|template| template.source_for(tools)).unwrap_or_default();
        let [template, with_tools] = [false, true].map(source);
        let mut props = json!({
            "default_generation_settings": {"n_ctx": context(model), "params": sampling},
            "total_slots": slots, "model_alias": name, "model_path": name,
            "modalities": {"vision": modalities.images, "video": false, "audio": modalities.sound},
            "endpoint_slots": true, "endpoint_props": false, "endpoint_metrics": true,
            "chat_template": template, "bos_token": bos, "eos_token": eos,
            "build_info": concat!("autoplace ", env!("CARGO_PKG_VERSION")), "is_sleeping": false,
        });
        if with_tools != template {
            props["chat_template_tool_use"] = with_tools.into();
        }
        Ok(props)
    }
}

/// See [`Api::slots`]. The first `running` slots are in use.
pub(super) fn slots(model: &Model, slots: usize, drafts: bool, running: usize) -> Value {
    let context = context(model);
    let slot = |id: usize| json!({"id": id, "n_ctx": context, "speculative": drafts, "is_processing": id < running});
    (0..slots).map(slot).collect()
}

/// See [`Api::tokenize`].
pub(super) fn tokenize(model: &Model, body: &[u8]) -> Result<Value, ApiError> {
    let body = reading::object(body)?;
    let TokenizeBody { add_special, parse_special, with_pieces } = body.part()?;
    let Some(content) = body.get("content") else { return Ok(json!({"tokens": []})) };
    let pieces = match reading::is_text(content) {
        true => vec![Piece::Text(reading::value(content, "content")?)],
        false => reading::value::<List<Piece, MAX_PIECES>>(content, "content")?.0,
    };
    let bytes = pieces.iter().map(|piece| if let Piece::Text(text) = piece { text.len() } else { 0 }).sum();
    check_length(bytes, context(model).clamp(MIN_CONTEXT, MAX_CONTEXT), "content")?;
    with_vocab(model, |vocab| {
        let mut tokens = Vec::new();
        let mut is_first = true;
        for (index, piece) in pieces.into_iter().enumerate() {
            match piece {
                Piece::Token(token) if vocab.contains(token) => tokens.push(token),
                Piece::Token(token) => return Err(unknown(vocab, token, &format!("content[{index}]"))),
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
        if tokens.len() > MAX_SHOWN {
            let message = format!("the text has {} tokens: `with_pieces` shows at most {MAX_SHOWN}", tokens.len());
            return Err(ApiError::invalid("with_pieces", message));
        }
        let piece = |token: &Token| {
            let bytes = bytes_of(vocab, *token, || "content".to_owned())?;
            // The bytes of a token may be a part of a character. Such bytes are not a text.
            let piece = String::from_utf8(bytes).map_or_else(|error| json!(error.as_bytes()), Value::from);
            Ok(json!({"id": token, "piece": piece}))
        };
        let pieces: Vec<Value> = tokens.iter().map(piece).collect::<Result<_, ApiError>>()?;
        Ok(json!({"tokens": pieces}))
    })
}

/// See [`Api::detokenize`].
pub(super) fn detokenize(model: &Model, body: &[u8]) -> Result<Value, ApiError> {
    let body = reading::object(body)?;
    let List::<Token, MAX_TOKENS>(tokens) = body.read("tokens")?.unwrap_or_default();
    with_vocab(model, |vocab| {
        let mut bytes = Vec::new();
        for (index, token) in tokens.iter().enumerate() {
            bytes.extend(bytes_of(vocab, *token, || format!("tokens[{index}]"))?);
        }
        Ok(json!({"content": String::from_utf8_lossy(&bytes)}))
    })
}

/// Maximum number of tokens of a text.
fn context(model: &Model) -> usize {
    model.placement().context.n_ctx_seq() as usize
}

fn with_vocab<T>(model: &Model, read: impl FnOnce(&Vocab) -> Result<T, ApiError>) -> Result<T, ApiError> {
    let read = model.with_vocab(read);
    read.map_err(|error| ApiError::of_generation(&Error::from(error), "content"))?
}

/// The bytes of a token's text. `place` is the token's place in the request.
fn bytes_of(vocab: &Vocab, token: Token, place: impl Fn() -> String) -> Result<Vec<u8>, ApiError> {
    if !vocab.contains(token) {
        return Err(unknown(vocab, token, &place()));
    }
    vocab.piece(token, true).map_err(|_| unknown(vocab, token, &place()))
}

fn unknown(vocab: &Vocab, token: Token, place: &str) -> ApiError {
    ApiError::invalid(place, format!("{place} is {token}: the vocabulary has {} tokens", vocab.n_tokens()))
}
