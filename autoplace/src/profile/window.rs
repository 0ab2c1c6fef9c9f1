//! Which blocks attend to a sliding window, and how long it is.

use crate::gguf::Value;

use super::arch::{Unstated, Window};
use super::hparams::Keys;
use super::state::BlockState;
use super::{Error, Hyperparameters};

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// What each block keeps, or why that is unknown (llama-model.cpp:2820-2880, llama-kv-cache-iswa.cpp:40-100).
pub(super) fn blocks(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    window: Window,
) -> Result<Result<Vec<BlockState>, String>, Error> {
    let stated = keys.header.get(&format!("{}.{WINDOW}", keys.architecture));
    if stated.is_some_and(|value| value.as_uint().is_none()) {
        return Ok(Err("with a sliding window that is no number".into()));
    }
    let tokens = match (keys.header.arch_u32(WINDOW)?, window.unstated) {
        (None | Some(0), Unstated::NoWindow) => return Ok(Ok(hparams.every_block_in_full())),
        (Some(0), _) => return Ok(Err("with a sliding window of no tokens".into())),
        (Some(tokens), _) | (None, Unstated::Tokens(tokens)) => tokens,
        (None, Unstated::Refused) => keys.required(WINDOW)?,
    };
    for (key, full) in [
        ("attention.key_length_swa", hparams.head_dim_k),
        ("attention.value_length_swa", hparams.head_dim_v),
    ] {
        if keys.or(key, full)? != full {
            return Ok(Err("with heads of another size in its window".into()));
        }
    }
    let is_windowed = match pattern(keys, hparams, window.pattern)? {
        Ok(is_windowed) => is_windowed,
        Err(why) => return Ok(Err(why)),
    };
    keys.check(
        is_windowed.contains(&true),
        PATTERN,
        "without a windowed block",
        "llama.cpp ends the process if there is none (llama-model.cpp:2823)",
    )?;
    Ok(Ok(hparams.each_block(|il| {
        let state = hparams.state(il);
        if is_windowed[il] {
            BlockState::Windowed {
                state,
                window: tokens,
            }
        } else {
            BlockState::Full(state)
        }
    })))
}

/// Which blocks are windowed: as listed (llama-model.cpp:3451), or all but the last of every so many (llama-hparams.cpp:8-23).
fn pattern(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    default: u32,
) -> Result<Result<Vec<bool>, String>, Error> {
    let n_layer = hparams.n_layer as usize;
    let key = format!("{}.{PATTERN}", keys.architecture);
    if let Some(Value::Array(listed)) = keys.header.get(&key) {
        // A list of another length or type is read differently or refused: no converter writes one.
        if listed.len() != u64::from(hparams.n_layer) {
            return Ok(Err(
                "with a list of windowed blocks of another length".into()
            ));
        }
        let listed = keys.header.arch_u32_per_layer(PATTERN, n_layer)?;
        let listed = listed.unwrap_or_default();
        return Ok(Ok(listed.iter().map(|&flag| flag != 0).collect()));
    }
    let every = keys.or(PATTERN, default)?;
    let trunk = hparams.n_layer_trunk();
    let windowed = |il| il < trunk && (every == 0 || il % every < every - 1);
    Ok(Ok((0..hparams.n_layer).map(windowed).collect()))
}
