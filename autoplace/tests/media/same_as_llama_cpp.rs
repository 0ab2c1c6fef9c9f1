//! Prompts with pictures are the same as those of llama.cpp's own mtmd: their tokens, their rows, their positions and
//! their texts.

use std::path::Path;

use autoplace::generate::{Fork, GenerateRequest, Prompt};
use autoplace::llama_sys::{self, FlashAttention, MediaKind, MediaPart, Projector, ProjectorParams, Sampler, Token};
use autoplace::plan::GpuLayers;
use autoplace::{Image, Isolation, Model};

use crate::eyes::{ALL_FAMILIES, about, beside, files, image_max_tokens, is_random, picture, seeing, their_tokens};
use crate::sim_support::card;
use crate::text_support::{COLD, Raw, SEED, Texts, complete, greedy, request, sampled, worker};

/// The projector, which llama.cpp itself loads for the model.
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

pub(crate) fn parts(image: &Image) -> [MediaPart<'_>; 3] {
    [text("In the beginning"), seen(image), text(" God created the heaven and")]
}

fn text(text: &str) -> MediaPart<'_> {
    MediaPart::Text { text, parse_special: false }
}

fn seen(image: &Image) -> MediaPart<'_> {
    MediaPart::Image { width: image.width(), height: image.height(), rgb: image.rgb() }
}

/// The number of tokens in the context. There is room for three slices of MiniCPM-V 4.6.
const N_CTX: u32 = 512;

/// Sizes of pictures: three with different shapes, and one that is cut into several tiles.
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

/// The tokens in the chunks of mtmd. There is a `None` for each row.
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

/// Our tokens for a prompt. There is a `None` for each row.
fn our_prompt(model: &Model, prompt: Prompt) -> Vec<Option<Token>> {
    let tokens = model.tokenize(prompt).unwrap();
    tokens.iter().map(|token| Some(*token).filter(|token| *token >= 0)).collect()
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

/// The text that llama.cpp's own loop generates from the chunks of mtmd.
fn their_text(family: &str, model: &Model, folder: &Path, parts: &[MediaPart<'_>], n: usize) -> Vec<Token> {
    let (native, mut projector) = theirs(family, model, folder);
    let chunks = projector.tokenize(parts, true).unwrap();
    their_tokens(their_raw(model, &native), &mut projector, &chunks, n)
}

/// llama.cpp's own loop. It is greedy, or random if all weights are random.
pub(crate) fn their_raw(model: &Model, native: &llama_sys::Model) -> Raw {
    let raw = Raw::new(native, N_CTX);
    if !is_random(model) {
        return raw;
    }
    raw.by(Sampler::chain(native).unwrap().temperature(COLD).unwrap().dist(SEED).unwrap(), &[])
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
            let expected = their_text(family, &model, folder.path(), &parts(&image), 24);
            let ours = complete(asked(&model, about(&image)), &model);
            assert_eq!(ours.tokens, expected, "{family}, {width} x {height}");
            assert_eq!(ours.statistics().buffer_growth, 0, "{family}, {width} x {height}");
            texts.push(expected);
        }
        assert!(texts[0] != texts[1] || texts[0] != texts[2], "{family}: the picture makes no difference");
    }
}

/// A request for 24 tokens. It is greedy or random, as in [`their_raw`].
pub(crate) fn asked(model: &Model, prompt: Prompt) -> GenerateRequest {
    match is_random(model) {
        true => sampled(model, prompt, SEED).max_tokens(24),
        false => greedy(model, prompt),
    }
}

#[test]
fn the_text_about_three_pictures_is_llama_cpps_token_for_token() {
    for family in ALL_FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let files = files(family, folder.path());
        let model = beside(&files, request(N_CTX, 1, false), image_max_tokens(family)).load().unwrap();
        let pictures = [(30, 30), (60, 90), (90, 40)].map(|(width, height)| picture(width, height, width));
        let [first, second, third] = &pictures;
        let parts = [text("In the"), seen(first), text(" beginning"), seen(second), seen(third), text(" God created")];
        let expected = their_text(family, &model, folder.path(), &parts, 24);
        let prompt = Prompt::text("In the").then_media(first.clone()).then_text(" beginning");
        let prompt = prompt.then_media(second.clone()).then_media(third.clone()).then_text(" God created");
        let ours = complete(asked(&model, prompt.clone()).cache_prompt(true), &model);
        assert_eq!(ours.tokens, expected, "{family}");
        let again = complete(asked(&model, prompt).cache_prompt(true), &model);
        assert_eq!((&again.tokens, again.statistics().encoded_media), (&expected, 0), "{family}");
    }
}

#[test]
fn hunyuan_vl_is_told_the_number_of_each_picture() {
    let family = "Small HunyuanVL";
    let folder = tempfile::tempdir().unwrap();
    let files = files(family, folder.path());
    let model = beside(&files, request(N_CTX, 1, false), None).load().unwrap();
    let image = picture(30, 30, 1);
    let (mut parts, mut prompt) = (vec![text("In"), seen(&image)], Prompt::text("In").then_media(image.clone()));
    for _ in 1..4 {
        parts.extend([text("And"), seen(&image)]);
        prompt = prompt.then_text("And").then_media(image.clone());
    }
    parts.push(text(" God created"));
    let expected = their_text(family, &model, folder.path(), &parts, 24);
    assert_eq!(complete(asked(&model, prompt.then_text(" God created")), &model).tokens, expected);
}

/// Nowhere are the weights rearranged for the CPU: neither on the host, nor on the card, nor in the worker.
#[test]
fn the_text_about_a_picture_on_a_card_and_in_a_worker_is_that_of_the_host() {
    own_process!();
    let _card = card(4 << 30);
    for family in ALL_FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let files = files(family, folder.path());
        let on = |layers| {
            let mut request = request(N_CTX, 1, false).n_gpu_layers(GpuLayers::Exactly(layers));
            request.params.repack = false;
            beside(&files, request, image_max_tokens(family))
        };
        let host = on(0).load().unwrap();
        let card = on(4).load().unwrap();
        let worker = on(0).isolation(Isolation::Process(worker())).load().unwrap();
        assert!(host.placement().companions[0].gpu.is_none() && card.placement().companions[0].gpu.is_some());
        for (width, height) in SIZES {
            let image = picture(width, height, 2);
            let expected = complete(asked(&host, about(&image)), &host).tokens;
            for model in [&card, &worker] {
                let text = complete(asked(model, about(&image)), model).tokens;
                assert_eq!(text, expected, "{family}, {width} x {height}: {}", model.placement());
            }
        }
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
