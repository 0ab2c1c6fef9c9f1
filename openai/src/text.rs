//! Requests for text completions.

use serde_json::value::RawValue;

use super::error::{ApiError, check_length};
use super::options::{MAX_CHOICES, Options, sampling};
use super::parameters;
use super::reading::{self, Body, List};
use autoplace::generate::{GenerateRequest, Prompt, Sampling};
use autoplace::load::Model;

/// Maximum number of tokens in a prompt: the length of the longest contexts.
const MAX_TOKENS: usize = 1 << 20;

pub(super) struct TextRequest {
    pub(super) options: Options,
    pub(super) texts: Vec<GenerateRequest>,
}

impl TextRequest {
    pub(super) fn read(body: &[u8], (model, own): (&Model, &Sampling)) -> Result<Self, ApiError> {
        let body = reading::with_integers(body);
        let body = reading::object(&body)?;
        Self::new(&body, (model, own)).map_err(|error| reading::in_its_words(error, body.aliases()))
    }

    fn new(body: &Body<'_>, (model, own): (&Model, &Sampling)) -> Result<Self, ApiError> {
        parameters::check(body, false)?;
        let options = Options::read(body)?;
        let logprobs = body.read("logprobs")?;
        let context = model.placement().context.n_ctx_seq();
        let prompts = prompts(body, context as usize)?;
        let asked = prompts.len().saturating_mul(options.n);
        if asked > MAX_CHOICES {
            let message = format!("{asked} texts were requested: at most {MAX_CHOICES} are allowed");
            return Err(ApiError::invalid("prompt", message));
        }
        let sampling = sampling(own, body, context)?;
        let mut texts = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            let mut generate = model.generate(prompt).sampling(sampling.clone());
            if let Some(most) = logprobs {
                generate = generate.logprobs(most);
            }
            texts.push(generate);
        }
        Ok(Self { options, texts })
    }
}

/// The prompts of a request: one text, one list of tokens, or a list of either.
fn prompts(body: &Body<'_>, context: usize) -> Result<Vec<Prompt>, ApiError> {
    let missing = || ApiError::invalid("prompt", "`prompt` is missing or empty");
    let given = body.get("prompt").ok_or_else(missing)?;
    let one = |given: &RawValue, place: &str| match reading::is_text(given) {
        true => {
            let text: String = reading::value(given, place)?;
            check_length(text.len(), context, "prompt")?;
            // The client controls the whole prompt, control tokens included, as with other servers.
            Ok(Prompt::markup(text).add_special(true))
        }
        false => reading::value(given, place).map(|List::<_, MAX_TOKENS>(tokens)| Prompt::tokens(tokens)),
    };
    match reading::first_of_list(given) {
        Some(b'"' | b'[') => {
            let list: List<&RawValue, MAX_CHOICES> = reading::value(given, "prompt")?;
            let list = list.0.into_iter().enumerate();
            list.map(|(index, prompt)| one(prompt, &format!("prompt[{index}]"))).collect()
        }
        None if given.get().starts_with('[') => Err(missing()),
        _ => Ok(vec![one(given, "prompt")?]),
    }
}
