//! Prompts with pictures equal those of llama.cpp's own mtmd: the tokens, the rows, the positions, the texts.

use std::path::Path;

use autoplace::generate::{Fork, Prompt};
use autoplace::llama_sys::{self, FlashAttention, MediaKind, MediaPart, Projector, ProjectorParams, Sampler, Token};
use autoplace::{Image, Model};

use crate::eyes::{ALL_FAMILIES, about, beside, files, image_max_tokens, is_random, picture, seeing, their_tokens};
use crate::text_support::{COLD, Raw, SEED, Texts, complete, greedy, request, sampled};

/// The projector as llama.cpp loads it beside the model.
fn theirs(family: &str, model: &Model, folder: &Path) -> (llama_sys::Model, Projector) {
    let native = model.native().unwrap();
    let params = ProjectorParams {
        device: None,
        n_threads: 1,
        flash_attention: FlashAttention::Enabled,
        image_min_tokens: None,
        image_max_tokens: image_max_tokens(family),
    };
    let projector = Projector::load(&native, folder.join("mmproj.gguf"), &params).unwrap();
    (native, projector)
}

fn parts(image: &Image) -> [MediaPart<'_>; 3] {
    [text("In the beginning"), seen(image), text(" God created the heaven and")]
}

fn text(text: &str) -> MediaPart<'_> {
    MediaPart::Text { text, parse_special: false }
}

fn seen(image: &Image) -> MediaPart<'_> {
    MediaPart::Image { width: image.width(), height: image.height(), rgb: image.rgb() }
}

/// The context, in tokens: room for three slices of MiniCPM-V 4.6.
const N_CTX: u32 = 512;

/// Sizes of three shapes, and one that is cut into several tiles.
const SIZES: [(u32, u32); 4] = [(30, 30), (90, 40), (17, 120), (300, 200)];

#[test]
fn the_tokens_of_a_prompt_are_mtmds_and_each_row_is_one_negative_token() {
    for family in ALL_FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let model = seeing(family, folder.path(), 1);
        let (_native, projector) = theirs(family, &model, folder.path());
        for (width, height) in SIZES {
            let image = picture(width, height, 1);
            let expected = their_prompt(&projector, &parts(&image));
            let ours = our_prompt(&model, about(&image));
            assert_eq!(ours, expected, "{family}, {width} x {height}");
            assert_eq!(model.count_tokens(about(&image)).unwrap(), expected.len());
        }
    }
}

/// The tokens of mtmd's chunks; `None` for each row.
fn their_prompt(projector: &Projector, parts: &[MediaPart<'_>]) -> Vec<Option<Token>> {
    let chunks = projector.tokenize(parts, true).unwrap();
    let mut expected: Vec<Option<Token>> = Vec::new();
    for index in 0..chunks.len() {
        let chunk = chunks.get(projector, index).unwrap();
        match chunk.kind() {
            MediaKind::Text => expected.extend(chunk.tokens().iter().map(|token| Some(*token))),
            _ => expected.extend(vec![None; chunk.len()]),
        }
    }
    expected
}

/// Our tokens of a prompt; `None` for each row.
fn our_prompt(model: &Model, prompt: Prompt) -> Vec<Option<Token>> {
    let tokens = model.tokenize(prompt).unwrap();
    tokens.iter().map(|token| Some(*token).filter(|it| *it >= 0)).collect()
}

#[test]
fn the_second_picture_of_a_prompt_has_the_tokens_and_the_number_that_mtmd_gives_it() {
    for family in ALL_FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let model = seeing(family, folder.path(), 2);
        let (_native, projector) = theirs(family, &model, folder.path());
        let [first, second] = [picture(30, 30, 1), picture(40, 90, 2)];
        let parts = [text("One"), seen(&first), seen(&second), text(" and"), seen(&first), text(" end")];
        let prompt = Prompt::text("One").then_media(first.clone()).then_media(second.clone());
        let prompt = prompt.then_text(" and").then_media(first.clone()).then_text(" end");
        assert_eq!(our_prompt(&model, prompt), their_prompt(&projector, &parts), "{family}");
    }
}

/// llama.cpp's own loop over the chunks of mtmd: greedy, or by chance.
fn their_text(family: &str, model: &Model, folder: &Path, image: &Image, n: usize) -> Vec<Token> {
    let (native, mut projector) = theirs(family, model, folder);
    let chunks = projector.tokenize(&parts(image), true).unwrap();
    let mut raw = Raw::new(&native, N_CTX);
    if is_random(model) {
        let sampler = Sampler::chain(&native).unwrap().temperature(COLD).unwrap().dist(SEED).unwrap();
        raw = raw.by(sampler, &[]);
    }
    their_tokens(raw, &mut projector, &chunks, n)
}

#[test]
fn the_text_about_a_picture_is_llama_cpps_token_for_token() {
    for family in ALL_FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let files = files(family, folder.path());
        let model = beside(&files, request(N_CTX, 1, false), image_max_tokens(family)).load().unwrap();
        let mut texts = Vec::new();
        for (width, height) in SIZES {
            let image = picture(width, height, 2);
            let expected = their_text(family, &model, folder.path(), &image, 24);
            let asked = match is_random(&model) {
                true => sampled(&model, about(&image), SEED).max_tokens(24),
                false => greedy(&model, about(&image)),
            };
            let ours = complete(asked, &model);
            assert_eq!(ours.tokens, expected, "{family}, {width} x {height}");
            assert_eq!(ours.statistics().buffer_growth, 0, "{family}, {width} x {height}");
            texts.push(expected);
        }
        assert!(texts[0] != texts[1] || texts[0] != texts[2], "{family}: the picture makes no difference");
    }
}

#[test]
fn a_picture_with_positions_of_several_axes_is_reused_and_forked_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let model = seeing("Small Qwen2.5-VL", folder.path(), 2);
    let image = picture(90, 40, 3);
    let long = || about(&image).then_text(" the earth, and the earth was without form");
    let fresh = complete(greedy(&model, long()), &model);
    let first = complete(greedy(&model, about(&image)).cache_prompt(true), &model);
    let again = complete(greedy(&model, long()).cache_prompt(true), &model);
    assert!(again.statistics().cached_tokens >= first.statistics().prompt_tokens - 1, "{:?}", again.statistics());
    assert_eq!(again.tokens, fresh.tokens);
    let mut session = model.session().unwrap();
    let text = session.begin(greedy(&model, long())).unwrap();
    let mut texts = Texts::default();
    texts.generate_to(&mut session, text, 5);
    let forked = session.fork(text, Fork::new()).unwrap();
    session.roll_back(text, 2).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(forked).tokens, fresh.tokens[5..]);
    assert_eq!(texts.of(text).tokens[5..], fresh.tokens[3..]);
}
