//! Models whose memory cannot go back to every token: sliding windows, recurrent states, and both together with
//! attention. If tokens are reused, the text is the same as with a model that was just loaded. The models are small and
//! have random weights. There are no checkpoints in these tests; the tests with checkpoints are in `checkpoints`.

mod checkpoints;

use std::path::{Path, PathBuf};

use autoplace::generate::Fork;

use crate::text_support::{SEED, Texts, complete, random, raw_by_chance as raw, request, sampled, small, words};

/// A model for each kind of memory: `(name, path, recurrent, window)`.
fn models(folder: &Path) -> [(&'static str, PathBuf, bool, bool); 6] {
    let kinds = [
        ("llama", false, false),
        ("gpt-oss", false, true),
        ("deepseek2", false, false),
        ("mamba2", true, false),
        ("jamba", true, false),
        ("falcon-h1", true, false),
    ];
    kinds.map(|(arch, recurrent, window)| (arch, random(arch, None, folder), recurrent, window))
}

#[test]
fn texts_begin_where_others_ended_and_where_the_memory_can_go_back() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path, recurrent, window) in models(folder.path()) {
        let model = small(&path, request(1024, 1, false), 0);
        // The text is longer than the windows.
        let whole = words(7, 460);
        // The earlier text ends in the middle of the longer prompt, after its end, or exactly at its end.
        for (before, of) in [(320, 460), (460, 460), (459, 210)] {
            complete(sampled(&model, &whole[..before], SEED).max_tokens(1), &model);
            let then = sampled(&model, &whole[..of], SEED).max_tokens(12);
            let text = complete(then.cache_prompt(true), &model);
            let cached = text.statistics().cached_tokens;
            let expected = match (before < of, recurrent, window && before > of) {
                (true, ..) => before,
                (false, false, false) => of - 1,
                // A recurrent state is kept only for the end of a text, and a window only for the tokens near its end.
                (false, ..) => 0,
            };
            assert_eq!(cached, expected, "{title}: {before}, then {of}");
            let alone = raw(&model, &whole[..of], 12);
            assert_eq!(text.tokens, alone, "{title}: {before}, then {of}");
        }
    }
}

#[test]
fn a_second_text_goes_on_from_the_tokens_of_a_running_one() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path, ..) in models(folder.path()) {
        for unified in [false, true] {
            let case = format!("{title}, unified: {unified}");
            let model = small(&path, request(1536, 2, unified), 0);
            let mut session = model.session().unwrap();
            let mut texts = Texts::default();
            let generate = sampled(&model, words(7, 400), SEED).max_tokens(20);
            let first = session.begin(generate).unwrap();
            texts.generate_to(&mut session, first, 7);
            let so_far = session.tokens(first).unwrap();
            let generate = sampled(&model, so_far.clone(), SEED).max_tokens(12);
            let second = session.begin(generate.cache_prompt(true)).unwrap();
            texts.run(&mut session);
            assert_eq!(texts.of(second).tokens, raw(&model, &so_far, 12), "{case}");
            assert_eq!(texts.of(second).statistics().cached_tokens, so_far.len() - 1, "{case}");
        }
    }
}

/// Cells of a window that several texts share are not reused by llama.cpp when the window has left them. The windows of
/// three texts, together with the shared window, need more cells than the cache has.
#[test]
fn forked_texts_go_on_beyond_the_window_that_they_share() {
    let folder = tempfile::tempdir().unwrap();
    let model = small(&random("gpt-oss", Some(224), folder.path()), request(2048, 3, true), 0);
    let generate = sampled(&model, words(5, 260), SEED).ignore_eos().max_tokens(300);
    let alone = complete(generate.clone(), &model).tokens;
    assert_eq!(alone.len(), 300);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let first = session.begin(generate).unwrap();
    texts.generate_to(&mut session, first, 2);
    let forks = [(); 2].map(|()| session.fork(first, Fork::new()).unwrap());
    texts.run(&mut session);
    for text in [&[first], &forks[..]].concat() {
        let tokens = &texts.of(text).tokens;
        assert!(tokens.len() >= 298 && alone.ends_with(tokens), "{} tokens: {tokens:?}", tokens.len());
    }
}

#[test]
fn a_text_is_forked_and_rolled_back_in_each_memory_as_far_as_it_says() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path, recurrent, window) in models(folder.path()) {
        for (unified, checkpoints) in [(false, 1 << 30), (true, 1 << 30), (false, 0)] {
            let case = format!("{title}, unified: {unified}, checkpoints: {checkpoints}");
            let model = small(&path, request(1536, 2, unified), checkpoints);
            let prompt = words(7, 400);
            let expected = raw(&model, &prompt, 40);
            let mut session = model.session().unwrap();
            let mut texts = Texts::default();
            let first = session.begin(sampled(&model, prompt.clone(), SEED).max_tokens(40)).unwrap();
            texts.generate_to(&mut session, first, 30);
            let second = session.fork(first, Fork::new()).unwrap();
            let possible = session.can_roll_back(first).unwrap();
            match (recurrent, window, checkpoints) {
                (false, false, _) => assert_eq!(possible, prompt.len() + 30 - 1, "{case}"),
                // The recurrent state is kept only for the end of the text, and the last token is not computed yet.
                (true, _, 0) => assert_eq!(possible, 0, "{case}"),
                // The text can go back to the checkpoint before the end of the prompt. One token is computed after
                // that.
                (true, ..) => assert_eq!(possible, 30 + 3, "{case}"),
                (false, true, _) => assert!(possible >= 30, "{case}: {possible}"),
            }
            let back = possible.min(25);
            let refused = session.roll_back(first, possible + 1).unwrap_err().to_string();
            assert!(refused.contains(&format!("at most {possible}")), "{case}: {refused}");
            session.roll_back(first, back).unwrap();
            texts.run(&mut session);
            assert_eq!(texts.of(second).tokens, expected[30..], "{case}");
            assert_eq!(texts.of(first).tokens[30..], expected[30 - back..], "{case}");
        }
    }
}
