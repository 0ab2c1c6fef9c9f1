//! A generation being described: what is to be generated, and how.

use llama_sys::{Candidates, Token};
use serde::{Deserialize, Serialize};

use super::constraint::Constraint;
use super::custom::{CustomDrafter, CustomSampler};
use super::error::Error;
use super::piece::Progress;
use super::prompt::Prompt;
use super::sampling::{Mirostat, SamplerKind, Sampling};
use super::speculative::Speculation;
use crate::load::Model;
use crate::worker;

/// A generation being described: finish it with [`stream`](Self::stream) or [`text`](Self::text).
#[derive(Debug, Clone)]
#[must_use = "nothing is generated until `stream` or `text` is called"]
pub struct Generate {
    pub(super) model: Model,
    pub(super) spec: Spec,
}

/// What happens to a text when the context has no place for its next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WhenFull {
    /// It ends, with [`FinishReason::ContextFull`](super::FinishReason::ContextFull).
    #[default]
    Stop,
    /// It ends, and after its last piece a stream returns [`Error::ContextFull`](super::Error::ContextFull), and so
    /// does [`Generate::text`]: for whom half an answer is none. A [`Session`](super::Session) says it with the last
    /// piece, as for `Stop`, since its other texts go on.
    Error,
    /// The oldest tokens after the first `keep` of the prompt are shifted out, half of them at a time, and the others
    /// move up without being computed again: the text goes on without end, for a model that writes raw text. It is
    /// llama.cpp's `--context-shift`, with its `--keep`. A BOS token at the beginning is always kept, and a `keep` of
    /// `usize::MAX` is the whole prompt.
    ///
    /// What has moved up has seen the tokens that are gone, and no other text goes on from it. Cells that other texts
    /// have too (`kv_unified`) go besides, since to leave them makes no room; where nothing is left to shift out, the
    /// text ends as for `Stop`. [`Statistics::discarded_tokens`](super::Statistics::discarded_tokens) counts.
    ///
    /// A memory that cannot do it is [`Error::CannotShift`](super::Error::CannotShift) when the text begins, with the
    /// reason: a recurrent state, windows without `swa_full`, positions of several axes (M-RoPE), keys that are
    /// neither F16 nor F32, YaRN, or an `n_ubatch` of fewer than 4 tokens for each cache.
    Shift {
        /// Tokens at the beginning of the prompt that stay.
        keep: usize,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(super) prompt: Prompt,
    /// What of the prompt the context holds already is not computed again. `None`: as whoever generates does it.
    pub(super) cache_prompt: Option<bool>,
    pub(super) sampling: Sampling,
    /// Adapters with their scales, instead of all at the scales of the load.
    pub(super) lora: Option<Vec<(String, f32)>>,
    /// How many of the likeliest tokens are reported beside the chosen one.
    pub(super) logprobs: Option<usize>,
    /// Not for a worker.
    #[serde(skip)]
    pub(super) custom: Option<CustomSampler>,
    /// Not for a worker.
    #[serde(skip)]
    pub(super) drafter: Option<CustomDrafter>,
    pub(super) constraint: Option<Constraint>,
    pub(super) stops: Vec<String>,
    pub(super) stop_tokens: Vec<Token>,
    pub(super) limits: Limits,
    pub(super) speculation: Speculation,
    pub(super) when_full: WhenFull,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Limits {
    pub(super) max_tokens: usize,
    /// Control tokens are written out.
    pub(super) special: bool,
    /// What ends a text is a token like any other.
    pub(super) ignore_eos: bool,
    /// Nothing that ends a text is chosen before so many tokens.
    pub(super) min_tokens: usize,
}

impl Spec {
    pub(super) fn new(prompt: Prompt, sampling: Sampling) -> Self {
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

    /// The same with an empty prompt.
    pub(super) fn without_prompt(&self) -> Self {
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

    /// Refuses closures, which cannot go to a worker.
    pub(super) fn check_for_worker(&self) -> Result<(), Error> {
        let what = match (&self.custom, &self.drafter) {
            (Some(_), _) => "the choice of its tokens",
            (None, Some(_)) => "the draft of its tokens",
            (None, None) => return Ok(()),
        };
        Err(worker::Error::Elsewhere { what }.into())
    }

    /// For the reader of the text.
    pub(super) fn progress(&self) -> Progress {
        Progress::new(self.when_full == WhenFull::Error, self.constraint.is_some())
    }
}

impl Generate {
    setters! {
        /// Another prompt.
        prompt(prompt: impl Into<Prompt>) spec.prompt = prompt.into();
        /// Ends after `n` tokens. Default: at the end of the text or of the context.
        max_tokens(n: usize) spec.limits.max_tokens = n;
        /// Computes only the part of the prompt that the context does not hold from earlier texts. Those may be rounded
        /// differently: then the same seed can give another text. [`cached_tokens`](super::Statistics::cached_tokens)
        /// says how much was there. Default: off, and on in an [`Engine`](super::Engine).
        ///
        /// What a text leaves in the context is kept until another needs the place. Recurrent models go on where a text
        /// ended, models with sliding windows also where the window is still held, and both from a
        /// [checkpoint](crate::ModelBuilder::checkpoints) before.
        cache_prompt(cache: bool) spec.cache_prompt = Some(cache);
        /// What happens when the context has no place for the next token. Default: the text ends.
        when_full(when_full: WhenFull) spec.when_full = when_full;
        /// Ends before `text` would appear; can be called several times.
        stop(text: impl Into<String>) spec.stops.push(text.into());
        /// Ends with this token as with one of the model's own that end a text: vLLM's `stop_token_ids`. Its text is
        /// not part of the answer. Can be called for several.
        stop_token(token: Token) spec.stop_tokens.push(token);
        /// Chooses nothing that ends the text before `n` tokens: neither the model's own tokens for that nor
        /// [`stop_token`](Self::stop_token)s. Stop strings, limits and a complete constraint end it earlier. Default:
        /// 0.
        min_tokens(n: usize) spec.limits.min_tokens = n;
        /// Writes control tokens out as text instead of leaving them out.
        special(show: bool) spec.limits.special = show;
        /// Holds the text to a JSON schema, a regular expression, a grammar or a list of choices: it ends by itself
        /// when it meets that, and not before. Where a limit ends it earlier ([`max_tokens`](Self::max_tokens),
        /// [`stop`](Self::stop), the end of the context), the last item is
        /// [`Error::Incomplete`](super::Error::Incomplete).
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
        constraint(constraint: Constraint) spec.constraint = Some(constraint);
        /// Drafts the next tokens, so that several are computed at once. The text is the one that it would be without,
        /// but for rounding; how many of the draft tokens were accepted is in the [`Statistics`](super::Statistics).
        /// Where drafting takes longer than it saves, it pauses by itself.
        ///
        /// The model has to be loaded with room for it: [`Request::draft_max`](crate::plan::Request::draft_max). Where
        /// it is not, or cannot go back in its memory, the text is generated without, and
        /// [`Statistics::drafts_off`](super::Statistics::drafts_off) says why. Default: [`Speculation::Off`].
        speculate(speculation: Speculation) spec.speculation = speculation.in_range();
        /// Drafts the next tokens by a closure of the application, in place of [`speculate`](Self::speculate). The
        /// closure gets the prompt and the answer so far, and pushes the tokens that it expects, in their order; a
        /// step computes as many of them as the context was planned for
        /// ([`Request::draft_max`](crate::plan::Request::draft_max)). It is for an application that knows more of the
        /// answer than the text does: the file that is edited, the form that is filled in. Each text has a copy of the
        /// closure.
        ///
        /// Wrong drafts cost time and change nothing: the text is the same as without. A model in a worker process
        /// refuses it: [`worker::Error::Elsewhere`](crate::worker::Error::Elsewhere).
        ///
        /// ```no_run
        /// # let model = autoplace::Model::builder("model.gguf").draft_max(8).load()?;
        /// let before = model.tokenize("fn main() { println!(); }")?;
        /// let generate = model.generate("Repeat the function.").draft_with(move |so_far, draft| {
        ///     // What followed the last token in the file.
        ///     let last = so_far.last().and_then(|last| before.iter().rposition(|token| token == last));
        ///     draft.extend(last.map_or(&[][..], |at| &before[at + 1..]));
        /// });
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        draft_with(draft: impl FnMut(&[Token], &mut Vec<Token>) + Clone + Send + 'static)
            spec.drafter = Some(CustomDrafter::new(Box::new(draft)));
        /// Reports with each piece how likely its token was, and which `n` tokens were the likeliest, at most 128
        /// ([`Piece::logprobs`](super::Piece::logprobs)): by the model's own distribution, before any sampler. Default:
        /// nothing.
        logprobs(n: usize) spec.logprobs = Some(n);
        /// Goes on where the model would end the text, as vLLM's `ignore_eos` does: for measurements. What ends it is
        /// [`max_tokens`](Self::max_tokens), a stop string, a complete constraint or a full context.
        ignore_eos() spec.limits.ignore_eos = true;
        /// All sampling parameters at once. Default: the model's own ([`Model::sampling`](crate::Model::sampling)).
        sampling(sampling: Sampling) spec.sampling = sampling;
        /// Divides the logits; 0.0 always takes the likeliest token. Default: the model's own, or 0.8.
        temp(temp: f32) spec.sampling.temperature = temp;
        /// Keeps the `k` likeliest tokens; 0 keeps all. Default: the model's own, or 40.
        top_k(k: u32) spec.sampling.top_k = k;
        /// Keeps the likeliest tokens whose probabilities add up to `p`; 1.0 keeps all. Default: the model's own, or
        /// 0.95.
        top_p(p: f32) spec.sampling.top_p = p;
        /// Keeps tokens at least `p` times as likely as the likeliest; 0.0 keeps all. Default: the model's own, or
        /// 0.05.
        min_p(p: f32) spec.sampling.min_p = p;
        /// Divides the logits of the last 64 tokens ([`Sampling::repeat_last_n`]) by `penalty`; 1.0 is off. Default:
        /// the model's own, or 1.0.
        repeat_penalty(penalty: f32) spec.sampling.repeat_penalty = penalty;
        /// Subtracts `penalty` from the logit of a recent token for each time that it came; 0.0, the default, is off.
        frequency_penalty(penalty: f32) spec.sampling.frequency_penalty = penalty;
        /// Subtracts `penalty` once from the logit of a recent token; 0.0, the default, is off.
        presence_penalty(penalty: f32) spec.sampling.presence_penalty = penalty;
        /// Drops the likeliest tokens with this `probability`, down to the last that is at least `threshold` likely
        /// (XTC); 0.0 is off. Default: the model's own, or off.
        xtc(probability: f32, threshold: f32)
            spec.sampling.xtc_probability = probability, spec.sampling.xtc_threshold = threshold;
        /// Punishes tokens that go on with a repetition (DRY), by `multiplier`; 0.0, the default, is off. [`Sampling`]
        /// has its other numbers.
        dry(multiplier: f32) spec.sampling.dry_multiplier = multiplier;
        /// Keeps the surprise of the text near `tau` bits per token, instead of all samplers but the temperature.
        /// Default: the model's own, or off.
        mirostat(mirostat: Mirostat, tau: f32) spec.sampling.mirostat = mirostat, spec.sampling.mirostat_tau = tau;
        /// Adds `bias` to the logit of a token; can be called for several, once for each. -1000.0 forbids a token as
        /// long as there is another.
        logit_bias(token: Token, bias: f32) spec.sampling.logit_bias.push((token, bias));
        /// The same for the token that `text` is: [`Error::NotOneToken`](crate::generate::Error::NotOneToken) when the
        /// generation begins, if it is more or fewer.
        logit_bias_text(text: impl Into<String>, bias: f32) spec.sampling.logit_bias_text.push((text.into(), bias));
        /// Which samplers apply, in this order. Without any, a token is chosen by the model's own probabilities.
        /// Default: the model's own, or [`SamplerKind::DEFAULT`].
        samplers(kinds: impl IntoIterator<Item = SamplerKind>) spec.sampling.samplers = kinds.into_iter().collect();
        /// Chooses each token by a closure, of the candidates that the other samplers leave and the tokens so far, the
        /// prompt's first. [`Candidates::selected`] is what would be chosen without it; where
        /// [`samplers`](Self::samplers) are none, all tokens are there. [`Candidates::softmax`] computes their
        /// probabilities.
        ///
        /// Any token of the vocabulary may be chosen; under a constraint, one that it allows, or the text ends with
        /// [`Error::NotAllowed`](crate::generate::Error::NotAllowed). Each text has a copy of the closure. It cannot
        /// choose for a model in a worker process: [`worker::Error::Elsewhere`](crate::worker::Error::Elsewhere).
        ///
        /// ```no_run
        /// # let model = autoplace::Model::load("model.gguf")?;
        /// // Never twice the same token.
        /// let generate = model.generate("Once upon a time").sampler(|candidates, so_far| {
        ///     candidates.retain(|candidate| !so_far.ends_with(&[candidate.token()]));
        ///     let likeliest = candidates.iter().max_by(|a, b| a.logit().total_cmp(&b.logit()));
        ///     likeliest.map_or(0, |candidate| candidate.token())
        /// });
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        sampler(choose: impl FnMut(&mut Candidates, &[Token]) -> Token + Clone + Send + 'static)
            spec.custom = Some(CustomSampler::new(Box::new(choose)));
        /// Seed of the random choice: the same seed gives the same text. Default: a new one every time.
        seed(seed: u32) spec.sampling.seed = Some(seed);
    }

    /// Computes with these of the model's [adapters](Model::adapters), by their names, at these scales, and with no
    /// others; with none at all where the list is empty. Default: all of them, at the scales of the
    /// [load](crate::ModelBuilder::lora).
    ///
    /// Texts with different sets take turns in a [`Session`](super::Session) and an [`Engine`](super::Engine), since
    /// llama.cpp computes a batch with one set. What the context holds of texts with another set is not reused.
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

    /// Prefers tokens whose probability is near `target`, 0.0 to 1.0, whatever chance would choose of those that the
    /// other samplers leave. Default: off.
    pub fn adaptive_p(mut self, target: f32) -> Self {
        let sampling = &mut self.spec.sampling;
        sampling.adaptive_target = target;
        if !sampling.samplers.contains(&SamplerKind::AdaptiveP) {
            sampling.samplers.push(SamplerKind::AdaptiveP);
        }
        self
    }

    /// Whether [`logprobs`](Self::logprobs) were asked for.
    pub fn reports_logprobs(&self) -> bool {
        self.spec.logprobs.is_some()
    }
}
