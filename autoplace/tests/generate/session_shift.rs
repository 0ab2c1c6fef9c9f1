//! What becomes of a text when the context is full: through the public API, beside llama.cpp's own context shift.

use crate::native_support::demo_path;
use crate::session_support::{Raw, SYSTEM, Texts, greedy, request, tokens_of, told};
use crate::sim_support::card;
use autoplace::generate::{Error, FinishReason, Fork, Keep, Prompt, WhenFull};
use autoplace::llama_sys::Token;
use autoplace::load;
use autoplace::machine::mib;
use autoplace::memory::{Headroom, KvType};
use autoplace::plan::{GpuLayers, Request};
use autoplace::{Isolation, Model, WorkerProcess};

const CONTEXT: u32 = 256;

fn load_demo() -> Model {
    crate::session_support::load(&demo_path(), request(CONTEXT, 1, false))
}

/// The text of so many tokens after a prompt, without an end, by llama.cpp's own loop in a context of 256
/// tokens: whenever that is full, half of what comes after the first `keep` tokens goes. `again`: the others are
/// computed again then.
fn shifted(model: &Model, prompt: &[Token], n: usize, keep: usize, again: bool) -> Vec<Token> {
    let native = &model.native().unwrap();
    let mut raw = Raw::new(native, CONTEXT, true);
    let mut held = prompt.to_vec();
    let mut tokens = Vec::new();
    raw.compute(prompt);
    while tokens.len() < n {
        let token = raw.choose();
        tokens.push(token);
        if native.vocab().is_eog(token) {
            break;
        }
        let mut fresh = vec![token];
        if held.len() == CONTEXT as usize {
            let discard = (held.len() - keep) / 2;
            held.drain(keep..keep + discard);
            if again {
                raw = Raw::new(native, CONTEXT, true);
                fresh = held.clone();
                fresh.push(token);
            } else {
                raw.shift(keep as i32, discard as i32);
            }
        }
        held.push(token);
        raw.compute(&fresh);
    }
    tokens
}

#[test]
fn a_text_without_end_is_that_of_llama_cpps_own_shift() {
    own_process!();
    let model = load_demo();
    let prompt = tokens_of(&model, SYSTEM);
    let keeps = [
        (Keep::Nothing, 1),
        (Keep::Tokens(9), 9),
        (Keep::Beginning(Prompt::text("And the king said")), 0),
        (Keep::Prompt, prompt.len()),
    ];
    for (keep, tokens) in keeps {
        let tokens = match &keep {
            Keep::Beginning(_) => tokens_of(&model, "And the king said").len(),
            _ => tokens,
        };
        let generate = greedy(&model, SYSTEM)
            .max_tokens(600)
            .when_full(WhenFull::shift(keep.clone()));
        let told = told(generate, &model);
        let raw = shifted(&model, &prompt, 600, tokens, false);
        assert_eq!(told.tokens, raw, "{keep:?}");
        let end = told.end.unwrap();
        assert_eq!(end.reason, FinishReason::MaxTokens, "{keep:?}");
        let statistics = end.statistics;
        assert_eq!(statistics.generated_tokens, 600);
        assert_eq!(statistics.recomputed_tokens, 0);
        assert!(
            statistics.discarded_tokens > 300 && statistics.shifted_tokens > 300,
            "{statistics:?}"
        );
    }
}

fn request_of_small_batches() -> Request {
    request(CONTEXT, 1, false).n_batch(8).n_ubatch(2)
}

#[test]
fn keys_that_take_memory_to_turn_are_computed_again() {
    own_process!();
    let mut request = request(CONTEXT, 1, false);
    request.params.type_k = KvType::Q8_0;
    let model = crate::session_support::load(&demo_path(), request);
    let f16 = load_demo();
    let small = request_of_small_batches();
    let small = crate::session_support::load(&demo_path(), small);
    for (model, again) in [(&model, true), (&small, true), (&f16, false)] {
        let generate = greedy(model, SYSTEM)
            .max_tokens(400)
            .when_full(WhenFull::shift(Keep::Tokens(5)));
        let statistics = told(generate, model).end.unwrap().statistics;
        assert_eq!(statistics.recomputed_tokens > 0, again, "{statistics:?}");
        assert_eq!(statistics.shifted_tokens > 0, !again, "{statistics:?}");
        assert_eq!(statistics.generated_tokens, 400);
    }
}

#[test]
fn a_text_that_shares_its_cells_leaves_them_where_they_are() {
    own_process!();
    let model = crate::session_support::load(&demo_path(), request(CONTEXT, 2, true));
    let prompt = tokens_of(&model, SYSTEM);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let shifts = greedy(&model, SYSTEM)
        .max_tokens(400)
        .when_full(WhenFull::shift(Keep::Tokens(4)));
    let first = session.begin(shifts).unwrap();
    texts.steps(&mut session, 150);
    let second = session.fork(first, Fork::new().max_tokens(200)).unwrap();
    let mut most = 0;
    while session.statistics(second).is_some() {
        texts.step(&mut session);
        let statistics = session.statistics(first).unwrap();
        if statistics.discarded_tokens > 0 && most == 0 {
            // All that they share, and half of the rest.
            most = statistics.discarded_tokens;
            assert!(most > prompt.len() + 145, "{statistics:?}");
            assert_eq!(statistics.recomputed_tokens, 0);
        }
    }
    assert!(most > 0);
    texts.run(&mut session);
    let reasons = [first, second].map(|sequence| texts.of(sequence).end.unwrap().reason);
    assert_eq!(reasons, [FinishReason::MaxTokens; 2]);
    let statistics = texts.of(second).end.unwrap().statistics;
    assert_eq!(statistics.discarded_tokens, 0);
    let raw = Raw::text(&model, &prompt, 200);
    assert_eq!(texts.of(second).tokens, raw[150..]);
    assert_eq!(texts.of(first).tokens[..150], raw[..150]);
}

#[test]
fn only_the_text_that_is_full_shifts() {
    own_process!();
    let model = crate::session_support::load(&demo_path(), request(2 * CONTEXT, 2, false));
    let other = "A psalm of the sons of Korah, for";
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let full = WhenFull::shift(Keep::Tokens(9));
    let long = greedy(&model, SYSTEM).max_tokens(500).when_full(full);
    let first = session.begin(long).unwrap();
    let short = greedy(&model, other).max_tokens(240);
    texts.steps(&mut session, 100);
    let second = session.begin(short).unwrap();
    texts.run(&mut session);
    let prompt = tokens_of(&model, SYSTEM);
    assert_eq!(
        texts.of(first).tokens,
        shifted(&model, &prompt, 500, 9, false)
    );
    let prompt = tokens_of(&model, other);
    assert_eq!(texts.of(second).tokens, Raw::text(&model, &prompt, 240));
    let statistics = texts.of(second).end.unwrap().statistics;
    assert_eq!(statistics.discarded_tokens, 0);
}

#[test]
fn what_a_shift_has_moved_is_not_taken_for_a_prompts_beginning() {
    own_process!();
    let model = load_demo();
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let full = WhenFull::shift(Keep::Tokens(9));
    let long = greedy(&model, SYSTEM).max_tokens(400).when_full(full);
    let first = session.begin(long).unwrap();
    texts.steps(&mut session, 300);
    let held = session.tokens(first).unwrap().to_vec();
    session.end(first).unwrap();
    let again = greedy(&model, held.as_slice()).cache_prompt(true);
    let second = session.begin(again).unwrap();
    texts.run(&mut session);
    let told = texts.of(second);
    assert_eq!(told.end.unwrap().statistics.cached_tokens, 9);
    assert_eq!(told.tokens, Raw::text(&model, &held, 24));
}

#[test]
fn a_shifted_text_is_rolled_back_to_where_it_was_shifted() {
    own_process!();
    let model = load_demo();
    let full = WhenFull::shift(Keep::Tokens(9));
    let generate = model
        .generate(SYSTEM)
        .repeat_penalty(1.1)
        .max_tokens(320)
        .when_full(full);
    // One that does not end by itself.
    let mut seeded = (1..50).map(|seed| generate.clone().seed(seed));
    let generate = seeded
        .find(|generate| told(generate.clone(), &model).tokens.len() == 320)
        .unwrap();
    let whole = told(generate.clone(), &model);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let sequence = session.begin(generate).unwrap();
    texts.steps(&mut session, 300);
    let held = session.tokens(sequence).unwrap().len();
    assert_eq!(session.can_roll_back(sequence).unwrap(), held - 10);
    let gone = session.roll_back(sequence, 40).unwrap();
    let told = texts.of(sequence);
    told.text.truncate(told.text.len() - gone.text);
    texts.run(&mut session);
    assert_eq!(texts.of(sequence).text, whole.text);
}

#[test]
fn a_full_context_is_an_error_where_that_was_asked_for() {
    own_process!();
    let model = load_demo();
    let generate = greedy(&model, SYSTEM).max_tokens(usize::MAX);
    let stopped = told(generate.clone(), &model);
    assert_eq!(stopped.end.unwrap().reason, FinishReason::ContextFull);
    let mut stream = generate
        .clone()
        .when_full(WhenFull::Error)
        .stream()
        .unwrap();
    let mut text = String::new();
    let error = loop {
        match stream.next().unwrap() {
            Ok(piece) => text.push_str(&piece),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, Error::ContextFull { tokens: 257 }),
        "{error:?}"
    );
    assert!(stream.next().is_none());
    assert_eq!(text, stopped.text);
    drop(stream);
    let whole = generate.when_full(WhenFull::Error).text();
    assert!(matches!(whole, Err(Error::ContextFull { .. })), "{whole:?}");
}

#[test]
fn a_shift_that_could_never_make_room_is_refused_at_the_beginning() {
    own_process!();
    let model = load_demo();
    let long = "and ".repeat(255);
    let tokens = tokens_of(&model, &long);
    let shift = |keep, discard| WhenFull::Shift { keep, discard };
    for (prompt, full) in [
        (&tokens[..255], shift(Keep::Prompt, None)),
        (&tokens[..9], shift(Keep::Nothing, Some(0))),
    ] {
        let refused = greedy(&model, prompt).when_full(full).stream();
        assert!(
            matches!(refused, Err(Error::NothingToShift { .. })),
            "{refused:?}"
        );
    }
    let allowed = greedy(&model, &tokens[..254]).when_full(shift(Keep::Prompt, None));
    assert_eq!(told(allowed, &model).tokens.len(), 24);
}

#[test]
fn a_shift_takes_no_memory_of_a_card() {
    own_process!();
    let gpu = card(mib(64));
    for (type_k, layers) in [(KvType::F16, 99), (KvType::F16, 2), (KvType::Q8_0, 99)] {
        let mut request = request(CONTEXT, 2, true).headroom(Headroom::Bytes(0));
        request.params.type_k = type_k;
        let model = Model::builder(demo_path())
            .request(request)
            .gpu_layers(GpuLayers::Exactly(layers))
            .machine(load::detect().unwrap())
            .threads(1)
            .load()
            .unwrap();
        assert!(model.placement().n_gpu_layers > 0);
        let used = gpu.used();
        let generate = greedy(&model, SYSTEM)
            .max_tokens(400)
            .when_full(WhenFull::shift(Keep::Tokens(3)));
        let statistics = told(generate, &model).end.unwrap().statistics;
        assert!(statistics.discarded_tokens > 0);
        assert_eq!(gpu.used(), used, "{type_k} {layers}");
    }
}

#[test]
fn a_shifted_text_is_saved_as_far_as_others_can_go_on_from_it() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shifted.kv");
    let model = load_demo();
    let mut session = model.session().unwrap();
    let full = WhenFull::shift(Keep::Tokens(9));
    let long = greedy(&model, SYSTEM).max_tokens(400).when_full(full);
    let first = session.begin(long).unwrap();
    Texts::default().steps(&mut session, 300);
    assert_eq!(session.save(first, &path).unwrap().tokens, 9);
    drop(session);
    let other = load_demo();
    assert_eq!(other.restore_cache(&path).unwrap().tokens, 9);
    let prompt = tokens_of(&other, SYSTEM);
    let told = told(greedy(&other, SYSTEM).cache_prompt(true), &other);
    assert_eq!(told.end.unwrap().statistics.cached_tokens, 9);
    assert_eq!(told.tokens, Raw::text(&other, &prompt, 24));
}

#[test]
fn a_worker_shifts_as_this_process_does_and_tells_of_a_full_context() {
    own_process!();
    let program = WorkerProcess::program(env!("CARGO_BIN_EXE_autoplace-worker"));
    let worker = Model::builder(demo_path())
        .request(request(CONTEXT, 1, false))
        .threads(1)
        .isolation(Isolation::Process(program))
        .load()
        .unwrap();
    let here = load_demo();
    let text = |model: &Model| {
        greedy(model, SYSTEM)
            .max_tokens(400)
            .when_full(WhenFull::shift(Keep::Prompt))
            .stream()
            .unwrap()
            .into_text()
            .unwrap()
    };
    let ((there, statistics), (here, expected)) = (text(&worker), text(&here));
    assert_eq!(there, here);
    assert_eq!(statistics.generated_tokens, 400);
    assert!(expected.discarded_tokens > 0);
    assert_eq!(statistics.discarded_tokens, expected.discarded_tokens);
    assert_eq!(statistics.shifted_tokens, expected.shifted_tokens);
    assert_eq!(statistics.prompt_tokens, expected.prompt_tokens);
    let endless = greedy(&worker, SYSTEM).max_tokens(usize::MAX);
    let full = endless.when_full(WhenFull::Error).text();
    assert!(matches!(full, Err(Error::ContextFull { .. })), "{full:?}");
}
