//! Whether llama.cpp takes a file, before anything of it is loaded: a header flows in; the reason why a load would be
//! refused flows out.

use llama_sys::{LoadMode, Model, ModelParams};

use super::Error;
use super::probe::{NativeProbe, SkeletonFile, of_model};
use crate::gguf::Header;
use crate::memory::{ContextParams, Split};
use crate::profile::{self, ModelProfile};

/// Elements of each of the vocabulary's lists that llama.cpp is shown at first: with the bytes and the special tokens
/// that most vocabularies begin with.
const SHOWN: u64 = 1024;

/// Tokens of the context that is asked about.
const N_CTX: u32 = 512;

/// Checks that llama.cpp takes the model of this header: its keys, its tensors and its vocabulary.
///
/// It is asked to load a [skeleton](Header::skeleton) of the model, and the beginning of the vocabulary without a
/// tensor; that takes some tens of milliseconds, and no memory to speak of. The data of the tensors is not looked at.
///
/// # Errors
///
/// The error with which a load would be refused: [`Error::Profile`], or [`Error::Native`] with llama.cpp's own words.
pub fn check(header: &Header) -> Result<(), Error> {
    ModelProfile::from_header(header)?;
    check_vocabulary(header)?;
    let mut params = ContextParams::default();
    params.n_ctx = N_CTX;
    NativeProbe::new(header)?.breakdown(&[], &params, &Split::layers(0)).map(drop)
}

/// Checks that llama.cpp takes the vocabulary of this header, which the skeleton that plans are made by has not.
///
/// # Errors
///
/// As [`check`].
pub fn check_vocabulary(header: &Header) -> Result<(), Error> {
    // What is refused of its beginning is refused only where the whole of it is.
    if let Err(error) = vocabulary(header, SHOWN) {
        tracing::debug!(%error, "the whole vocabulary is looked at");
        vocabulary(header, u64::MAX)?;
    }
    if let Some((first, second)) = header.repeated_token()? {
        return Err(Error::Profile(profile::Error::Value {
            file: header.path().display().to_string(),
            key: "tokenizer.ggml.tokens".to_owned(),
            value: format!("a list whose tokens {first} and {second} are the same"),
            limit: "llama.cpp takes no token twice (llama-vocab.cpp, `load`)".to_owned(),
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
