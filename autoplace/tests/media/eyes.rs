//! A model that sees: the demo model, with a projector of random weights, and pictures.

use std::path::{Path, PathBuf};

use autoplace::generate::Prompt;
use autoplace::llama_sys::{MediaChunks, MediaKind, Projector, Token};
use autoplace::plan::Request;
use autoplace::{Image, Model, ModelBuilder};
use test_support::demo_path;
use test_support::random_weights::{self, fill};
use test_support::synthetic::{mmproj, with_axes, with_tokens};

use crate::text_support::{Raw, request};

/// Families of projectors that are so small that they can be computed. Each picture has four rows.
pub(crate) const FAMILIES: [&str; 2] = ["Small LLaVA", "Small Gemma 3"];

/// How many rows a picture has in each of these families.
pub(crate) const ROWS: usize = 4;

/// All families. In some of them, a picture has as many rows as its size requires. In SmolVLM, MiniCPM-V and Step3-VL,
/// a picture is cut into tiles, and there are tokens around each tile. In Qwen's families and in HunyuanVL, the
/// position of a row has several axes. In Qwen3-VL, a row is wider than the model: the other parts of the row go to
/// further blocks.
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

/// If a projector cuts images into tiles, mtmd looks up these tokens in the vocabulary (mtmd.cpp, `init_vision`).
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

/// A model with a projector of this family, and with room for `sequences` texts of 256 tokens. It is the demo model, or
/// a model with the positions or tokens that the projector needs.
pub(crate) fn seeing(name: &str, folder: &Path, sequences: u32) -> Model {
    beside(&files(name, folder), request(256 * sequences, sequences, false), image_max_tokens(name)).load().unwrap()
}

/// A builder for the model that [`seeing`] loads, but with this request.
pub(crate) fn seeing_by(name: &str, folder: &Path, request: Request) -> ModelBuilder {
    beside(&files(name, folder), request, image_max_tokens(name))
}

/// The files of the text model and of the projector of this family.
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

/// A builder for these two files, with this request.
pub(crate) fn beside(files: &(PathBuf, PathBuf), request: Request, image_max_tokens: Option<u32>) -> ModelBuilder {
    let builder = Model::builder(&files.0).request(request).n_threads(1).mmproj(&files.1);
    image_max_tokens.into_iter().fold(builder, ModelBuilder::image_max_tokens)
}

/// The maximum number of tokens of an image in these tests, for a family whose images may have any size.
pub(crate) fn image_max_tokens(name: &str) -> Option<u32> {
    ["Qwen", "Pixtral", "Youtu"].iter().any(|word| name.contains(word)).then_some(24)
}

/// Whether the weights of the text model are random too. Such a model would always repeat its likeliest token.
pub(crate) fn is_random(model: &Model) -> bool {
    model.placement().model.path != Some(demo_path())
}

/// A picture of this size. With another seed, it is another picture.
pub(crate) fn picture(width: u32, height: u32, seed: u32) -> Image {
    let noise = |at: u32| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 13) as u8;
    Image::from_rgb(width, height, (0..width * height * 3).map(noise).collect()).unwrap()
}

/// A prompt that asks about a picture.
pub(crate) fn about(image: &Image) -> Prompt {
    Prompt::text("In the beginning").then_media(image.clone()).then_text(" God created the heaven and")
}

/// The tokens of llama.cpp's own loop. It computes the chunks of mtmd, the last of which is a text, and then `n`
/// tokens.
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
