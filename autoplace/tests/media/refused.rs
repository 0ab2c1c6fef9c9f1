//! If the model cannot accept a picture or a sound, there is an error with the reason, and no other text is disturbed.

use autoplace::chat::{ChatTemplate, Part};
use autoplace::generate::{Error, Prompt, Speculation, WhenFull};
use autoplace::gguf::Builder;
use autoplace::{Isolation, Model, Sound, load};
use test_support::demo_path;
use test_support::synthetic::mmproj;

use crate::eyes::{FAMILIES, ROWS, about, builder, picture, projector, seeing};
use crate::text_support::{complete, demo, greedy, request, worker};

fn says(result: Result<impl std::fmt::Debug, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_model_without_a_projector_refuses_a_picture_and_names_the_setting() {
    let model = demo(256, 1, false);
    assert!(!model.has_projector());
    let refused = greedy(&model, about(&picture(30, 20, 1))).text();
    assert!(matches!(refused, Err(Error::NoProjector { in_worker: false, .. })), "{refused:?}");
    let said = says(refused);
    assert!(said.contains("image of 30 x 20 pixels") && said.contains("--mmproj FILE"), "{said}");
    let mut chat = model.chat_with(ChatTemplate::family("chatml").unwrap());
    assert!(chat.say([Part::image(picture(3, 3, 1)), Part::text("?")]).is_err());
    assert!(chat.messages().is_empty());
}

#[test]
fn what_a_prompt_with_a_picture_cannot_do_is_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let model = seeing(FAMILIES[0], folder.path(), 1);
    assert!(model.has_projector());
    let image = picture(30, 20, 1);
    let ends = says(greedy(&model, Prompt::text("Look:").then_media(image.clone())).text());
    assert!(ends.ends_with("the prompt ends with it: a text must follow"), "{ends}");
    let sound = Sound::from_samples(16_000, vec![0.5; 1600]).unwrap();
    let heard = says(greedy(&model, Prompt::text("Hear:").then_media(sound).then_text("?")).text());
    assert!(heard.contains("mmproj.gguf has no encoder of sound"), "{heard}");
    let shifts = greedy(&model, about(&image)).when_full(WhenFull::Shift { keep: 1 });
    assert!(matches!(shifts.text(), Err(Error::CannotShift { .. })));
    let long = Prompt::text("word ".repeat(250)).then_media(image.clone()).then_text(".");
    assert!(matches!(greedy(&model, long).text(), Err(Error::PromptTooLong { .. })));
    // The model has not been changed by any of these errors.
    complete(greedy(&model, about(&image)), &model);
}

#[test]
fn pictures_that_alone_fill_the_context_are_refused_by_their_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let model = seeing(FAMILIES[0], folder.path(), 1);
    let of = |count: u32| {
        let pictures = (0..count).map(|seed| picture(30, 20, seed));
        pictures.fold(Prompt::text("Look:"), Prompt::then_media).then_text("What are these?")
    };
    // The error contains the same number of tokens as `count_tokens`, which prepares the pictures.
    let most = 256 / u32::try_from(ROWS).unwrap();
    let tokens = model.count_tokens(of(most + 4)).unwrap();
    let refused = greedy(&model, of(most + 4)).text().unwrap_err();
    let Error::PromptTooLong { tokens: found, context: 256 } = refused else { panic!("{refused:?}") };
    assert!(found.abs_diff(tokens) <= 1, "{found} of {tokens}");
    assert!(matches!(greedy(&model, of(most)).text(), Err(Error::PromptTooLong { .. })));
    complete(greedy(&model, of(4)), &model);
}

#[test]
fn a_refusal_says_which_of_the_prompts_pictures_and_sounds_it_is_about() {
    let folder = tempfile::tempdir().unwrap();
    let here = seeing(FAMILIES[0], folder.path(), 1);
    let path = folder.path().join("mmproj.gguf");
    let there = builder(&path, request(256, 1, false)).isolation(Isolation::Process(worker())).load().unwrap();
    let sound = Sound::from_samples(16_000, vec![0.5; 1600]).unwrap();
    let prompt = about(&picture(30, 20, 1)).then_media(sound).then_text("?");
    for model in [&here, &there] {
        let refused = greedy(model, prompt.clone()).text().unwrap_err();
        assert!(matches!(refused, Error::Media { index: 1, .. }), "{refused:?}");
        assert!(refused.to_string().starts_with("the sound of 0.1 s cannot be used: "), "{refused}");
        let ends = greedy(model, about(&picture(30, 20, 1)).then_media(picture(9, 9, 2))).text().unwrap_err();
        assert!(matches!(ends, Error::Media { index: 1, .. }), "{ends:?}");
    }
}

#[test]
fn a_text_about_a_picture_drafts_nothing_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = projector(FAMILIES[0], folder.path());
    let model = builder(&path, request(256, 1, false)).draft_max(4).load().unwrap();
    let lookup = Speculation::prompt_lookup();
    let text = complete(greedy(&model, about(&picture(30, 20, 1))).speculate(lookup), &model);
    let statistics = text.statistics();
    assert_eq!(statistics.drafted_tokens, 0);
    assert_eq!(statistics.drafts_off, Some(autoplace::generate::DraftingPaused::Media));
}

#[test]
fn a_template_without_a_place_for_a_picture_is_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let model = seeing(FAMILIES[0], folder.path(), 1);
    let template = ChatTemplate::new("{{ messages | length }} messages", <_>::default()).unwrap();
    let mut chat = model.chat_with(template);
    let said = says(chat.say([Part::image(picture(3, 3, 1)), Part::text("?")]).map(drop));
    assert!(said.contains("the chat template does not show every image and sound once"), "{said}");
}

#[test]
fn a_projector_of_another_model_and_a_file_that_is_none_are_refused_before_a_load() {
    let folder = tempfile::tempdir().unwrap();
    let wide = folder.path().join("wide.gguf");
    mmproj::gemma3_at(56, 512).write_sparse(&wide).unwrap();
    let refused = |path: &std::path::Path| {
        let error = Model::builder(demo_path()).mmproj(path).plan().unwrap_err();
        assert!(matches!(error, load::Error::Plan(_) | load::Error::Gguf(_)), "{error:?}");
        error.to_string()
    };
    let said = refused(&wide);
    assert!(said.contains("another model: its rows have 512 elements") && said.ends_with("takes 256"), "{said}");
    let said = refused(&demo_path());
    assert!(said.contains("an mmproj"), "{said}");
}

#[test]
fn a_projector_whose_rows_depend_on_their_place_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mmproj-deepseek4.gguf");
    for key in ["clip.projector_type", "clip.vision.projector_type"] {
        let file = Builder::new("clip").bool("clip.has_vision_encoder", true).str(key, "deepseek4v");
        file.write_sparse(&path).unwrap();
        let refused = Model::builder(demo_path()).mmproj(&path).plan().unwrap_err();
        let load::Error::Projector { mmproj, reason } = &refused else { panic!("{refused:?}") };
        assert_eq!(*mmproj, path);
        assert!(reason.contains("padding of its images depends on their place"), "{reason}");
        assert!(refused.to_string().contains("mmproj-deepseek4.gguf"), "{refused}");
    }
}
