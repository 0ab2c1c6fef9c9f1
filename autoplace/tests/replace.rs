//! A model that is placed anew in mid-sentence, on simulated GPUs: the text is the one of an undisturbed run.

#![cfg(feature = "llama")]

mod native_support;
mod random_weights;
mod replace_support;
mod synthetic;

use std::path::Path;

use autoplace::Model;
use autoplace::generate::{Error, FinishReason, Generate, Replaced, Resumed};
use autoplace::llama_sys;
use autoplace::load::{self, Replacement};
use autoplace::machine::mib;
use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::{Context, GpuLayers, Plan, Request};
use native_support::demo_path;
use replace_support::{Dice, alone, builder, card, load, plan, request, text_of, texts_of};

const PROMPT: &str = "And the king said unto his servants,";

/// Greedy, and by chance with a penalty: everything that a sampler remembers.
fn generations(model: &Model, prompt: &str, tokens: usize) -> [Generate; 2] {
    [
        model
            .generate(prompt)
            .temperature(0.0)
            .repeat_penalty(1.2)
            .max_tokens(tokens),
        model
            .generate(prompt)
            .seed(7)
            .temperature(1.2)
            .repeat_penalty(1.3)
            .max_tokens(tokens),
    ]
}

/// From the host onto a card and back, all of it and parts, one card and two.
fn fleet(path: &Path, request: &Request, all: u32) -> Vec<Plan> {
    let one = (0..=all)
        .rev()
        .step_by(2)
        .map(|layers| plan(path, request, layers));
    let mut plans: Vec<Plan> = one.collect();
    plans.push(plan(path, request, 0));
    plans
}

/// A plan that one card alone has no room for.
fn on_both(path: &Path, request: &Request) -> Plan {
    let request = request.clone().context(Context::Tokens(2048));
    builder(path, &request).plan().unwrap()
}

#[test]
fn a_text_goes_on_however_often_the_model_is_placed_anew() {
    let _alone = alone();
    let path = demo_path();
    let request = request().n_ubatch(64);
    let cards = [card(mib(4)), card(mib(8))];
    let mut plans = fleet(&path, &request, 7);
    plans.push(on_both(&path, &request));
    assert!(plans.iter().any(|plan| plan.gpus().count() == 2));
    let model = load(&path, &request, 0);
    for which in 0..2 {
        let undisturbed = generations(&model, PROMPT, 24)[which].clone();
        let expected = undisturbed.clone().text().unwrap();
        let mut next = plans.iter().cycle();
        let text = text_of(undisturbed, |stream, index| {
            let plan = next.next().unwrap();
            let replaced = stream.replace(Some(plan.clone())).unwrap();
            assert_eq!(replaced.resumed, Resumed::Restored);
            assert_eq!(*replaced.after, *plan);
            assert_eq!(*model.placement(), *plan);
            let nothing = index == 0 || stream.finish_reason().is_some();
            assert_eq!(replaced.saved == 0, nothing, "{replaced:?}");
        });
        assert_eq!(text, expected);
    }
    drop(model);
    assert!(cards.iter().all(|card| card.used() == 0));
}

#[test]
fn a_long_text_goes_on_after_re_placements_at_random_tokens() {
    let _alone = alone();
    let path = demo_path();
    let request = request();
    let _card = card(mib(64));
    let plans = fleet(&path, &request, 7);
    let model = load(&path, &request, 7);
    let mut dice = Dice::new(5);
    for which in 0..2 {
        let undisturbed = generations(&model, PROMPT, 300)[which].clone();
        let expected = undisturbed.clone().text().unwrap();
        let text = text_of(undisturbed, |stream, _| {
            if dice.below(20) == 0 {
                let plan = plans[dice.below(plans.len())].clone();
                stream.replace(Some(plan)).unwrap();
            }
        });
        assert_eq!(text, expected);
    }
}

#[test]
fn four_texts_at_once_all_go_on() {
    let _alone = alone();
    let path = demo_path();
    let _card = card(mib(64));
    let mut dice = Dice::new(9);
    let request = request().n_seq_max(4).context(Context::Tokens(1024));
    let plans = fleet(&path, &request, 7);
    let model = load(&path, &request, 0);
    let mut session = model.session().unwrap();
    let mut run = |disturbed: bool| {
        let prompts = [PROMPT, "In the beginning", PROMPT, "And it came to pass"];
        let mut begun = Vec::new();
        for (index, prompt) in prompts.iter().enumerate() {
            let generate = generations(&model, prompt, 12 + 9 * index)[index % 2].clone();
            begun.push(session.begin(generate).unwrap());
        }
        let texts = texts_of(&mut session, &begun, |session, _| {
            if disturbed && dice.below(3) > 0 {
                let plan = plans[dice.below(plans.len())].clone();
                let replaced = session.replace(Some(plan)).unwrap();
                assert_eq!(replaced.resumed, Resumed::Restored);
            }
        });
        texts.unwrap()
    };
    let expected = run(false);
    assert_eq!(run(true), expected);
}

/// What they share is divided otherwise from then on, which rounds otherwise: the texts may differ, but go on.
#[test]
fn texts_that_share_a_cache_go_on_too() {
    let _alone = alone();
    let path = demo_path();
    let _card = card(mib(64));
    let mut request = request().n_seq_max(3).context(Context::Tokens(512));
    request.params.kv_unified = true;
    let plans = fleet(&path, &request, 7);
    let model = load(&path, &request, 0);
    let mut session = model.session().unwrap();
    let begun = [20, 30, 40].map(|tokens| {
        let generate = model.generate(PROMPT).temperature(0.0).max_tokens(tokens);
        session.begin(generate).unwrap()
    });
    let mut next = plans.iter().cycle();
    let texts = texts_of(&mut session, &begun, |session, step| {
        let replaced = session.replace(next.next().cloned()).unwrap();
        assert_eq!(replaced.resumed, Resumed::Restored);
        assert_eq!(replaced.saved == 0, step == 0);
    });
    // One after the other would do it, if it were not for the rounding: the beginnings are the same.
    let texts = texts.unwrap();
    let beginning = &texts[0][..8];
    assert!(texts.iter().all(|text| text.starts_with(beginning)));
}

#[test]
fn a_prompt_goes_on_where_it_was() {
    let _alone = alone();
    let path = demo_path();
    let request = request().n_batch(8).n_ubatch(4);
    let _card = card(mib(64));
    let plans = fleet(&path, &request, 7);
    let model = load(&path, &request, 0);
    let generate = model.generate(PROMPT.repeat(3)).seed(3).max_tokens(16);
    let expected = generate.clone().text().unwrap();
    let mut session = model.session().unwrap();
    let begun = session.begin(generate).unwrap();
    let texts = texts_of(&mut session, &[begun], |session, step| {
        let replaced = session
            .replace(Some(plans[step % plans.len()].clone()))
            .unwrap();
        assert_eq!(replaced.saved == 0, step == 0);
    });
    assert_eq!(texts.unwrap(), [expected]);
}

/// Models of random weights choose bytes that are characters by chance only, and stop strings may come in any of them.
#[test]
fn recurrent_and_windowed_models_go_on_too() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let _card = card(mib(64));
    let mut seen = 0;
    for mut sketch in random_weights::all() {
        let title = sketch.title();
        let wanted = ["gemma3", "mamba2", "jamba", "falcon-h1"];
        if !wanted.iter().any(|name| title.starts_with(name)) {
            continue;
        }
        seen += 1;
        sketch.vocabulary();
        sketch.u32("context_length", 512);
        let path = random_weights::write(&sketch, folder.path());
        for swa_full in [true, false] {
            let mut request = request().n_ubatch(32).n_batch(32);
            request.params.swa_full = swa_full;
            let model = load(&path, &request, 0);
            let all = model.placement().layers();
            let plans = [all, 1, 0].map(|layers| plan(&path, &request, layers));
            // A token begins the text, and each letter is one.
            let generate = model.generate("a".repeat(90)).seed(1).temperature(1.5);
            let generate = generate.max_tokens(60);
            let expected = generate.clone().text().unwrap();
            let mut next = plans.iter().cycle();
            let text = text_of(generate, |stream, index| {
                if index % 7 == 3 {
                    let plan = next.next().unwrap().clone();
                    let replaced = stream.replace(Some(plan)).unwrap();
                    assert_eq!(replaced.resumed, Resumed::Restored, "{title}");
                }
            });
            assert_eq!(text, expected, "{title}, {swa_full}");
        }
    }
    assert!(seen >= 4, "{seen} of the models are there");
}

#[test]
fn what_is_held_back_of_a_text_is_not_lost() {
    let _alone = alone();
    let path = demo_path();
    let request = request();
    let _card = card(mib(64));
    let plans = [7, 0].map(|layers| plan(&path, &request, layers));
    let model = load(&path, &request, 0);
    let generate = model.generate(PROMPT).temperature(0.0).max_tokens(40);
    let whole = generate.clone().text().unwrap();
    // It comes over several tokens, and its beginning comes before it.
    let at = whole.len() * 2 / 3;
    let stop: String = whole.chars().skip(at).take(9).collect();
    let expected = generate.clone().stop(&stop).text().unwrap();
    assert!(expected.len() < whole.len(), "{stop:?} in {whole:?}");

    let mut session = model.session().unwrap();
    session.begin(generate.stop(&stop)).unwrap();
    let (mut text, mut end, mut empty) = (String::new(), None, 0);
    for plan in plans.iter().cycle() {
        session.replace(Some(plan.clone())).unwrap();
        for piece in session.step().unwrap() {
            empty += usize::from(piece.text.is_empty());
            text.push_str(&piece.text);
            end = piece.end;
        }
        if session.is_empty() {
            break;
        }
    }
    assert_eq!(text, expected);
    assert_eq!(end.unwrap().reason, FinishReason::StopString);
    assert!(empty > 0, "nothing was ever held back");

    // Characters in bytes, most of them in pieces.
    let folder = tempfile::tempdir().unwrap();
    let mut sketches = random_weights::all().into_iter();
    let mut sketch = sketches.find(|it| it.title().starts_with("llama")).unwrap();
    sketch.vocabulary();
    sketch.u32("context_length", 512);
    let path = random_weights::write(&sketch, folder.path());
    let model = load(&path, &request, 0);
    let plans = [1, 0].map(|layers| plan(&path, &request, layers));
    let generate = model.generate("").seed(4).temperature(2.0).max_tokens(80);
    let expected = generate.clone().text().unwrap();
    assert!(!expected.is_ascii(), "{expected:?}");
    let text = text_of(generate, |stream, index| {
        stream.replace(Some(plans[index % 2].clone())).unwrap();
    });
    assert_eq!(text, expected);
}

#[test]
fn the_old_model_is_released_before_the_new_one_is_loaded() {
    let _alone = alone();
    let path = demo_path();
    let request = request();
    let roomy = card(mib(64));
    let needed = plan(&path, &request, 7).gpus().next().unwrap().footprint;
    drop(roomy);
    // There is room for one of it, and not for a byte more.
    let tight = card(needed.total());
    let model = load(&path, &request, 7);
    let mut stream = model.generate(PROMPT).max_tokens(8).stream().unwrap();
    stream.next().unwrap().unwrap();
    let allocations = tight.allocations();
    let by_plan = stream.replace(Some(Plan::clone(&model.placement())));
    assert_eq!(by_plan.unwrap().resumed, Resumed::Restored);
    stream.next().unwrap().unwrap();
    let by_what_is_free = stream.replace(None).unwrap();
    assert_eq!(by_what_is_free.after.n_gpu_layers, 7);
    assert!(tight.allocations() > allocations);
    assert!(tight.peak() <= tight.total());
    assert!(stream.all(|piece| piece.is_ok()));
    drop((stream, model));
    assert_eq!(tight.used(), 0);
}

fn not_loaded(outcome: Option<Result<String, Error>>) -> bool {
    match outcome {
        Some(Err(Error::Load(error))) => matches!(*error, load::Error::NotLoaded),
        _ => false,
    }
}

#[test]
fn a_reload_that_fails_loses_nothing() {
    let _alone = alone();
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
fn somebody_else_may_load_the_model_after_a_reload_that_failed() {
    let _alone = alone();
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
    let _alone = alone();
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
    session.end(begun[0]).unwrap().unwrap();
    session.replace(Some(single)).unwrap();
    let text = texts_of(&mut session, &begun[1..], |_, _| {}).unwrap();
    assert!(!text[0].is_empty());
}

#[test]
fn a_cache_of_another_layout_is_computed_again_and_said_to_be() {
    let _alone = alone();
    let path = demo_path();
    let request = request().n_batch(16);
    let plain = plan(&path, &request, 0);
    let others = [
        request.clone().kv_types(KvType::Q8_0, KvType::Q8_0),
        request.clone().flash_attention(FlashAttention::Off),
    ];
    for other in others {
        let other = plan(&path, &other, 0);
        let model = load(&path, &request, 0);
        let generate = model.generate(PROMPT).temperature(0.0).max_tokens(30);
        let expected = generate.clone().text().unwrap();
        let mut stream = generate.stream().unwrap();
        let mut text = stream.next().unwrap().unwrap();
        for plan in [&other, &plain] {
            let replaced: Replaced = stream.replace(Some(plan.clone())).unwrap();
            assert_eq!(replaced.resumed, Resumed::Recomputed);
            assert!(replaced.saved > 0);
            text.push_str(&stream.next().unwrap().unwrap());
        }
        // What the other cache said is forgotten: the text is that of the first one, but for the shape of a batch.
        text.extend(stream.by_ref().map(Result::unwrap));
        assert_eq!(text, expected);
        let statistics = stream.statistics();
        assert_eq!(statistics.generated_tokens, 30);
    }
}

#[test]
fn when_memory_becomes_free_the_model_moves_up_for_a_stated_gain() {
    let _alone = alone();
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
    assert!((0.0..1.0).contains(&part.gain()) && part.gain() > 0.0);
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
    let _alone = alone();
    let path = demo_path();
    let request = request().n_ubatch(64);
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
    let _alone = alone();
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

#[test]
fn an_abort_handle_stays_good() {
    let _alone = alone();
    let path = demo_path();
    let request = request().gpu_layers(GpuLayers::Exactly(0));
    let model = builder(&path, &request).load().unwrap();
    let mut stream = model.generate(PROMPT).stream().unwrap();
    let handle = stream.abort_handle();
    stream.next().unwrap().unwrap();
    stream.replace(None).unwrap();
    stream.next().unwrap().unwrap();
    handle.abort();
    assert!(matches!(
        stream.next(),
        Some(Err(Error::Native(llama_sys::Error::Aborted)))
    ));
    assert!(stream.next().is_none());
    drop(stream);
    model.generate(PROMPT).max_tokens(2).text().unwrap();
}
