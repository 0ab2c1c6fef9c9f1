//! A model that sees: the demo model with a projector of random weights, and pictures.

use std::path::{Path, PathBuf};

use autoplace::generate::Prompt;
use autoplace::llama_sys::{MediaChunks, MediaKind, Projector, Token};
use autoplace::plan::Request;
use autoplace::{Image, Model, ModelBuilder};
use test_support::demo_path;
use test_support::random_weights::{self, fill};
use test_support::synthetic::{mmproj, with_axes, with_tokens};

use crate::text_support::{Raw, request};

/// Families of projectors that are small enough to be computed, with four rows for each picture.
pub(crate) const FAMILIES: [&str; 2] = ["Small LLaVA", "Small Gemma 3"];

/// Rows of a picture of each of them.
pub(crate) const ROWS: usize = 4;

/// All families. The pictures of some have as many rows as their sizes need. Those of SmolVLM, MiniCPM-V and Step3-VL
/// are cut into tiles, each with tokens around it. Qwen's and HunyuanVL's rows have positions of several axes. Qwen3-VL's
/// rows are wider than the model: further blocks get their other parts.
pub(crate) const ALL_FAMILIES: [&str; 13] = [
    "Small LLaVA",
    "Small Gemma 3",
    "Small Pixtral",
    "Small InternVL",
    "Small SmolVLM",
    "Small MiniCPM-V",
    "Small MiniCPM-V 4.6",
    "Small Step3-VL",
    "Small Youtu-VL",
    "Small HunyuanVL",
    "Small Qwen2-VL",
    "Small Qwen2.5-VL",
    "Small Qwen3-VL",
];

/// A projector of this family, with random weights.
pub(crate) fn projector(name: &str, folder: &Path) -> PathBuf {
    let path = folder.join("mmproj.gguf");
    mmproj::named(name).write_sparse(&path).unwrap();
    fill(&path);
    path
}

pub(crate) fn builder(projector: &Path, request: Request) -> ModelBuilder {
    Model::builder(demo_path()).request(request).n_threads(1).mmproj(projector)
}

/// The tokens that mtmd looks up in the vocabulary for projectors that cut images into tiles (mtmd.cpp, `init_vision`).
const AROUND_TILES: [&str; 14] = [
    "\n\n",
    "<fake_token_around_image>",
    "<global-img>",
    "<image>",
    "</image>",
    "<slice>",
    "</slice>",
    "<image_id>",
    "</image_id>",
    "<im_start>",
    "<im_end>",
    "<patch_start>",
    "<patch_end>",
    "<patch_newline>",
];

/// The demo model, or a model with the positions or the tokens that the projector needs, with a projector of this
/// family, and `sequences` texts of 256 tokens.
pub(crate) fn seeing(name: &str, folder: &Path, sequences: u32) -> Model {
    beside(&files(name, folder), request(256 * sequences, sequences, false), image_max_tokens(name)).load().unwrap()
}

/// A builder of the model that [`seeing`] loads, with this request.
pub(crate) fn seeing_by(name: &str, folder: &Path, request: Request) -> ModelBuilder {
    beside(&files(name, folder), request, image_max_tokens(name))
}

/// The text model and the projector of this family.
pub(crate) fn files(name: &str, folder: &Path) -> (PathBuf, PathBuf) {
    let text_model = match name {
        "Small SmolVLM" | "Small MiniCPM-V" | "Small MiniCPM-V 4.6" | "Small Step3-VL" => with_tokens(&AROUND_TILES),
        "Small HunyuanVL" => with_axes("hunyuan_vl"),
        "Small Qwen3-VL" => with_axes("qwen3vl"),
        "Small Qwen2-VL" | "Small Qwen2.5-VL" => with_axes("qwen2vl"),
        _ => return (demo_path(), projector(name, folder)),
    };
    (random_weights::write(&text_model.in_floats(), folder), projector(name, folder))
}

/// These files in this context.
pub(crate) fn beside(files: &(PathBuf, PathBuf), request: Request, image_max_tokens: Option<u32>) -> ModelBuilder {
    let builder = Model::builder(&files.0).request(request).n_threads(1).mmproj(&files.1);
    image_max_tokens.into_iter().fold(builder, ModelBuilder::image_max_tokens)
}

/// The limit of an image's tokens in these tests, where a family's images may have any size.
pub(crate) fn image_max_tokens(name: &str) -> Option<u32> {
    ["Qwen", "Pixtral", "Youtu"].iter().any(|word| name.contains(word)).then_some(24)
}

/// Whether the text model has random weights too. It would repeat its likeliest token.
pub(crate) fn is_random(model: &Model) -> bool {
    model.placement().model.path != Some(demo_path())
}

/// A picture of this size. Another seed is another picture.
pub(crate) fn picture(width: u32, height: u32, seed: u32) -> Image {
    let noise = |at: u32| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 13) as u8;
    Image::from_rgb(width, height, (0..width * height * 3).map(noise).collect()).unwrap()
}

/// A prompt about a picture.
pub(crate) fn about(image: &Image) -> Prompt {
    Prompt::text("In the beginning").then_media(image.clone()).then_text(" God created the heaven and")
}

/// llama.cpp's own loop over the chunks of mtmd, the last of which is a text, and `n` tokens after them.
pub(crate) fn their_tokens(mut raw: Raw, projector: &mut Projector, chunks: &MediaChunks, n: usize) -> Vec<Token> {
    for index in 0..chunks.len() - 1 {
        let chunk = chunks.get(projector, index).unwrap();
        if chunk.kind() == MediaKind::Text {
            raw.compute(chunk.tokens());
            continue;
        }
        let positions = chunks.positions(projector, index, raw.position()).unwrap();
        let (n_positions, at_once) = (chunk.n_positions(), chunk.is_non_causal());
        let rows = projector.encode(chunks, index).unwrap();
        raw.compute_rows(&rows, &positions, n_positions, at_once);
    }
    let last = chunks.get(projector, chunks.len() - 1).unwrap();
    raw.go_on(last.tokens(), n)
}
