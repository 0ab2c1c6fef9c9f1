//! Small models that compute with 32 bits throughout.

use std::path::{Path, PathBuf};

use crate::random_weights;
use crate::synthetic::in_32_bits;

/// Attention to everything.
pub(crate) fn llama(folder: &Path) -> PathBuf {
    random_weights::write(&in_32_bits("llama"), folder)
}

/// Three blocks of four look back a window only.
pub(crate) fn olmo2(folder: &Path) -> PathBuf {
    random_weights::write(&in_32_bits("olmo2"), folder)
}
