//! Models whose memory cannot go back to every token: sliding windows, recurrent states, both beside attention. What is
//! reused, forked, rolled back or shifted gives the text of a fresh model, or is refused. On small models with random
//! weights; without checkpoints here, and with them in `checkpoints`.

mod checkpoints;

use std::path::{Path, PathBuf};

use crate::text_support::{Raw, SEED, Texts, random, raw_by_chance as raw, request, sampled, small, told, words};
use autoplace::Model;
use autoplace::generate::{Error, Fork, Keep, SavedCacheError, WhenFull};
use autoplace::llama_sys::{KvType, Token};

/// The models by the kind of their memory: `(name, path, recurrent, window)`.
fn models(folder: &Path) -> [(&'static str, PathBuf, bool, bool); 7] {
    let kinds = [
        ("llama", false, false),
        ("gemma3", false, true),
        ("gpt-oss", false, true),
        ("deepseek2", false, false),
        ("mamba2", true, false),
        ("jamba", true, false),
        ("falcon-h1", true, false),
    ];
    kinds.map(|(arch, recurrent, window)| (arch, random(arch, None, folder), recurrent, window))
}

fn load(path: &Path, n_ctx: u32, n_seq_max: u32, unified: bool) -> Model {
    small(path, request(n_ctx, n_seq_max, unified), 0)
}

/// Longer than the windows.
fn prompt(n: usize) -> Vec<Token> {
    words(7, n)
}

#[test]
fn texts_begin_where_others_ended_and_where_the_memory_can_go_back() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path, recurrent, window) in models(folder.path()) {
        let model = load(&path, 1024, 1, false);
        let whole = prompt(600);
        // It ends in the middle of the longer prompt, is gone beyond, and is the same.
        for (before, of) in [(420, 600), (600, 600), (599, 350)] {
            let first = sampled(&model, &whole[..before], SEED);
            told(first.max_tokens(1), &model);
            let then = sampled(&model, &whole[..of], SEED).max_tokens(12);
            let text = told(then.cache_prompt(true), &model);
            let cached = text.statistics().cached_tokens;
            let expected = match (before < of, recurrent, window && before > of) {
                (true, ..) => before,
                (false, false, false) => of - 1,
                // A state holds its end only, and a window what is near it.
                (false, ..) => 0,
            };
            assert_eq!(cached, expected, "{title}: {before}, then {of}");
            let alone = raw(&model, &whole[..of], 12);
            assert_eq!(text.tokens, alone, "{title}: {before}, then {of}");
        }
    }
}

#[test]
fn forks_of_every_memory_go_on_as_their_text_does() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path, recurrent, _) in models(folder.path()) {
        for unified in [false, true] {
            let model = load(&path, 1536, 3, unified);
            let whole = prompt(400);
            let alone = raw(&model, &whole, 20);
            let mut session = model.session().unwrap();
            let mut texts = Texts::default();
            let generate = sampled(&model, whole.as_slice(), SEED).max_tokens(20);
            let first = session.begin(generate).unwrap();
            texts.generate_to(&mut session, first, 1);
            // Two that are computed side by side lie in one cache alternately, and attention sums in another order
            // there: enough to change the text of the hybrids. There the fork goes on alone, from states that both had.
            let alternates = recurrent && unified;
            let at_once = (!alternates).then(|| session.fork(first, Fork::from_prompt()).unwrap());
            texts.generate_to(&mut session, first, 7);
            let later = session.fork(first, Fork::new()).unwrap();
            let from = alone.len().min(7);
            let case = format!("{title}, unified: {unified}");
            if alternates {
                session.end(first).unwrap();
            }
            texts.run(&mut session);
            assert_eq!(texts.of(later).tokens, alone[from..], "{case}");
            if !alternates {
                assert_eq!(texts.of(first).tokens, alone, "{case}");
            }
            if let Some(at_once) = at_once {
                let told = texts.of(at_once);
                assert_eq!(told.tokens, alone, "{case}");
                let cached = told.statistics().cached_tokens;
                assert_eq!(cached == 0, recurrent, "{case}: {cached}");
            }
        }
    }
}

#[test]
fn a_text_is_rolled_back_as_far_as_its_memory_reaches_and_no_further() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path, recurrent, window) in models(folder.path()) {
        let model = load(&path, 1024, 1, false);
        let whole = prompt(480);
        let alone = raw(&model, &whole, 30);
        assert_eq!(alone.len(), 30, "{title}");
        let mut session = model.session().unwrap();
        let mut texts = Texts::default();
        let generate = sampled(&model, whole.as_slice(), SEED).max_tokens(30);
        let sequence = session.begin(generate).unwrap();
        texts.generate_to(&mut session, sequence, 20);
        let possible = session.can_roll_back(sequence).unwrap();
        match (recurrent, window) {
            (true, _) => assert_eq!(possible, 0, "{title}"),
            (_, true) => assert!(possible < 300, "{title}: {possible}"),
            _ => assert_eq!(possible, 499, "{title}"),
        }
        let refused = session.roll_back(sequence, possible + 1);
        assert_is!(refused, Err(Error::CannotRollBack { possible: most, .. }) if most == possible, "{title}");
        let back = possible.min(15);
        session.roll_back(sequence, back).unwrap();
        let told = texts.of(sequence);
        told.tokens.truncate(20 - back);
        texts.run(&mut session);
        assert_eq!(texts.of(sequence).tokens, alone, "{title}: {back}");
    }
}

#[test]
fn saved_states_of_every_memory_come_back() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path, ..) in models(folder.path()) {
        let saved = folder.path().join("saved.kv");
        let whole = prompt(600);
        let model = load(&path, 1024, 1, false);
        let alone = raw(&model, &whole, 12);
        // What is restored lies one cell after the other. A multiple of 32 of them lies so that sums have
        // the same rounding.
        told(sampled(&model, &whole[..512], SEED).max_tokens(1), &model);
        model.save_cache(&saved).unwrap();
        drop(model);
        let model = load(&path, 1024, 1, false);
        model.restore_cache(&saved).unwrap();
        let generate = sampled(&model, &whole[..], SEED).max_tokens(12);
        let text = told(generate.cache_prompt(true), &model);
        assert_eq!(text.tokens, alone, "{title}");
        assert_eq!(text.statistics().cached_tokens, 512, "{title}");
    }
}

#[test]
fn a_saved_text_is_of_one_model_and_one_quantisation_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved.kv");
    let sketches = crate::random_weights::all().into_iter();
    let mut sketches: Vec<_> = sketches.filter(|it| it.arch == "llama").collect();
    assert!(sketches.len() > 2);
    let paths: Vec<_> = sketches
        .iter_mut()
        .map(|sketch| {
            sketch.vocabulary();
            crate::random_weights::write(sketch, folder.path())
        })
        .collect();
    let whole = prompt(100);
    let model = load(&paths[0], 512, 1, false);
    told(sampled(&model, &whole[..], SEED).max_tokens(1), &model);
    model.save_cache(&saved).unwrap();
    model.restore_cache(&saved).unwrap();
    drop(model);
    // The same blocks, in weights of other types.
    for path in &paths[1..] {
        let model = load(path, 512, 1, false);
        let refused = model.restore_cache(&saved).map(drop).unwrap_err();
        assert_is!(&refused, Error::Saved(error) if matches!(**error, SavedCacheError::OtherModel { .. }));
        let generate = sampled(&model, &whole[..], SEED).max_tokens(12);
        let text = told(generate.cache_prompt(true), &model);
        assert_eq!(text.statistics().cached_tokens, 0);
        assert_eq!(text.tokens, raw(&model, &whole, 12));
    }
}

#[test]
fn texts_without_end_go_on_in_every_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path, _, window) in models(folder.path()) {
        let model = load(&path, 512, 1, false);
        let whole = prompt(300);
        let full = WhenFull::shift(Keep::Tokens(20));
        // One that does not end by itself.
        let (seed, text) = (1..40)
            .map(|seed| {
                let generate = sampled(&model, whole.as_slice(), seed).max_tokens(260);
                (seed, told(generate.when_full(full.clone()), &model))
            })
            .find(|(_, text)| text.tokens.len() == 260)
            .unwrap();
        let statistics = text.statistics();
        assert!(statistics.discarded_tokens > 200, "{title}: {statistics:?}");
        // A window's cache is shorter than the other layers': llama.cpp does not move it.
        let again = statistics.recomputed_tokens > 0;
        assert_eq!(again, window, "{title}: {statistics:?}");
        if again {
            let first = 512 - 300 + 1;
            let mut held = whole.clone();
            held.extend(&text.tokens[..first]);
            held.drain(20..20 + (512 - 20) / 2);
            let raw = Raw::of(&model.native().unwrap(), 512, false, KvType::F32);
            let raw = raw.by_chance(seed, first).go_on(&held, 40);
            assert_eq!(text.tokens[first..first + 40], raw, "{title}");
        }
    }
}
