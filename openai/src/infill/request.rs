//! A request to fill in the middle.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::layout::{Layout, Marks, Texts, layout};
use crate::error::ApiError;
use crate::lines::LineLimits;
use crate::options::{Options, sampling};
use crate::parameters;
use crate::reading::{self, Body, List};
use autoplace::generate::{GenerateRequest, Prompt, Sampling};
use autoplace::llama_sys::Vocab;
use autoplace::load::Model;

/// Maximum number of other files.
const MAX_FILES: usize = 1024;
/// Maximum number of fields that a request can select for its answer.
const MAX_FIELDS: usize = 64;

#[derive(Debug, Deserialize)]
struct InfillBody<'a> {
    #[serde(borrow)]
    input_prefix: Option<Cow<'a, str>>,
    #[serde(borrow)]
    input_suffix: Option<Cow<'a, str>>,
    #[serde(borrow)]
    prompt: Option<Cow<'a, str>>,
    #[serde(default)]
    n_indent: usize,
    /// The time limit in milliseconds. 0 or a negative number means no limit.
    #[serde(default)]
    t_max_predict_ms: i64,
}

/// Another file of the repository.
#[derive(Debug, Deserialize)]
#[serde(expecting = "{\"filename\": ..., \"text\": ...}")]
struct File<'a> {
    #[serde(borrow)]
    filename: Option<Cow<'a, str>>,
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// A parsed request.
pub(crate) struct InfillRequest {
    pub(crate) options: Options,
    pub(crate) generate: GenerateRequest,
    min_indent: usize,
    max_time: Option<Duration>,
    pub(super) asked: Asked,
}

/// The fields of the request that the answer repeats, and the form of the answer.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// The prompt as text, with its control tokens written out.
    pub(super) prompt: String,
    pub(super) is_cut: bool,
    pub(super) settings: Map<String, Value>,
    pub(super) stops: Vec<String>,
    /// The fields that the answer must have, by their paths (`timings/prompt_n`); if the list is empty, all fields.
    pub(super) fields: Vec<String>,
    pub(super) is_stream: bool,
}

impl InfillRequest {
    /// Parses a request. With `is_suffix_first` the suffix comes before the prefix, as some models expect.
    pub(crate) fn read(
        body: &[u8],
        (model, own): (&Model, &Sampling),
        vocab: &Vocab,
        is_suffix_first: bool,
    ) -> Result<Self, ApiError> {
        let marks = Marks::new(&vocab.fim()).map_err(|missing| no_infill(&missing))?;
        let body = reading::with_integers(body);
        let body = reading::object(&body)?;
        Self::new(&body, (model, own), (vocab, marks), is_suffix_first)
            .map_err(|error| reading::in_its_words(error, body.aliases()))
    }

    fn new(
        body: &Body<'_>,
        (model, own): (&Model, &Sampling),
        (vocab, marks): (&Vocab, Marks),
        is_suffix_first: bool,
    ) -> Result<Self, ApiError> {
        parameters::check_infill(body)?;
        let options = Options::read(body)?;
        let given: InfillBody<'_> = body.part()?;
        let missing = |name: &str| ApiError::invalid(name, format!("`{name}` is missing"));
        let prefix = given.input_prefix.ok_or_else(|| missing("input_prefix"))?;
        let suffix = given.input_suffix.ok_or_else(|| missing("input_suffix"))?;
        let prompt = given.prompt.unwrap_or_default();
        let List::<File<'_>, MAX_FILES>(files) = body.read("input_extra")?.unwrap_or_default();
        let List::<String, MAX_FIELDS>(fields) = body.read("response_fields")?.unwrap_or_default();
        let context = model.placement().context.n_ctx_seq();
        crate::error::check_length(prompt.len(), context as usize, "prompt")?;
        let texts = Texts {
            prefix: &prefix,
            prompt: &prompt,
            suffix: &suffix,
            files: files.iter().map(|file| (file.filename.as_deref().unwrap_or("tmp"), &*file.text)).collect(),
            is_suffix_first,
        };
        let room = room(context as usize, options.max_tokens());
        let failed = |error: autoplace::llama_sys::Error| ApiError::of_generation(&error.into(), "input_prefix");
        let Layout { tokens, is_cut } = layout(vocab, marks, &texts, room).map_err(failed)?.ok_or_else(|| {
            let message = format!("prompt: it has more than the {room} tokens for which the context has room");
            ApiError::invalid("prompt", message).with_code("context_length_exceeded")
        })?;
        let mut written = Vec::new();
        for token in &tokens {
            vocab.append_piece(*token, true, &mut written).map_err(failed)?;
        }
        let sampling = sampling(own, body, context)?;
        let mut settings = match serde_json::to_value(&sampling) {
            Ok(Value::Object(settings)) => settings,
            _ => Map::new(),
        };
        let limit = options.max_tokens().map_or(json!(-1), Value::from);
        let time = given.t_max_predict_ms;
        for (name, value) in [
            ("n_predict", limit),
            ("n_indent", given.n_indent.into()),
            ("t_max_predict_ms", time.into()),
            ("stream", options.stream.into()),
            ("stop", json!(options.stops())),
        ] {
            settings.insert(name.to_owned(), value);
        }
        let asked = Asked {
            prompt: String::from_utf8_lossy(&written).into_owned(),
            is_cut,
            settings,
            stops: options.stops().to_vec(),
            fields,
            is_stream: options.stream,
        };
        let generate = model.generate(Prompt::tokens(tokens)).sampling(sampling);
        let max_time = u64::try_from(time).ok().filter(|time| *time > 0).map(Duration::from_millis);
        Ok(Self { options, generate, min_indent: given.n_indent, max_time, asked })
    }

    /// The limits on the answer's lines.
    pub(crate) fn limits(&self) -> LineLimits {
        LineLimits::new(self.min_indent, self.max_time)
    }
}

/// The number of tokens for the prompt. The rest of the context is for the answer. The answer gets as many tokens as
/// its limit, but at most half of the context. Without a limit it gets a quarter.
fn room(context: usize, limit: Option<usize>) -> usize {
    context - limit.map_or(context / 4, |limit| limit.min(context / 2))
}

/// The error for a vocabulary without these tokens. llama-server also answers with status 501.
fn no_infill(missing: &[&str]) -> ApiError {
    let missing = missing.join(", ");
    let message = format!(
        "the model cannot fill in the middle: its vocabulary has no token for {missing}; models such as Qwen2.5-Coder \
         have them"
    );
    ApiError::new(501, message).with_code("not_supported")
}
