//! Texts about pictures, in a prompt store. They continue after a restart, and after other texts have taken their
//! place. The picture is not encoded again.

use std::path::Path;

use autoplace::generate::{GenerateRequest, Prompt};
use autoplace::plan::Request;
use autoplace::store::{PromptStore, StoreOptions};
use autoplace::{Image, Isolation, Model, memory};

use crate::eyes::{picture, seeing_by};
use crate::text_support::{Completion, SEED, complete, request, sampled, worker};

/// Five kinds of families: the rows have the order of their tokens, the rows of a picture see each other, or positions
/// have several axes (three kinds).
const FAMILIES: [&str; 5] = ["Small LLaVA", "Small Gemma 3", "Small Qwen2-VL", "Small Qwen2.5-VL", "Small Qwen3-VL"];

const BEFORE: &str = "In the beginning God created the heaven and the earth. And God said, Let there be light: and \
                      there was light.";
const AFTER: &str = " And the earth was without form, and void; and darkness was upon the face of the deep. And the \
                     Spirit of God moved upon the face of the waters.";
const NEXT: &str = " And God saw the light, that it was good: and God divided the light from the darkness.";

/// There is one sequence. Attention is rounded in the same way, whatever is computed together.
fn exact() -> Request {
    let mut request = request(1024, 1, false).n_batch(64);
    request.params.flash_attn = memory::FlashAttention::Off;
    request.params.type_k = memory::KvType::F32;
    request.params.type_v = memory::KvType::F32;
    request
}

fn in_folder(folder: &Path) -> PromptStore {
    PromptStore::open(StoreOptions::new(64 << 20).folder(folder, 1 << 30)).unwrap()
}

fn load(family: &str, folder: &Path, store: Option<&PromptStore>) -> Model {
    let builder = seeing_by(family, folder, exact());
    let builder = store.into_iter().cloned().fold(builder, autoplace::ModelBuilder::prompt_store);
    builder.load().unwrap()
}

fn about(image: &Image) -> Prompt {
    Prompt::text(BEFORE).then_media(image.clone()).then_text(AFTER)
}

fn generate(model: &Model, prompt: impl Into<Prompt>) -> GenerateRequest {
    sampled(model, prompt, SEED).max_tokens(16).cache_prompt(true)
}

fn text(model: &Model, prompt: impl Into<Prompt>) -> Completion {
    complete(generate(model, prompt), model)
}

#[test]
fn a_text_about_a_picture_goes_on_after_a_restart_as_without_a_store() {
    for family in FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let files = folder.path().join("store");
        let image = picture(90, 40, 3);
        let next = || about(&image).then_text(NEXT);
        let expected = [about(&image), next()].map(|prompt| text(&load(family, folder.path(), None), prompt).tokens);
        let first = text(&load(family, folder.path(), Some(&in_folder(&files))), about(&image));
        assert_eq!(first.tokens, expected[0], "{family}");
        let model = load(family, folder.path(), Some(&in_folder(&files)));
        let again = text(&model, next());
        assert_eq!(again.tokens, expected[1], "{family}: {:?}", again.statistics());
        // The whole first prompt was restored, including the rows of the picture.
        let (first, again) = (first.statistics(), again.statistics());
        assert_eq!(again.encoded_media, 0, "{family}: {again:?}");
        assert!(again.media_tokens >= 4 && again.media_tokens == first.media_tokens, "{family}: {again:?}");
        assert!(again.cached_tokens >= first.prompt_tokens, "{family}: {first:?}, {again:?}");
        let restored = (again.restored_tokens, again.restored_from_folder);
        assert_eq!(restored, (again.cached_tokens, again.cached_tokens), "{family}: {again:?}");
        assert!(again.cached_tokens < again.prompt_tokens, "{family}: {again:?}");
    }
}

#[test]
fn a_text_about_a_picture_goes_on_when_others_have_taken_its_place() {
    for family in FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let store = PromptStore::new(64 << 20);
        // Without a store, every picture would have to be encoded again.
        let builder = seeing_by(family, folder.path(), exact()).prompt_store(store.clone()).media_cache(0);
        let model = builder.load().unwrap();
        let images = [1, 2, 3].map(|seed| picture(60, 40, seed));
        let first = images.each_ref().map(|image| text(&model, about(image)));
        for (image, first) in images.iter().zip(&first) {
            let again = text(&model, about(image));
            assert_eq!(again.tokens, first.tokens, "{family}");
            let again = again.statistics();
            assert_eq!((again.encoded_media, again.cached_tokens), (0, again.prompt_tokens - 1), "{family}: {again:?}");
        }
        assert!(store.usage().tokens > 0);
    }
}

#[test]
fn only_the_same_picture_of_the_same_size_from_the_same_projector_is_restored() {
    for family in ["Small LLaVA", "Small Qwen2-VL"] {
        let folder = tempfile::tempdir().unwrap();
        let files = folder.path().join("store");
        let image = picture(90, 40, 3);
        let model = load(family, folder.path(), Some(&in_folder(&files)));
        // In some families, there is a token before the rows.
        let before = model.tokenize(about(&image)).unwrap().iter().position(|token| *token < 0).unwrap();
        text(&model, about(&image));
        drop(model);
        let restored = |model: &Model, prompt: Prompt| {
            let statistics = text(model, prompt).statistics();
            assert!(statistics.encoded_media > 0, "{family}: {statistics:?}");
            statistics.restored_tokens
        };
        let model = load(family, folder.path(), Some(&in_folder(&files)));
        // The words before the other picture are restored, but nothing of the picture is.
        assert_eq!(restored(&model, about(&picture(90, 40, 4))), before, "{family}");
        drop(model);
        // With another limit, the same pixels have other rows. Some of these have the same numbers.
        let builder = seeing_by(family, folder.path(), exact()).image_max_tokens(12).prompt_store(in_folder(&files));
        assert_eq!(restored(&builder.load().unwrap(), about(&image)), before, "{family}");
        // With another projector, the rows are different too.
        let path = folder.path().join("mmproj.gguf");
        let builder = seeing_by(family, folder.path(), exact()).prompt_store(in_folder(&files));
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(restored(&builder.load().unwrap(), about(&image)), before, "{family}");
    }
}

#[test]
fn a_worker_restores_the_pictures_of_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("store");
    let image = picture(60, 40, 4);
    let load = || {
        let builder = seeing_by("Small Qwen2-VL", folder.path(), exact()).prompt_store(in_folder(&files));
        builder.isolation(Isolation::Process(worker())).load().unwrap()
    };
    let first = text(&load(), about(&image));
    let again = text(&load(), about(&image));
    assert_eq!(again.tokens, first.tokens);
    let again = again.statistics();
    assert_eq!((again.encoded_media, again.restored_from_folder), (0, again.prompt_tokens - 1), "{again:?}");
}
