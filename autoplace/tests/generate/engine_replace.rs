//! While texts run, the model of an engine is re-placed, or its card fails. The cards are simulated.

use crate::engine_steps::Gate;
use crate::replace_support::{generations, load, plan, request};
use crate::sim_support::card;
use crate::text_support::PROMPT;
use autoplace::generate::{Engine, Error, GenerateRequest, Resumed, TokenStream};
use autoplace::llama_sys::sim::SimGpu;
use autoplace::load::Replacement;
use autoplace::machine::mib;
use autoplace::plan::Request;
use autoplace::{Model, llama_sys};
use test_support::{demo_path, wait};

fn shared() -> Request {
    request().n_seq_max(3).n_ctx(1536)
}

/// One of three texts. It is so long that it still runs when a re-placement is requested after its first token.
fn text(model: &Model, which: usize) -> GenerateRequest {
    let prompt = [PROMPT, "In the beginning", "And it came to pass"][which];
    generations(model, prompt, 400)[which % 2].clone().ignore_eos()
}

/// A model with `layers` layers on a card, the texts that are expected of it, and an engine.
fn start(layers: u32) -> (SimGpu, Model, [String; 3], Engine) {
    let card = card(mib(64));
    let model = load(&demo_path(), &shared(), layers);
    let texts = [0, 1, 2].map(|which| text(&model, which).text().unwrap());
    let engine = Engine::new(&model).unwrap();
    (card, model, texts, engine)
}

fn onto_card(layers: u32) -> Replacement {
    Replacement::By(Box::new(plan(&demo_path(), &shared(), layers)))
}

fn whole(answer: TokenStream) -> String {
    answer.into_text().unwrap().0
}

#[test]
fn texts_go_on_when_the_model_is_re_placed() {
    own_process!();
    let (_card, model, expected, engine) = start(7);
    let mut answers = [0, 1, 2].map(|which| engine.submit(text(&model, which)).unwrap());
    let mut texts = [const { String::new() }; 3];
    for layers in [0, 7, 3] {
        for (begun, answer) in texts.iter_mut().zip(&mut answers) {
            begun.extend(answer.next().map(Result::unwrap));
        }
        model.request_replace(onto_card(layers));
        wait("is re-placed", || {
            let last = engine.last_replaced();
            last.is_some_and(|last| last.unwrap().after.n_gpu_layers == layers)
        });
    }
    for (begun, answer) in texts.iter_mut().zip(answers) {
        begun.push_str(&whole(answer));
    }
    assert_eq!(texts, expected);
    assert_eq!(engine.last_replaced().unwrap().unwrap().resumed, Resumed::Restored);
    // A model that is idle is re-placed too.
    model.request_replace(onto_card(0));
    wait("is on the host", || model.placement().n_gpu_layers == 0);
    assert_eq!(whole(engine.submit(text(&model, 0)).unwrap()), expected[0]);
}

#[test]
fn a_re_placement_that_is_refused_harms_nobody() {
    own_process!();
    let (_card, model, expected, engine) = start(0);
    let mut answer = engine.submit(text(&model, 0)).unwrap();
    let begun = answer.next().unwrap().unwrap();
    let held = model.native().unwrap();
    model.request_replace(Replacement::Replan);
    wait("is refused", || engine.last_replaced().is_some());
    assert_matches!(engine.last_replaced(), Some(Err(Error::NativeHeld { .. })));
    drop(held);
    assert_eq!(begun + &whole(answer), expected[0]);
}

#[test]
fn a_computation_that_fails_ends_the_texts_that_run_and_no_others() {
    own_process!();
    let (card, model, expected, engine) = start(7);
    let mut running = [0, 1, 2].map(|which| engine.submit(text(&model, which)).unwrap());
    for answer in &mut running {
        answer.next().unwrap().unwrap();
    }
    let waiting = engine.submit(text(&model, 1)).unwrap();
    card.fail_graph(1);
    for answer in running {
        let failed = answer.into_text().map(drop);
        assert_matches!(failed, Err(Error::Native(llama_sys::Error::Decode { .. } | llama_sys::Error::Call { .. })));
    }
    assert_eq!(whole(waiting), expected[1]);
}

#[test]
fn without_room_for_the_model_texts_end_and_requests_are_refused_until_it_is_loaded() {
    own_process!();
    let (card, model, expected, engine) = start(0);
    let [all_of_it, nothing] = [7, 0].map(onto_card);
    let submit = || engine.submit(text(&model, 0));
    for is_idle in [true, false] {
        let mut running = (!is_idle).then(|| submit().unwrap());
        running.iter_mut().for_each(|text| drop(text.next().unwrap().unwrap()));
        // After the plan was made, another program takes the memory.
        card.set_taken(mib(64));
        model.request_replace(all_of_it.clone());
        wait("fails", || engine.last_replaced().is_some_and(|outcome| outcome.is_err()));
        assert!(running.is_none_or(|text| text.into_text().is_err()));
        assert_matches!(submit().map(drop), Err(Error::Load(_)));
        if is_idle {
            model.request_replace(nothing.clone());
            wait("is placed", || engine.last_replaced().is_some_and(|outcome| outcome.is_ok()));
        } else {
            card.set_taken(0);
            model.replace(None).unwrap();
            // The outcome of the request is still reported.
            assert_matches!(engine.last_replaced(), Some(Err(_)));
        }
        assert_eq!(whole(submit().unwrap()), expected[0]);
    }
}

#[test]
fn a_text_that_waits_and_has_no_place_in_the_new_context_ends_and_no_other() {
    own_process!();
    let path = demo_path();
    let of = |n_ctx| request().n_seq_max(1).n_ctx(n_ctx);
    let model = load(&path, &of(1024), 0);
    let small = plan(&path, &of(128), 0);
    let engine = Engine::new(&model).unwrap();
    let gate = Gate::default();
    let running = engine.submit(gate.generate(&model, PROMPT).max_tokens(8)).unwrap();
    let waiting = engine.submit(model.generate(PROMPT.repeat(60)).max_tokens(50)).unwrap();
    model.request_replace(Replacement::By(Box::new(small)));
    gate.leave(8);
    assert_eq!(running.into_text().unwrap().1.generated_tokens, 8);
    wait("is re-placed", || engine.last_replaced().is_some());
    engine.last_replaced().unwrap().unwrap();
    let failed = waiting.into_text().map(drop);
    assert_matches!(failed, Err(Error::ContextTooSmall { context: 128, .. }));
    let after = engine.submit(text(&model, 0).max_tokens(8)).unwrap();
    assert_eq!(after.into_text().unwrap().1.generated_tokens, 8);
}
