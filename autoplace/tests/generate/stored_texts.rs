//! A prompt store keeps computed states: while other texts use the same sequence, while the model is re-placed, and
//! when the program is started again. Damaged files do no harm. The text is always the same as in llama.cpp's own loop.

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::process::Command;

use autoplace::generate::{Engine, GenerateRequest, Session, Speculation, Statistics};
use autoplace::llama_sys::Token;
use autoplace::plan::Request;
use autoplace::store::{PromptStore, StoreOptions};
use autoplace::{Isolation, Model, ModelBuilder, memory};

use crate::speculative_support::{self, exact};
use crate::text_support::{
    Raw, SEED, SYSTEM, Texts, answered, complete, greedy, random, raw_by_chance as raw, request, sampled, to_the_end,
    tokens_of, words, worker,
};
use test_support::{demo_path, prediction_heads};

pub(crate) const ANSWER: usize = 24;
pub(crate) const MIB: u64 = 1 << 20;

/// A builder for models with plain attention in 32 bits. A window has room for 256 tokens.
fn builder(path: &Path, request: Request, store: &PromptStore) -> ModelBuilder {
    let mut request = request.n_batch(64);
    request.params.flash_attn = memory::FlashAttention::Off;
    request.params.swa_full = false;
    request.params.type_k = memory::KvType::F32;
    request.params.type_v = memory::KvType::F32;
    Model::builder(path).request(request).n_threads(1).prompt_store(store.clone())
}

pub(crate) fn load(path: &Path, request: Request, store: &PromptStore) -> Model {
    builder(path, request, store).load().unwrap()
}

/// Leaves the process only this much more memory. Plans keep 64 MiB free.
#[cfg(target_os = "linux")]
fn take_memory(left: u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    let data: u64 = data.trim().trim_end_matches(" kB").parse().unwrap();
    let limit = format!("--data={}", (data << 10) + left);
    let limited = Command::new("prlimit").args(["--pid", &std::process::id().to_string(), &limit]).status();
    assert!(limited.unwrap().success(), "util-linux has prlimit");
}

/// For each kind of memory, one model: attention, attention with compressed keys (MLA), windows, a recurrent state, and
/// hybrids.
fn models(folder: &Path) -> [(&'static str, PathBuf); 6] {
    let archs = ["llama", "deepseek2", "gpt-oss", "mamba2", "jamba", "falcon-h1"];
    archs.map(|arch| (arch, random(arch, (arch == "gpt-oss").then_some(224), folder)))
}

/// Whether a text of this model can be restored up to any of its tokens.
fn is_divided(arch: &str) -> bool {
    matches!(arch, "llama" | "deepseek2")
}

pub(crate) fn generate(model: &Model, prompt: &[Token]) -> GenerateRequest {
    sampled(model, prompt, SEED).max_tokens(ANSWER).cache_prompt(true)
}

pub(crate) fn in_folder(folder: &Path) -> PromptStore {
    PromptStore::open(StoreOptions::new(256 * MIB).folder(folder, 1 << 30)).unwrap()
}

/// Computes a text, and compares it with the one that llama.cpp itself generates. Returns the prompt together with the
/// answer, and the statistics.
pub(crate) fn turn(title: &str, model: &Model, prompt: &[Token]) -> (Vec<Token>, Statistics) {
    let text = complete(generate(model, prompt), model);
    assert_eq!(text.tokens, raw(model, prompt, ANSWER), "{title}: {:?}", text.statistics());
    ([prompt, &text.tokens].concat(), text.statistics())
}

#[test]
fn a_text_whose_sequence_others_have_taken_goes_on_from_the_store() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path) in models(folder.path()) {
        let store = PromptStore::new(256 * MIB);
        let model = load(&path, request(1024, 1, false), &store);
        let (history, first) = turn(title, &model, &words(1, 150));
        assert_eq!((first.cached_tokens, first.restored_tokens), (0, 0), "{title}");
        for other in 2..5 {
            turn(title, &model, &words(other, 80));
        }
        let next = [&history[..], &words(9, 20)].concat();
        let (_, again) = turn(title, &model, &next);
        // The last token of an answer is never computed.
        let known = history.len() - 1;
        assert_eq!((again.restored_tokens, again.cached_tokens), (known, known), "{title}: {again:?}");
        assert_eq!(again.restored_from_folder, 0);
        let usage = store.usage();
        assert!(usage.pieces > 0 && usage.memory_bytes <= 256 * MIB, "{title}: {usage:?}");
    }
}

#[test]
fn a_text_goes_on_after_a_restart_with_other_numbers_of_sequences_and_tokens() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path) in models(folder.path()) {
        let files = folder.path().join(title);
        let history = {
            let model = load(&path, request(1024, 1, false), &in_folder(&files));
            turn(title, &model, &words(1, 150)).0
        };
        let sequences = if is_divided(title) { 2 } else { 1 };
        let model = load(&path, request(1500 * sequences, sequences, false), &in_folder(&files));
        let next = [&history[..], &words(9, 20)].concat();
        let (_, again) = turn(title, &model, &next);
        let known = history.len() - 1;
        assert_eq!((again.restored_tokens, again.restored_from_folder), (known, known), "{title}: {again:?}");
        // Another model with the same shapes finds nothing in the store, because its weights are different.
        drop(model);
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        let model = load(&path, request(1024, 1, false), &in_folder(&files));
        assert_eq!(complete(generate(&model, &next), &model).statistics().restored_tokens, 0, "{title}");
    }
}

#[test]
fn an_earlier_place_of_a_text_is_restored_as_far_as_its_memory_can_be_divided() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path) in models(folder.path()) {
        let store = PromptStore::new(256 * MIB);
        let model = load(&path, request(1024, 1, false), &store);
        let system = words(1, 200);
        let (history, _) = turn(title, &model, &system);
        turn(title, &model, &words(5, 80));
        // From the middle of the history on, this prompt is different.
        let fork = [&history[..150], &words(6, 60)].concat();
        let (_, forked) = turn(title, &model, &fork);
        let expected = if is_divided(title) { 150 } else { 0 };
        assert_eq!(forked.restored_tokens, expected, "{title}: {forked:?}");
        turn(title, &model, &words(7, 80));
        // A prompt that begins with the whole first prompt. It continues at the checkpoint before the end of that
        // prompt.
        let (_, again) = turn(title, &model, &[&system[..], &words(8, 10)].concat());
        let expected = if is_divided(title) { 200 } else { 196 };
        assert_eq!(again.restored_tokens, expected, "{title}: {again:?}");
    }
}

#[test]
fn a_beginning_that_cannot_be_brought_displaces_no_text_that_shares_less() {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("store");
    let path = random("llama", None, folder.path());
    let (shared, long) = (words(1, 100), [words(1, 100), words(2, 100)].concat());
    turn("", &load(&path, request(1024, 1, false), &in_folder(&files)), &long);
    let model = load(&path, request(1024, 1, false), &in_folder(&files));
    // Nothing is reused for this prompt. So the beginning of the long text is only in the folder.
    complete(generate(&model, &[&shared[..], &words(3, 40)].concat()).cache_prompt(false), &model);
    for file in fs::read_dir(&files).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_some_and(|ending| ending == "piece") {
            fs::remove_file(file).unwrap();
        }
    }
    let (_, next) = turn("", &model, &[&long[..], &words(4, 20)].concat());
    assert!(next.restored_tokens == 0 && next.cached_tokens >= shared.len(), "{next:?}");
}

#[test]
fn a_replacement_keeps_the_texts_that_were_idle() {
    let store = PromptStore::new(256 * MIB);
    let builder = Model::builder(demo_path()).request(request(1024, 1, false)).n_threads(1);
    let model = builder.prompt_store(store).load().unwrap();
    let prompt = tokens_of(&model, &SYSTEM.repeat(5));
    let mut session = model.session().unwrap();
    session.begin(greedy(&model, &prompt[..]).cache_prompt(true)).unwrap();
    to_the_end(&mut session);
    session.replace(None).unwrap();
    drop(session);
    let again = complete(greedy(&model, &prompt[..]).cache_prompt(true), &model);
    assert_eq!(again.tokens, Raw::text(&model, &prompt, 24));
    assert_eq!(again.statistics().restored_tokens, prompt.len() - 1);
}

#[test]
fn the_stores_memory_would_be_free_once_the_model_is_released() {
    use autoplace::machine::{Host, Machine};

    let store = PromptStore::new(256 * MIB);
    let model = load(&demo_path(), request(1024, 1, false), &store);
    let free = || model.once_released(Machine::new(Host::new(1 << 40).available(1 << 30))).host.available;
    turn("", &model, &words(1, 80));
    let (before, stored) = (free(), store.usage().memory_bytes);
    for seed in 2..5 {
        turn("", &model, &words(seed, 200));
    }
    let more = store.usage().memory_bytes - stored;
    assert!(more > 0);
    assert_eq!(free(), before + more);
}

#[test]
#[cfg(target_os = "linux")]
fn where_the_process_runs_short_of_memory_nothing_is_stored_and_all_is_given_back() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let store = PromptStore::new(256 * MIB);
    let model = load(&random("llama", None, folder.path()), request(1024, 1, false), &store);
    let prompt = words(3, 300);
    let expected = complete(generate(&model, &prompt).cache_prompt(false), &model);
    turn("", &model, &words(1, 300));
    turn("", &model, &words(2, 300));
    assert!(store.usage().pieces > 0);
    take_memory(48 * MIB);
    let text = complete(generate(&model, &prompt), &model);
    assert_eq!(text, expected);
    let usage = store.usage();
    assert_eq!((usage.pieces, usage.memory_limit), (0, 256 * MIB), "{usage:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn where_the_process_runs_short_of_memory_nothing_is_read_from_the_folder() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let (path, files) = (random("llama", None, folder.path()), folder.path().join("store"));
    let history = turn("", &load(&path, request(1024, 1, false), &in_folder(&files)), &words(1, 300)).0;
    let next = [&history[..], &words(2, 20)].concat();
    let model = load(&path, request(1024, 1, false), &in_folder(&files));
    let expected = complete(generate(&model, &next).cache_prompt(false), &model);
    take_memory(48 * MIB);
    let text = complete(generate(&model, &next), &model);
    assert_eq!(text, expected);
    assert_eq!(text.statistics().restored_tokens, 0, "{:?}", text.statistics());
}

/// Three turns leave several recurrent states of one text, and a later state displaces an earlier one in the store.
#[test]
fn storing_a_text_ends_although_its_states_do_not_all_fit_into_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = random("mamba2", None, folder.path());
    let stored_by = |limit| {
        let store = PromptStore::new(limit);
        let model = load(&path, request(1024, 1, false), &store);
        let (mut history, _) = turn("first", &model, &words(1, 150));
        for seed in [2, 3] {
            history = turn("next", &model, &[history, words(seed, 80)].concat()).0;
        }
        turn("other", &model, &words(4, 80));
        store.usage()
    };
    let all = stored_by(256 * MIB);
    for twentieths in 4..10 {
        let some = stored_by(all.memory_bytes * twentieths / 20);
        assert!(some.memory_bytes < all.memory_bytes, "{some:?} of {all:?}");
    }
}

#[test]
fn nine_conversations_in_two_places_compute_their_new_words_only() {
    for kv_unified in [false, true] {
        let store = PromptStore::new(256 * MIB);
        let builder = Model::builder(demo_path()).request(request(1024, 2, kv_unified)).n_threads(1);
        let model = builder.prompt_store(store).load().unwrap();
        let engine = Engine::new(&model).unwrap();
        let mut histories: Vec<Vec<Token>> = (0..9).map(|seed| words(100 + seed, 120)).collect();
        for turn in 0..3 {
            for (number, history) in histories.iter_mut().enumerate() {
                let told = history.len();
                history.extend(words(1000 * turn + number as u32, 10));
                let text = answered(engine.submit(greedy(&model, &history[..])).unwrap());
                let statistics = text.statistics();
                assert_eq!(text.tokens, Raw::text(&model, history, 24), "{kv_unified}, {turn}, {number}");
                let known = if turn == 0 { 0 } else { told - 1 };
                assert!(statistics.cached_tokens >= known, "{kv_unified}, {turn}, {number}: {statistics:?}");
                history.extend(&text.tokens);
            }
        }
    }
}

#[test]
fn a_waiting_text_is_restored_while_another_text_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path) in models(folder.path()) {
        for kv_unified in [false, true] {
            let title = format!("{title}, {kv_unified}");
            let files = folder.path().join(&title);
            let mut history =
                turn(&title, &load(&path, request(1600, 2, kv_unified), &in_folder(&files)), &words(1, 300)).0;
            let model = load(&path, request(1600, 2, kv_unified), &in_folder(&files));
            let engine = Engine::new(&model).unwrap();
            // First a thread reads the pieces from the folder, and then they are in memory.
            for (round, from_folder) in [(0, true), (1, false)] {
                let prompt = words(10 + round, 40);
                let mut running = engine.submit(generate(&model, &prompt).max_tokens(300)).unwrap();
                let begun = running.pieces().next().unwrap().unwrap();
                let next = [&history[..], &words(20 + round, 20)].concat();
                let again = answered(engine.submit(generate(&model, &next)).unwrap());
                assert_eq!(again.tokens, raw(&model, &next, ANSWER), "{title}");
                let (known, statistics) = (history.len() - 1, again.statistics());
                assert_eq!(statistics.restored_tokens, known, "{title}: {statistics:?}");
                assert_eq!(statistics.restored_from_folder, if from_folder { known } else { 0 }, "{title}");
                let whole: Vec<Token> = begun.token.into_iter().chain(answered(running).tokens).collect();
                assert_eq!(whole, raw(&model, &prompt, 300), "{title}");
                history = [next, again.tokens].concat();
                // Two further texts, which run at the same time, displace the two earlier ones.
                let others = [30, 40].map(|seed| engine.submit(generate(&model, &words(seed + round, 100))).unwrap());
                others.into_iter().for_each(|text| drop(answered(text)));
            }
        }
    }
}

#[test]
fn a_waiting_text_whose_pieces_are_damaged_is_computed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, files) = (random("llama", None, folder.path()), folder.path().join("store"));
    let history = turn("", &load(&path, request(1600, 2, false), &in_folder(&files)), &words(1, 300)).0;
    let model = load(&path, request(1600, 2, false), &in_folder(&files));
    let engine = Engine::new(&model).unwrap();
    let mut running = engine.submit(generate(&model, &words(2, 40)).max_tokens(300)).unwrap();
    running.pieces().next().unwrap().unwrap();
    for file in fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|ending| ending == "piece") {
            let mut bytes = fs::read(&file).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(file, bytes).unwrap();
        }
    }
    let next = [&history[..], &words(3, 20)].concat();
    let text = answered(engine.submit(generate(&model, &next)).unwrap());
    assert_eq!(text.tokens, raw(&model, &next, ANSWER));
    assert_eq!(text.statistics().restored_tokens, 0);
}

#[test]
fn damaged_files_change_no_text_and_fail_none() {
    let folder = tempfile::tempdir().unwrap();
    let kinds = models(folder.path());
    let mut state = 12345u32;
    let mut chance = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below
    };
    for round in 0..20 {
        let (title, path) = &kinds[round % kinds.len()];
        let files = folder.path().join(title);
        let store = in_folder(&files);
        let model = load(path, request(1024, 1, false), &store);
        for seed in [1, 2] {
            // Some prompts are repeated. Others have the same beginning as an earlier prompt, and then differ from it.
            let prompt = [words(seed, 100), words(round as u32 % 3, 20)].concat();
            turn(title, &model, &prompt);
        }
        drop(model);
        drop(store);
        let mut all: Vec<PathBuf> = fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        for _ in 0..2 {
            let file = &all[chance(all.len())];
            let mut bytes = fs::read(file).unwrap_or_default();
            if bytes.is_empty() {
                continue;
            }
            let at = chance(bytes.len());
            match chance(3) {
                0 => bytes[at] ^= 1 << (at % 8),
                1 => bytes.truncate(at),
                _ => {
                    fs::remove_file(file).unwrap();
                    continue;
                }
            }
            fs::write(file, bytes).unwrap();
        }
    }
}

/// Models with a drafter: a draft model, one with windows, a block for multi-token prediction with correct drafts, and
/// one with random drafts.
fn drafting(folder: &Path) -> [(&'static str, PathBuf, Speculation); 4] {
    let mtp = Speculation::Mtp { draft_max: 3, p_min: 0.0 };
    let draft = Speculation::DraftModel { draft_max: 3, p_min: 0.0 };
    [
        ("draft", exact("llama", folder), draft),
        ("draft with windows", exact("olmo2", folder), draft),
        ("right", prediction_heads::steps(folder), mtp),
        ("random", prediction_heads::random(folder), mtp),
    ]
}

#[test]
fn a_restored_text_drafts_as_one_that_was_never_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    for (title, path, speculation) in drafting(folder.path()) {
        let load = |store: Option<PromptStore>| {
            let builder = speculative_support::builder(&path, speculative_support::request(512, 1, 3).n_batch(64));
            let builder = match speculation {
                Speculation::DraftModel { .. } => builder.draft(&path),
                _ => builder.mtp(true),
            };
            store.into_iter().fold(builder, ModelBuilder::prompt_store).load().unwrap()
        };
        let turn = |model: &Model, prompt: &[Token]| {
            complete(generate(model, prompt).temp(0.0).max_tokens(60).speculate(speculation), model)
        };
        let files = folder.path().join(title);
        let prompt = words(1, 150);
        let (whole, first, next) = {
            let model = load(None);
            let first = turn(&model, &prompt);
            let next = [&prompt[..], &first.tokens, &words(2, 20)].concat();
            (turn(&model, &next), first, next)
        };
        assert_eq!(turn(&load(Some(in_folder(&files))), &prompt), first, "{title}");
        let again = turn(&load(Some(in_folder(&files))), &next);
        assert_eq!(again.tokens, whole.tokens, "{title}");
        let known = prompt.len() + first.tokens.len() - 1;
        let (again, whole) = (again.statistics(), whole.statistics());
        assert_eq!((again.restored_tokens, whole.cached_tokens), (known, known), "{title}: {again:?}");
        assert!(again.restored_draft_tokens >= prompt.len(), "{title}: {again:?}");
        assert_eq!(whole.restored_draft_tokens, 0);
        assert!(again.drafted_tokens > 0, "{title}: {again:?}");
        // If both models compute the same from the same input, nearly all drafts are correct.
        assert!(title == "random" || again.acceptance_rate() > 0.9, "{title}: {again:?}");
    }
}

#[test]
fn an_ended_text_is_stored_only_where_it_takes_no_room_of_a_running_texts_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let path = prediction_heads::steps(folder.path());
    let drafts = |store: Option<PromptStore>| {
        let mut request = speculative_support::request(512, 3, 3).n_batch(64);
        request.params.kv_unified = true;
        let builder = speculative_support::builder(&path, request).mtp(true);
        let model = store.into_iter().fold(builder, ModelBuilder::prompt_store).load().unwrap();
        let mut session = model.session().unwrap();
        let speculation = Speculation::Mtp { draft_max: 3, p_min: 0.0 };
        let begin = |session: &mut Session, seed: u32, prompt: usize, tokens: usize| {
            let prompt = words(seed, prompt);
            let generate = generate(&model, &prompt).temp(0.0).max_tokens(tokens).speculate(speculation);
            session.begin(generate).unwrap()
        };
        // The block keeps its cells for this text, even when the text has left the model's context.
        begin(&mut session, 1, 100, 4);
        to_the_end(&mut session);
        let long = begin(&mut session, 2, 370, 24);
        let mut texts = Texts::default();
        texts.generate_to(&mut session, long, 8);
        // The last tokens of this text wait for a draft that never comes. They would take the last cells that are free.
        begin(&mut session, 3, 60, 1);
        texts.run(&mut session);
        let statistics = texts.of(long).statistics();
        (statistics.drafted_tokens, statistics.accepted_tokens)
    };
    let expected = drafts(None);
    assert!(expected.1 > 10, "{expected:?}");
    assert_eq!(drafts(Some(PromptStore::new(256 * MIB))), expected);
}

/// The draft model's context keeps the cells of texts that the model's context has forgotten. If these cells leave no
/// room for a stored text, the text's pieces stay in the store, and are restored once there is room.
#[test]
fn a_draft_models_context_without_room_does_not_forget_a_stored_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = exact("llama", folder.path());
    let mut request = speculative_support::request(1024, 3, 3).n_batch(64);
    request.params.kv_unified = true;
    let builder = speculative_support::builder(&path, request).draft(&path);
    let model = builder.prompt_store(PromptStore::new(256 * MIB)).load().unwrap();
    let mut session = model.session().unwrap();
    let speculation = Speculation::DraftModel { draft_max: 3, p_min: 0.0 };
    let mut turn = |prompt: &[Token]| {
        let generate = generate(&model, prompt).temp(0.0).speculate(speculation);
        session.begin(generate).unwrap();
        to_the_end(&mut session).pop().unwrap()
    };
    let long = words(1, 500);
    turn(&long);
    for seed in 2..6 {
        turn(&words(seed, 310));
    }
    let again = turn(&[&long[..], &words(9, 60)].concat());
    let statistics = again.statistics();
    assert!(statistics.restored_tokens >= 500 && statistics.restored_draft_tokens >= 500, "{statistics:?}");
}

#[test]
fn a_model_in_a_worker_finds_what_an_earlier_one_has_stored() {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("store");
    let load = || {
        let options = StoreOptions::new(256 * MIB).folder(&files, 1 << 30);
        let builder = Model::builder(demo_path()).request(request(1024, 1, false)).n_threads(1);
        builder
            .prompt_store(PromptStore::open(options).unwrap())
            .isolation(Isolation::Process(worker()))
            .load()
            .unwrap()
    };
    let model = load();
    let prompt = words(3, 200);
    let text = |model: &Model| answered(greedy(model, &prompt[..]).cache_prompt(true).stream().unwrap());
    let first = text(&model);
    drop(model);
    let again = text(&load());
    assert_eq!(first.tokens, again.tokens);
    assert_eq!(again.statistics().restored_from_folder, prompt.len() - 1);
}
