//! Models that move to their other placement as their texts grow deeper, and back: on simulated cards, in an engine,
//! and in a worker. The texts equal those of a model that does not move.

use std::time::Duration;

use crate::depth_support::crossing;
use crate::replace_support::{generations, load, plan, request};
use crate::sim_support::card;
use crate::text_support::{PROMPT, chat, worker};
use autoplace::generate::Engine;
use autoplace::llama_sys::sim::SimGpu;
use autoplace::machine::mib;
use autoplace::plan::{Plan, Request};
use autoplace::watch::{Event, Sentinel};
use autoplace::{Isolation, Model, ModelBuilder, OnDeath};
use proptest::test_runner::{Config, TestRunner};
use test_support::{demo_path, wait};

/// Live tokens at which the placements cross.
const CROSSING: u32 = 160;

/// The demo model, which is on the host with fewer live tokens than [`CROSSING`] and on the card with more; and a model
/// that stays on the host.
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
            // Another conversation.
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
    // The model moves there and back with each conversation.
    assert!(crossed.len() >= 8, "{crossed:?}");
    // The plan of the present placement names the other one.
    assert!(model.placement().to_string().contains("until some 160 tokens"), "{}", model.placement());
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
        // The next short text moves back.
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
    // Nothing was computed yet.
    assert!(moved.tokens == 0 && moved.lost.is_zero(), "{moved}");
    let text: String = std::iter::once(first).chain(stream.map(Result::unwrap)).collect();
    assert!(!stays.generate(&*prompt).temp(0.0).max_tokens(8).text().unwrap().is_empty() && !text.is_empty());
}

#[test]
fn texts_of_an_engine_count_together_and_go_on() {
    own_process!();
    let card = card(mib(64));
    let mut request = request().n_seq_max(4).n_ctx(2048).n_ubatch(64);
    request.params.kv_unified = false;
    let [model, stays] = following(&request);
    // Each of four texts stays below the crossing; together they are above it.
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
fn random_fleets_never_take_more_than_is_free_while_they_follow_the_depth() {
    own_process!();
    let path = demo_path();
    let stays = load(&path, &request().n_ctx(512).n_ubatch(64), 0);
    let expected = generations(&stays, PROMPT, 90)[1].clone().text().unwrap();
    let mut runner = TestRunner::new(Config::with_cases(24));
    let case = (0_u32..8, 0_u32..8, 40_u32..140, 0_u64..48, 1_u64..4);
    let outcome = runner.run(&case, |(shallow, deep, crossing_at, taken, cards)| {
        let cards: Vec<SimGpu> = (0..cards).map(|_| card(mib(64))).collect();
        let request = request().n_ctx(512).n_ubatch(64);
        let plans: [Plan; 2] = [shallow, deep].map(|layers| plan(&path, &request, layers));
        let saved = crossing(&path, &request, [&plans[0], &plans[1]], crossing_at);
        let model = by_plan().follow(saved).load().unwrap();
        // Another program takes some of the memory that the model leaves free.
        for card in &cards {
            card.set_taken(mib(taken).min(card.total() - card.used()));
        }
        let text = generations(&model, PROMPT, 90)[1].clone().text().unwrap();
        assert_eq!(text, expected, "{shallow} {deep} {crossing_at} {taken}");
        for card in &cards {
            assert!(card.peak() <= card.total(), "{shallow} {deep} {crossing_at} {taken}");
        }
        drop(model);
        assert!(cards.iter().all(|card| card.used() == 0));
        Ok(())
    });
    outcome.unwrap();
}

/// Two placements on the host, which differ only in their notes, because a worker does not see the cards of this
/// process.
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
    // A session's calls move the model too.
    let mut session = model.session().unwrap();
    session.begin(generations(&model, "In the beginning", 4)[0].clone()).unwrap();
    while !session.is_empty() {
        let _ = session.step().unwrap();
    }
    drop(session);
    assert!(!is_for_deep_texts(&model));
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
