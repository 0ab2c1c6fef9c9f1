//! The sampling parameters that a model's authors put into the file: `general.sampling.*`.

use super::{Mirostat, SamplerKind, Sampling};
use crate::gguf::{Header, Number, Value};

impl Sampling {
    /// Reads the sampling parameters of a file, such as `general.sampling.temp`. Missing keys get llama.cpp's defaults
    /// (common/common.cpp, common_init_sampler_from_model). An invalid value is skipped with a warning.
    pub fn shipped_with(header: &Header) -> Self {
        let file = Shipped { header };
        let mut sampling = Self::default();
        let probability = |p: f64| (0.0..=1.0).contains(&p);
        let not_negative = |number: f64| (0.0..=1e6).contains(&number);
        if let Some(samplers) = file.sequence() {
            sampling.samplers = samplers;
        }
        // 0 and negative values keep all tokens.
        sampling.top_k = file.count("top_k", sampling.top_k);
        sampling.top_p = file.number("top_p", sampling.top_p, probability);
        sampling.min_p = file.number("min_p", sampling.min_p, probability);
        sampling.xtc_probability = file.number("xtc_probability", sampling.xtc_probability, probability);
        sampling.xtc_threshold = file.number("xtc_threshold", sampling.xtc_threshold, probability);
        let temperature = |number| number == 0.0 || (1e-6..=1e6).contains(&number);
        sampling.temperature = file.number("temp", sampling.temperature, temperature);
        sampling.repeat_last_n = file.count("penalty_last_n", sampling.repeat_last_n);
        let penalty = |number| (1e-6..=1e6).contains(&number);
        sampling.repeat_penalty = file.number("penalty_repeat", sampling.repeat_penalty, penalty);
        sampling.mirostat = match file.number("mirostat", 0.0, |version| [0.0, 1.0, 2.0].contains(&version)) {
            1.0 => Mirostat::V1,
            2.0 => Mirostat::V2,
            _ => Mirostat::Off,
        };
        sampling.mirostat_tau = file.number("mirostat_tau", sampling.mirostat_tau, not_negative);
        sampling.mirostat_eta = file.number("mirostat_eta", sampling.mirostat_eta, not_negative);
        sampling
    }
}

struct Shipped<'a> {
    header: &'a Header,
}

impl Shipped<'_> {
    /// Reads a number of any type, or a string that contains a number; llama.cpp converts any value to a string and
    /// parses this string. An invalid value is skipped with a warning.
    fn taken(&self, name: &str, is_taken: fn(f64) -> bool) -> Option<f64> {
        let key = format!("general.sampling.{name}");
        let value = self.header.get(&key)?;
        let number = match value {
            Value::Str(text) => text.trim().parse().ok(),
            value => value.as_number().and_then(Number::as_f64),
        };
        let taken = number.filter(|number| is_taken(*number));
        if taken.is_none() {
            tracing::warn!(target: "autoplace::generate", "{key} is {value:?}, which no sampler accepts");
        }
        taken
    }

    fn number(&self, name: &str, otherwise: f32, is_taken: fn(f64) -> bool) -> f32 {
        self.taken(name, is_taken).map_or(otherwise, |number| number as f32)
    }

    /// Reads a number of tokens; a negative number becomes 0.
    fn count(&self, name: &str, otherwise: u32) -> u32 {
        self.taken(name, |number| number <= f64::from(1 << 24)).map_or(otherwise, |number| number.max(0.0) as u32)
    }

    /// The names of the samplers, separated by semicolons.
    fn sequence(&self) -> Option<Vec<SamplerKind>> {
        let key = "general.sampling.sequence";
        let names = self.header.get(key)?.as_str()?.split(';');
        let mut samplers = Vec::new();
        for name in names.filter(|name| !name.trim().is_empty()) {
            match SamplerKind::from_name(name) {
                Some(kind) if samplers.contains(&kind) => {}
                Some(kind) => samplers.push(kind),
                None => tracing::warn!(target: "autoplace::generate", "{key} names an unknown sampler: {name}"),
            }
        }
        Some(samplers).filter(|samplers| !samplers.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Builder;

    fn key(name: &str) -> String {
        format!("general.sampling.{name}")
    }

    fn shipped_with(change: impl FnOnce(Builder) -> Builder) -> Sampling {
        Sampling::shipped_with(&change(Builder::new("llama")).header().unwrap())
    }

    #[test]
    fn every_key_is_read_and_missing_keys_get_llama_cpps_defaults() {
        assert_eq!(shipped_with(|file| file), Sampling::default());
        let shipped = shipped_with(|file| {
            file.str(&key("sequence"), "top_k;temperature; min-p;nonsense;topk")
                .i32(&key("top_k"), 20)
                .f32(&key("top_p"), 0.5)
                .f32(&key("min_p"), 0.25)
                .f32(&key("xtc_probability"), 0.125)
                .f32(&key("xtc_threshold"), 0.75)
                .f32(&key("temp"), 0.625)
                .i32(&key("penalty_last_n"), 128)
                .f32(&key("penalty_repeat"), 1.125)
                .i32(&key("mirostat"), 2)
                .f32(&key("mirostat_tau"), 4.0)
                .f32(&key("mirostat_eta"), 0.25)
        });
        let expected = Sampling {
            samplers: vec![SamplerKind::TopK, SamplerKind::Temperature, SamplerKind::MinP],
            top_k: 20,
            top_p: 0.5,
            min_p: 0.25,
            xtc_probability: 0.125,
            xtc_threshold: 0.75,
            temperature: 0.625,
            repeat_last_n: 128,
            repeat_penalty: 1.125,
            mirostat: Mirostat::V2,
            mirostat_tau: 4.0,
            mirostat_eta: 0.25,
            ..Sampling::default()
        };
        assert_eq!(shipped, expected);
    }

    #[test]
    fn values_that_no_sampler_accepts_are_left_out() {
        let shipped = shipped_with(|file| {
            file.str(&key("sequence"), "nonsense")
                .i32(&key("top_k"), -1)
                .f32(&key("top_p"), 1.5)
                .f32(&key("temp"), f32::NAN)
                .f32(&key("penalty_repeat"), 0.0)
                .u64(&key("penalty_last_n"), u64::MAX)
                .u32(&key("mirostat"), 3)
                .str(&key("min_p"), "much")
        });
        assert_eq!(shipped, Sampling { top_k: 0, ..Sampling::default() });
    }
}
