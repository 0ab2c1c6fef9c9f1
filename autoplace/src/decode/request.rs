//! A generation request: the prompt, and how to generate from it.

use llama_sys::{Candidates, Token};
use serde::{Deserialize, Serialize};

use super::constraint::Constraint;
use super::custom::{CustomDrafter, CustomSampler};
use super::error::Error;
use super::prompt::Prompt;
use super::sampling::{Mirostat, SamplerKind, Sampling};
use super::speculative::Speculation;
use crate::load::Model;
use crate::worker;

/// A generation request. [`stream`](Self::stream) or [`text`](Self::text) runs the request.
#[derive(Debug, Clone)]
#[must_use = "nothing is generated until `stream` or `text` is called"]
pub struct GenerateRequest {
    pub(crate) model: Model,
    pub(crate) spec: Spec,
}

/// How a text continues when the context has no cell left for its next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WhenFull {
    /// The text ends with [`FinishReason::ContextFull`](crate::generate::FinishReason::ContextFull).
    #[default]
    Stop,
    /// The text ends, and a stream returns [`Error::ContextFull`](crate::generate::Error::ContextFull) after the last
    /// piece. [`GenerateRequest::text`] returns that error too. This suits callers that cannot use half an answer. A
    /// [`Session`](crate::generate::Session) reports the end in the last piece, as with `Stop`, because its other texts
    /// continue.
    Error,
    /// The first `keep` tokens of the prompt stay. Of the tokens after them, the older half is discarded. The newer
    /// half moves to earlier positions and is not computed again. In this way the text can continue without end, which
    /// suits a model that writes raw text. llama.cpp does the same with `--context-shift` and `--keep`. A BOS token at
    /// the beginning always stays. A `keep` of `usize::MAX` keeps the whole prompt.
    ///
    /// The tokens that were moved had been computed from tokens that are now discarded, so no other text reuses them.
    /// In a unified cache (`kv_unified`), the text also loses tokens whose cells it shares with other texts. If no
    /// token is left to discard, the text ends as with `Stop`.
    /// [`Statistics::discarded_tokens`](crate::generate::Statistics::discarded_tokens) counts the discarded tokens.
    ///
    /// Some memories cannot shift: recurrent states, windows without `swa_full`, positions of several axes (M-RoPE),
    /// keys that are neither F16 nor F32, contexts with YaRN, and contexts with an `n_ubatch` of fewer than 4 tokens
    /// for each cache. With such a memory, the text fails at its beginning with
    /// [`Error::CannotShift`](crate::generate::Error::CannotShift), which gives the reason.
    Shift {
        /// Number of tokens at the beginning of the prompt that are never discarded.
        keep: usize,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) prompt: Prompt,
    /// Whether the prompt reuses the tokens that the context already holds. `None` means the default of the session or
    /// engine.
    pub(crate) cache_prompt: Option<bool>,
    pub(crate) sampling: Sampling,
    /// The adapters with their scales. `None` means all adapters, with the scales that were set for the load.
    pub(crate) lora: Option<Vec<(String, f32)>>,
    /// The number of likeliest tokens to report in addition to the chosen token.
    pub(crate) logprobs: Option<usize>,
    /// A closure cannot be sent to a worker process.
    #[serde(skip)]
    pub(crate) custom: Option<CustomSampler>,
    /// A closure cannot be sent to a worker process.
    #[serde(skip)]
    pub(crate) drafter: Option<CustomDrafter>,
    pub(crate) constraint: Option<Constraint>,
    pub(crate) stops: Vec<String>,
    pub(crate) stop_tokens: Vec<Token>,
    pub(crate) limits: Limits,
    pub(crate) speculation: Speculation,
    pub(crate) when_full: WhenFull,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub(crate) max_tokens: usize,
    /// Whether the text shows control tokens.
    pub(crate) special: bool,
    /// Whether tokens that end a text are treated like any other token.
    pub(crate) ignore_eos: bool,
    /// The number of tokens to generate before a token that ends the text may be chosen.
    pub(crate) min_tokens: usize,
}

impl Spec {
    pub(crate) fn new(prompt: Prompt, sampling: Sampling) -> Self {
        Self {
            prompt,
            cache_prompt: None,
            sampling,
            lora: None,
            logprobs: None,
            custom: None,
            drafter: None,
            constraint: None,
            stops: Vec::new(),
            stop_tokens: Vec::new(),
            limits: Limits { max_tokens: usize::MAX, special: false, ignore_eos: false, min_tokens: 0 },
            speculation: Speculation::Off,
            when_full: WhenFull::Stop,
        }
    }

    /// Copies the request with an empty prompt.
    pub(crate) fn without_prompt(&self) -> Self {
        let Self { prompt: _, cache_prompt, sampling, logprobs, custom, drafter, constraint, stops, .. } = self;
        Self {
            prompt: Prompt::tokens([]),
            cache_prompt: *cache_prompt,
            sampling: sampling.clone(),
            lora: self.lora.clone(),
            logprobs: *logprobs,
            custom: custom.clone(),
            drafter: drafter.clone(),
            constraint: constraint.clone(),
            stops: stops.clone(),
            stop_tokens: self.stop_tokens.clone(),
            limits: self.limits,
            speculation: self.speculation,
            when_full: self.when_full,
        }
    }

    /// Refuses requests with closures, which cannot be sent to a worker process.
    pub(crate) fn check_for_worker(&self) -> Result<(), Error> {
        let what = match (&self.custom, &self.drafter) {
            (Some(_), _) => "a sampler closure",
            (None, Some(_)) => "a draft closure",
            (None, None) => return Ok(()),
        };
        Err(worker::Error::Elsewhere { what }.into())
    }
}

impl GenerateRequest {
    /// Replaces the prompt.
    pub fn prompt(mut self, prompt: impl Into<Prompt>) -> Self {
        self.spec.prompt = prompt.into();
        self
    }

    /// Ends the text after `n` tokens. Default: at the end of the text or of the context.
    #[doc(alias = "n_predict")]
    #[doc(alias = "num_predict")]
    #[doc(alias = "max_new_tokens")]
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.spec.limits.max_tokens = n;
        self
    }

    /// Reuses the tokens of the prompt that the context still holds from earlier texts. Those tokens may have been
    /// rounded differently, so the same seed can give another text.
    /// [`cached_tokens`](crate::generate::Statistics::cached_tokens) counts the reused tokens. Default: off; in an
    /// [`Engine`](crate::generate::Engine), the default is on.
    ///
    /// The tokens of a text stay in the context until another text needs the cells. A recurrent model can continue only
    /// at the end of an earlier text. A model with sliding windows can also continue at other places, as long as the
    /// context still holds the window there. Both kinds of models also continue from an earlier
    /// [checkpoint](crate::ModelBuilder::checkpoints).
    pub fn cache_prompt(mut self, cache: bool) -> Self {
        self.spec.cache_prompt = Some(cache);
        self
    }

    /// Decides how the text continues when the context is full. Default: the text ends.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.spec.when_full = when_full;
        self
    }

    /// Ends the text just before the point where `text` would appear. Each call adds one stop string.
    #[doc(alias = "stop_sequence")]
    #[doc(alias = "reverse_prompt")]
    #[doc(alias = "antiprompt")]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.spec.stops.push(text.into());
        self
    }

    /// Ends the text at this token, as at the model's own end tokens (vLLM's `stop_token_ids`). The token's
    /// characters are not part of the answer. Each call adds one token.
    pub fn stop_token(mut self, token: Token) -> Self {
        self.spec.stop_tokens.push(token);
        self
    }

    /// Until `n` tokens were generated, forbids the tokens that end the text: the model's own end tokens and each
    /// [`stop_token`](Self::stop_token). Stop strings, limits and a complete constraint can still end the text earlier.
    /// Default: 0.
    pub fn min_tokens(mut self, n: usize) -> Self {
        self.spec.limits.min_tokens = n;
        self
    }

    /// Writes control tokens out as text instead of leaving them out.
    pub fn special(mut self, show: bool) -> Self {
        self.spec.limits.special = show;
        self
    }

    /// Requires that the text meets a JSON schema, a regular expression, a grammar or a list of choices. The text ends
    /// by itself once it meets the constraint, and not before. A limit ([`max_tokens`](Self::max_tokens),
    /// [`stop`](Self::stop), the end of the context) can end the text earlier; the last item is then
    /// [`Error::Incomplete`](crate::generate::Error::Incomplete).
    ///
    /// ```no_run
    /// use autoplace::generate::Constraint;
    /// # let model = autoplace::Model::load("model.gguf")?;
    /// let sentiment = model
    ///     .generate("Is \"What a day!\" positive? ")
    ///     .constraint(Constraint::choices(["yes", "no"]))
    ///     .text()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "constraints")]
    #[doc(alias = "grammar")]
    #[doc(alias = "json_schema")]
    #[doc(alias = "response_format")]
    #[doc(alias = "format")]
    pub fn constraint(mut self, constraint: Constraint) -> Self {
        self.spec.constraint = Some(constraint);
        self
    }

    /// Drafts the next tokens, so that several tokens are computed at once. Except for rounding, the text does not
    /// change. The [`Statistics`](crate::generate::Statistics) count the accepted draft tokens. Drafting pauses by
    /// itself while it costs more time than it saves.
    ///
    /// The model must be loaded with room for drafts: [`Request::draft_max`](crate::plan::Request::draft_max).
    /// Without that room, or with a memory that cannot discard tokens, the text is generated without drafts, and
    /// [`Statistics::drafts_off`](crate::generate::Statistics::drafts_off) gives the reason. Default:
    /// [`Speculation::Off`].
    #[doc(alias = "draft")]
    pub fn speculate(mut self, speculation: Speculation) -> Self {
        self.spec.speculation = speculation.in_range();
        self
    }

    /// Drafts the next tokens with a closure of the application, in place of [`speculate`](Self::speculate). The
    /// closure gets the prompt and the answer so far, and pushes the tokens that it expects, in their order. The plan
    /// limits the number of draft tokens in a step ([`Request::draft_max`](crate::plan::Request::draft_max)). This
    /// suits an application that can predict the answer, for example from the file being edited or the form being
    /// filled in. Each text has a copy of the closure.
    ///
    /// Wrong drafts cost time and do not change the text. If the model is in a worker process, the closure is refused:
    /// [`worker::Error::Elsewhere`](crate::worker::Error::Elsewhere).
    ///
    /// ```no_run
    /// # let model = autoplace::Model::builder("model.gguf").draft_max(8).load()?;
    /// let before = model.tokenize("fn main() { println!(); }")?;
    /// let generate = model.generate("Repeat the function.").draft_with(move |so_far, draft| {
    ///     // The tokens that followed the last token in the file.
    ///     let last = so_far.last().and_then(|last| before.iter().rposition(|token| token == last));
    ///     draft.extend(last.map_or(&[][..], |at| &before[at + 1..]));
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn draft_with(mut self, draft: impl FnMut(&[Token], &mut Vec<Token>) + Clone + Send + 'static) -> Self {
        self.spec.drafter = Some(CustomDrafter::new(Box::new(draft)));
        self
    }

    /// Reports with each piece the log-probability of its token and the `n` likeliest tokens, at most 128
    /// ([`Piece::logprobs`](crate::generate::Piece::logprobs)). The probabilities come from the model's own
    /// distribution, before any sampler. Default: no report.
    pub fn logprobs(mut self, n: usize) -> Self {
        self.spec.logprobs = Some(n);
        self
    }

    /// Lets the text continue where the model would end it, like vLLM's `ignore_eos`. This is useful for measurements.
    /// Only [`max_tokens`](Self::max_tokens), a stop string, a complete constraint or a full context then ends the
    /// text. Under a constraint, the model's end tokens are not chosen while the constraint allows another token.
    pub fn ignore_eos(mut self) -> Self {
        self.spec.limits.ignore_eos = true;
        self
    }

    /// Sets all sampling parameters at once. Default: the model's own parameters
    /// ([`Model::sampling`](crate::Model::sampling)).
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.spec.sampling = sampling;
        self
    }

    /// Sets the temperature, by which the logits are divided. With 0.0, the likeliest token is always chosen. Default:
    /// the model's own, or 0.8.
    #[doc(alias = "temperature")]
    pub fn temp(mut self, temp: f32) -> Self {
        self.spec.sampling.temperature = temp;
        self
    }

    /// Keeps the `k` likeliest tokens; 0 keeps all. Default: the model's own, or 40.
    pub fn top_k(mut self, k: u32) -> Self {
        self.spec.sampling.top_k = k;
        self
    }

    /// Keeps the likeliest tokens whose probabilities add up to `p`; 1.0 keeps all. Default: the model's own, or
    /// 0.95.
    pub fn top_p(mut self, p: f32) -> Self {
        self.spec.sampling.top_p = p;
        self
    }

    /// Keeps only tokens that are at least `p` times as likely as the likeliest token; 0.0 keeps all. Default: the
    /// model's own, or 0.05.
    pub fn min_p(mut self, p: f32) -> Self {
        self.spec.sampling.min_p = p;
        self
    }

    /// Makes the last 64 tokens ([`Sampling::repeat_last_n`]) less likely: positive logits are divided by `penalty`,
    /// others are multiplied by it; 1.0 is off. Default: the model's own, or 1.0.
    #[doc(alias = "repetition_penalty")]
    #[doc(alias = "penalty_repeat")]
    pub fn repeat_penalty(mut self, penalty: f32) -> Self {
        self.spec.sampling.repeat_penalty = penalty;
        self
    }

    /// Subtracts `penalty` from the logit of a recent token, once for each time that the token occurred; 0.0, the
    /// default, is off.
    pub fn frequency_penalty(mut self, penalty: f32) -> Self {
        self.spec.sampling.frequency_penalty = penalty;
        self
    }

    /// Subtracts `penalty` from the logit of a recent token, once in all; 0.0, the default, is off.
    pub fn presence_penalty(mut self, penalty: f32) -> Self {
        self.spec.sampling.presence_penalty = penalty;
        self
    }

    /// XTC: with this `probability`, drops all tokens that are at least `threshold` likely, except the least likely of
    /// them; 0.0 is off. Default: the model's own, or off.
    pub fn xtc(mut self, probability: f32, threshold: f32) -> Self {
        self.spec.sampling.xtc_probability = probability;
        self.spec.sampling.xtc_threshold = threshold;
        self
    }

    /// Penalises tokens that continue a repetition (DRY), with this `multiplier`; 0.0, the default, is off. The other
    /// parameters of DRY are in [`Sampling`].
    pub fn dry(mut self, multiplier: f32) -> Self {
        self.spec.sampling.dry_multiplier = multiplier;
        self
    }

    /// Keeps the surprise of the text near `tau` bits per token. Mirostat replaces all samplers except the
    /// temperature. Default: the model's own, or off.
    pub fn mirostat(mut self, mirostat: Mirostat, tau: f32) -> Self {
        self.spec.sampling.mirostat = mirostat;
        self.spec.sampling.mirostat_tau = tau;
        self
    }

    /// Adds `bias` to the logit of a token. Each call sets the bias of one token. A bias of -1000.0 forbids the token
    /// unless no other token is left.
    pub fn logit_bias(mut self, token: Token, bias: f32) -> Self {
        self.spec.sampling.logit_bias.push((token, bias));
        self
    }

    /// Adds `bias` to the logit of the token that `text` stands for. If `text` is not exactly one token, the request
    /// fails with [`Error::NotOneToken`](crate::generate::Error::NotOneToken) when the generation begins.
    pub fn logit_bias_text(mut self, text: impl Into<String>, bias: f32) -> Self {
        self.spec.sampling.logit_bias_text.push((text.into(), bias));
        self
    }

    /// Sets the samplers and their order. An empty list samples from the model's own probabilities. Default: the
    /// model's own, or [`SamplerKind::DEFAULT`].
    pub fn samplers(mut self, kinds: impl IntoIterator<Item = SamplerKind>) -> Self {
        self.spec.sampling.samplers = kinds.into_iter().collect();
        self
    }

    /// Chooses each token with a closure. The closure gets the candidates that the other samplers leave, and the tokens
    /// so far, starting with the prompt. [`Candidates::selected`] is the token that the samplers have chosen. If the
    /// list of [`samplers`](Self::samplers) is empty, the candidates are all tokens. [`Candidates::softmax`] computes
    /// their probabilities.
    ///
    /// The closure may return any token of the vocabulary. Under a constraint, a token that the constraint forbids ends
    /// the text with [`Error::NotAllowed`](crate::generate::Error::NotAllowed). Each text has a copy of the closure. If
    /// the model is in a worker process, the closure is refused:
    /// [`worker::Error::Elsewhere`](crate::worker::Error::Elsewhere).
    ///
    /// ```no_run
    /// # let model = autoplace::Model::load("model.gguf")?;
    /// // Never chooses the same token twice in a row.
    /// let generate = model.generate("Once upon a time").sampler(|candidates, so_far| {
    ///     candidates.retain(|candidate| !so_far.ends_with(&[candidate.token()]));
    ///     let likeliest = candidates.iter().max_by(|a, b| a.logit().total_cmp(&b.logit()));
    ///     likeliest.map_or(0, |candidate| candidate.token())
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sampler(mut self, choose: impl FnMut(&mut Candidates, &[Token]) -> Token + Clone + Send + 'static) -> Self {
        self.spec.custom = Some(CustomSampler::new(Box::new(choose)));
        self
    }

    /// Seeds the random choices. The same seed gives the same text. Default: each text gets a new seed.
    pub fn seed(mut self, seed: u32) -> Self {
        self.spec.sampling.seed = Some(seed);
        self
    }

    /// Applies only these [adapters](Model::adapters) of the model, by name, each at its scale. An empty list applies
    /// no adapter. Default: all adapters, with the scales that were set for the [load](crate::ModelBuilder::lora).
    ///
    /// llama.cpp computes a batch with one set of adapters, so texts with different sets take turns in a
    /// [`Session`](crate::generate::Session) and an [`Engine`](crate::generate::Engine). A text does not reuse tokens
    /// that were computed with another set.
    ///
    /// ```no_run
    /// let model = autoplace::Model::builder("model.gguf").lora("style.gguf", 0.0).load()?;
    /// let plain = model.generate("Dear Sir,").text()?;
    /// let styled = model.generate("Dear Sir,").lora([("style", 0.8)]).text()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lora<N: Into<String>>(mut self, adapters: impl IntoIterator<Item = (N, f32)>) -> Self {
        self.spec.lora = Some(adapters.into_iter().map(|(name, scale)| (name.into(), scale)).collect());
        self
    }

    /// Among the tokens that the other samplers leave, prefers tokens whose probability is near `target` (0.0 to 1.0).
    /// Default: off.
    pub fn adaptive_p(mut self, target: f32) -> Self {
        let sampling = &mut self.spec.sampling;
        sampling.adaptive_target = target;
        if !sampling.samplers.contains(&SamplerKind::AdaptiveP) {
            sampling.samplers.push(SamplerKind::AdaptiveP);
        }
        self
    }

    /// Whether [`logprobs`](Self::logprobs) were requested.
    pub fn reports_logprobs(&self) -> bool {
        self.spec.logprobs.is_some()
    }
}
