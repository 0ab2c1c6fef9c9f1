//! Re-placements that are refused, fail, wait for a gain, or are asked for by others: no text loses a token to them.

use crate::native_support::demo_path;
use crate::replace_support::{PROMPT, builder, generations, load, plan, request, texts_of};
use crate::sim_support::card;
use autoplace::generate::Error;
use autoplace::load::{self, Replacement};
use autoplace::machine::mib;
use autoplace::plan::{Context, HostParts, Plan};

fn not_loaded(outcome: Option<Result<String, Error>>) -> bool {
    match outcome {
        Some(Err(Error::Load(error))) => matches!(*error, load::Error::NotLoaded),
        _ => false,
    }
}

#[test]
fn a_reload_that_fails_loses_nothing() {
    own_process!();
    let path = demo_path();
    let request = request();
    let gpu = card(mib(64));
    let all = plan(&path, &request, 7);
    let model = builder(&path, &request).load().unwrap();
    let generate = generations(&model, PROMPT, 30)[1].clone();
    let expected = generate.clone().text().unwrap();

    let mut stream = generate.stream().unwrap();
    let mut text = String::new();
    for _ in 0..5 {
        text.push_str(&stream.next().unwrap().unwrap());
    }
    // Somebody takes the card's memory; an allocation fails though there is room: no attempt loses anything.
    gpu.set_taken(mib(60));
    let taken = stream.replace(Some(all.clone())).unwrap_err();
    let Error::Load(error) = &taken else {
        panic!("{taken:?}")
    };
    assert!(
        matches!(**error, load::Error::OutOfMemory { .. }),
        "{error:?}"
    );
    assert_eq!(gpu.used(), 0);
    assert!(not_loaded(stream.next()) && not_loaded(stream.next()));
    assert_eq!(stream.finish_reason(), None);
    assert!(model.native().is_err());

    gpu.set_taken(0);
    gpu.fail_allocation(2);
    let refused = stream.replace(Some(all.clone()));
    assert!(matches!(refused, Err(Error::Native(_))), "{refused:?}");
    assert_eq!(gpu.used(), 0);
    assert!(not_loaded(stream.next()));

    let replaced = stream.replace(Some(all)).unwrap();
    assert!(replaced.saved > 0);
    assert_eq!(replaced.before.n_gpu_layers, 7);
    for piece in stream.by_ref() {
        text.push_str(&piece.unwrap());
    }
    assert_eq!(text, expected);

    // Nor does a card that is gone.
    drop(gpu);
    drop(stream);
    let gone = model.placement();
    let mut stream = generations(&model, PROMPT, 30)[1].clone().stream().unwrap();
    let mut text = stream.next().unwrap().unwrap();
    let error = stream.replace(Some(Plan::clone(&gone))).unwrap_err();
    assert!(error.to_string().contains("SIM0"), "{error}");
    stream.replace(None).unwrap();
    assert_eq!(model.placement().n_gpu_layers, 0);
    text.extend(stream.map(Result::unwrap));
    assert_eq!(text, expected);
}

#[test]
fn a_plan_that_lacks_memory_by_now_makes_way_for_a_smaller_one() {
    own_process!();
    let path = demo_path();
    let request = request();
    let gpu = card(mib(64));
    let all = plan(&path, &request, 7);
    let model = builder(&path, &request).attempts(4).load().unwrap();
    let generate = generations(&model, PROMPT, 30)[0].clone();
    let expected = generate.clone().text().unwrap();
    let mut stream = generate.stream().unwrap();
    let mut text = stream.next().unwrap().unwrap();
    gpu.set_taken(mib(60));
    let replaced = stream.replace(Some(all)).unwrap();
    assert!(replaced.after.n_gpu_layers < 7);
    assert_eq!(model.report().attempts.len(), 2);
    text.extend(stream.map(Result::unwrap));
    assert_eq!(text, expected);
}

#[test]
fn somebody_else_may_load_the_model_after_a_reload_that_failed() {
    own_process!();
    let path = demo_path();
    let request = request();
    let gpu = card(mib(64));
    let all = plan(&path, &request, 7);
    let model = load(&path, &request, 0);
    let generate = model.generate(PROMPT).temperature(0.0).max_tokens(12);
    let expected = generate.clone().text().unwrap();
    let mut stream = generate.clone().stream().unwrap();
    let mut text = stream.next().unwrap().unwrap();
    gpu.set_taken(mib(64));
    stream.replace(Some(all.clone())).unwrap_err();
    gpu.set_taken(0);

    model.replace(None).unwrap();
    let other = generate.clone().stream().unwrap();
    let busy = stream.replace(Some(all.clone()));
    assert!(matches!(busy, Err(Error::Busy)), "{busy:?}");
    assert_eq!(other.into_text().unwrap().0, expected);
    stream.replace(Some(all)).unwrap();
    text.extend(stream.map(Result::unwrap));
    assert_eq!(text, expected);
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_released() {
    own_process!();
    let path = demo_path();
    let request = request().n_seq_max(2).context(Context::Tokens(512));
    let gpu = card(mib(64));
    let short = plan(&path, &request.clone().context(Context::Tokens(30)), 7);
    let single = plan(&path, &request.clone().n_seq_max(1), 7);
    let model = load(&path, &request, 7);
    let generate = model.generate(PROMPT).temperature(0.0).max_tokens(20);
    let mut session = model.session().unwrap();
    let mut run = |disturb: bool| {
        let begun = [0, 1].map(|_| session.begin(generate.clone()).unwrap());
        let texts = texts_of(&mut session, &begun, |session, step| {
            if !disturb || step != 9 {
                return;
            }
            let used = gpu.used();
            let refused = session.replace(Some(short.clone()));
            assert!(
                matches!(refused, Err(Error::ContextTooSmall { context: 15, .. })),
                "{refused:?}"
            );
            let refused = session.replace(Some(single.clone()));
            let few = Error::TooFewSequences {
                running: 2,
                n_seq_max: 1,
            };
            assert_eq!(refused.unwrap_err().to_string(), few.to_string());
            let held = (model.native().unwrap(), model.native().unwrap().vocab());
            for plan in [None, Some(Plan::clone(&model.placement()))] {
                let refused = session.replace(plan);
                assert!(
                    matches!(refused, Err(Error::NativeHeld { holders: 2 })),
                    "{refused:?}"
                );
            }
            drop(held);
            assert!(session.is_loaded());
            assert_eq!(gpu.used(), used);
        });
        texts.unwrap()
    };
    assert_eq!(run(false), run(true));
    // One text is left of two: now the plan for one has room for it, whatever its number was.
    let begun = [0, 1].map(|_| session.begin(generate.clone()).unwrap());
    session.step().unwrap();
    session.end(begun[0]).unwrap();
    session.replace(Some(single)).unwrap();
    let text = texts_of(&mut session, &begun[1..], |_, _| {}).unwrap();
    assert!(!text[0].is_empty());
}

#[test]
fn when_memory_becomes_free_the_model_moves_up_for_a_stated_gain() {
    own_process!();
    let path = demo_path();
    let request = request().n_ubatch(64);
    let gpu = card(mib(64));
    gpu.set_taken(mib(64));
    let model = builder(&path, &request).load().unwrap();
    assert_eq!(model.placement().n_gpu_layers, 0);
    let generate = generations(&model, PROMPT, 30)[1].clone();
    let expected = generate.clone().text().unwrap();
    let mut stream = generate.stream().unwrap();
    let mut text = stream.next().unwrap().unwrap();
    assert!(model.better_plan().unwrap().is_none());
    assert!(stream.improve(0.01).unwrap().is_none());

    gpu.set_taken(mib(64) - mib(4));
    let part = model.better_plan().unwrap().unwrap();
    assert!(part.gain().is_finite() && part.gain() > 0.0);
    let layers = part.plan.n_gpu_layers;
    assert!(stream.improve(part.gain() + 0.01).unwrap().is_none());
    let up = stream.improve(part.gain()).unwrap().unwrap();
    assert_eq!((up.before.n_gpu_layers, up.after.n_gpu_layers), (0, layers));
    text.push_str(&stream.next().unwrap().unwrap());

    // What it holds itself is free for it.
    assert!(model.better_plan().unwrap().is_none());
    gpu.set_taken(0);
    assert_eq!(model.plan_anew().unwrap().n_gpu_layers, 7);
    let up = stream.improve(0.05).unwrap().unwrap();
    assert_eq!(up.after.n_gpu_layers, 7);
    text.extend(stream.map(Result::unwrap));
    assert_eq!(text, expected);
}

#[test]
fn a_better_plan_that_cannot_be_loaded_after_all_leaves_the_text_where_it_was() {
    own_process!();
    let path = demo_path();
    let request = request().n_ubatch(64).host_parts(HostParts::None);
    let gpu = card(mib(64));
    gpu.set_taken(mib(60));
    let model = builder(&path, &request).load().unwrap();
    let layers = model.placement().n_gpu_layers;
    assert!((1..7).contains(&layers), "{layers}");
    let generate = model.generate(PROMPT).temperature(0.0).max_tokens(12);
    let expected = generate.clone().text().unwrap();
    let mut stream = generate.stream().unwrap();
    let mut text = stream.next().unwrap().unwrap();
    gpu.set_taken(0);
    gpu.fail_allocation(1);
    let refused = stream.improve(0.01);
    assert!(matches!(refused, Err(Error::Native(_))), "{refused:?}");
    assert_eq!(model.placement().n_gpu_layers, layers);
    text.extend(stream.map(Result::unwrap));
    assert_eq!(text, expected);
}

#[test]
fn whoever_does_not_generate_can_ask_for_it() {
    own_process!();
    let path = demo_path();
    let request = request();
    let gpu = card(mib(64));
    let all = plan(&path, &request, 7);
    let model = load(&path, &request, 0);
    let generate = model.generate(PROMPT).temperature(0.0).max_tokens(24);
    let expected = generate.clone().text().unwrap();
    let mut stream = generate.stream().unwrap();
    let mut text = stream.next().unwrap().unwrap();
    assert!(stream.last_replaced().is_none());

    let watcher = model.clone();
    let plan = all.clone();
    std::thread::spawn(move || watcher.request_replace(Replacement::By(Box::new(plan))))
        .join()
        .unwrap();
    assert_eq!(model.placement().n_gpu_layers, 0);
    text.push_str(&stream.next().unwrap().unwrap());
    assert_eq!(*model.placement(), all);
    assert!(stream.last_replaced().unwrap().is_ok());

    // What is refused does not end the text.
    let held = model.native().unwrap();
    model.request_replace(Replacement::Anew);
    text.push_str(&stream.next().unwrap().unwrap());
    let refused = stream.last_replaced().unwrap();
    assert!(matches!(refused, Err(Error::NativeHeld { holders: 1 })));
    drop(held);

    // What fails does, until somebody asks again.
    gpu.set_taken(mib(64));
    model.request_replace(Replacement::By(Box::new(all)));
    assert!(stream.next().unwrap().is_err());
    assert!(not_loaded(stream.next()));
    model.request_replace(Replacement::Anew);
    text.extend(stream.map(Result::unwrap));
    assert_eq!(text, expected);
    // The request was to have no layers on cards.
    assert_eq!(model.placement().n_gpu_layers, 0);
}
