//! Models whose memory cannot go back to every token: sliding windows, recurrent states, both beside attention. What is
//! reused, forked, rolled back or shifted gives the text of a fresh model, or is refused. On small models with random
//! weights; without checkpoints here, and with them in `checkpoints`.

mod checkpoints;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::session_support::{Raw, Texts, request, sampled, told};
use autoplace::Model;
use autoplace::generate::{Error, Fork, Keep, SavedCacheError, SequenceId, Session, WhenFull};
use autoplace::llama_sys::{KvType, Token};
use autoplace::memory;

/// The models by the kind of their memory: `(path, recurrent, window)`.
fn models(folder: &Path) -> Vec<(&'static str, PathBuf, bool, bool)> {
    let kinds = [
        ("llama", false, false),
        ("gemma3", false, true),
        ("gpt-oss", false, true),
        ("deepseek2", false, false),
        ("mamba2", true, false),
        ("jamba", true, false),
        ("falcon-h1", true, false),
    ];
    let mut models: Vec<(&'static str, PathBuf, bool, bool)> = Vec::new();
    for sketch in crate::random_weights::all() {
        let kind = kinds.iter().find(|(arch, ..)| *arch == sketch.arch);
        let Some((_, recurrent, window)) = kind else {
            continue;
        };
        if models.iter().any(|model| model.0 == sketch.arch) {
            continue;
        }
        // In 32 bits, as the cache: quantised numbers round so coarsely that another shape of batch may
        // give another text.
        let mut sketch = sketch.in_floats();
        sketch.vocabulary();
        let path = crate::random_weights::write(&sketch, folder);
        models.push((sketch.arch, path, *recurrent, *window));
    }
    assert_eq!(models.len(), kinds.len());
    models
}

fn load(path: &Path, n_ctx: u32, n_seq_max: u32, unified: bool) -> Model {
    let mut request = request(n_ctx, n_seq_max, unified).n_batch(64).n_ubatch(32);
    // With small batches, a window's cache holds 256 tokens (llama-kv-cache-iswa.cpp).
    request.params.swa_full = false;
    request.params.type_k = memory::KvType::F32;
    request.params.type_v = memory::KvType::F32;
    let builder = Model::builder(path).request(request).threads(1);
    builder.checkpoints(0).load().unwrap()
}

/// llama.cpp's own text after these tokens, by the same chance. Random weights tend to one likeliest token for ever,
/// which would tell nothing of the tokens before.
fn raw(model: &Model, prompt: &[Token], n: usize) -> Vec<Token> {
    let native = &model.native().unwrap();
    let n_ctx = (prompt.len() + n + 8) as u32;
    let raw = Raw::of(native, n_ctx, false, KvType::F32)
        .by_chance(SEED, 0)
        .go_on(prompt, n);
    let different: BTreeSet<_> = raw.iter().collect();
    assert!(raw.len() < n || different.len() > n / 4, "{raw:?}");
    raw
}

/// Steps until so many tokens are generated.
fn generate_to(texts: &mut Texts, session: &mut Session, sequence: SequenceId, n: usize) {
    while session.statistics(sequence).unwrap().generated_tokens < n {
        texts.step(session);
    }
}

const SEED: u32 = 4;

/// Longer than the windows.
fn prompt(n: usize) -> Vec<Token> {
    let mut state = 7u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            259 + (state >> 16) as Token % 200
        })
        .collect()
}

#[test]
fn texts_begin_where_others_ended_and_where_the_memory_can_go_back() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path, recurrent, window) in models(folder.path()) {
        let model = load(&path, 1024, 1, false);
        let whole = prompt(600);
        let alone = raw(&model, &whole, 12);
        let generate = |tokens: &[Token]| {
            sampled(&model, tokens, SEED)
                .max_tokens(12)
                .cache_prompt(true)
        };
        // It ends in the middle of the longer prompt, is gone beyond, and is the same.
        for (before, of) in [(420, 600), (600, 600), (599, 350)] {
            told(
                sampled(&model, &whole[..before], SEED).max_tokens(1),
                &model,
            );
            let text = told(generate(&whole[..of]), &model);
            let cached = text.end.unwrap().statistics.cached_tokens;
            let expected = match (before < of, recurrent || window) {
                (true, _) => before,
                (false, false) => of - 1,
                // A window and its state hold the end only.
                (false, true) => cached,
            };
            assert_eq!(cached, expected, "{title}: {before}, then {of}");
            if recurrent && before >= of {
                assert_eq!(cached, 0, "{title}: {before}, then {of}");
            }
            let alone = if of == 600 {
                alone.clone()
            } else {
                raw(&model, &whole[..of], 12)
            };
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
            generate_to(&mut texts, &mut session, first, 1);
            // Two that are computed side by side lie in one cache alternately, and attention sums in another order
            // there: enough to change the text of the hybrids. There the fork goes on alone, from states that both had.
            let alternates = recurrent && unified;
            let at_once = (!alternates).then(|| session.fork(first, Fork::from_prompt()).unwrap());
            generate_to(&mut texts, &mut session, first, 7);
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
                let cached = told.end.unwrap().statistics.cached_tokens;
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
        generate_to(&mut texts, &mut session, sequence, 20);
        let possible = session.can_roll_back(sequence).unwrap();
        match (recurrent, window) {
            (true, _) => assert_eq!(possible, 0, "{title}"),
            (_, true) => assert!(possible < 300, "{title}: {possible}"),
            _ => assert_eq!(possible, 499, "{title}"),
        }
        let refused = session.roll_back(sequence, possible + 1);
        assert!(
            matches!(refused, Err(Error::CannotRollBack { possible: most, .. }) if most == possible),
            "{title}: {refused:?}"
        );
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
        let text = told(
            sampled(&model, whole.as_slice(), SEED)
                .max_tokens(12)
                .cache_prompt(true),
            &model,
        );
        assert_eq!(text.tokens, alone, "{title}");
        assert_eq!(text.end.unwrap().statistics.cached_tokens, 512, "{title}");
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
        assert!(
            matches!(&refused, Error::Saved(error) if matches!(**error, SavedCacheError::OtherModel { .. })),
            "{refused:?}"
        );
        let text = told(
            sampled(&model, &whole[..], SEED)
                .max_tokens(12)
                .cache_prompt(true),
            &model,
        );
        assert_eq!(text.end.unwrap().statistics.cached_tokens, 0);
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
                let generate = sampled(&model, whole.as_slice(), seed).max_tokens(350);
                (seed, told(generate.when_full(full.clone()), &model))
            })
            .find(|(_, text)| text.tokens.len() == 350)
            .unwrap();
        let statistics = text.end.unwrap().statistics;
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
