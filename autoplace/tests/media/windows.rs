//! Pictures in models whose memory cannot go back by itself: with windows and with recurrent states. A text is that of
//! llama.cpp's own loop, and a conversation goes on from checkpoints, without the picture being computed again.

use std::path::Path;

use autoplace::generate::{GenerateRequest, Prompt};
use autoplace::llama_sys::{self, FlashAttention, MediaKind, MediaPart, Projector, ProjectorParams, Sampler, Token};
use autoplace::{Image, Model};

use crate::eyes::{picture, projector};
use crate::text_support::{
    COLD, Completion, Raw, SEED, complete, plain, random, request, sampled, small_builder, words,
};

/// Text models, each with the tokens of its window and with a projector. In Gemma 3, the rows of a picture see each
/// other.
const KINDS: [(&str, Option<u64>, &str); 4] = [
    ("gemma3", Some(224), "Small Gemma 3"),
    ("gpt-oss", Some(224), "Small LLaVA"),
    ("mamba2", None, "Small InternVL"),
    ("falcon-h1", None, "Small LLaVA"),
];

const ANSWER: usize = 24;

/// How many tokens before the end of a prompt the last checkpoint is taken.
const BEFORE_END: usize = 4;

fn load((arch, window, family): (&str, Option<u64>, &str), folder: &Path) -> Model {
    let text_model = random(arch, window, folder);
    let mmproj = projector(family, folder);
    small_builder(&text_model, request(1024, 1, false), 1 << 30).mmproj(mmproj).load().unwrap()
}

fn generate(model: &Model, prompt: Prompt) -> GenerateRequest {
    sampled(model, prompt, SEED).max_tokens(ANSWER).cache_prompt(true)
}

fn text(model: &Model, before: &[Token], image: &Image, after: &[Token]) -> Completion {
    let prompt = Prompt::tokens(before).then_media(image.clone()).then_tokens(after);
    complete(generate(model, prompt), model)
}

/// The text that llama.cpp's own loop generates, with the projector that it loads itself.
fn theirs(native: &llama_sys::Model, mmproj: &Path, before: &[Token], image: &Image, after: &[Token]) -> Vec<Token> {
    let params = ProjectorParams {
        device: None,
        n_threads: 1,
        flash_attention: FlashAttention::Disabled,
        image_min_tokens: None,
        image_max_tokens: None,
    };
    let mut projector = Projector::load(native, mmproj, &params).unwrap();
    let part = MediaPart::Image { width: image.width(), height: image.height(), rgb: image.rgb() };
    let chunks = projector.tokenize(&[part], false).unwrap();
    let by_chance = Sampler::chain(native).unwrap().temperature(COLD).unwrap().dist(SEED).unwrap();
    let mut raw = Raw::with(native, plain(1024, llama_sys::KvType::F32)).by(by_chance, &[]);
    raw.compute(before);
    for index in 0..chunks.len() {
        let chunk = chunks.get(&projector, index).unwrap();
        if chunk.kind() == MediaKind::Text {
            raw.compute(chunk.tokens());
            continue;
        }
        let positions = chunks.positions(&projector, index, raw.position()).unwrap();
        let (n_positions, at_once) = (chunk.n_positions(), chunk.is_non_causal());
        let rows = projector.encode(&chunks, index).unwrap();
        raw.compute_rows(&rows, &positions, n_positions, at_once);
    }
    raw.go_on(after, ANSWER)
}

#[test]
fn a_conversation_about_a_picture_goes_on_from_a_checkpoint_as_llama_cpp_says_it() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let model = load(kind, folder.path());
        let native = model.native().unwrap();
        let mmproj = folder.path().join("mmproj.gguf");
        let image = picture(60, 40, 3);
        let before = words(1, 90);
        let mut after = words(2, 70);
        let mut last = 0;
        for turn in 0..4 {
            let text = text(&model, &before, &image, &after);
            let expected = theirs(&native, &mmproj, &before, &image, &after);
            assert_eq!(text.tokens, expected, "{kind:?}, turn {turn}");
            let statistics = text.statistics();
            // Some pictures are cut into tiles, and each tile is encoded.
            assert_eq!(statistics.encoded_media > 0, turn == 0, "{kind:?}, turn {turn}: {statistics:?}");
            // The next message does not contain the whole answer, so the text goes back to the end of the prompt.
            let enough = statistics.cached_tokens + BEFORE_END >= last;
            assert!(enough, "{kind:?}, turn {turn}: {last} tokens before, {statistics:?}");
            last = statistics.prompt_tokens;
            after.extend(&text.tokens[..8.min(text.tokens.len())]);
            after.extend(words(10 + turn, 20));
        }
        let usage = model.session().unwrap().checkpoints();
        assert!(usage.checkpoints > 0 && usage.bytes <= usage.limit, "{kind:?}: {usage:?}");
    }
}

#[test]
fn conversations_that_begin_with_one_picture_compute_it_only_twice() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let model = load(kind, folder.path());
        let image = picture(60, 40, 4);
        let before = words(5, 300);
        let mut common = 0;
        for (number, seed) in (0..4).zip(20..) {
            let after = words(seed, 80);
            let text = text(&model, &before, &image, &after);
            let statistics = text.statistics();
            common = statistics.prompt_tokens - after.len();
            assert_eq!(statistics.encoded_media > 0, number == 0, "{kind:?}, {number}: {statistics:?}");
            // The second prompt has the same beginning as the first. A checkpoint is taken at its end.
            let expected = if number < 2 { 0 } else { common };
            assert_eq!(statistics.cached_tokens, expected, "{kind:?}, {number}: {statistics:?}");
        }
        assert!(common > before.len(), "{kind:?}");
    }
}

#[test]
fn a_picture_at_the_end_of_a_prompt_is_not_computed_again_for_the_next_one() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let model = load(kind, folder.path());
        let image = picture(60, 40, 5);
        let before = words(6, 200);
        // So few tokens follow the picture that the usual place of a checkpoint is within its rows.
        let first = text(&model, &before, &image, &words(7, 2)).statistics();
        let second = text(&model, &before, &image, &[words(7, 2), words(8, 80)].concat()).statistics();
        assert_eq!(second.encoded_media, 0, "{kind:?}: {second:?}");
        assert!(second.cached_tokens + BEFORE_END >= first.prompt_tokens, "{kind:?}: {first:?}, then {second:?}");
    }
}
