//! Conversations with models whose memory cannot go back by itself. A turn computes again at most the tokens of the
//! last turn. The text is the same as with a model that was just loaded.

use std::path::{Path, PathBuf};

use autoplace::Model;
use autoplace::generate::GenerateRequest;
use autoplace::llama_sys::{Batch, Context, ContextParams, Error, KvType, Position, Token};

use crate::native_support::native;
use crate::text_support::{SEED, Texts, complete, plain, random, raw_by_chance as raw, request, sampled, small, words};

const ANSWER: usize = 48;
/// How many tokens before the end of a prompt the last checkpoint is taken.
const BEFORE_END: usize = 4;
const GIB: u64 = 1 << 30;

/// For each kind of memory that cannot go back, one model. The cache of the window has 256 cells, so that there is room
/// for 32 tokens more than the window.
fn models(folder: &Path) -> [(&'static str, PathBuf); 4] {
    let kinds = [("gpt-oss", Some(224)), ("mamba2", None), ("jamba", None), ("falcon-h1", None)];
    kinds.map(|(arch, window)| (arch, random(arch, window, folder)))
}

fn load(path: &Path, n_ctx: u32, n_seq_max: u32, checkpoints: u64) -> Model {
    small(path, request(n_ctx, n_seq_max, false), checkpoints)
}

fn generate(model: &Model, prompt: &[Token]) -> GenerateRequest {
    sampled(model, prompt, SEED).max_tokens(ANSWER).cache_prompt(true)
}

/// How many tokens a message has. The next constants are the tokens before each answer, the tokens with which its
/// reasoning begins, and the number of an answer's tokens that are not reasoning.
const MESSAGE: usize = 12;
const HEADER: [Token; 2] = [460, 461];
const REASONING: [Token; 2] = [470, 471];
const KEPT: usize = 8;

/// In the prompt, the template begins the reasoning. In the history, it leaves the reasoning out.
#[test]
fn a_conversation_without_its_reasoning_computes_the_last_turn_again_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path) in models(folder.path()) {
        let model = load(&path, 1024, 1, GIB);
        let mut history = words(1, 80);
        for turn in 0..12 {
            history.extend(words(2 + turn, MESSAGE));
            history.extend(HEADER);
            let prompt = [&history[..], &REASONING].concat();
            let text = complete(generate(&model, &prompt), &model);
            // These tokens are computed: the last answer as the history shows it, the new message, and the tokens
            // between the checkpoint and the end of the previous prompt.
            let most = KEPT + MESSAGE + HEADER.len() + REASONING.len() + BEFORE_END;
            let computed = text.statistics().prompt_tokens - text.statistics().cached_tokens;
            assert!(turn == 0 || computed <= most, "{title}, turn {turn}: {computed} > {most}");
            if turn % 6 == 1 {
                assert_eq!(text.tokens, raw(&model, &prompt, ANSWER), "{title}, turn {turn}");
            }
            history.extend(&text.tokens[text.tokens.len().saturating_sub(KEPT)..]);
        }
        let taken = model.session().unwrap().checkpoints();
        assert!(taken.checkpoints >= 12 && taken.bytes <= taken.limit, "{title}: {taken:?}");
    }
}

#[test]
fn a_common_beginning_of_conversations_is_computed_only_twice() {
    let folder = tempfile::tempdir().unwrap();
    let system = words(9, 400);
    for (title, path) in models(folder.path()) {
        let model = load(&path, 1024, 1, GIB);
        for (number, seed) in (0..4).zip(20..) {
            let mut prompt = system.clone();
            prompt.extend(words(seed, 80));
            let cached = complete(generate(&model, &prompt), &model).statistics().cached_tokens;
            // The second prompt has the same beginning as the first. A checkpoint is taken at the end of this
            // beginning.
            let expected = if number < 2 { 0 } else { system.len() };
            assert_eq!(cached, expected, "{title}, {number}");
        }
    }
}

#[test]
fn the_least_recently_used_make_room_for_others() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path) in models(folder.path()) {
        let prompts: Vec<_> = (30..34).map(|seed| words(seed, 300)).collect();
        let usage = |limit: u64, prompts: &[Vec<Token>]| {
            let model = load(&path, 2048, 4, limit);
            for prompt in prompts {
                complete(generate(&model, prompt), &model);
            }
            let usage = model.session().unwrap().checkpoints();
            assert!(usage.bytes <= usage.limit, "{title}: {usage:?}");
            (usage, model)
        };
        let one = usage(GIB, &prompts[..1]).0;
        assert_eq!(one.checkpoints, 1, "{title}");
        assert_eq!(usage(one.bytes - 1, &prompts[..1]).0.checkpoints, 0, "{title}");
        let (two, model) = usage(one.bytes * 5 / 2, &prompts);
        assert_eq!((two.checkpoints, two.bytes), (2, 2 * one.bytes), "{title}");
        // There are checkpoints for the last two prompts. Those for the first two were evicted.
        for (prompt, held) in prompts.iter().zip([false, false, true, true]).rev() {
            let cached = complete(generate(&model, prompt), &model).statistics().cached_tokens;
            let expected = if held { 300 - BEFORE_END } else { 0 };
            assert_eq!(cached, expected, "{title}");
        }
    }
}

#[test]
fn a_memory_that_goes_back_by_itself_takes_no_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let model = load(&random("llama", None, folder.path()), 1024, 1, GIB);
    complete(generate(&model, &words(1, 300)), &model);
    let usage = model.session().unwrap().checkpoints();
    assert_eq!((usage.checkpoints, usage.bytes), (0, 0));
}

#[test]
fn checkpoints_come_along_where_the_model_is_re_placed() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path) in models(folder.path()) {
        let model = load(&path, 1024, 1, GIB);
        let prompt = words(7, 400);
        let mut session = model.session().unwrap();
        let mut texts = Texts::default();
        let first = session.begin(generate(&model, &prompt)).unwrap();
        // The text becomes longer than the window's additional cells allow.
        texts.generate_to(&mut session, first, 40);
        session.replace(None).unwrap();
        session.end(first).unwrap();
        let again = session.begin(generate(&model, &prompt)).unwrap();
        texts.run(&mut session);
        assert_eq!(texts.of(again).tokens, raw(&model, &prompt, ANSWER), "{title}");
        assert_eq!(texts.of(again).statistics().cached_tokens, prompt.len() - BEFORE_END, "{title}");
    }
}

/// A context with two sequences, and graphs of 32 tokens. For each sequence, the cache of a window has room for 256
/// tokens.
fn context(path: &Path, kv: KvType) -> Context {
    let params = ContextParams { n_seq_max: 2, n_batch: 512, ..plain(2048, kv) };
    Context::new(&native(path).unwrap(), params).unwrap()
}

/// Computes these tokens of a sequence. The first of them is at this position.
fn compute(context: &mut Context, seq: i32, tokens: &[Token], at: Position) {
    let mut batch = Batch::default();
    for (position, &token) in (at..).zip(tokens) {
        batch.add(token, position, seq, false);
    }
    context.decode(&batch).unwrap();
}

#[test]
fn a_partial_state_goes_where_it_belongs_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let models = models(folder.path());
    for (title, path) in &models {
        let filled = |path, kv, n| {
            let mut context = context(path, kv);
            compute(&mut context, 1, &words(2, 90), 0);
            compute(&mut context, 0, &words(1, n), 0);
            context
        };
        let empty = context(path, KvType::F32).save_partial_state(0);
        assert!(matches!(empty, Err(Error::State { .. })), "{title}: {empty:?}");
        let mut here = filled(path, KvType::F32, 300);
        assert!(here.has_partial_state(), "{title}");
        let state = here.save_partial_state(0).unwrap();
        // The sequence has fewer tokens than the checkpoint.
        let refused = here.restore_state(1, &state);
        assert!(matches!(refused, Err(Error::State { .. })), "{title}: {refused:?}");
        assert_eq!(here.kv_seq_end(1).unwrap(), None, "{title}");
        assert_eq!(here.kv_seq_end(0).unwrap(), Some(300), "{title}");
        // The checkpoint belongs to another model, or to a cache of another type.
        for (other, path) in &models {
            let kv = if other == title { KvType::F16 } else { KvType::F32 };
            let mut there = filled(path, kv, 320);
            let refused = there.restore_state(0, &state);
            // A recurrent state has the same type in every context.
            if other == title && *title != "gpt-oss" {
                refused.unwrap();
                continue;
            }
            assert!(matches!(refused, Err(Error::State { .. })), "{title}: {refused:?}");
            assert_eq!(there.kv_seq_end(0).unwrap(), None, "{title}, {other}");
            assert_eq!(there.kv_seq_end(1).unwrap(), Some(90), "{title}, {other}");
            compute(&mut there, 1, &words(3, 4), 90);
        }
    }
}
