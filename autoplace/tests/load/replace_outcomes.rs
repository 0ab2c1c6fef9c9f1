//! A re-placement is refused, fails, waits until it is worthwhile, or is requested by another thread. No text loses a
//! token.

use std::sync::Arc;
use std::thread;

use crate::replace_support::{DemoCopy, builder, generations, load, plan, request};
use crate::sim_support::card;
use crate::text_support::{PROMPT, texts_of, to_the_end};
use autoplace::generate::{Error, GenerateRequest, TokenStream};
use autoplace::gguf;
use autoplace::load::{self, Replacement};
use autoplace::machine::mib;
use autoplace::memory::Headroom;
use autoplace::plan::{Context, HostParts, Plan, Policy};
use test_support::demo_path;

fn not_loaded(outcome: Option<Result<String, Error>>) -> bool {
    matches!(outcome, Some(Err(Error::Load(error))) if matches!(*error, load::Error::NotLoaded))
}

/// A text that is generated while the model is re-placed. It is compared with the text of a model that is not
/// re-placed.
struct Text {
    stream: TokenStream,
    text: String,
    expected: String,
}

impl Text {
    fn begin(generate: GenerateRequest) -> Self {
        let expected = generate.clone().text().unwrap();
        let stream = generate.stream().unwrap();
        let text = String::new();
        let mut begun = Self { stream, text, expected };
        begun.piece();
        begun
    }

    fn piece(&mut self) {
        self.text += &self.stream.next().unwrap().unwrap();
    }

    /// Generates the text to its end, and checks that it is the one that was expected.
    #[track_caller]
    fn end(mut self) {
        self.text.extend(self.stream.by_ref().map(Result::unwrap));
        assert_eq!(self.text, self.expected);
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
    let mut text = Text::begin(generate.clone());
    (0..4).for_each(|_| text.piece());
    // Another program takes the memory of the card, or an allocation fails although there is room. In no attempt is a
    // token lost.
    gpu.set_taken(mib(60));
    let taken = text.stream.replace(Some(all.clone()));
    assert_matches!(taken, Err(Error::Load(error)) if matches!(**error, load::Error::OutOfMemory { .. }));
    assert_eq!(gpu.used(), 0);
    assert!(not_loaded(text.stream.next()) && not_loaded(text.stream.next()));
    assert_eq!(text.stream.finish_reason(), None);
    assert!(model.native().is_err());

    gpu.set_taken(0);
    gpu.fail_allocation(2);
    let refused = text.stream.replace(Some(all.clone()));
    assert_matches!(refused, Err(Error::Native(_)));
    assert_eq!(gpu.used(), 0);
    assert!(not_loaded(text.stream.next()));

    // Meanwhile, another part of the application may load the model and generate.
    model.replace(None).unwrap();
    let other = generate.stream().unwrap();
    let busy = text.stream.replace(Some(all.clone()));
    assert_matches!(busy, Err(Error::Busy));
    assert_eq!(other.into_text().unwrap().0, text.expected);
    let replaced = text.stream.replace(Some(all)).unwrap();
    assert!(replaced.saved > 0);
    assert_eq!(replaced.before.n_gpu_layers, 7);
    text.end();

    // If the card is missing, no token is lost, either.
    let gone = model.placement();
    let mut text = Text::begin(generations(&model, PROMPT, 30)[1].clone());
    drop(gpu);
    let error = text.stream.replace(Some(Plan::clone(&gone))).unwrap_err();
    assert!(error.to_string().contains("SIM0"), "{error}");
    text.stream.replace(None).unwrap();
    assert_eq!(model.placement().n_gpu_layers, 0);
    text.end();
}

#[test]
fn a_text_that_is_longer_than_what_costs_no_layer_keeps_its_room() {
    own_process!();
    let path = demo_path();
    let request = request().context(Context::AtLeast(64)).policy(Policy::MostLayers);
    let gpu = card(mib(64));
    let model = builder(&path, &request).load().unwrap();
    assert_eq!((model.placement().n_gpu_layers, model.placement().context.n_ctx), (7, 512));
    let mut text = Text::begin(model.generate(PROMPT).temp(0.0).ignore_eos().max_tokens(400));
    (0..300).for_each(|_| text.piece());
    let short = plan(&path, &request.clone().context(Context::Tokens(256)), 7).gpus().next().unwrap().clone();
    gpu.set_taken(mib(64) - short.footprint.total() - short.headroom.total());
    let plan = model.replan().unwrap();
    assert_eq!((plan.n_gpu_layers, plan.context.n_ctx), (7, 256));
    let after = text.stream.replace(None).unwrap().after;
    assert!(after.n_gpu_layers < 7 && after.context.n_ctx > 450, "{after}");
    text.end();
}

#[test]
fn an_impossible_plan_is_refused_before_anything_is_released() {
    own_process!();
    let path = demo_path();
    let request = request().n_seq_max(2).n_ctx(512);
    let gpu = card(mib(64));
    let short = plan(&path, &request.clone().n_ctx(30), 7);
    let single = plan(&path, &request.clone().n_seq_max(1), 7);
    let model = load(&path, &request, 7);
    let generate = model.generate(PROMPT).temp(0.0).max_tokens(20);
    let mut session = model.session().unwrap();
    let mut run = |disturb: bool| {
        for _ in 0..2 {
            session.begin(generate.clone()).unwrap();
        }
        texts_of(&mut session, |session, step| {
            if !disturb || step != 9 {
                return;
            }
            let used = gpu.used();
            let refused = session.replace(Some(short.clone()));
            assert_matches!(refused, Err(Error::ContextTooSmall { context: 15, .. }));
            let refused = session.replace(Some(single.clone()));
            let few = Error::TooFewSequences { running: 2, n_seq_max: 1 };
            assert_eq!(refused.unwrap_err().to_string(), few.to_string());
            let held = (model.native().unwrap(), model.native().unwrap().vocab());
            for plan in [None, Some(Plan::clone(&model.placement()))] {
                let refused = session.replace(plan);
                assert_matches!(refused, Err(Error::NativeHeld { holders: 2 }));
            }
            drop(held);
            assert!(session.is_loaded());
            assert_eq!(gpu.used(), used);
        })
    };
    assert_eq!(run(false), run(true));
    // Only one of the two texts is left. A plan for one text has room for it, whatever the number of its sequence.
    let begun = [0, 1].map(|_| session.begin(generate.clone()).unwrap());
    drop(session.step().unwrap());
    session.end(begun[0]).unwrap();
    session.replace(Some(single)).unwrap();
    assert!(!to_the_end(&mut session)[0].text.is_empty());
}

#[test]
fn an_idle_model_is_not_released_without_a_plan_or_for_another_file() {
    own_process!();
    let file = DemoCopy::new();
    let path = file.path();
    let gpu = card(mib(64));
    let model = load(&path, &request().headroom(Headroom::Bytes(mib(4))), 7);
    gpu.set_taken(gpu.free());
    assert_matches!(model.replace(None), Err(load::Error::Plan(_)));
    file.replace_by_longer();
    for plan in [None, Some(Plan::clone(&model.placement()))] {
        assert_matches!(model.replace(plan), Err(load::Error::Gguf(gguf::Error::Changed { .. })));
    }
    model.generate(PROMPT).max_tokens(2).text().unwrap();
}

#[test]
fn a_text_goes_on_in_its_place_if_the_file_has_another_length() {
    own_process!();
    let file = DemoCopy::new();
    let path = file.path();
    let gpu = card(mib(64));
    let model = load(&path, &request(), 7);
    let used = gpu.used();
    let mut text = Text::begin(generations(&model, PROMPT, 30)[1].clone());
    file.replace_by_longer();
    for plan in [None, Some(Plan::clone(&model.placement()))] {
        let refused = text.stream.replace(plan).unwrap_err();
        assert_matches!(&refused, Error::Load(error)
            if matches!(**error, load::Error::Gguf(gguf::Error::Changed { .. })));
        text.piece();
        // A request by another part of the application is refused as well, and the text goes on.
        model.request_replace(Replacement::By(Box::new(Plan::clone(&model.placement()))));
        text.piece();
    }
    std::fs::remove_file(&path).unwrap();
    let refused = text.stream.replace(Some(Plan::clone(&model.placement()))).unwrap_err();
    assert_matches!(&refused, Error::Load(error) if matches!(**error, load::Error::Gguf(gguf::Error::Open { .. })));
    assert_eq!(gpu.used(), used);
    text.end();
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
    let mut text = Text::begin(generations(&model, PROMPT, 30)[1].clone());
    assert!(model.better_plan().unwrap().is_none());
    assert!(text.stream.improve(0.01).unwrap().is_none());

    gpu.set_taken(mib(64) - mib(4));
    let part = model.better_plan().unwrap().unwrap();
    let (gain, layers) = (part.gain, part.plan.n_gpu_layers);
    assert!(gain.is_finite() && gain > 0.0);
    assert!(text.stream.improve(gain + 0.01).unwrap().is_none());
    let up = text.stream.improve(gain).unwrap().unwrap();
    assert_eq!((up.before.n_gpu_layers, up.after.n_gpu_layers), (0, layers));
    text.piece();

    // The memory that the model itself uses counts as free.
    assert!(model.better_plan().unwrap().is_none());
    assert_eq!(model.machine().gpus[0].free, mib(4), "as it was then");
    gpu.set_taken(0);
    assert_eq!(model.replan().unwrap().n_gpu_layers, 7);
    assert_eq!(text.stream.improve(0.05).unwrap().unwrap().after.n_gpu_layers, 7);
    text.end();
}

#[test]
fn a_session_moves_up_for_a_stated_gain_between_two_of_its_tokens() {
    own_process!();
    let gpu = card(mib(64));
    gpu.set_taken(mib(64));
    let model = builder(&demo_path(), &request().n_ubatch(64)).load().unwrap();
    let generate = generations(&model, PROMPT, 20)[1].clone();
    let expected = generate.clone().text().unwrap();
    let mut session = model.session().unwrap();
    session.begin(generate).unwrap();
    let texts = texts_of(&mut session, |session, step| {
        if step == 5 {
            assert!(session.improve(0.01).unwrap().is_none(), "the card has no room");
            gpu.set_taken(0);
            assert!(session.improve(f64::INFINITY).unwrap().is_none(), "no gain is as large");
            let up = session.improve(0.05).unwrap().expect("all layers have room");
            assert_eq!((up.before.n_gpu_layers, up.after.n_gpu_layers), (0, 7));
        }
    });
    assert_eq!(texts[0].text, expected);
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
    let generate = model.generate(PROMPT).temp(0.0).max_tokens(12);
    let mut text = Text::begin(generate);
    gpu.set_taken(0);
    gpu.fail_allocation(1);
    let refused = text.stream.improve(0.01);
    assert_matches!(refused, Err(Error::Native(_)));
    assert_eq!(model.placement().n_gpu_layers, layers);
    text.end();
}

#[test]
fn a_re_placement_that_is_withdrawn_is_not_carried_out_by_any_text() {
    own_process!();
    let path = demo_path();
    let request = request();
    let _gpu = card(mib(64));
    let all = plan(&path, &request, 7);
    let model = load(&path, &request, 0);
    assert!(!model.withdraw_replace());
    let mut text = Text::begin(model.generate(PROMPT).temp(0.0).max_tokens(24));
    model.request_replace(Replacement::By(Box::new(all.clone())));
    assert!(model.withdraw_replace());
    text.piece();
    assert!(text.stream.last_replaced().is_none());
    assert_eq!(model.placement().n_gpu_layers, 0);
    // A request that was carried out cannot be withdrawn.
    model.request_replace(Replacement::By(Box::new(all.clone())));
    text.piece();
    assert_eq!(*model.placement(), all);
    assert!(!model.withdraw_replace());
    text.end();
}

#[test]
fn a_requested_re_placement_is_carried_out_once_by_a_text_or_by_whoever_asks() {
    own_process!();
    let path = demo_path();
    let request = request();
    let _gpu = card(mib(64));
    let [none, all] = [0, 7].map(|layers| plan(&path, &request, layers));
    let by = |plan: &Plan| Replacement::By(Box::new(plan.clone()));
    let model = load(&path, &request, 0);
    assert!(!model.replace_as_requested().unwrap(), "nobody has requested anything");
    model.request_replace(by(&all));
    assert!(model.replace_as_requested().unwrap());
    assert_eq!(*model.placement(), all);
    assert!(!model.replace_as_requested().unwrap(), "it was carried out");

    // While a text runs, the text carries it out.
    let mut text = Text::begin(model.generate(PROMPT).temp(0.0).max_tokens(24));
    model.request_replace(by(&none));
    assert_matches!(model.replace_as_requested(), Err(load::Error::Busy));
    assert_eq!(*model.placement(), all);
    text.piece();
    assert_eq!(*model.placement(), none);
    let report = model.report();
    assert!(!model.replace_as_requested().unwrap(), "the text still runs");
    text.end();
    assert!(!model.replace_as_requested().unwrap());
    assert!(Arc::ptr_eq(&report, &model.report()));

    // A request that was refused is gone.
    let held = model.native().unwrap();
    model.request_replace(by(&all));
    assert_matches!(model.replace_as_requested(), Err(load::Error::NativeHeld { holders: 1 }));
    drop(held);
    assert!(!model.replace_as_requested().unwrap());
    assert_eq!(*model.placement(), none);
}

#[test]
fn a_requested_re_placement_that_a_text_has_begun_is_waited_for() {
    own_process!();
    let path = demo_path();
    let request = request();
    let _gpu = card(mib(64));
    let model = load(&path, &request, 0);
    for layers in [7, 0, 7, 0] {
        let mut text = Text::begin(model.generate(PROMPT).temp(0.0).max_tokens(24));
        model.request_replace(Replacement::By(Box::new(plan(&path, &request, layers))));
        thread::scope(|scope| {
            let looks = scope.spawn(|| {
                loop {
                    match model.replace_as_requested() {
                        Err(load::Error::Busy) => thread::yield_now(),
                        outcome => return (outcome.unwrap(), model.report()),
                    }
                }
            });
            text.piece();
            let report = model.report();
            text.end();
            let (is_carried_out, seen) = looks.join().unwrap();
            assert!(!is_carried_out && Arc::ptr_eq(&seen, &report) && Arc::ptr_eq(&seen, &model.report()));
        });
        assert_eq!(model.placement().n_gpu_layers, layers);
    }
}

#[test]
fn other_threads_can_request_a_re_placement() {
    own_process!();
    let path = demo_path();
    let request = request();
    let gpu = card(mib(64));
    let all = plan(&path, &request, 7);
    let model = load(&path, &request, 0);
    let mut text = Text::begin(model.generate(PROMPT).temp(0.0).max_tokens(24));
    assert!(text.stream.last_replaced().is_none());

    let (watcher, plan) = (model.clone(), Box::new(all.clone()));
    thread::spawn(move || watcher.request_replace(Replacement::By(plan))).join().unwrap();
    assert_eq!(model.placement().n_gpu_layers, 0);
    text.piece();
    assert_eq!(*model.placement(), all);
    assert!(text.stream.last_replaced().unwrap().is_ok());

    // If a request is refused, the text does not end.
    let held = model.native().unwrap();
    model.request_replace(Replacement::Replan);
    text.piece();
    let refused = text.stream.last_replaced().unwrap();
    assert_matches!(refused, Err(Error::NativeHeld { holders: 1 }));
    drop(held);

    // If a re-placement fails, the stream ends. It continues after the next request.
    gpu.set_taken(mib(64));
    model.request_replace(Replacement::By(Box::new(all)));
    assert!(text.stream.next().unwrap().is_err());
    assert!(not_loaded(text.stream.next()));
    model.request_replace(Replacement::Replan);
    text.end();
    // No layers on cards were asked for.
    assert_eq!(model.placement().n_gpu_layers, 0);
}
