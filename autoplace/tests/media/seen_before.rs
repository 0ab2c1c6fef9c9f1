//! A picture that was seen before is not encoded again and not computed again: in later turns, in other texts, and
//! after a text was forked or rolled back.

use std::path::Path;

use autoplace::chat::{ChatTemplate, Part};
use autoplace::generate::{Chat, Engine, Error, Fork, Prompt, Statistics};
use autoplace::{Image, Isolation, Model};

use crate::eyes::{FAMILIES, ROWS, about, beside, builder, files, picture, projector, seeing};
use crate::text_support::{Texts, answered, complete, greedy, request, worker};

fn chat_of(model: &Model, engine: Option<&Engine>) -> Chat {
    let template = ChatTemplate::family("chatml").unwrap();
    let chat = match engine {
        Some(engine) => engine.chat_with(template),
        None => model.chat_with(template),
    };
    chat.with(|generate| generate.temp(0.0).max_tokens(8))
}

fn ask(chat: &mut Chat, parts: impl IntoIterator<Item = Part>) -> Statistics {
    let parts: Vec<Part> = parts.into_iter().collect();
    chat.say(parts).unwrap().finish().unwrap().1
}

#[test]
fn the_second_question_about_a_picture_computes_only_the_question() {
    let folder = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        let model = seeing(family, folder.path(), 2);
        let engine = Engine::new(&model).unwrap();
        let mut chat = chat_of(&model, Some(&engine));
        let image = picture(60, 40, 5);
        let first = ask(&mut chat, [Part::image(image.clone()), Part::text("What is this?")]);
        assert_eq!((first.media_tokens, first.encoded_media, first.cached_tokens), (ROWS, 1, 0), "{family}");
        let second = ask(&mut chat, [Part::text("And what else?")]);
        assert_eq!((second.media_tokens, second.encoded_media), (ROWS, 0), "{family}");
        assert!(second.cached_tokens >= first.prompt_tokens, "{family}: {second:?}");
        // In the third turn, the same picture is in the message again. Its rows are computed, but it is not encoded.
        let third = ask(&mut chat, [Part::image(image), Part::text("And this?")]);
        assert_eq!((third.media_tokens, third.encoded_media), (2 * ROWS, 0), "{family}");
        assert!(third.cached_tokens >= second.prompt_tokens, "{family}: {third:?}");
        let tokens = chat.prompt_tokens().unwrap();
        assert!(tokens > third.prompt_tokens, "{tokens}, {third:?}");
    }
}

#[test]
fn a_chat_says_what_a_prompt_with_the_picture_at_its_place_says() {
    let folder = tempfile::tempdir().unwrap();
    let model = seeing(FAMILIES[0], folder.path(), 1);
    let image = picture(60, 40, 6);
    let mut chat = chat_of(&model, None);
    let (reply, _) = chat.say([Part::image(image.clone()), Part::text("What is this?")]).unwrap().finish().unwrap();
    let bos = model.native().unwrap().vocab().bos().unwrap();
    let written = Prompt::tokens([bos])
        .then_markup("<|im_start|>user\n")
        .then_media(image)
        .then_markup("What is this?<|im_end|>\n<|im_start|>assistant\n");
    let text = model.generate(written).special(true).temp(0.0).max_tokens(8).text().unwrap();
    assert_eq!(reply.raw, text);
    assert!(!text.is_empty());
}

#[test]
fn eight_texts_about_one_picture_encode_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = seeing(FAMILIES[0], folder.path(), 8);
    let image = picture(60, 40, 7);
    let alone = complete(greedy(&model, about(&image)), &model);
    let fresh = seeing(FAMILIES[0], folder.path(), 8);
    let engine = Engine::new(&fresh).unwrap();
    let streams: Vec<_> = (0..8).map(|_| engine.submit(greedy(&fresh, about(&image))).unwrap()).collect();
    let texts: Vec<_> = streams.into_iter().map(answered).collect();
    assert_eq!(texts.iter().map(|text| text.statistics().encoded_media).sum::<usize>(), 1);
    for text in texts {
        assert_eq!(text.tokens, alone.tokens);
    }
}

/// A model in which a picture may have up to 1,024 rows, and a picture with that number of rows.
fn detailed(folder: &Path, sequences: u32, kv_unified: bool) -> (Model, Image) {
    let files = files("Small Qwen2-VL", folder);
    let request = request(1536 * sequences, sequences, kv_unified);
    let model = beside(&files, request, Some(1024)).load().unwrap();
    (model, picture(28 * 32, 28 * 32, 8))
}

/// How many tokens were computed for a text before its first one. This work is the same on every machine.
fn computed(statistics: &Statistics) -> usize {
    statistics.prompt_tokens - statistics.cached_tokens
}

#[test]
fn the_second_question_about_a_picture_of_a_thousand_tokens_is_a_tenth_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    for has_engine in [false, true] {
        let (model, image) = detailed(folder.path(), 2, false);
        let engine = has_engine.then(|| Engine::new(&model).unwrap());
        let mut chat = chat_of(&model, engine.as_ref());
        let first = ask(&mut chat, [Part::image(image.clone()), Part::text("What is this?")]);
        let second = ask(&mut chat, [Part::text("And what colour is it?")]);
        assert_eq!((first.media_tokens, second.media_tokens), (1024, 1024));
        assert_eq!((first.cached_tokens, second.encoded_media), (0, 0));
        assert!(computed(&first) > 1024);
        assert!(computed(&second) * 10 <= computed(&first), "{second:?} after {first:?}");
        // Another question about the same picture, in a separate conversation.
        let mut other = chat_of(&model, engine.as_ref());
        let other = ask(&mut other, [Part::image(image.clone()), Part::text("Is it large?")]);
        assert_eq!(other.encoded_media, 0);
        assert!(computed(&other) * 10 <= computed(&first), "{other:?} after {first:?}");
    }
}

#[test]
#[ignore = "prints the times of docs/media.md, which want a quiet machine"]
fn times_to_the_first_token_of_the_first_and_of_the_second_question() {
    let folder = tempfile::tempdir().unwrap();
    let (model, image) = detailed(folder.path(), 1, false);
    let until_first = |statistics: &Statistics| statistics.first_token_latency.unwrap();
    for round in 0..5 {
        // In each round, there is another picture.
        let mut rgb = image.rgb().to_vec();
        rgb[0] = round;
        let image = Image::from_rgb(image.width(), image.height(), rgb).unwrap();
        let mut chat = chat_of(&model, None);
        let first = ask(&mut chat, [Part::image(image), Part::text("What is this?")]);
        let second = ask(&mut chat, [Part::text("And what colour is it?")]);
        assert_eq!((first.encoded_media, second.encoded_media), (1, 0));
        let [first, second] = [&first, &second].map(|statistics| until_first(statistics).as_secs_f64() * 1000.0);
        println!("first question: {first:.1} ms, second: {second:.1} ms, {:.3}", second / first);
    }
}

#[test]
fn eight_texts_about_a_picture_of_a_thousand_tokens_encode_and_compute_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let (model, image) = detailed(folder.path(), 8, true);
    let engine = Engine::new(&model).unwrap();
    let streams: Vec<_> = (0..8).map(|_| engine.submit(greedy(&model, about(&image))).unwrap()).collect();
    let texts: Vec<_> = streams.into_iter().map(answered).collect();
    let sum = |of: fn(&Statistics) -> usize| texts.iter().map(|text| of(&text.statistics())).sum::<usize>();
    assert_eq!(sum(|statistics| statistics.encoded_media), 1);
    assert_eq!(sum(|statistics| statistics.media_tokens), 8 * 1024);
    assert!(sum(computed) <= 1024 + 8 * 64, "{}", sum(computed));
}

#[test]
fn another_picture_is_another_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let model = seeing(FAMILIES[0], folder.path(), 1);
    let prompt = |image: &Image| greedy(&model, about(image)).cache_prompt(true);
    let first = complete(prompt(&picture(60, 40, 1)), &model).statistics();
    let again = complete(prompt(&picture(60, 40, 1)), &model).statistics();
    assert_eq!((again.encoded_media, again.cached_tokens), (0, first.prompt_tokens - 1));
    let other = complete(prompt(&picture(60, 40, 2)), &model).statistics();
    assert_eq!(other.encoded_media, 1);
    assert!(other.cached_tokens <= first.prompt_tokens - ROWS, "{other:?}");
}

#[test]
fn without_room_for_rows_a_picture_is_encoded_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = projector(FAMILIES[0], folder.path());
    let model = builder(&path, request(256, 1, false)).media_cache(0).load().unwrap();
    let image = picture(60, 40, 1);
    let texts = [(); 2].map(|()| complete(greedy(&model, about(&image)), &model));
    assert_eq!(texts.each_ref().map(|text| text.statistics().encoded_media), [1, 1]);
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn a_text_about_a_picture_is_forked_and_rolled_back_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = seeing(FAMILIES[0], folder.path(), 2);
    let image = picture(60, 40, 9);
    let alone = complete(greedy(&model, about(&image)), &model);
    let mut session = model.session().unwrap();
    let first = session.begin(greedy(&model, about(&image))).unwrap();
    let mut texts = Texts::default();
    texts.generate_to(&mut session, first, 6);
    let forked = session.fork(first, Fork::new()).unwrap();
    let tokens = session.tokens(first).unwrap();
    let last_row = tokens.iter().rposition(|token| *token < 0).unwrap();
    let possible = session.can_roll_back(first).unwrap();
    assert_eq!(possible, tokens.len() - last_row - 2, "a token stays behind the picture");
    let rolled_back = session.roll_back(first, 3).unwrap();
    assert_eq!(rolled_back.tokens, 3);
    texts.run(&mut session);
    assert_eq!(texts.of(forked).tokens, alone.tokens[6..]);
    let both = texts.of(first).tokens.clone();
    assert_eq!((&both[..6], &both[6..]), (&alone.tokens[..6], &alone.tokens[3..]));
}

#[test]
fn a_model_in_a_worker_sees_the_same_and_remembers_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = projector(FAMILIES[0], folder.path());
    let image = picture(60, 40, 4);
    let here = seeing(FAMILIES[0], folder.path(), 1);
    let there = builder(&path, request(256, 1, false)).isolation(Isolation::Process(worker())).load().unwrap();
    let expected = complete(greedy(&here, about(&image)), &here);
    assert_eq!(complete(greedy(&there, about(&image)), &there), expected);
    let replies = [&here, &there].map(|model| {
        let mut chat = chat_of(model, None);
        let first = chat.say([Part::image(image.clone()), Part::text("What is this?")]).unwrap().finish().unwrap();
        let second = chat.say("And what else?").unwrap().finish().unwrap();
        assert_eq!(second.1.encoded_media, 0);
        assert!(second.1.cached_tokens >= first.1.prompt_tokens - 1, "{:?}", second.1);
        (first.0.raw, second.0.raw)
    });
    assert_eq!(replies[0], replies[1]);
    // Several texts about one picture run at once. It is sent only once, and each text is the same as alone.
    let several = builder(&path, request(256, 3, false)).isolation(Isolation::Process(worker())).load().unwrap();
    let engine = Engine::new(&several).unwrap();
    let texts: Vec<_> = (0..5).map(|_| engine.submit(greedy(&several, about(&image))).unwrap()).collect();
    for text in texts {
        assert_eq!(answered(text), expected);
    }
    // Only the worker knows how many tokens a picture has.
    assert!(matches!(there.count_tokens(about(&image)), Err(Error::NoProjector { in_worker: true, .. })));
}
