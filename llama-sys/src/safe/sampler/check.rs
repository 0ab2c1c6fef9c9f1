//! Checks that refuse values with which llama.cpp would misbehave.

use std::ffi::CString;

use crate::raw;
use crate::safe::call::Error;

/// Maximum of `last_n`. No context of today has as many tokens.
const MAX_LAST_N: u32 = 1 << 24;

/// The maximum that may be added to a logit. llama.cpp sorts by 6.4 times the logit, converted to `int`
/// (llama-sampler.cpp, llama_token_data_array_partial_sort). This number must stay far below the maximum of an `int`.
const MAX_BIAS: f32 = 1e6;

/// The lowest temperature. With a lower one, the divided logits would be infinite, or too large for llama.cpp to sort
/// ([`MAX_BIAS`]).
pub(super) const MIN_TEMPERATURE: f32 = 1e-6;

/// Maximum number of bytes in a sequence breaker. llama.cpp silently cuts off the rest of a longer one
/// (llama_sampler_init_dry).
const MAX_BREAKER: usize = 40;

/// Maximum number of sequence breakers. llama.cpp logs a warning and ignores further ones (llama_sampler_init_dry).
const MAX_BREAKERS: usize = raw::LLAMA_DRY_MAX_SEQ_BREAKERS as usize;

pub(super) fn text(name: &'static str, text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::parameter(name, text, "a text must not contain a NUL byte"))
}

pub(super) fn int(name: &'static str, value: u32) -> Result<i32, Error> {
    i32::try_from(value).map_err(|_| Error::parameter(name, value, "it must be at most 2147483647"))
}

/// Refuses a number of tokens that is too large, because llama.cpp allocates memory for all of them at once.
pub(super) fn last_n(name: &'static str, last_n: u32) -> Result<i32, Error> {
    match i32::try_from(last_n) {
        Ok(tokens) if last_n <= MAX_LAST_N => Ok(tokens),
        _ => Err(Error::parameter(name, last_n, format!("it must be at most {MAX_LAST_N} tokens"))),
    }
}

/// The sequence breakers in their order, each only once.
pub(super) fn sequence_breakers(breakers: &[impl AsRef<str>]) -> Result<Vec<CString>, Error> {
    let mut different: Vec<CString> = Vec::new();
    for breaker in breakers {
        let breaker = sequence_breaker(breaker.as_ref())?;
        if different.contains(&breaker) {
            continue;
        }
        if different.len() == MAX_BREAKERS {
            return Err(Error::parameter(
                "dry_sequence_breaker",
                format!("{breaker:?}"),
                format!("there may be at most {MAX_BREAKERS} different sequence breakers"),
            ));
        }
        different.push(breaker);
    }
    Ok(different)
}

fn sequence_breaker(breaker: &str) -> Result<CString, Error> {
    if breaker.is_empty() || breaker.len() > MAX_BREAKER {
        return Err(Error::parameter(
            "dry_sequence_breaker",
            format!("{breaker:?}"),
            format!("a sequence breaker must have 1 to {MAX_BREAKER} bytes"),
        ));
    }
    text("dry_sequence_breaker", breaker)
}

/// Refuses a number outside of this range, and NaN.
fn within(name: &'static str, value: f32, range: std::ops::RangeInclusive<f32>, wanted: &str) -> Result<(), Error> {
    if range.contains(&value) { Ok(()) } else { Err(Error::parameter(name, value, wanted)) }
}

pub(super) fn temperature(temperature: f32) -> Result<(), Error> {
    let wanted = "it must be 0, or finite and at least 0.000001";
    if temperature == 0.0 { Ok(()) } else { within("temp", temperature, MIN_TEMPERATURE..=f32::MAX, wanted) }
}

pub(super) fn probability(name: &'static str, p: f32) -> Result<(), Error> {
    within(name, p, 0.0..=1.0, "it must be 0.0 to 1.0")
}

pub(super) fn finite(name: &'static str, value: f32) -> Result<(), Error> {
    within(name, value, f32::MIN..=f32::MAX, "it must be a finite number")
}

pub(super) fn not_negative(name: &'static str, value: f32) -> Result<(), Error> {
    within(name, value, 0.0..=f32::MAX, "it must be finite and not negative")
}

pub(super) fn bias(name: &'static str, value: f32) -> Result<(), Error> {
    within(name, value, -MAX_BIAS..=MAX_BIAS, "it must be -1000000 to 1000000")
}
