//! When its texts grow deeper, a model moves to its other placement, and later back: on simulated cards, in an engine,
//! and in a worker. The texts are the same as those of a model that does not move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::depth_support::crossing;
use crate::replace_support::{DemoCopy, generations, load, plan, request};
use crate::sim_support::card;
use crate::text_support::{PROMPT, chat, worker};
use autoplace::generate::Engine;
use autoplace::llama_sys::sim::SimGpu;
use autoplace::load::Replacement;
use autoplace::machine::{MeasurementCache, mib};
use autoplace::plan::{Request, SavedPlan};
use autoplace::watch::{Event, Sentinel};
use autoplace::{Isolation, Model, ModelBuilder, OnDeath};
use test_support::{demo_path, wait};

/// From this number of live tokens on, the other placement is faster.
const CROSSING: u32 = 160;

/// Two copies of the demo model. The first copy is on the host with fewer live tokens than [`CROSSING`], and on the
/// card with more. The second copy stays on the host.
fn following(request: &Request) -> [Model; 2] {
    let path = demo_path();
    let [shallow, deep] = [0, 7].map(|layers| plan(&path, request, layers));
    let saved = crossing(&path, request, [&shallow, &deep], CROSSING);
    [by_plan().follow(saved).load().unwrap(), load(&path, request, 0)]
}

fn by_plan() -> ModelBuilder {
    Model::builder(demo_path()).n_threads(1)
}

fn is_deep(model: &Model) -> bool {
    model.placement().n_gpu_layers > 0
}

#[test]
fn a_chat_of_60_turns_crosses_twice_and_back_with_its_text_unchanged() {
    own_process!();
    let card = card(mib(64));
    let [model, stays] = following(&request().n_ctx(1024).n_ubatch(64));
    let mut chats = [&model, &stays].map(|model| chat(model, "chatml"));
    let mut crossed = Vec::new();
    for turn in 0..60 {
        if turn % 12 == 11 {
            // Begins another conversation.
            chats.iter_mut().for_each(|chat| chat.messages_mut().clear());
        }
        let before = is_deep(&model);
        let [answer, expected] =
            chats.each_mut().map(|chat| chat.say("And it came to pass in those days").unwrap().text().unwrap());
        assert_eq!(answer, expected, "turn {turn}");
        if is_deep(&model) != before {
            crossed.push(!before);
            let report = model.report();
            let moved = report.moved.as_ref().unwrap();
            assert_eq!(moved.tokens >= CROSSING, is_deep(&model), "{moved}");
            assert!(report.to_string().contains(&moved.to_string()), "{report}");
        }
        assert_eq!(card.used() > 0, is_deep(&model));
        assert!(card.peak() <= card.total());
    }
    // In each conversation, the model moves to the card and back again.
    assert!(crossed.len() >= 8, "{crossed:?}");
    // The plan of the current placement contains the other placement too.
    assert!(model.placement().to_string().contains("up to about 160 tokens"), "{}", model.placement());
}

#[test]
fn a_growing_text_moves_once_at_a_tokens_boundary_and_says_so() {
    own_process!();
    let _card = card(mib(64));
    let [model, stays] = following(&request().n_ctx(1024).n_ubatch(64));
    let sentinel = Sentinel::builder().interval(Duration::from_millis(1)).watch(&model).unwrap();
    for which in 0..2 {
        let expected = generations(&stays, PROMPT, 400)[which].clone().text().unwrap();
        let mut stream = generations(&model, PROMPT, 400)[which].clone().stream().unwrap();
        let (mut text, mut moved_at) = (String::new(), None);
        while let Some(piece) = stream.next() {
            text += &piece.unwrap();
            let statistics = stream.statistics();
            if statistics.moves > 0 && moved_at.is_none() {
                moved_at = Some(statistics.prompt_tokens + statistics.generated_tokens);
            }
        }
        assert_eq!(text, expected);
        let statistics = stream.statistics();
        assert!(statistics.moves == 1 && !statistics.moving_time.is_zero(), "{statistics}");
        assert!(moved_at.unwrap() > CROSSING as usize && is_deep(&model), "{moved_at:?}");
        drop(stream);
        // When the next short text begins, the model moves back.
        let short = generations(&model, "In the beginning", 4)[which].clone().text().unwrap();
        assert_eq!(short, generations(&stays, "In the beginning", 4)[which].clone().text().unwrap());
        assert!(!is_deep(&model));
    }
    let is_move = |event: &Event| matches!(event, Event::Moved { moved } if moved.to_string().contains("moved after"));
    let mut all = Vec::new();
    wait("the sentinel reports the last move", || {
        all.extend(sentinel.events().try_iter());
        all.iter().any(is_move)
    });
}

#[test]
fn a_long_prompt_begins_in_the_deep_placement() {
    own_process!();
    let _card = card(mib(64));
    let [model, stays] = following(&request().n_ctx(1024).n_ubatch(64));
    let prompt = PROMPT.repeat(40);
    let mut stream = model.generate(&*prompt).temp(0.0).max_tokens(8).stream().unwrap();
    let first = stream.next().unwrap().unwrap();
    assert!(is_deep(&model) && stream.statistics().moves == 1);
    let report = model.report();
    let moved = report.moved.as_ref().unwrap();
    // When the model moves, nothing has been computed yet.
    assert!(moved.tokens == 0 && moved.lost.is_zero(), "{moved}");
    let text: String = std::iter::once(first).chain(stream.map(Result::unwrap)).collect();
    assert!(!stays.generate(&*prompt).temp(0.0).max_tokens(8).text().unwrap().is_empty() && !text.is_empty());
}

#[test]
fn a_model_whose_file_has_another_length_does_not_move() {
    own_process!();
    let _card = card(mib(64));
    let file = DemoCopy::new();
    let path = file.path();
    let request = request().n_ctx(1024).n_ubatch(64);
    let [shallow, deep] = [0, 7].map(|layers| plan(&path, &request, layers));
    let saved = crossing(&path, &request, [&shallow, &deep], CROSSING);
    let model = Model::builder(&path).n_threads(1).follow(saved).load().unwrap();
    let expected = generations(&load(&path, &request, 0), PROMPT, 300)[1].clone().text().unwrap();
    file.replace_by_longer();
    let mut stream = generations(&model, PROMPT, 300)[1].clone().stream().unwrap();
    let text: String = stream.by_ref().map(Result::unwrap).collect();
    assert_eq!(text, expected);
    assert!(!is_deep(&model) && stream.statistics().moves == 0 && stream.last_replaced().is_none());
}

/// A sentinel requests a re-placement if there is not enough memory.
#[test]
fn a_requested_re_placement_goes_before_a_move_that_is_due() {
    own_process!();
    let _card = card(mib(64));
    let request = request().n_ctx(1024).n_ubatch(64);
    let [model, _] = following(&request);
    let asked = plan(&demo_path(), &request, 3);
    let prompt = PROMPT.repeat(40);
    model.request_replace(Replacement::By(Box::new(asked.clone())));
    // If there were no request, a prompt as long as this would begin in the deep placement.
    let mut stream = model.generate(&*prompt).temp(0.0).max_tokens(8).stream().unwrap();
    stream.next().unwrap().unwrap();
    assert_eq!((stream.statistics().moves, &*model.placement()), (0, &asked));
    assert!(model.report().moved.is_none());
}

#[test]
fn texts_of_an_engine_count_together_and_go_on() {
    own_process!();
    let card = card(mib(64));
    let mut request = request().n_seq_max(4).n_ctx(2048).n_ubatch(64);
    request.params.kv_unified = false;
    let [model, stays] = following(&request);
    // Each of the four texts alone is below the crossing, but together they are above it.
    let texts = |model: &Model| {
        let engine = Engine::new(model).unwrap();
        let texts: Vec<_> = (0..4).map(|n| generations(model, PROMPT, 60 + n)[n % 2].clone()).collect();
        let streams: Vec<_> = texts.into_iter().map(|text| engine.submit(text).unwrap()).collect();
        streams.into_iter().map(|stream| stream.into_text().unwrap().0).collect::<Vec<String>>()
    };
    let expected = texts(&stays);
    assert_eq!(texts(&model), expected);
    assert!(is_deep(&model) && card.peak() <= card.total());
    let alone = model.report().moved.as_ref().unwrap().tokens;
    assert!((CROSSING..4 * CROSSING).contains(&alone) || alone == 0, "{alone}");
}

#[test]
fn a_move_that_would_not_fit_is_not_begun() {
    own_process!();
    let gpu: SimGpu = card(mib(64));
    let [model, stays] = following(&request().n_ctx(1024).n_ubatch(64));
    let generate = |model: &Model| generations(model, PROMPT, 300)[1].clone();
    let expected = generate(&stays).text().unwrap();
    // Another program takes the card.
    gpu.set_taken(mib(64));
    let allocations = gpu.allocations();
    let mut stream = generate(&model).stream().unwrap();
    let text: String = stream.by_ref().map(Result::unwrap).collect();
    assert_eq!(text, expected);
    assert!(!is_deep(&model) && stream.statistics().moves == 0);
    assert!(stream.last_replaced().is_none() && gpu.allocations() == allocations);
    drop(stream);
    gpu.set_taken(0);
    assert_eq!(generate(&model).text().unwrap(), expected);
    assert!(is_deep(&model));
}

#[test]
fn the_time_of_a_move_is_stored_for_later_programs_with_its_date() {
    own_process!();
    let _card = card(mib(64));
    let (path, request) = (demo_path(), request().n_ctx(1024).n_ubatch(64));
    let folder = tempfile::tempdir().unwrap();
    let [shallow, deep] = [3, 7].map(|layers| plan(&path, &request, layers));
    // According to the plan, a move takes an hour. When this file is loaded and its rates are measured, that time is
    // replaced.
    let mut saved = serde_json::to_value(crossing(&path, &request, [&shallow, &deep], CROSSING)).unwrap();
    saved["plan"]["by_depth"]["moving_seconds"] = 3600.0.into();
    let saved = SavedPlan::from_json(&saved.to_string()).unwrap();
    let load = || by_plan().follow(saved.clone()).headroom_folder(folder.path()).load().unwrap();
    let known = |model: &Model| {
        let cache = MeasurementCache::at(folder.path());
        cache.move_rates(&model.machine(), (&path, model.placement().model.file_bytes), &autoplace::load::build_name())
    };

    let first = load();
    assert_eq!(first.placement().by_depth.as_ref().unwrap().moving_seconds, 3600.0);
    let of_load = known(&first).unwrap();
    assert!(of_load.warm_file.is_some() && of_load.rest_ns.is_some() && of_load.state.is_none(), "{of_load:?}");
    generations(&first, PROMPT, 400)[1].clone().text().unwrap();
    assert_eq!(first.placement().n_gpu_layers, 7);
    // The move has also measured how long the states take to be copied.
    let of_move = known(&first).unwrap();
    assert!(of_move.state.is_some(), "{of_move:?}");
    let took = first.report().moved.as_ref().unwrap().time.as_secs_f64();
    drop(first);

    let later = load();
    let plan = later.placement();
    let by_depth = plan.by_depth.as_ref().unwrap();
    let today = by_depth.moving_measured.as_ref().unwrap().date().unwrap();
    assert!(by_depth.moving_seconds < 60.0, "{} s, and a move took {took} s", by_depth.moving_seconds);
    assert!(plan.to_string().contains(&format!("(as measured {today}")), "{plan}");
    // A new plan for this file uses the measured times. A plan for another file does not.
    assert!(known(&later).is_some());
    let cache = MeasurementCache::at(folder.path());
    assert_eq!(cache.move_rates(&later.machine(), (&path, 1), &autoplace::load::build_name()), None);
}

/// Two placements on the host. Only their notes are different, because a worker cannot see the cards of this process.
fn in_worker(on_death: OnDeath, at: u32) -> Model {
    let path = demo_path();
    let request = request().n_ctx(1024).n_ubatch(64);
    let shallow = plan(&path, &request, 0);
    let mut deep = shallow.clone();
    deep.notes = vec!["for deep texts".to_owned()];
    let saved = crossing(&path, &request, [&shallow, &deep], at);
    by_plan().follow(saved).isolation(Isolation::Process(worker().on_death(on_death))).load().unwrap()
}

fn is_for_deep_texts(model: &Model) -> bool {
    model.placement().notes[0] == "for deep texts"
}

#[test]
fn a_model_in_a_worker_moves_there_and_the_application_knows() {
    let model = in_worker(OnDeath::Fail, CROSSING);
    let stays = load(&demo_path(), &request().n_ctx(1024).n_ubatch(64), 0);
    let generate = |model: &Model| generations(model, PROMPT, 300)[1].clone();
    let expected = generate(&stays).text().unwrap();
    let mut stream = generate(&model).stream().unwrap();
    assert_eq!(stream.by_ref().map(Result::unwrap).collect::<String>(), expected);
    assert_eq!(stream.statistics().moves, 1);
    drop(stream);
    assert!(is_for_deep_texts(&model));
    assert!(model.report().moved.as_ref().is_some_and(|moved| moved.tokens >= CROSSING));
    // Calls of a session make the model move too.
    let mut session = model.session().unwrap();
    session.begin(generations(&model, "In the beginning", 4)[0].clone()).unwrap();
    while !session.is_empty() {
        let _ = session.step().unwrap();
    }
    drop(session);
    assert!(!is_for_deep_texts(&model));
}

/// The move takes only some milliseconds. So the worker is stopped as soon as the sentinel reports that the move has
/// begun. If no message about a finished move arrives, the worker is killed.
#[cfg(unix)]
#[test]
fn a_worker_killed_in_the_middle_of_its_move_loses_no_token() {
    use crate::isolation::deaths::{kill, stop};
    let stays = load(&demo_path(), &request().n_ctx(1024).n_ubatch(64), 0);
    let expected = generations(&stays, PROMPT, 120)[1].clone().text().unwrap();
    let (mut killed, mut attempts) = (0, 0);
    while killed < 3 {
        attempts += 1;
        assert!(attempts <= 40, "{killed} of {attempts} workers were stopped in the middle of a move");
        let model = in_worker(OnDeath::Resume { attempts: 2 }, 60);
        let (begun, in_middle) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
        let (weak, seen) = (model.clone(), Arc::clone(&in_middle));
        let sentinel = Sentinel::builder().interval(Duration::from_millis(1)).on_event(move |event| {
            if matches!(event, Event::Moving { .. }) && !begun.swap(true, Ordering::Relaxed) {
                stop(&weak);
                // By then, the messages that the worker sent before have arrived.
                std::thread::sleep(Duration::from_millis(100));
                seen.store(!is_for_deep_texts(&weak), Ordering::Relaxed);
                kill(&weak);
            }
        });
        let sentinel = sentinel.watch(&model).unwrap();
        let mut stream = generations(&model, PROMPT, 120)[1].clone().stream().unwrap();
        let text: String = stream.by_ref().map(Result::unwrap).collect();
        assert_eq!(text, expected);
        if in_middle.load(Ordering::Relaxed) {
            assert_eq!(stream.statistics().worker_deaths, 1);
            assert!(is_for_deep_texts(&model), "the other worker moves too");
            killed += 1;
        }
        drop((sentinel, stream));
    }
}

#[cfg(unix)]
#[test]
fn a_worker_killed_around_its_move_loses_no_token() {
    use crate::isolation::deaths::kill;
    let stays = load(&demo_path(), &request().n_ctx(1024).n_ubatch(64), 0);
    let generate = |model: &Model| generations(model, PROMPT, 120)[1].clone();
    let expected = generate(&stays).text().unwrap();
    let model = in_worker(OnDeath::Resume { attempts: 3 }, 60);
    let mut deaths = 0;
    for pieces in 1..24 {
        let worker = model.worker_id();
        let mut stream = generate(&model).stream().unwrap();
        let mut text: String = stream.by_ref().take(pieces).map(Result::unwrap).collect();
        kill(&model);
        text.extend(stream.by_ref().map(Result::unwrap));
        assert_eq!(text, expected, "killed after {pieces} pieces");
        drop(stream);
        deaths += usize::from(model.worker_id() != worker);
    }
    assert!(deaths > 0);
}
