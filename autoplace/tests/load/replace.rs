//! On simulated GPUs, a model is re-placed in the middle of a text. The text is the same as without a re-placement.

use crate::replace_support::{builder, generations, load, plan, replace, request, text_of};
use crate::sim_support::card;
use crate::text_support::{Completion, PROMPT, random, texts_of};
use autoplace::Model;
use autoplace::generate::{FinishReason, Resumed};
use autoplace::machine::mib;
use autoplace::memory::{FlashAttention, KvType};
use autoplace::plan::{Plan, Request};
use test_support::{demo_path, meanwhile};

/// The demo model on the host. The plans move all of the model, or parts of it, onto a card and back.
fn on_host(request: &Request) -> (Model, Vec<Plan>) {
    let layers = [7, 5, 3, 1, 0];
    let plans = layers.map(|layers| plan(&demo_path(), request, layers));
    (load(&demo_path(), request, 0), plans.into())
}

#[test]
fn a_text_goes_on_however_often_the_model_is_re_placed() {
    own_process!();
    let request = request().n_ubatch(64);
    let cards = [card(mib(4)), card(mib(8))];
    let (model, mut plans) = on_host(&request);
    // This plan does not fit on one card.
    let on_both = request.clone().n_ctx(2048);
    plans.push(builder(&demo_path(), &on_both).plan().unwrap());
    assert!(plans.iter().any(|plan| plan.gpus().count() == 2));
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
fn four_texts_go_on_in_the_middle_of_their_prompts_and_of_a_stop_string() {
    own_process!();
    let _card = card(mib(64));
    for unified in [false, true] {
        let mut request = request().n_seq_max(4).n_ctx(1024).n_batch(16).n_ubatch(8);
        request.params.kv_unified = unified;
        let (model, plans) = on_host(&request);
        let mut session = model.session().unwrap();
        let mut run = |disturbed: bool, stop: &str| {
            let prompts = [PROMPT.repeat(3), "In the beginning".to_owned(), PROMPT.to_owned(), PROMPT.repeat(2)];
            for (index, prompt) in prompts.iter().enumerate() {
                let generate = generations(&model, prompt, 12 + 9 * index)[index % 2].clone();
                session.begin(if index == 2 { generate.stop(stop) } else { generate }).unwrap();
            }
            texts_of(&mut session, |session, step| {
                if disturbed {
                    let replaced = session.replace(Some(plans[step % plans.len()].clone())).unwrap();
                    assert_eq!((replaced.resumed, replaced.saved == 0), (Resumed::Restored, step == 0));
                }
            })
        };
        // The stop string extends over several tokens, and its beginning is held back.
        let whole = run(false, "no such text").remove(2).text;
        let stop: String = whole.chars().skip(whole.len() * 2 / 3).take(9).collect();
        let expected = run(false, &stop);
        assert_eq!(expected[2].end.unwrap().reason, FinishReason::StopString);
        let texts = run(true, &stop);
        if unified {
            // After the re-placement, the texts may lie in other cells of the cache that they share. Then numbers are
            // rounded in another way, and the texts may change. But they do continue.
            let go_on = |(text, expected): (&Completion, &Completion)| text.text.starts_with(&expected.text[..8]);
            assert!(texts.iter().zip(&expected).all(go_on), "{texts:?}, {expected:?}");
        } else {
            assert_eq!(texts, expected);
        }
    }
}

#[test]
fn calls_during_a_re_placement_wait() {
    own_process!();
    let _card = card(mib(64));
    let (model, plans) = on_host(&request());
    let generate = model.generate(PROMPT).temp(0.0).max_tokens(2);
    let (expected, tokens) = (generate.clone().text().unwrap(), model.tokenize(PROMPT).unwrap());
    let mut session = model.session().unwrap();
    let by_all = || plans.iter().for_each(|plan| drop(session.replace(Some(plan.clone())).unwrap()));
    meanwhile(by_all, || assert_eq!(model.tokenize(PROMPT).unwrap(), tokens));
    drop(session);
    let by_all = || plans.iter().for_each(|plan| replace(&model, Some(plan)));
    meanwhile(by_all, || assert_eq!(generate.clone().text().unwrap(), expected));
}

/// A model with random weights writes valid characters only by chance, and a stop string may occur anywhere.
#[test]
fn recurrent_and_windowed_models_go_on_too() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let _card = card(mib(64));
    for arch in ["llama", "gpt-oss", "mamba2", "jamba", "falcon-h1"] {
        let path = random(arch, None, folder.path());
        for swa_full in [true, false] {
            let mut request = request().n_ctx(512).n_ubatch(32).n_batch(32);
            request.params.swa_full = swa_full;
            let model = load(&path, &request, 0);
            let all = model.placement().layers();
            let plans = [all, 1, 0].map(|layers| plan(&path, &request, layers));
            // The prompt has one token at its beginning, and one token for each letter.
            let generate = model.generate("a".repeat(90)).seed(1).temp(1.5).max_tokens(60);
            let expected = generate.clone().text().unwrap();
            assert!(!expected.is_ascii(), "{arch}: {expected:?}");
            let mut next = plans.iter().cycle();
            let text = text_of(generate, |stream, index| {
                if index % 3 == 1 {
                    let plan = next.next().unwrap().clone();
                    assert_eq!(stream.replace(Some(plan)).unwrap().resumed, Resumed::Restored, "{arch}");
                }
            });
            assert_eq!(text, expected, "{arch}, {swa_full}");
        }
    }
}

#[test]
fn the_old_model_is_released_before_the_new_one_is_loaded() {
    own_process!();
    let path = demo_path();
    let request = request();
    let roomy = card(mib(64));
    let all = plan(&path, &request, 7);
    let planned = all.gpus().next().unwrap();
    let needed = planned.footprint.total() + planned.headroom.total();
    drop(roomy);
    // There is room for one copy, and not for more.
    let tight = card(needed);
    let model = load(&path, &request, 7);
    let mut stream = model.generate(PROMPT).max_tokens(8).stream().unwrap();
    stream.next().unwrap().unwrap();
    let allocations = tight.allocations();
    let by_plan = stream.replace(Some(Plan::clone(&model.placement())));
    assert_eq!(by_plan.unwrap().resumed, Resumed::Restored);
    stream.next().unwrap().unwrap();
    assert_eq!(stream.replace(None).unwrap().after.n_gpu_layers, 7);
    assert!(tight.allocations() > allocations);
    assert!(tight.peak() <= tight.total());
    assert!(stream.all(|piece| piece.is_ok()));
    drop((stream, model));
    assert_eq!(tight.used(), 0);
}

#[test]
fn a_cache_of_another_layout_is_computed_again_and_reported() {
    own_process!();
    let path = demo_path();
    let request = request().n_batch(16);
    let plain = plan(&path, &request, 0);
    let others =
        [request.clone().kv_types(KvType::Q8_0, KvType::Q8_0), request.clone().flash_attn(FlashAttention::Off)];
    for other in others {
        let other = plan(&path, &other, 0);
        let generate = load(&path, &request, 0).generate(PROMPT).temp(0.0).max_tokens(30);
        let expected = generate.clone().text().unwrap();
        let mut stream = generate.stream().unwrap();
        let mut text = stream.next().unwrap().unwrap();
        for plan in [&other, &plain] {
            let replaced = stream.replace(Some(plan.clone())).unwrap();
            assert_eq!(replaced.resumed, Resumed::Recomputed);
            assert!(replaced.saved > 0);
            text.push_str(&stream.next().unwrap().unwrap());
        }
        // No state of the earlier cache is used. So the text is the same as without a re-placement, except for rounding
        // with batches of another shape.
        text.extend(stream.by_ref().map(Result::unwrap));
        assert_eq!(text, expected);
        assert_eq!(stream.statistics().generated_tokens, 30);
    }
}

#[test]
fn an_abort_handle_stays_valid() {
    own_process!();
    let model = load(&demo_path(), &request(), 0);
    let mut stream = model.generate(PROMPT).stream().unwrap();
    let handle = stream.abort_handle();
    stream.next().unwrap().unwrap();
    stream.replace(None).unwrap();
    stream.next().unwrap().unwrap();
    handle.abort();
    assert!(stream.next().is_none());
    assert_eq!(stream.finish_reason(), Some(FinishReason::Aborted));
    drop(stream);
    model.generate(PROMPT).max_tokens(2).text().unwrap();
}
