//! Sampling parameters, with llama.cpp's names.

use autoplace::generate::{Mirostat, SamplerKind, Sampling};
use clap::value_parser;

use super::texts::escaped;

/// Sampling parameters. Parameters that are not given are the model's own, or llama.cpp's defaults.
#[derive(Debug, Default, Clone, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct SamplingArgs {
    /// Temperature, which divides the logits; 0 always takes the likeliest token [default: the model's own, or 0.8]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temp: Option<f32>,
    /// Seed of the random choice: the same seed gives the same text [default: a new seed every time]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(..i64::from(u32::MAX)))]
    seed: Option<u32>,
    /// Keeps the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Keeps the likeliest tokens whose probabilities add up to P
    #[arg(long, value_name = "P", value_parser = share)]
    top_p: Option<f32>,
    /// Keeps tokens at least P times as likely as the likeliest
    #[arg(long, value_name = "P", value_parser = share)]
    min_p: Option<f32>,
    /// Keeps tokens of typical surprise, up to a total probability of P
    #[arg(long, value_name = "P", value_parser = share)]
    typical_p: Option<f32>,
    /// Keeps tokens at most N standard deviations below the likeliest
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    top_n_sigma: Option<f32>,
    /// Range of the dynamic temperature around the temperature
    #[arg(long, value_name = "T")]
    dynatemp_range: Option<f32>,
    /// Exponent of the entropy in the dynamic temperature
    #[arg(long, value_name = "F")]
    dynatemp_exp: Option<f32>,
    /// Probability of dropping the likeliest tokens (XTC)
    #[arg(long, value_name = "P", value_parser = share)]
    xtc_probability: Option<f32>,
    /// Minimum probability of a token that XTC drops
    #[arg(long, value_name = "P")]
    xtc_threshold: Option<f32>,
    /// Factor that makes recent tokens less likely; 1 is off
    #[arg(long, value_name = "F")]
    repeat_penalty: Option<f32>,
    /// Number of recent tokens for the penalties; -1 for the whole context
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = last_n)]
    repeat_last_n: Option<u32>,
    /// Subtracted once from the logit of a recent token
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtracted from the logit of a recent token for each occurrence
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Penalises tokens that continue a repetition (DRY); 0 is off
    #[arg(long, value_name = "F")]
    dry_multiplier: Option<f32>,
    /// Factor of the DRY penalty for each further token of a repetition
    #[arg(long, value_name = "F")]
    dry_base: Option<f32>,
    /// Length of repetitions without a DRY penalty
    #[arg(long, value_name = "N")]
    dry_allowed_length: Option<u32>,
    /// Number of recent tokens for DRY; -1 for the whole context
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = last_n)]
    dry_penalty_last_n: Option<u32>,
    /// Texts that interrupt a repetition, instead of llama.cpp's list; `\n` and so on are escapes; `none` for no texts;
    /// repeat for several
    #[arg(long, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Keeps the surprise of a text at a target: 0 is off, 1 and 2 are the versions of Mirostat
    #[arg(long, value_name = "0|1|2", value_parser = mirostat)]
    mirostat: Option<Mirostat>,
    /// Mirostat's target, in bits per token
    #[arg(long, value_name = "F")]
    mirostat_ent: Option<f32>,
    /// Mirostat's learning rate
    #[arg(long, value_name = "F")]
    mirostat_lr: Option<f32>,
    /// Preferred probability of tokens (adaptive-p); off below 0
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    adaptive_target: Option<f32>,
    /// Memory of adaptive-p, 0 to 0.99
    #[arg(long, value_name = "F")]
    adaptive_decay: Option<f32>,
    /// The samplers in their order: `top_k;top_p;temperature`
    #[arg(long, value_name = "NAME;...", value_parser = samplers)]
    samplers: Option<Samplers>,
    /// Added to the logit of a token: `15043+1`, `15043-1`; repeat for several
    #[arg(long, value_name = "TOKEN+BIAS", allow_hyphen_values = true, value_parser = logit_bias)]
    logit_bias: Vec<(i32, f32)>,
}

#[derive(Debug, Clone)]
struct Samplers(Vec<SamplerKind>);

impl SamplingArgs {
    /// Replaces the model's own parameters by the given ones. If the texts have escapes, `\n` in a sequence breaker is
    /// a line break, as in llama.cpp.
    pub(super) fn over(&self, mut own: Sampling, has_escapes: bool) -> Sampling {
        macro_rules! set {
            ($($field:ident = $said:ident),* $(,)?) => {
                $(if let Some(said) = self.$said { own.$field = said; })*
            };
        }
        set! {
            top_k = top_k, top_p = top_p, min_p = min_p, typical_p = typical_p, top_n_sigma = top_n_sigma,
            dynatemp_range = dynatemp_range, dynatemp_exponent = dynatemp_exp,
            xtc_probability = xtc_probability, xtc_threshold = xtc_threshold,
            repeat_penalty = repeat_penalty, repeat_last_n = repeat_last_n,
            presence_penalty = presence_penalty, frequency_penalty = frequency_penalty,
            dry_multiplier = dry_multiplier, dry_base = dry_base, dry_allowed_length = dry_allowed_length,
            dry_penalty_last_n = dry_penalty_last_n,
            mirostat = mirostat, mirostat_tau = mirostat_ent, mirostat_eta = mirostat_lr,
            adaptive_target = adaptive_target, adaptive_decay = adaptive_decay,
        }
        // common/arg.cpp raises a negative temperature to 0.
        own.temperature = self.temp.map_or(own.temperature, |temp| temp.max(0.0));
        own.seed = self.seed.or(own.seed);
        if let Some(Samplers(kinds)) = &self.samplers {
            own.samplers.clone_from(kinds);
        }
        if self.adaptive_target.is_some_and(|target| target >= 0.0) && !own.samplers.contains(&SamplerKind::AdaptiveP) {
            own.samplers.push(SamplerKind::AdaptiveP);
        }
        if !self.dry_sequence_breaker.is_empty() {
            let breakers = self.dry_sequence_breaker.iter().filter(|breaker| *breaker != "none");
            let read = |breaker: &String| if has_escapes { escaped(breaker) } else { breaker.clone() };
            own.dry_sequence_breakers = breakers.map(read).collect();
        }
        own.logit_bias.extend(&self.logit_bias);
        own
    }
}

/// Parses a probability, or a sum of probabilities.
fn share(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "write a number from 0 to 1".to_owned())
}

/// Parses a number of tokens. -1 means the whole context, which is written as a large number.
fn last_n(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(i32::MAX as u32),
        Ok(tokens) if (0..=i64::from(i32::MAX)).contains(&tokens) => Ok(tokens as u32),
        _ => Err("a number of tokens, or -1 for the whole context".to_owned()),
    }
}

fn mirostat(text: &str) -> Result<Mirostat, String> {
    match text {
        "0" => Ok(Mirostat::Off),
        "1" => Ok(Mirostat::V1),
        "2" => Ok(Mirostat::V2),
        _ => Err("use 0, 1 or 2".to_owned()),
    }
}

fn samplers(text: &str) -> Result<Samplers, String> {
    let kind = |name: &str| SamplerKind::from_name(name).ok_or_else(|| format!("`{name}` is not a sampler"));
    text.split(';').filter(|name| !name.trim().is_empty()).map(kind).collect::<Result<_, _>>().map(Samplers)
}

/// Parses `--logit-bias` like common/arg.cpp.
fn logit_bias(text: &str) -> Result<(i32, f32), String> {
    let wrong = || format!("`{text}` is not a token with its bias, such as 15043+1");
    let at = text.find(['+', '-']).filter(|&at| at > 0).ok_or_else(wrong)?;
    match (text[..at].trim().parse(), text[at..].parse()) {
        (Ok(token), Ok(bias)) => Ok((token, bias)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::{SamplingArgs, last_n, logit_bias, samplers};
    use autoplace::generate::{SamplerKind, Sampling};

    #[test]
    fn biases_and_samplers_are_read_as_llama_cpp_reads_them() {
        assert_eq!(logit_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(logit_bias("15043-1.5"), Ok((15043, -1.5)));
        assert!(logit_bias("-15043").is_err() && logit_bias("hello+1").is_err() && logit_bias("7+").is_err());
        let read = samplers("top_k;min-p;temp").unwrap().0;
        assert_eq!(read, [SamplerKind::TopK, SamplerKind::MinP, SamplerKind::Temperature]);
        assert!(samplers("top_k;best").unwrap_err().contains("best"));
        // To llama.cpp, -1 means the whole context.
        assert_eq!(["-1", "0", "64"].map(last_n), [Ok(i32::MAX as u32), Ok(0), Ok(64)]);
        assert!(last_n("-2").is_err() && last_n("all").is_err());
    }

    #[test]
    fn escapes_of_a_sequence_breaker_are_llama_cpps() {
        let args = SamplingArgs {
            dry_sequence_breaker: vec![r"\n".to_owned(), r"a\tb".to_owned()],
            ..SamplingArgs::default()
        };
        assert_eq!(args.over(Sampling::default(), true).dry_sequence_breakers, ["\n", "a\tb"]);
        assert_eq!(args.over(Sampling::default(), false).dry_sequence_breakers, [r"\n", r"a\tb"]);
    }
}
