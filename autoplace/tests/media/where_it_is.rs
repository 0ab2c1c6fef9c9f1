//! Where a projector is: according to the plan, on a card, and when it moves in the middle of an answer about a
//! picture.

use std::ops::Range;
use std::path::PathBuf;

use autoplace::llama_sys::sim::SimGpu;
use autoplace::load::{Verify, mmproj_beside};
use autoplace::memory::FlashAttention;
use autoplace::memory::companion::CompanionRole;
use autoplace::plan::{GpuLayers, Request};
use autoplace::{Model, ModelBuilder, generate::Resumed};
use test_support::demo_path;
use test_support::random_weights::Dice;
use test_support::synthetic::mmproj;

use crate::eyes::{ALL_FAMILIES, FAMILIES, about, beside, builder, files, image_max_tokens, picture, projector};
use crate::sim_support::card;
use crate::text_support::{Texts, complete, greedy, random, request};

#[test]
fn rows_that_see_each_other_raise_n_ubatch_in_the_plan_and_the_plan_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mmproj.gguf");
    // There are 64 x 64 patches, and 16 of them become one row.
    mmproj::gemma3_at(896, 256).write_sparse(&path).unwrap();
    let plan = |n_ubatch| Model::builder(demo_path()).request(Request::new().n_ubatch(n_ubatch)).mmproj(&path).plan();
    let raised = plan(64).unwrap();
    assert_eq!((raised.context.n_ubatch, raised.companions[0].role), (256, CompanionRole::Mmproj));
    assert!(raised.notes.iter().any(|note| note.contains("up to 256 rows")), "{raised}");
    let enough = plan(512).unwrap();
    assert_eq!(enough.context.n_ubatch, 512);
    assert!(!enough.notes.iter().any(|note| note.contains("rows")), "{enough}");
}

#[test]
fn a_projector_lies_on_the_card_as_planned_and_nothing_of_it_stays() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = projector(FAMILIES[0], folder.path());
    let card = card(4 << 30);
    let on = |layers| builder(&path, request(256, 1, false).n_gpu_layers(GpuLayers::Exactly(layers)));
    for layers in [0, 3] {
        let before = card.used();
        let model = on(layers).load().unwrap();
        let report = model.report();
        let plan = model.placement();
        assert_eq!(plan.companions[0].gpu.is_some(), layers > 0, "{plan}");
        let note = report.notes.iter().find(|note| note.contains("(mmproj)")).unwrap().clone();
        match layers {
            0 => assert!(note.ends_with("is on the host"), "{note}"),
            _ => assert!(note.contains("it took"), "{note}"),
        }
        let text = complete(greedy(&model, about(&picture(60, 40, 1))), &model);
        assert_eq!(text.tokens.len(), 24);
        if let Some(gpu) = plan.gpus().next() {
            let planned = gpu.footprint.total() + gpu.companions + gpu.headroom.total();
            assert!(card.peak() <= planned, "{} of {planned}", card.peak());
        }
        drop(model);
        assert_eq!(card.used(), before);
    }
}

/// Loads the model with a projector of this family on the host or on the card, and computes the largest picture that is
/// allowed. Compares the plan with llama.cpp's count, and llama.cpp's count with the card's.
fn takes_what_was_planned(files: &(PathBuf, PathBuf), family: &str, card: &SimGpu, layers: u32, flash: FlashAttention) {
    let mut request = request(1024, 1, false).n_gpu_layers(GpuLayers::Exactly(layers));
    request.params.flash_attn = flash;
    let model = beside(files, request, image_max_tokens(family)).load().unwrap();
    let (report, plan) = (model.report(), model.placement());
    let what = format!("{family}, {layers} layers, {flash:?}:\n{report}");
    let (planned, allocated) = (plan.companions[0].bytes, report.projector.unwrap());
    let headers = autoplace::gguf::Header::open(&files.1).unwrap();
    match allocated.gpu {
        None => assert_eq!((planned.host, planned.gpu.total()), (allocated.host, 0), "{what}"),
        Some(gpu) => {
            assert_eq!(planned.gpu, gpu, "{what}");
            // Before its buffers are used, each tensor passes through the memory of the host.
            let largest = headers.tensors().map(autoplace::gguf::Tensor::bytes).max().unwrap();
            assert_eq!(planned.host.compute, allocated.host.compute.max(largest), "{what}");
        }
    }
    assert_eq!((planned.gpu_uncertainty, planned.host_uncertainty), (0, 0), "{what}");
    let of_model: u64 = report.gpus.iter().filter_map(|gpu| gpu.allocated).map(|bytes| bytes.total()).sum();
    let used = card.used();
    assert_eq!(used, of_model + allocated.gpu.map_or(0, |gpu| gpu.total()), "{what}");
    if family == "Small Ultravox" {
        return;
    }
    for (width, height) in [(28 * 6, 28 * 4), (28 * 2, 28 * 12), (28 * 12, 28 * 2), (200, 20), (300, 200)] {
        complete(greedy(&model, about(&picture(width, height, 1))).max_tokens(2), &model);
        assert_eq!(card.used(), used, "{width} x {height}: {what}");
    }
}

#[test]
fn projectors_take_to_the_byte_what_was_planned_in_52_loads() {
    own_process!();
    let card = card(4 << 30);
    let mut loads = 0;
    // One family is left out, because it is nearly the same as another family.
    let families = ALL_FAMILIES.into_iter().filter(|family| *family != "Small Qwen2-VL");
    for family in families.chain(["Small Ultravox"]) {
        let folder = tempfile::tempdir().unwrap();
        let files = files(family, folder.path());
        for layers in [0, 3] {
            for flash in [FlashAttention::On, FlashAttention::Off] {
                takes_what_was_planned(&files, family, &card, layers, flash);
                assert_eq!(card.used(), 0);
                loads += 1;
            }
        }
    }
    assert_eq!(loads, 52);
}

/// Computes pictures of many numbers of rows, of which none takes more memory than the load.
fn rows_take_no_more(model: &Model, card: &SimGpu, what: &str) {
    let (used, report) = (card.used(), model.report());
    for rows in [1, 2, 7, 31, 32, 33, 63, 64, 100] {
        let image = picture(32 * rows, 32, rows);
        let text = complete(greedy(model, about(&image)).max_tokens(2), model);
        let growth = text.statistics().buffer_growth;
        assert_eq!((growth, card.used()), (0, used), "{what}, {rows} rows:\n{report}");
    }
    for gpu in &report.gpus {
        // The graphs of other numbers of tokens are not planned.
        assert_eq!(gpu.unplanned(), gpu.grown, "{what}:\n{report}");
    }
}

/// llama.cpp reserves graphs of tokens only. A graph of rows begins with other tensors, and in Qwen3-VL its rows are
/// wider than the model. If each of several sequences has its own cache, all rows of a picture are in one cache.
#[test]
fn no_number_of_rows_takes_more_than_planned() {
    own_process!();
    let card = card(4 << 30);
    for family in ["Small Qwen3-VL", "Small Qwen2.5-VL", "Small Pixtral"] {
        let folder = tempfile::tempdir().unwrap();
        let files = files(family, folder.path());
        for (sequences, layers) in [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (3, 0), (3, 2), (3, 5)] {
            // From 32 rows of one sequence on, a card computes with a copy of the sequence's cache.
            let n_ubatch = if sequences == 1 { 128 } else { 64 };
            let request = request(1024 * sequences, sequences, false).n_ubatch(n_ubatch);
            let request = request.n_gpu_layers(GpuLayers::Exactly(layers));
            let model = beside(&files, request, Some(100)).verify(Verify::Full).load().unwrap();
            rows_take_no_more(&model, &card, &format!("{family}, {layers} layers, {sequences} sequences"));
        }
    }
}

/// In models with windows and recurrent states, the caches of several sequences are of several kinds.
#[test]
fn rows_in_models_with_windows_and_states_take_no_more_than_planned() {
    own_process!();
    let card = card(4 << 30);
    for (arch, window) in [("gemma3", Some(224)), ("falcon-h1", None), ("mamba2", None)] {
        let folder = tempfile::tempdir().unwrap();
        let files = (random(arch, window, folder.path()), projector("Small Pixtral", folder.path()));
        for (sequences, layers) in [(1, 1), (3, 0), (3, 1), (3, 99)] {
            let request = request(1024 * sequences, sequences, false).n_ubatch(64);
            let request = request.n_gpu_layers(GpuLayers::Exactly(layers));
            let model = beside(&files, request, Some(100)).verify(Verify::Full).load().unwrap();
            rows_take_no_more(&model, &card, &format!("{arch}, {layers} layers, {sequences} sequences"));
        }
    }
}

#[test]
fn images_of_youtu_vl_have_at_most_4096_tokens_unless_the_user_says_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = projector("Small Youtu-VL", folder.path());
    let host = |tokens: Option<u32>| {
        let builder = tokens.into_iter().fold(builder(&path, request(64, 1, false)), ModelBuilder::image_max_tokens);
        builder.plan().unwrap().companions[0].bytes.host
    };
    assert_eq!(host(None), host(Some(4096)));
    assert!(host(None).compute < host(Some(8192)).compute);
    let model = builder(&path, request(64, 1, false)).load().unwrap();
    let notes = &model.report().notes;
    assert!(notes.iter().any(|note| note.contains("larger images than 4096 tokens are scaled down")), "{notes:?}");
    let model = builder(&path, request(64, 1, false)).image_max_tokens(24).load().unwrap();
    assert!(!model.report().notes.iter().any(|note| note.contains("scaled")), "{}", model.report());
}

/// Random cards, and the largest picture that is allowed. There is one attempt, and no card takes more than was planned
/// together with the headroom. After a quick warm-up, the buffers of the text model may grow for a few numbers of rows,
/// as they may for texts (docs/load-contract.md). After a full warm-up, nothing grows. The buffers of the projector
/// never grow.
fn fleets(numbers: Range<u64>) {
    let folders: Vec<_> = ALL_FAMILIES.iter().map(|_| tempfile::tempdir().unwrap()).collect();
    let all: Vec<_> = ALL_FAMILIES.iter().zip(&folders).map(|(family, folder)| files(family, folder.path())).collect();
    let (mut on_cards, mut on_host) = (0, 0);
    let (mut grown, mut most_grown) = (0, 0);
    for number in numbers {
        let mut dice = Dice::new(number);
        let cards: Vec<SimGpu> = (0..1 + dice.below(3_usize)).map(|_| card((128 << 20) << dice.below(5_u32))).collect();
        for card in &cards {
            card.set_taken(dice.below(card.total() / 2));
        }
        let at = dice.below(ALL_FAMILIES.len());
        let family = ALL_FAMILIES[at];
        let tokens = [12, 24, 100, 400][dice.below(4_usize)];
        let is_free = image_max_tokens(family).is_some();
        let verify = if number % 8 == 0 { Verify::Full } else { Verify::Quick };
        // In every second eight fleets, several sequences have caches of their own.
        let sequences = if number / 8 % 2 == 0 { 1 } else { 2 + dice.below(2_u32) };
        let request = request(1024 * sequences, sequences, false);
        let builder = beside(&all[at], request, is_free.then_some(tokens));
        let model = builder.verify(verify).load().unwrap();
        let what = format!("fleet {number}, {family} of {tokens} tokens, {sequences} sequences:\n{}", model.report());
        assert_eq!(model.report().attempts.len(), 1, "{what}");
        match model.placement().companions[0].gpu {
            Some(_) => on_cards += 1,
            None => on_host += 1,
        }
        let used = || cards.iter().map(SimGpu::used).collect::<Vec<u64>>();
        let before = used();
        let mut growth = 0;
        let rows = 1 + dice.below(tokens);
        let narrow = if is_free { (28 * tokens, 28) } else { (280, 28) };
        let sizes = [(28 * rows, 28 * (tokens / rows)), narrow, (30 + dice.below(270), 90)];
        for (width, height) in sizes.into_iter().filter(|(width, height)| is_free || width.max(height) < &400) {
            let text = complete(greedy(&model, about(&picture(width, height, 1))).max_tokens(2), &model);
            growth += text.statistics().buffer_growth;
        }
        if verify == Verify::Full || growth == 0 {
            assert_eq!((growth, used()), (0, before), "{what}");
        }
        grown += u32::from(growth > 0);
        most_grown = most_grown.max(growth);
        let plan = model.placement();
        for card in &cards {
            let name = card.device().name();
            let gpu = plan.gpus().find(|gpu| gpu.device.as_deref() == Some(&name));
            let projector = &plan.companions[0];
            let planned = match gpu {
                Some(gpu) => gpu.footprint.total() + gpu.companions + gpu.headroom.total(),
                None if projector.device.as_deref() == Some(&name) => projector.bytes.gpu.total(),
                None => 0,
            };
            assert!(card.peak() <= planned, "{name}: {} of {planned}, {what}", card.peak());
        }
    }
    println!(
        "{on_cards} on cards, {on_host} on the host; in {grown} the text model's grew, by {most_grown} bytes at most"
    );
    assert!(on_cards > 0 && on_host > 0, "{on_cards} on cards, {on_host} on the host");
}

#[test]
fn no_fleet_is_over_with_the_largest_picture() {
    own_process!();
    fleets(0..16);
}

#[test]
#[ignore = "minutes"]
fn no_fleet_of_three_hundred_is_over_with_the_largest_picture() {
    own_process!();
    // `AUTOPLACE_FLEETS=1000..1060` is a part of them.
    let part = std::env::var("AUTOPLACE_FLEETS").ok();
    let part = part.as_ref().map(|part| part.split_once("..").expect("two numbers"));
    let [from, to] = part.map_or([1000, 1300], |(from, to)| [from, to].map(|number| number.parse().unwrap()));
    fleets(from..to);
}

#[test]
fn an_answer_about_a_picture_goes_on_after_a_re_placement() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = projector(FAMILIES[0], folder.path());
    let _card: SimGpu = card(4 << 30);
    let mut request = request(256, 1, false);
    request.params.repack = false;
    let layers = |layers| builder(&path, request.clone().n_gpu_layers(GpuLayers::Exactly(layers)));
    let image = picture(60, 40, 3);
    let model = layers(0).load().unwrap();
    let alone = complete(greedy(&model, about(&image)), &model);
    let mut session = model.session().unwrap();
    let text = session.begin(greedy(&model, about(&image))).unwrap();
    let mut texts = Texts::default();
    texts.generate_to(&mut session, text, 8);
    let replaced = session.replace(Some(layers(3).plan().unwrap())).unwrap();
    assert_eq!(replaced.resumed, Resumed::Restored);
    assert!(model.placement().companions[0].gpu.is_some());
    texts.run(&mut session);
    assert_eq!(texts.of(text).tokens, alone.tokens);
    drop(session);
    // This picture is already known. Another picture is encoded by the projector, in its new place.
    let again = complete(greedy(&model, about(&image)), &model);
    assert_eq!((again.statistics().encoded_media, &again.tokens), (0, &alone.tokens));
    assert_eq!(complete(greedy(&model, about(&picture(60, 40, 4))), &model).statistics().encoded_media, 1);
}

#[test]
fn a_projector_is_found_beside_its_model_and_no_other_file_is() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    std::fs::copy(demo_path(), &model).unwrap();
    assert_eq!(mmproj_beside(&model), None);
    let file = |name: &str| folder.path().join(name);
    mmproj::gemma3_at(56, 512).write_sparse(file("mmproj-other.gguf")).unwrap();
    std::fs::write(file("mmproj-broken.gguf"), b"none").unwrap();
    assert_eq!(mmproj_beside(&model), None);
    mmproj::named("Small LLaVA").write_sparse(file("mmproj-F32.gguf")).unwrap();
    assert_eq!(mmproj_beside(&model), Some(file("mmproj-F32.gguf")));
    mmproj::named("Small Gemma 3").write_sparse(file("mmproj-model-f16.gguf")).unwrap();
    assert_eq!(mmproj_beside(&model), Some(file("mmproj-model-f16.gguf")));
}
