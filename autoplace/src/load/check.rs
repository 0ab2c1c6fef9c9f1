//! Checks before a load whether llama.cpp accepts a file. In: a header. Out: the reason why a load would fail.

use llama_sys::{LoadMode, Model, ModelParams};

use super::Error;
use super::probe::{NativeProbe, SkeletonFile, of_model};
use crate::gguf::Header;
use crate::memory::{ContextParams, Split};
use crate::profile::{self, ModelProfile};

/// The number of elements of each vocabulary list that the first check loads. It is large enough for the byte tokens
/// and special tokens with which most vocabularies begin.
const SHOWN: u64 = 1024;

/// The number of tokens of context in the check.
const N_CTX: u32 = 512;

/// Checks that llama.cpp accepts the model of this header: its keys, its tensors and its vocabulary.
///
/// The check loads a [skeleton](Header::skeleton) of the model, and then only the beginning of the vocabulary, without
/// tensors. The check takes tens of milliseconds and hardly any memory. It does not read the data of the tensors.
///
/// # Errors
///
/// The error with which a load would fail: [`Error::Profile`], or [`Error::Native`] with llama.cpp's message.
pub fn check(header: &Header) -> Result<(), Error> {
    ModelProfile::from_header(header)?;
    check_vocabulary(header)?;
    let mut params = ContextParams::default();
    params.n_ctx = N_CTX;
    NativeProbe::new(header)?.breakdown(&[], &params, &Split::layers(0)).map(drop)
}

/// Checks that llama.cpp accepts the vocabulary of this header. The skeleton that plans use has no vocabulary.
///
/// # Errors
///
/// The errors of [`check`].
pub fn check_vocabulary(header: &Header) -> Result<(), Error> {
    // A vocabulary is refused only if the whole list fails, not just its beginning.
    if let Err(error) = vocabulary(header, SHOWN) {
        tracing::debug!(%error, "checking the whole vocabulary");
        vocabulary(header, u64::MAX)?;
    }
    if let Some((first, second)) = header.repeated_token()? {
        return Err(Error::Profile(profile::Error::Value {
            file: header.path().display().to_string(),
            key: "tokenizer.ggml.tokens".to_owned(),
            value: format!("a list whose tokens {first} and {second} are the same"),
            limit: "llama.cpp refuses duplicate tokens (llama-vocab.cpp, `load`)".to_owned(),
        }));
    }
    Ok(())
}

fn vocabulary(header: &Header, shown: u64) -> Result<(), Error> {
    let file = SkeletonFile::write(&header.vocabulary(shown)?, header.path())?;
    let params = ModelParams {
        devices: Some(Vec::new()),
        load_mode: LoadMode::None,
        vocab_only: true,
        ..ModelParams::default()
    };
    llama_sys::quietly(|| Model::load(file.path(), params)).map_err(|error| of_model(error, header))?;
    Ok(())
}
