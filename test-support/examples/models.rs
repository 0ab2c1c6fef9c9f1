//! Writes small models with random weights into a folder, for `cargo xtask attack`: `fim.gguf`, whose vocabulary has
//! the tokens of fill-in-the-middle, `reranker.gguf`, and `mmproj.gguf`, a projector of images for the demo model.

use std::path::Path;

use anyhow::{Context, Result};
use autoplace_gguf::TensorType;
use test_support::synthetic::{Sketch, in_32_bits, mmproj};
use test_support::{embedding_models, random_weights};

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("usage: models FOLDER")?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    let mut fim = in_32_bits("llama");
    fim.token_ids(&[("fim_pre", 259), ("fim_suf", 260), ("fim_mid", 261), ("fim_rep", 262), ("fim_sep", 263)]);
    write(&fim, folder, "fim.gguf")?;
    write(&embedding_models::reranker(TensorType::F32), folder, "reranker.gguf")?;
    let projector = folder.join("mmproj.gguf");
    mmproj::named("Small LLaVA").write_sparse(&projector)?;
    random_weights::fill(&projector);
    Ok(())
}

fn write(sketch: &Sketch, folder: &Path, name: &str) -> Result<()> {
    let written = random_weights::write(sketch, folder);
    std::fs::rename(written, folder.join(name))?;
    Ok(())
}
