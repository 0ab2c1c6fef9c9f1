//! The place of a projector: in the plan, on a card, in the middle of an answer about a picture.

use autoplace::llama_sys::sim::SimGpu;
use autoplace::load::mmproj_beside;
use autoplace::memory::companion::CompanionRole;
use autoplace::plan::{GpuLayers, Request};
use autoplace::{Model, generate::Resumed};
use test_support::demo_path;
use test_support::synthetic::mmproj;

use crate::eyes::{FAMILIES, about, builder, picture, projector};
use crate::sim_support::card;
use crate::text_support::{Texts, complete, greedy, request};

#[test]
fn rows_that_see_each_other_raise_n_ubatch_in_the_plan_and_the_plan_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mmproj.gguf");
    // 64 x 64 patches, of which 16 are one row.
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
        // The weights are exact, and the buffers are below their bound.
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
    // The picture is known, and another is encoded by the projector in its new place.
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
