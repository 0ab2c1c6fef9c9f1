//! Images in prompts, with projectors of random weights.

use std::path::{Path, PathBuf};

use crate::support::sim::{MIB, are_empty, card, load};
use crate::support::{cpu_context, demo_model, demo_path, refused, tokens};
use llama_sys::{
    ContextParams, Device, Error, FlashAttention, MediaKind, MediaMemory, MediaPart, Projector, ProjectorBytes,
    ProjectorParams, Rows, has_media,
};
use test_support::random_weights::fill;
use test_support::synthetic::mmproj;

/// A projector for the demo model with random weights.
fn projector(name: &str, folder: &Path) -> PathBuf {
    let path = folder.join("mmproj.gguf");
    mmproj::named(name).write_sparse(&path).unwrap();
    fill(&path);
    path
}

fn on(device: Option<Device>) -> ProjectorParams {
    ProjectorParams {
        device,
        n_threads: 1,
        flash_attention: FlashAttention::Auto,
        image_min_tokens: None,
        image_max_tokens: None,
    }
}

/// The pixels of an image of this size. Another seed gives other pixels.
fn pixels(width: u32, height: u32, seed: u32) -> Vec<u8> {
    (0..width * height * 3).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 13) as u8).collect()
}

fn text(text: &str) -> MediaPart<'_> {
    MediaPart::Text { text, parse_special: false }
}

/// The rows of a single image.
fn rows(projector: &mut Projector, width: u32, height: u32, seed: u32) -> Vec<f32> {
    let rgb = pixels(width, height, seed);
    let chunks = projector.tokenize(&[MediaPart::Image { width, height, rgb: &rgb }], false).unwrap();
    let of_image = |index: &usize| chunks.get(projector, *index).unwrap().kind() == MediaKind::Image;
    let index = (0..chunks.len()).find(of_image).unwrap();
    projector.encode(&chunks, index).unwrap()
}

#[test]
fn a_prompt_of_text_and_an_image_is_computed_and_the_same_image_gives_the_same_rows() {
    assert!(has_media());
    let folder = tempfile::tempdir().unwrap();
    let model = demo_model();
    let path = projector("Small LLaVA", folder.path());
    let mut projector = Projector::load(&model, &path, &on(None)).unwrap();
    assert!(projector.has_images());
    assert_eq!((projector.sample_rate(), projector.sections(), projector.width()), (None, 1, 256));

    let rgb = pixels(60, 40, 1);
    let image = MediaPart::Image { width: 60, height: 40, rgb: &rgb };
    let chunks = projector.tokenize(&[text("In the"), image, text(" beginning")], true).unwrap();
    let kinds: Vec<_> = (0..chunks.len()).map(|index| chunks.get(&projector, index).unwrap().kind()).collect();
    assert_eq!(kinds, [MediaKind::Text, MediaKind::Image, MediaKind::Text]);
    let first = chunks.get(&projector, 0).unwrap();
    assert_eq!(first.tokens(), tokens("In the"));
    let seen = chunks.get(&projector, 1).unwrap();
    assert_eq!((seen.len(), seen.n_positions(), seen.is_non_causal()), (4, 4, false));

    let encoded = projector.encode(&chunks, 1).unwrap();
    assert_eq!(encoded.len(), 4 * 256);
    assert!(encoded.iter().all(|value| value.is_finite()) && encoded.iter().any(|value| *value != 0.0));
    assert_eq!(rows(&mut projector, 60, 40, 1), encoded);
    assert_ne!(rows(&mut projector, 60, 40, 2), encoded);

    let mut context = cpu_context(ContextParams { n_ctx: 256, ..ContextParams::default() });
    let mut logits = |values: &[f32]| {
        context.kv_clear().unwrap();
        let start = first.tokens().len() as i32;
        context.decode(&crate::support::batch_of(first.tokens(), 0)).unwrap();
        let positions = chunks.positions(&projector, 1, start).unwrap();
        assert_eq!(positions, [start, start + 1, start + 2, start + 3]);
        let rows = Rows { values, positions: &positions, seq: 0, is_non_causal: false, output_last: true };
        context.decode_rows(&rows).unwrap();
        context.logits(-1).unwrap().to_vec()
    };
    let seen = logits(&encoded);
    assert!(seen.iter().all(|value| value.is_finite()));
    assert_eq!(logits(&encoded), seen);
    assert_ne!(logits(&vec![0.01; encoded.len()]), seen);
}

#[test]
fn the_size_of_an_image_tells_its_tokens_and_an_image_without_pixels_is_not_encoded() {
    let folder = tempfile::tempdir().unwrap();
    let model = demo_model();
    for name in ["Small LLaVA", "Small Gemma 3", "Small Pixtral", "Small InternVL", "Small Qwen2-VL"] {
        let path = projector(name, folder.path());
        let mut projector = Projector::load(&model, &path, &on(None)).unwrap();
        for (width, height) in [(30, 20), (200, 31), (64, 640), (1, 1)] {
            let shape = |projector: &Projector, part| {
                let chunks = projector.tokenize(&[part], false).unwrap();
                let shape: Vec<_> = (0..chunks.len())
                    .map(|index| {
                        let chunk = chunks.get(projector, index).unwrap();
                        (chunk.kind(), chunk.len(), chunk.n_positions(), chunk.tokens().to_vec())
                    })
                    .collect();
                (shape, chunks)
            };
            let rgb = pixels(width, height, 3);
            let (of_pixels, _) = shape(&projector, MediaPart::Image { width, height, rgb: &rgb });
            let (of_size, chunks) = shape(&projector, MediaPart::ImageSize { width, height });
            assert_eq!(of_size, of_pixels, "{name}: {width} x {height}");
            let rows = of_size.iter().position(|chunk| chunk.0 == MediaKind::Image).unwrap();
            assert!(projector.encode(&chunks, rows).is_err(), "{name}");
        }
    }
}

#[test]
fn all_rows_of_a_non_causal_image_are_computed_at_once_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small Gemma 3", folder.path());
    let memory = MediaMemory::ask(&path, &on(None)).unwrap();
    assert!(memory.is_non_causal);
    let mut projector = Projector::load(&demo_model(), &path, &on(None)).unwrap();
    let values = rows(&mut projector, 50, 90, 3);
    assert_eq!(values.len(), 4 * 256);
    let positions = [0, 1, 2, 3];
    let rows = Rows { values: &values, positions: &positions, seq: 0, is_non_causal: true, output_last: true };
    let mut enough = cpu_context(ContextParams { n_ctx: 256, n_ubatch: 4, ..ContextParams::default() });
    enough.decode_rows(&rows).unwrap();
    let causal = {
        let last = enough.logits(-1).unwrap().to_vec();
        enough.kv_clear().unwrap();
        enough.decode_rows(&Rows { is_non_causal: false, ..rows }).unwrap();
        (last, enough.logits(-1).unwrap().to_vec())
    };
    // In both cases, the last row attends to all others. But in the non-causal image, the other rows attend to it too.
    // This changes the result of the first block, and so all later blocks.
    assert_ne!(causal.0, causal.1);
    let mut few = cpu_context(ContextParams { n_ctx: 256, n_ubatch: 3, ..ContextParams::default() });
    assert_eq!(refused(few.decode_rows(&rows)), "n_rows");
}

#[test]
fn a_card_counts_what_llama_cpp_says_and_nothing_is_left() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small LLaVA", folder.path());
    let card = card(256 * MIB);
    let asked = MediaMemory::ask(&path, &on(Some(card.device()))).unwrap();
    are_empty([&card]);
    assert_eq!(card.allocations(), 0);
    let of_card = asked.bytes.iter().find(|bytes| bytes.device == card.device()).unwrap().total();
    let model = load(&[&card], 0);
    let before = card.used();
    let loaded = Projector::load(&model, &path, &on(Some(card.device()))).unwrap();
    assert_eq!(card.used() - before, of_card);
    assert_eq!(loaded.bytes(), asked.bytes);
    drop(loaded);
    assert_eq!(card.used(), before);
    // If there is not enough memory, the load is an error, and nothing stays allocated.
    card.set_taken(card.total() - before - 1024);
    let error = Projector::load(&model, &path, &on(Some(card.device()))).unwrap_err();
    assert!(matches!(error, Error::ProjectorLoad { .. }), "{error}");
    card.set_taken(0);
    assert_eq!(card.used(), before);
}

/// Small projectors for images, whose rows are as wide as those of the demo model. Some accept images of any size; for
/// these, the maximum number of tokens is given.
const FAMILIES: [(&str, Option<u32>); 11] = [
    ("Small LLaVA", None),
    ("Small Gemma 3", None),
    ("Small Pixtral", Some(60)),
    ("Small InternVL", None),
    ("Small SmolVLM", None),
    ("Small MiniCPM-V", None),
    ("Small MiniCPM-V 4.6", None),
    ("Small Step3-VL", None),
    ("Small Youtu-VL", Some(60)),
    ("Small Qwen2-VL", Some(24)),
    ("Small Qwen2.5-VL", Some(100)),
];

#[test]
fn a_projector_takes_the_predicted_bytes_and_no_image_makes_it_grow() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let card = card(256 * MIB);
    let model = load(&[&card], 0);
    let before = card.used();
    for (family, image_max_tokens) in FAMILIES {
        let path = projector(family, folder.path());
        for device in [None, Some(card.device())] {
            let params = ProjectorParams { image_max_tokens, ..on(device) };
            let asked = MediaMemory::ask(&path, &params).unwrap();
            assert_eq!(card.used(), before, "{family}");
            let mut loaded = Projector::load(&model, &path, &params).unwrap();
            assert_eq!(loaded.bytes(), asked.bytes, "{family}");
            let of_card = asked.bytes.iter().find(|bytes| bytes.device == card.device());
            let taken = of_card.map_or(0, ProjectorBytes::total);
            assert_eq!(card.used() - before, taken, "{family}");
            for seed in 0..40 {
                let (width, height) = (30 + seed * 997 % 270, 30 + seed * 613 % 270);
                all_rows(&mut loaded, width, height).unwrap();
                assert_eq!(card.used() - before, taken, "{family}: {width} x {height}");
            }
        }
    }
}

/// Encodes every part of an image. Returns the largest number of rows of a part.
fn all_rows(projector: &mut Projector, width: u32, height: u32) -> Result<usize, Error> {
    let rgb = pixels(width, height, 1);
    let chunks = projector.tokenize(&[MediaPart::Image { width, height, rgb: &rgb }], false)?;
    let mut most = 0;
    for index in 0..chunks.len() {
        let chunk = chunks.get(projector, index)?;
        if chunk.kind() == MediaKind::Image {
            most = most.max(chunk.len());
            projector.encode(&chunks, index)?;
        }
    }
    Ok(most)
}

#[test]
fn an_image_of_more_tokens_than_the_largest_is_refused_and_nothing_grows() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small Qwen2-VL", folder.path());
    let card = card(256 * MIB);
    let model = load(&[&card], 0);
    let params = ProjectorParams { image_max_tokens: Some(24), ..on(Some(card.device())) };
    let mut projector = Projector::load(&model, &path, &params).unwrap();
    let before = card.used();
    assert_eq!(all_rows(&mut projector, 28 * 24, 28).unwrap(), 24);
    // mtmd would make 154 tokens of this image.
    let error = all_rows(&mut projector, 28 * 1000, 28).unwrap_err().to_string();
    assert!(error.contains("encoding an image or a sound"), "{error}");
    assert!(error.contains("bytes of buffers") && error.contains("the largest image has"), "{error}");
    assert_eq!(card.used(), before);
    assert_eq!(all_rows(&mut projector, 28 * 6, 28 * 4).unwrap(), 24);
    assert_eq!(card.used(), before);
}

#[test]
fn the_largest_image_is_encoded_after_a_refusal_that_had_no_memory_for_all_buffers() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small Pixtral", folder.path());
    let card = card(256 * MIB);
    let model = load(&[&card], 0);
    let params = ProjectorParams { image_max_tokens: Some(400), ..on(Some(card.device())) };
    let mut projector = Projector::load(&model, &path, &params).unwrap();
    let before = card.used();
    // The largest image has only one column of rows, because another token follows each row.
    let largest = |projector: &mut Projector| all_rows(projector, 14, 14 * 400);
    assert_eq!(largest(&mut projector).unwrap(), 799);
    for round in 0..3 {
        // When the bytes of an image are queried, buffers are freed. Then another program takes memory, so that there
        // is room for a square image but not for the column.
        card.set_taken(card.total() - before + 4096);
        all_rows(&mut projector, 14, 14 * 10_000).unwrap_err();
        let missing = largest(&mut projector).unwrap_err().to_string();
        assert!(missing.contains("out of memory: SIM0 cannot allocate"), "{round}: {missing}");
        card.set_taken(0);
        assert_eq!(largest(&mut projector).unwrap(), 799, "{round}");
        assert_eq!(card.used(), before, "{round}");
    }
}

#[test]
fn step3_vl_reserves_its_tiles_and_not_the_image_before_it_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small Step3-VL", folder.path());
    let asked = MediaMemory::ask(&path, &on(None)).unwrap();
    assert_eq!(asked.image_rows, Some(81));
}

#[test]
fn rows_of_pixtral_are_numbers_whatever_the_memory_held_before() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small Pixtral", folder.path());
    let params = ProjectorParams { image_max_tokens: Some(60), ..on(None) };
    let mut all = Vec::new();
    for bytes in [1 << 16, 1 << 18, 1 << 20, 1 << 22] {
        // malloc will return this memory again, and then it is full of NaN.
        let held: Vec<Vec<f32>> = (0..8).map(|_| vec![f32::NAN; bytes / 4]).collect();
        drop(held);
        let mut projector = Projector::load(&demo_model(), &path, &params).unwrap();
        all.push(rows(&mut projector, 90, 40, 1));
    }
    assert!(all[0].iter().all(|value| value.is_finite()));
    assert!(all.iter().all(|rows| *rows == all[0]));
}

#[test]
fn files_that_do_not_belong_together_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let model = demo_model();
    let says = |path: &Path| Projector::load(&model, path, &on(None)).unwrap_err().to_string();
    // If a projector has another width, nothing stays loaded.
    let wide = folder.path().join("wide.gguf");
    mmproj::gemma3_at(56, 512).write_sparse(&wide).unwrap();
    assert!(says(&wide).contains("its rows are 512 wide, and the model takes 256"), "{}", says(&wide));
    assert!(says(&demo_path()).starts_with("cannot load the projector"), "{}", says(&demo_path()));
    assert!(matches!(Projector::load(&model, "no such file", &on(None)), Err(Error::Unreadable { .. })));
    let params = ProjectorParams { image_min_tokens: Some(9), image_max_tokens: Some(8), ..on(None) };
    let path = projector("Small LLaVA", folder.path());
    assert_eq!(refused(Projector::load(&model, &path, &params)), "image_min_tokens");

    let mut projector = Projector::load(&model, &path, &on(None)).unwrap();
    let image = |width, rgb| MediaPart::Image { width, height: 2, rgb };
    assert_eq!(refused(projector.tokenize(&[image(2, &[0; 11])], false)), "rgb");
    assert_eq!(refused(projector.tokenize(&[image(0, &[])], false)), "rgb");
    assert_eq!(refused(projector.tokenize(&[MediaPart::Sound(&[0.0; 9])], false)), "sound");
    let chunks = projector.tokenize(&[text("a")], true).unwrap();
    assert_eq!(refused(projector.encode(&chunks, 0)), "index");
    assert_eq!(refused(projector.encode(&chunks, 1)), "index");

    let mut context = cpu_context(ContextParams { n_ctx: 256, ..ContextParams::default() });
    let row = vec![0.0; 256];
    let rows = Rows { values: &row, positions: &[0], seq: 0, is_non_causal: false, output_last: false };
    assert_eq!(refused(context.decode_rows(&Rows { values: &row[1..], ..rows })), "values");
    assert_eq!(refused(context.decode_rows(&Rows { positions: &[0, 1], ..rows })), "positions");
    assert_eq!(refused(context.decode_rows(&Rows { positions: &[-1], ..rows })), "pos");
    assert_eq!(refused(context.decode_rows(&Rows { seq: 7, ..rows })), "seq_id");
    context.decode_rows(&rows).unwrap();
}
