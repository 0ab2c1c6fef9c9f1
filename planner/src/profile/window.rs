//! Which blocks attend to a sliding window, and how long it is.

use crate::gguf::Value;

use super::arch::{Pattern, Unstated, Window};
use super::hparams::Keys;
use super::{Error, Hyperparameters};

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// The windows of a model (`n_swa`, `is_swa_impl`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Windows {
    /// Tokens of each.
    pub(super) tokens: u32,
    /// Whether a block has one, prediction blocks included.
    pub(super) blocks: Vec<bool>,
}

/// The windows, `None` without, or why that is unknown (llama-model.cpp, `create_memory`; llama-kv-cache-iswa.cpp,
/// the constructor).
pub(super) fn read(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    window: Window,
) -> Result<Result<Option<Windows>, String>, Error> {
    let stated = keys.header.get(&format!("{}.{WINDOW}", keys.architecture));
    if stated.is_some_and(|value| value.as_uint().is_none()) {
        return Ok(Err("with a sliding window that is no number".into()));
    }
    let tokens = match (keys.header.arch_u32(WINDOW)?, window.unstated) {
        (None | Some(0), Unstated::NoWindow) => return Ok(Ok(None)),
        (None | Some(0), Unstated::Fatal) => {
            let limit = "llama.cpp ends the process without a window (models/afmoe.cpp:123)";
            keys.check(false, WINDOW, 0, limit)?;
            return Ok(Ok(None));
        }
        (Some(0), _) if window.fixed.is_some() => return Ok(Ok(None)),
        (Some(0), _) => return Ok(Err("with a sliding window of no tokens".into())),
        (Some(tokens), _) => window.fixed.unwrap_or(tokens),
        (None, Unstated::Tokens(tokens)) => tokens,
        (None, Unstated::Refused) => keys.required(WINDOW)?,
    };
    let blocks = match pattern(keys, hparams, window.pattern)? {
        Ok(blocks) => blocks,
        Err(why) => return Ok(Err(why)),
    };
    keys.check(
        blocks.contains(&true),
        PATTERN,
        "without a windowed block",
        "llama.cpp ends the process if there is none (llama-model.cpp:2823)",
    )?;
    Ok(Ok(Some(Windows { tokens, blocks })))
}

/// Which blocks are windowed: as listed (llama-model.cpp, `load_swa_pattern`), or all but one of every so many
/// (llama-hparams.cpp, `set_swa_pattern`).
fn pattern(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    default: Pattern,
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
    let (every, first) = match default {
        Pattern::LastIsFull(every) => (keys.or(PATTERN, every)?, false),
        Pattern::FirstIsFull(every) => (keys.or(PATTERN, every)?, true),
        Pattern::Listed => return Ok(Err("without a list of windowed blocks".into())),
    };
    let windowed = |il: u32| {
        il < hparams.n_layer_trunk()
            && match il.checked_rem(every) {
                None => true,
                Some(place) if first => place != 0,
                Some(place) => place < every - 1,
            }
    };
    Ok(Ok((0..hparams.n_layer).map(windowed).collect()))
}
