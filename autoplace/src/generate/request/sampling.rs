//! How the tokens of a generation are to be chosen, described.

use llama_sys::{Candidates, Token};

use super::Generate;
use crate::generate::custom::CustomSampler;
use crate::generate::sampling::{Mirostat, SamplerKind, Sampling};

impl Generate {
    /// All sampling parameters at once. Default: the model's own ([`Model::sampling`](crate::Model::sampling)).
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.spec.sampling = sampling;
        self
    }

    /// Divides the logits; 0.0 always takes the likeliest token. Default: the model's own, or 0.8.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.spec.sampling.temperature = temperature;
        self
    }

    /// Keeps the `k` likeliest tokens; 0 keeps all. Default: the model's own, or 40.
    pub fn top_k(mut self, k: u32) -> Self {
        self.spec.sampling.top_k = k;
        self
    }

    /// Keeps the likeliest tokens whose probabilities add up to `p`; 1.0 keeps all. Default: the model's own, or 0.95.
    pub fn top_p(mut self, p: f32) -> Self {
        self.spec.sampling.top_p = p;
        self
    }

    /// Keeps tokens at least `p` times as likely as the likeliest; 0.0 keeps all. Default: the model's own, or 0.05.
    pub fn min_p(mut self, p: f32) -> Self {
        self.spec.sampling.min_p = p;
        self
    }

    /// Divides the logits of the last 64 tokens ([`Sampling::repeat_last_n`]) by `penalty`; 1.0 is off. Default: the
    /// model's own, or 1.0.
    pub fn repeat_penalty(mut self, penalty: f32) -> Self {
        self.spec.sampling.repeat_penalty = penalty;
        self
    }

    /// Subtracts `penalty` from the logit of a recent token for each time that it came; 0.0, the default, is off.
    pub fn frequency_penalty(mut self, penalty: f32) -> Self {
        self.spec.sampling.frequency_penalty = penalty;
        self
    }

    /// Subtracts `penalty` once from the logit of a recent token; 0.0, the default, is off.
    pub fn presence_penalty(mut self, penalty: f32) -> Self {
        self.spec.sampling.presence_penalty = penalty;
        self
    }

    /// Drops the likeliest tokens with this `probability`, down to the last that is at least `threshold` likely (XTC);
    /// 0.0 is off. Default: the model's own, or off.
    pub fn xtc(mut self, probability: f32, threshold: f32) -> Self {
        self.spec.sampling.xtc_probability = probability;
        self.spec.sampling.xtc_threshold = threshold;
        self
    }

    /// Punishes tokens that go on with a repetition (DRY), by `multiplier`; 0.0, the default, is off. [`Sampling`] has
    /// its other numbers.
    pub fn dry(mut self, multiplier: f32) -> Self {
        self.spec.sampling.dry_multiplier = multiplier;
        self
    }

    /// Keeps the surprise of the text near `tau` bits per token, instead of all samplers but the temperature. Default:
    /// the model's own, or off.
    pub fn mirostat(mut self, mirostat: Mirostat, tau: f32) -> Self {
        self.spec.sampling.mirostat = mirostat;
        self.spec.sampling.mirostat_tau = tau;
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

    /// Adds `bias` to the logit of a token; can be called for several. -1000.0 forbids it as long as there is another.
    pub fn logit_bias(mut self, token: Token, bias: f32) -> Self {
        self.spec.sampling.logit_bias.push((token, bias));
        self
    }

    /// The same for the token that `text` is: [`Error::NotOneToken`](crate::generate::Error::NotOneToken) when the
    /// generation begins, if it is more or fewer.
    pub fn logit_bias_text(mut self, text: impl Into<String>, bias: f32) -> Self {
        let biases = &mut self.spec.sampling.logit_bias_text;
        biases.push((text.into(), bias));
        self
    }

    /// Which samplers apply, in this order. Without any, a token is chosen by the model's own probabilities. Default:
    /// the model's own, or [`SamplerKind::DEFAULT`].
    pub fn samplers(mut self, samplers: impl IntoIterator<Item = SamplerKind>) -> Self {
        self.spec.sampling.samplers = samplers.into_iter().collect();
        self
    }

    /// Chooses each token by a closure, of the candidates that the other samplers leave and the tokens so far, the
    /// prompt's first. [`Candidates::selected`] is what would be chosen without it; where [`samplers`](Self::samplers)
    /// are none, all tokens are there. [`Candidates::softmax`] computes their probabilities.
    ///
    /// Any token of the vocabulary may be chosen; under a constraint, one that it allows, or the text ends with
    /// [`Error::NotAllowed`](crate::generate::Error::NotAllowed). Each text has a copy of the closure. It cannot choose
    /// for a model in a worker process: [`worker::Error::Elsewhere`](crate::worker::Error::Elsewhere).
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
    pub fn sampler<F>(mut self, choose: F) -> Self
    where
        F: FnMut(&mut Candidates, &[Token]) -> Token + Clone + Send + 'static,
    {
        self.spec.custom = Some(CustomSampler::new(Box::new(choose)));
        self
    }

    /// Seed of the random choice: the same seed gives the same text. Default: a new one every time.
    pub fn seed(mut self, seed: u32) -> Self {
        self.spec.sampling.seed = Some(seed);
        self
    }
}
