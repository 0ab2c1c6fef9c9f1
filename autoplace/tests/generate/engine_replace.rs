//! An engine whose model is placed anew, or whose card fails, while texts run: on simulated cards.

use std::sync::{Arc, Mutex, mpsc};

use crate::native_support::demo_path;
use crate::replace_support::{PROMPT, generations, load, plan, request};
use crate::sim_support::card;
use crate::text_support::{likeliest, wait};
use autoplace::generate::{Engine, Error, Generate, Resumed, TokenStream};
use autoplace::load::Replacement;
use autoplace::machine::mib;
use autoplace::plan::Request;
use autoplace::{Model, llama_sys};

fn shared() -> Request {
    request().n_seq_max(3).n_ctx(1536)
}

fn all(model: &Model) -> Vec<Generate> {
    let prompts = [PROMPT, "In the beginning", "And it came to pass"];
    let of = |(index, prompt): (usize, &&str)| generations(model, prompt, 120)[index % 2].clone();
    prompts.iter().enumerate().map(of).collect()
}

#[test]
fn texts_go_on_where_the_model_is_placed_anew() {
    own_process!();
    let path = demo_path();
    let _card = card(mib(64));
    let plans = [0, 7, 3].map(|layers| plan(&path, &shared(), layers));
    let model = load(&path, &shared(), 7);
    let expected: Vec<String> = all(&model).into_iter().map(|it| it.text().unwrap()).collect();
    let engine = Engine::new(&model).unwrap();
    let mut answers: Vec<TokenStream> = all(&model).into_iter().map(|it| engine.submit(it).unwrap()).collect();
    let mut texts = vec![String::new(); answers.len()];
    for plan in plans {
        let layers = plan.n_gpu_layers;
        for (text, answer) in texts.iter_mut().zip(&mut answers) {
            text.extend(answer.next().map(Result::unwrap));
        }
        model.request_replace(Replacement::By(Box::new(plan)));
        wait("is placed anew", || {
            let last = engine.last_replaced();
            last.is_some_and(|last| last.unwrap().after.n_gpu_layers == layers)
        });
    }
    for (text, answer) in texts.iter_mut().zip(answers) {
        text.push_str(&answer.into_text().unwrap().0);
    }
    assert_eq!(texts, expected);
    assert_eq!(engine.last_replaced().unwrap().unwrap().resumed, Resumed::Restored);
    // It is as well while nobody generates.
    let host = plan(&path, &shared(), 0);
    model.request_replace(Replacement::By(Box::new(host)));
    wait("is on the host", || model.placement().n_gpu_layers == 0);
    assert_eq!(engine.submit(all(&model).remove(0)).unwrap().into_text().unwrap().0, expected[0]);
}

#[test]
fn a_re_placement_that_is_refused_harms_nobody() {
    own_process!();
    let path = demo_path();
    let model = load(&path, &shared(), 0);
    let expected = all(&model).remove(0).text().unwrap();
    let engine = Engine::new(&model).unwrap();
    let mut answer = engine.submit(all(&model).remove(0)).unwrap();
    let mut text = answer.next().unwrap().unwrap();
    let held = model.native().unwrap();
    model.request_replace(Replacement::Anew);
    wait("is refused", || engine.last_replaced().is_some());
    let refused = engine.last_replaced().unwrap();
    assert_is!(refused, Err(Error::NativeHeld { .. }));
    drop(held);
    text.push_str(&answer.into_text().unwrap().0);
    assert_eq!(text, expected);
}

#[test]
fn a_computation_that_fails_ends_the_texts_that_run_and_no_others() {
    own_process!();
    let path = demo_path();
    let card = card(mib(64));
    let model = load(&path, &shared(), 7);
    let expected = all(&model).remove(1).text().unwrap();
    let engine = Engine::new(&model).unwrap();
    let mut running: Vec<TokenStream> =
        all(&model).into_iter().map(|it| engine.submit(it.max_tokens(400)).unwrap()).collect();
    for answer in &mut running {
        answer.next().unwrap().unwrap();
    }
    let waiting = engine.submit(all(&model).remove(1)).unwrap();
    card.fail_graph(1);
    for answer in running {
        let failed = answer.into_text().map(drop);
        assert_is!(failed, Err(Error::Native(llama_sys::Error::Decode { .. } | llama_sys::Error::Call { .. })));
    }
    assert_eq!(waiting.into_text().unwrap().0, expected);
}

#[test]
fn without_room_for_the_model_texts_end_and_requests_are_refused_until_it_is_loaded() {
    own_process!();
    let path = demo_path();
    let card = card(mib(64));
    let [onto_card, onto_host] = [7, 0].map(|layers| Replacement::By(Box::new(plan(&path, &shared(), layers))));
    let model = load(&path, &shared(), 0);
    let expected = all(&model).remove(0).text().unwrap();
    let engine = Engine::new(&model).unwrap();
    let submit = || engine.submit(all(&model).remove(0));
    for is_idle in [true, false] {
        let mut running = (!is_idle).then(|| submit().unwrap());
        running.iter_mut().for_each(|it| drop(it.next().unwrap().unwrap()));
        // The plan was made before somebody else took it all.
        card.set_taken(mib(64));
        model.request_replace(onto_card.clone());
        wait("fails", || engine.last_replaced().is_some_and(|it| it.is_err()));
        assert!(running.is_none_or(|it| it.into_text().is_err()));
        assert_is!(submit().map(drop), Err(Error::Load(_)));
        if is_idle {
            model.request_replace(onto_host.clone());
            wait("is placed", || engine.last_replaced().is_some_and(|it| it.is_ok()));
        } else {
            card.set_taken(0);
            model.replace(None).unwrap();
            // What became of the request is told still.
            assert_is!(engine.last_replaced(), Some(Err(_)));
        }
        assert_eq!(submit().unwrap().into_text().unwrap().0, expected);
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
    let (go_on, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let running = all(&model).remove(0).max_tokens(8).sampler(move |candidates, so_far| {
        // Until the other end is dropped.
        let _ = gate.lock().unwrap().recv();
        likeliest(candidates, so_far)
    });
    let running = engine.submit(running).unwrap();
    let waiting = engine.submit(model.generate(PROMPT.repeat(60)).max_tokens(50)).unwrap();
    model.request_replace(Replacement::By(Box::new(small)));
    drop(go_on);
    assert_eq!(running.into_text().unwrap().1.generated_tokens, 8);
    wait("is placed anew", || engine.last_replaced().is_some());
    engine.last_replaced().unwrap().unwrap();
    let failed = waiting.into_text().map(drop);
    assert_is!(failed, Err(Error::ContextTooSmall { context: 128, .. }));
    let after = engine.submit(all(&model).remove(0).max_tokens(8)).unwrap();
    assert_eq!(after.into_text().unwrap().1.generated_tokens, 8);
}
