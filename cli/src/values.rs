//! Parsers and limits for argument values that several verbs share.

use std::time::Duration;

use autoplace::plan::GpuLayers;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// The longest context that llama_sys accepts. llama.cpp rounds a context up to a multiple of 256 tokens
/// (llama-context.cpp, the constructor), and counts tokens in signed integers of 32 bits.
pub(crate) const MAX_TOKENS: u32 = i32::MAX as u32 / 256 * 256;

/// A parser for values with names. Shells can complete the names.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(
    all: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(all.iter().map(|(name, _)| *name));
    names.try_map(|name| all.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or("no such value"))
}

/// Parses `--n-gpu-layers` like common/arg.cpp: -1 means `auto`, and any smaller number means `all`.
pub(crate) fn gpu_layers(text: &str) -> Result<GpuLayers, String> {
    match (text, text.parse::<i64>()) {
        ("auto", _) | (_, Ok(-1)) => Ok(GpuLayers::Auto),
        ("all", _) | (_, Ok(..-1)) => Ok(GpuLayers::All),
        (_, Ok(layers)) => {
            u32::try_from(layers).map(GpuLayers::Exactly).map_err(|_| "no model has that many layers".to_owned())
        }
        _ => Err("write a number of layers, `all` or `auto`".to_owned()),
    }
}

/// Parses a number of seconds, which may have a fraction.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "a time is a number of seconds, such as 2 or 0.5".to_owned())
}
