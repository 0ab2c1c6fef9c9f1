//! Decisions: which model is placed smaller, unloaded, shrunk or waited for, and which faults never happen.

use std::time::Duration;

use autoplace::machine::{Gpu, GpuKind, Machine, Pool, Pools, gib};
use autoplace::plan::{Context, Request};
use autoplace_pool::{Error, Limits, ModelState, PoolPlan, PoolState, Rung, Step, Succession};
use test_support::random_weights::Dice;

use crate::models::{MODELS, machine, model, planned, pool, request};

const CTX: u32 = 8192;

fn decide(state: &PoolState, wanted: Option<&str>) -> Result<PoolPlan, Error> {
    PoolPlan::decide(state, wanted, |index, request, machine| planned(&state.models[index].name, request, machine))
}

/// Carries a plan out, and checks after each step that no device is over its free bytes.
fn carry_out(state: &mut PoolState, plan: &PoolPlan) {
    for step in &plan.steps {
        let (name, is_out) = match step {
            Step::WaitForTexts { model, .. } => {
                let waited = state.models.iter_mut().find(|other| other.name == *model).unwrap();
                assert!(waited.texts > 0, "{model} has no text to wait for");
                waited.texts = 0;
                continue;
            }
            Step::HoldOff { .. } => {
                assert_eq!(plan.steps.len(), 1);
                continue;
            }
            Step::Unload { model } => (model, true),
            Step::Shrink { model } | Step::Grow { model } => {
                state.reloads.push(state.now);
                (model, false)
            }
            Step::Load { model } => (model, false),
            other => panic!("{other:?}"),
        };
        if is_out {
            state.reloads.push(state.now);
        }
        let placed = plan.model(name).map(|planned| Rung::new((*planned.plan).clone(), &state.machine));
        let before = total(state);
        let changed = state.models.iter_mut().find(|model| model.name == *name).unwrap();
        assert!(!is_out || !changed.keep, "{name} is to be kept");
        assert!(changed.texts == 0 || (!is_out && changed.moves), "{name} is in the middle of a text");
        changed.loaded = if is_out { None } else { placed };
        assert!(is_within(state) || total(state) <= before, "{step} takes more than is free\n{plan}");
    }
    assert!(is_within(state), "{plan}");
}

fn total(state: &PoolState) -> u64 {
    state.models.iter().filter_map(|model| model.loaded.as_ref()).map(|rung| rung.held.total()).sum()
}

/// Whether the loaded models are within the free bytes of each device, counted without the pool's own code.
fn is_within(state: &PoolState) -> bool {
    let loaded: Vec<&Rung> = state.models.iter().filter_map(|model| model.loaded.as_ref()).collect();
    let host: u64 = loaded.iter().map(|rung| rung.held.host).sum();
    let gpus = state.machine.gpus.iter().enumerate();
    let are_gpus =
        gpus.into_iter().all(|(index, gpu)| loaded.iter().map(|rung| rung.held.gpus[index]).sum::<u64>() <= gpu.free);
    are_gpus && host <= state.machine.host.available
}

fn desktop() -> Machine {
    machine(&["RTX 4090"], "Ryzen 9 7950X", 64)
}

fn names(steps: &[Step]) -> Vec<String> {
    steps.iter().map(ToString::to_string).collect()
}

#[test]
fn what_a_prompt_store_may_take_counts_as_taken_of_the_host() {
    let machine = machine(&["RTX 4090"], "Ryzen 9 7950X", 64);
    let held = |bytes| {
        let mut request = request(CTX);
        request.prompt_store = bytes;
        Rung::new(planned("3b", &request, &machine).unwrap(), &machine).held
    };
    assert_eq!(held(gib(2)).host, held(0).host + gib(2));
    assert_eq!(held(gib(2)).gpus, held(0).gpus);
}

#[test]
fn what_fits_beside_the_others_is_loaded_and_nothing_else_moves() {
    let mut state = pool(&desktop(), &["8b", "1b"], CTX);
    for name in ["8b", "1b"] {
        let plan = decide(&state, Some(name)).unwrap();
        assert_eq!(names(&plan.steps), [format!("load {name}")]);
        assert!(plan.model(name).unwrap().plan.full_offload, "{plan}");
        carry_out(&mut state, &plan);
    }
    // A plan that is written as JSON and read again is the same.
    let plan = decide(&state, Some("8b")).unwrap();
    assert!(plan.steps.is_empty());
    let read: PoolPlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
    assert_eq!(read, plan);
}

#[test]
fn an_idle_model_that_was_wanted_long_ago_leaves_before_one_that_is_wanted_often() {
    let mut state = pool(&desktop(), &["14b", "8b", "30b-a3b"], CTX);
    for name in ["14b", "8b"] {
        let plan = decide(&state, Some(name)).unwrap();
        carry_out(&mut state, &plan);
    }
    let minute = Duration::from_secs(60);
    (0..20).for_each(|n| state.models[1].demand.count_request(minute * 30 + Duration::from_secs(n), true));
    state.models[0].demand.count_request(minute, true);
    state.models[2].demand.count_request(minute * 31, true);
    (state.models[2].waiting, state.now) = (1, minute * 31);
    let plan = decide(&state, Some("30b-a3b")).unwrap();
    assert!(plan.steps.contains(&Step::Unload { model: "14b".to_owned() }), "{plan}");
    assert!(plan.model("8b").is_some(), "{plan}");
    assert!(plan.reasons.iter().any(|reason| reason.starts_with("14b is unloaded")), "{plan}");
    carry_out(&mut state, &plan);
}

#[test]
fn what_is_kept_shrinks_and_grows_again_when_the_other_has_gone() {
    let mut state = pool(&desktop(), &["32b", "8b"], CTX);
    state.models[0].keep = true;
    let plan = decide(&state, Some("32b")).unwrap();
    carry_out(&mut state, &plan);
    let whole = state.models[0].loaded.clone().unwrap();
    // Both are wanted again and again.
    for second in 0..300 {
        let now = Duration::from_secs(10 * second);
        state.models[0].demand.count_request(now, true);
        (0..4).for_each(|_| state.models[1].demand.count_request(now, true));
        state.now = now;
    }
    state.models[1].waiting = 1;
    let plan = decide(&state, Some("8b")).unwrap();
    assert!(plan.steps.contains(&Step::Shrink { model: "32b".to_owned() }), "{plan}");
    let small = &plan.model("8b").unwrap().plan;
    assert_eq!(small.n_gpu_layers, small.layers(), "{plan}");
    carry_out(&mut state, &plan);
    assert!(state.models[0].loaded.as_ref().unwrap().held.gpus < whole.held.gpus);
    // An hour later only the kept model is wanted.
    state.models[1].waiting = 0;
    state.models[1].loaded = None;
    state.now += Duration::from_secs(3600);
    (0..20).for_each(|_| state.models[0].demand.count_request(state.now, true));
    let plan = decide(&state, None).unwrap();
    assert_eq!(names(&plan.steps), ["grow 32b"], "{plan}");
    carry_out(&mut state, &plan);
    assert_eq!(state.models[0].loaded.as_ref().unwrap().held, whole.held);
}

#[test]
fn a_running_text_is_waited_for_and_never_cut_off() {
    let mut state = pool(&desktop(), &["32b", "30b-a3b"], CTX);
    let plan = decide(&state, Some("32b")).unwrap();
    carry_out(&mut state, &plan);
    (state.models[0].texts, state.models[0].ends_in) = (1, Duration::from_secs(2));
    state.models[1].demand.count_request(Duration::ZERO, true);
    state.models[1].waiting = 1;
    let plan = decide(&state, Some("30b-a3b")).unwrap();
    assert!(matches!(plan.steps[0], Step::WaitForTexts { .. }), "{plan}");
    carry_out(&mut state, &plan);
}

#[test]
fn every_rung_of_a_ladder_has_the_context_of_the_first() {
    // The default context may grow; alone on the machine it has 32,768 tokens.
    let ladder = model("8b", &desktop(), &Request::new()).unwrap().ladder;
    let contexts: Vec<u32> = ladder.rungs().iter().map(|rung| rung.plan.context.n_ctx).collect();
    assert!(contexts.len() > 3 && contexts.iter().all(|n_ctx| *n_ctx == 32_768), "{contexts:?}");
    // The rungs are sorted by speed, and each takes fewer bytes of some device than every faster one.
    let seconds: Vec<f64> = ladder.rungs().iter().map(|rung| rung.plan.speed.as_ref().unwrap().seconds()).collect();
    assert!(seconds.is_sorted(), "{seconds:?}");
    assert_eq!(ladder.rungs().last().unwrap().held.gpus, [0]);
}

/// A model for eight texts at once, each with 4096 tokens.
fn for_eight(name: &str, machine: &Machine) -> ModelState {
    model(name, machine, &Request::new().n_seq_max(8).context(Context::Tokens(8 * 4096))).unwrap()
}

#[test]
fn a_model_for_several_texts_also_has_rungs_for_fewer_and_each_text_has_the_same_context_in_all() {
    let model = for_eight("8b", &desktop());
    let rungs = model.ladder.rungs();
    assert!(rungs.iter().all(|rung| rung.plan.context.n_ctx_seq() == 4096));
    let of = |texts: u32| rungs.iter().find(|rung| rung.sequences() == texts).unwrap();
    // The fewer texts, the fewer bytes. A single text is equally fast in all of these placements.
    let whole = [8, 4, 2, 1].map(|texts| (of(texts).held.gpus[0], of(texts).plan.speed.as_ref().unwrap().seconds()));
    assert!(whole.is_sorted_by(|one, other| one.0 > other.0 && (one.1 / other.1 - 1.0).abs() < 0.01), "{whole:?}");
    let fewer = model.ladder.request_for(&of(2).plan);
    assert_eq!((fewer.params.n_seq_max, fewer.context), (2, Context::Tokens(2 * 4096)));
    assert_eq!(model.ladder.request_for(&of(8).plan), *model.ladder.request());
    // The context of a request for one text at once, or with one cache for all texts, is not divided.
    for request in [request(CTX), Request::new().n_seq_max(4).kv_unified(true).context(Context::Tokens(CTX))] {
        let ladder = crate::models::model("8b", &desktop(), &request).unwrap().ladder;
        assert!(ladder.rungs().iter().all(|rung| rung.sequences() == request.params.n_seq_max));
    }
}

#[test]
fn two_models_that_fit_beside_each_other_with_fewer_texts_at_once_are_both_loaded() {
    let mut state = PoolState::new(desktop());
    state.models = ["14b", "8b"].map(|name| for_eight(name, &desktop())).to_vec();
    // A hundred users ask both models, rarely at the same time.
    let ask = |state: &mut PoolState, index: usize, seconds: u64| {
        state.now = Duration::from_secs(seconds);
        state.models[index].demand.count_request(state.now, true);
        state.models[index].waiting = 1;
        let name = state.models[index].name.clone();
        let plan = decide(state, Some(&name)).unwrap();
        carry_out(state, &plan);
        state.models[index].waiting = 0;
    };
    for turn in 0..30 {
        ask(&mut state, turn % 2, 10 * turn as u64);
    }
    let loaded: Vec<&Rung> = state.models.iter().filter_map(|model| model.loaded.as_ref()).collect();
    assert_eq!(loaded.len(), 2);
    assert!(loaded.iter().all(|rung| rung.plan.full_offload && rung.sequences() > 1), "{loaded:#?}");
    assert!(loaded.iter().any(|rung| rung.sequences() < 8));
    // Running texts are not moved to a placement for fewer texts.
    state.models.iter_mut().for_each(|model| model.moves = true);
    let all = state.models[0].loaded.as_ref().unwrap().sequences();
    state.models[0].texts = all;
    state.machine.gpus[0].free = gib(19);
    let plan = decide(&state, None).unwrap();
    assert!(plan.models.iter().find(|model| model.name == "14b").unwrap().plan.context.n_seq_max >= all, "{plan}");
}

/// A pool of one kept model for eight texts at once. It was loaded for one text beside another program, which has
/// ended.
fn loaded_for_fewer() -> PoolState {
    let mut state = PoolState::new(desktop());
    state.models = vec![for_eight("8b", &desktop())];
    let ladder = &state.models[0].ladder;
    let fewer = ladder.rungs().iter().find(|rung| rung.plan.full_offload && rung.sequences() == 1).cloned();
    (state.models[0].loaded, state.models[0].keep) = (fewer, true);
    (state.models[0].load_time, state.models[0].loads) = (Some(Duration::from_secs(1)), 2);
    state
}

#[test]
fn a_model_for_fewer_texts_is_loaded_for_more_if_the_expected_requests_gain_by_it() {
    let mut state = loaded_for_fewer();
    let few = decide(&state, None).unwrap();
    assert_eq!(few.steps, [], "{few}");
    // So many requests come that they would wait for each other.
    for second in 0..200 {
        state.now = Duration::from_secs(second);
        state.models[0].demand.count_request(state.now, false);
    }
    let plan = decide(&state, None).unwrap();
    assert_eq!(names(&plan.steps), ["grow 8b"], "{plan}");
    carry_out(&mut state, &plan);
    assert!(state.models[0].loaded.as_ref().unwrap().sequences() > 1, "{plan}");
}

#[test]
fn without_a_need_no_running_text_is_waited_for() {
    let mut state = loaded_for_fewer();
    for second in 0..200 {
        state.now = Duration::from_secs(second);
        state.models[0].demand.count_request(state.now, false);
    }
    (state.models[0].texts, state.models[0].ends_in) = (1, Duration::from_secs(1));
    let plan = decide(&state, None).unwrap();
    assert_eq!(plan.steps, [], "{plan}");
    // A model that moves in the middle of its text need not wait.
    state.models[0].moves = true;
    let plan = decide(&state, None).unwrap();
    assert_eq!(names(&plan.steps), ["grow 8b"], "{plan}");
}

#[test]
fn a_model_whose_handles_are_in_use_keeps_its_number_of_texts_at_once() {
    let mut state = PoolState::new(desktop());
    state.models = vec![for_eight("14b", &desktop())];
    let plan = decide(&state, Some("14b")).unwrap();
    carry_out(&mut state, &plan);
    assert_eq!(state.models[0].loaded.as_ref().unwrap().sequences(), 8);
    // One handle may have eight texts. Another program takes memory.
    (state.models[0].texts, state.models[0].moves, state.models[0].keep) = (1, true, true);
    state.machine.gpus[0].free = gib(13);
    assert!(!is_within(&state));
    let plan = decide(&state, None).unwrap();
    assert_eq!(plan.model("14b").unwrap().plan.context.n_seq_max, 8, "{plan}");
    // If no handle is in use, a placement for fewer texts is faster than one with fewer layers.
    state.models[0].texts = 0;
    let plan = decide(&state, None).unwrap();
    assert!(plan.model("14b").unwrap().plan.context.n_seq_max < 8, "{plan}");
}

#[test]
fn what_is_loaded_for_many_texts_is_not_moved_to_fewer_in_advance() {
    // The large model fits whole on this card for a few texts only.
    let machine = machine(&["RTX 3060 12GB"], "Core i5-12400", 64);
    let mut state = PoolState::new(machine.clone());
    state.models = ["14b", "1b"].map(|name| for_eight(name, &machine)).to_vec();
    state.limits.anticipate = true;
    let rungs = state.models[0].ladder.rungs();
    assert!(rungs[0].sequences() < 8, "{}", rungs[0].sequences());
    let of_eight = rungs.iter().find(|rung| rung.sequences() == 8).cloned();
    (state.models[0].loaded, state.models[0].keep) = (of_eight, true);
    for turn in 0..10 {
        for (index, at) in [(0, 60 * turn), (1, 60 * turn + 30)] {
            let at = Duration::from_secs(at);
            state.models[index].demand.count_request(at, true);
            let name = state.models[index].name.clone();
            state.succession.wanted(&name, at);
        }
    }
    for model in &mut state.models {
        (model.load_time, model.loads) = (Some(Duration::from_secs(1)), 2);
    }
    state.now = Duration::from_secs(571);
    let plan = anticipate(&state);
    assert!(plan.as_ref().is_none_or(|plan| plan.model("14b").unwrap().plan.context.n_seq_max == 8), "{plan:?}");
}

/// No kept model may leave, and none of the many combinations of placements fits. A search of all combinations would
/// take minutes.
#[test]
fn a_search_without_any_arrangement_that_fits_ends() {
    let mut machine = machine(&["RTX 4060 Ti 16GB", "RTX 3060 12GB"], "Ryzen 7 5800X", 64);
    let mut state = PoolState::new(machine.clone());
    state.models = ["1b", "3b", "8b", "14b", "30b-a3b"].map(|name| for_eight(name, &machine)).to_vec();
    for model in &mut state.models {
        (model.keep, model.loaded) = (true, model.ladder.rungs().first().cloned());
    }
    machine.host.available = gib(26);
    state.machine = machine;
    let error = decide(&state, None);
    assert!(matches!(error, Err(Error::NoRoom { .. })), "{error:?}");
}

#[test]
fn a_model_that_was_placed_beside_a_busy_one_does_not_stay_slow() {
    let mut state = pool(&desktop(), &["32b", "14b"], CTX);
    for model in &mut state.models {
        (model.load_time, model.loads) = (Some(Duration::from_secs(3)), 2);
    }
    let plan = decide(&state, Some("32b")).unwrap();
    carry_out(&mut state, &plan);
    // The text of the first model takes an hour.
    (state.models[0].texts, state.models[0].ends_in) = (1, Duration::from_secs(3600));
    state.models[1].demand.count_request(Duration::ZERO, true);
    state.models[1].waiting = 1;
    let plan = decide(&state, Some("14b")).unwrap();
    carry_out(&mut state, &plan);
    let fastest = state.models[1].ladder.rungs()[0].held.clone();
    assert_ne!(state.models[1].loaded.as_ref().unwrap().held, fastest);
    // The texts end at once, and many requests come for the slow model.
    (state.models[0].texts, state.models[1].waiting) = (0, 0);
    for second in 0..40 {
        state.now = Duration::from_secs(5 * second);
        state.models[1].demand.count_request(state.now, second % 8 == 0);
    }
    let plan = decide(&state, None).unwrap();
    carry_out(&mut state, &plan);
    let loaded = state.models[1].loaded.as_ref();
    assert!(loaded.is_none_or(|rung| rung.held == fastest), "{plan}");
}

#[test]
fn what_is_kept_leaves_room_for_others_or_the_error_names_it() {
    let small = machine(&["RTX 3060 12GB"], "Core i5-12400", 16);
    let mut state = pool(&small, &["14b", "8b", "32b"], 2048);
    state.models[0].keep = true;
    let plan = decide(&state, Some("14b")).unwrap();
    carry_out(&mut state, &plan);
    let error = decide(&state, Some("32b")).unwrap_err().to_string();
    assert_eq!(error, "32b does not fit beside 14b, which the pool keeps loaded");
    let unknown = decide(&state, Some("/etc/passwd")).unwrap_err().to_string();
    assert_eq!(unknown, "the model `/etc/passwd` is not in the pool: it has 14b, 8b, 32b");
}

#[test]
fn models_that_belong_together_come_together_and_leave_together() {
    let mut state = pool(&desktop(), &["8b", "1b", "32b"], CTX);
    state.models[0].beside = vec!["1b".to_owned()];
    let plan = decide(&state, Some("8b")).unwrap();
    assert!(plan.model("8b").is_some() && plan.model("1b").is_some(), "{plan}");
    carry_out(&mut state, &plan);
    let later = Duration::from_secs(7200);
    state.models[2].demand.count_request(later, true);
    (state.models[2].waiting, state.now) = (1, later);
    let plan = decide(&state, Some("32b")).unwrap();
    assert!(plan.model("8b").is_none() || plan.model("1b").is_some(), "{plan}");
}

#[test]
fn a_model_for_which_another_must_go_waits_while_enough_were_reloaded_lately() {
    let mut state = pool(&machine(&[], "Ryzen 9 7950X", 16), &["8b", "14b"], CTX);
    state.now = Duration::from_secs(100);
    let first = decide(&state, Some("8b")).unwrap();
    carry_out(&mut state, &first);
    state.limits = Limits::default().reloads_per_minute(2);
    state.reloads = [50, 70, 80].map(Duration::from_secs).to_vec();
    state.models[1].demand.count_request(state.now, true);
    state.models[1].waiting = 1;
    let plan = decide(&state, Some("14b")).unwrap();
    assert_eq!(names(&plan.steps), ["wait 30 s"], "{plan}");
    assert!(plan.reasons[0].contains("nothing is unloaded or moved for 30 s"), "{plan}");
    assert!(plan.model("8b").is_some_and(|model| !model.is_new) && plan.model("14b").is_none(), "{plan}");
    // Then only one of those reloads is younger than a minute.
    state.now += Duration::from_secs(30);
    let plan = decide(&state, Some("14b")).unwrap();
    assert_eq!(names(&plan.steps), ["unload 8b", "load 14b"], "{plan}");
    carry_out(&mut state, &plan);
}

#[test]
fn no_more_models_are_reloaded_in_a_minute_than_is_allowed_and_the_plan_says_so() {
    let mut state = pool(&desktop(), &["32b", "30b-a3b"], CTX);
    state.limits = Limits::default().reloads_per_minute(2);
    let (mut now, mut reloads, mut held_off) = (Duration::from_secs(100), Vec::new(), 0);
    for turn in 0..60 {
        let wanted = turn % 2;
        now += Duration::from_secs(5);
        state.now = now;
        state.models[wanted].demand.count_request(now, true);
        state.models[wanted].waiting = 1;
        let name = state.models[wanted].name.clone();
        let plan = decide(&state, Some(&name)).unwrap();
        if matches!(plan.steps[..], [Step::HoldOff { .. }]) {
            held_off += 1;
            assert!(plan.reasons[0].contains("as many as are allowed"), "{plan}");
        }
        let before = state.reloads.len();
        carry_out(&mut state, &plan);
        reloads.extend(state.reloads[before..].iter().copied());
        state.models[wanted].waiting = 0;
        let lately = reloads.iter().filter(|at| **at + Duration::from_secs(60) > now).count();
        // One decision may reload several models at once.
        assert!(lately <= 2 + 1, "{lately} reloads in a minute");
    }
    assert!(held_off > 0 || reloads.len() < 10, "{held_off} {reloads:?}");
}

#[test]
fn memory_that_another_program_takes_is_made_free_at_once() {
    let mut state = pool(&desktop(), &["14b", "8b"], CTX);
    for name in ["14b", "8b"] {
        let plan = decide(&state, Some(name)).unwrap();
        carry_out(&mut state, &plan);
    }
    // The limit of reloads is reached, but models still give way to another program.
    state.reloads = vec![state.now; 20];
    (0..9).for_each(|_| state.models[0].demand.count_request(state.now, true));
    state.machine.gpus[0].free = gib(9);
    assert!(!is_within(&state));
    let plan = decide(&state, None).unwrap();
    carry_out(&mut state, &plan);
    assert!(plan.model("14b").is_some(), "{plan}");
}

/// A chat model and one for titles. A title follows a chat after twenty seconds, and the next chat follows forty
/// seconds later. Both are loaded from the host's memory.
fn chat_and_titles() -> PoolState {
    let mut state = pool(&desktop(), &["32b", "3b"], CTX);
    state.limits.anticipate = true;
    for (model, seconds) in state.models.iter_mut().zip([2.7, 0.7]) {
        (model.load_time, model.loads) = (Some(Duration::from_secs_f64(seconds)), 2);
    }
    for turn in 0..10 {
        for (index, at) in [(0, 60 * turn), (1, 60 * turn + 20)] {
            let at = Duration::from_secs(at);
            state.models[index].demand.count_request(at, true);
            let name = state.models[index].name.clone();
            state.succession.wanted(&name, at);
        }
    }
    let plan = decide(&state, Some("3b")).unwrap();
    carry_out(&mut state, &plan);
    state.now = Duration::from_secs(561);
    state
}

fn anticipate(state: &PoolState) -> Option<PoolPlan> {
    PoolPlan::anticipate(state, |index, request, machine| planned(&state.models[index].name, request, machine))
}

#[test]
fn the_model_that_usually_follows_is_loaded_before_it_is_wanted() {
    let mut state = chat_and_titles();
    // A title was written: the next request is for the chat model.
    let plan = anticipate(&state).unwrap();
    assert_eq!(names(&plan.steps), ["unload 3b", "load 32b"], "{plan}");
    assert!(plan.reasons.iter().any(|reason| reason == "32b is expected to be requested soon after 3b"), "{plan}");
    carry_out(&mut state, &plan);
    assert!(anticipate(&state).is_none());
    // The chat model has answered: a title follows.
    state.succession.wanted("32b", Duration::from_secs(600));
    state.now = Duration::from_secs(612);
    let plan = anticipate(&state).unwrap();
    assert_eq!(names(&plan.steps), ["unload 32b", "load 3b"], "{plan}");
}

#[test]
fn nothing_is_loaded_in_advance_while_it_would_keep_somebody_waiting_or_is_not_allowed() {
    let state = chat_and_titles();
    assert!(anticipate(&state).is_some());
    let without = |change: fn(&mut PoolState)| {
        let mut state = state.clone();
        change(&mut state);
        anticipate(&state)
    };
    assert_eq!(without(|state| state.limits = Limits::default().anticipate(false)), None);
    assert_eq!(without(|state| state.models[1].waiting = 1), None);
    assert_eq!(without(|state| state.models[0].may_be_loaded = false), None);
    // Two of the reloads of a minute are left for requests that have come.
    let after = |reloads: usize| {
        let mut state = state.clone();
        state.limits = Limits::default().anticipate(true).reloads_per_minute(6);
        state.reloads = vec![state.now; reloads];
        anticipate(&state)
    };
    assert_eq!(after(4), None);
    assert!(after(3).is_some());
    // It is not known which model usually follows.
    assert_eq!(without(|state| state.succession = Succession::default()), None);
    // A model that writes, or that is kept, stays loaded.
    for change in
        [|state: &mut PoolState| state.models[1].texts = 1, |state: &mut PoolState| state.models[1].keep = true]
    {
        let plan = without(change);
        assert!(plan.as_ref().is_none_or(|plan| plan.model("3b").is_some()), "{plan:?}");
    }
}

/// An integrated GPU has 6 GiB of its own, and 3 GiB of the host's memory, which are all that the host has left.
#[test]
fn the_memory_of_an_integrated_gpu_is_given_once_whichever_limit_comes_first() {
    let mut machine = machine(&[], "Ryzen 7 5800X", 16);
    machine.host.available = gib(3);
    let pools = Pools::new(Pool::new(gib(6), gib(6)), Pool::new(gib(3), gib(3)));
    let gpu =
        Gpu::new("integrated").device("Vulkan0").kind(GpuKind::Integrated).total(gib(9)).free(gib(9)).pools(pools);
    let machine = machine.with_gpu(gpu);
    let names = ["8b", "3b", "1b"];
    let mut state = pool(&machine, &names, 4096);
    let mut beside_others = 0;
    for (turn, name) in names.iter().cycle().take(9).enumerate() {
        state.now = Duration::from_secs(60 * turn as u64);
        let wanted = state.models.iter_mut().find(|model| model.name == *name).unwrap();
        wanted.demand.count_request(state.now, true);
        wanted.waiting = 1;
        let plan = decide(&state, Some(name)).unwrap();
        carry_out(&mut state, &plan);
        state.models.iter_mut().for_each(|model| model.waiting = 0);
        let loaded = || state.models.iter().filter_map(|model| model.loaded.as_ref());
        beside_others += usize::from(loaded().count() > 1);
        let placements = loaded().flat_map(|rung| &rung.plan.placements);
        let taken: u64 = placements.map(|placement| placement.footprint.total()).sum();
        assert!(taken <= gib(9), "{taken} bytes of 9 GiB\n{plan}");
    }
    assert!(beside_others > 0);
}

/// Random sequences of requests, texts and other programs on three machines.
#[test]
fn random_pools_are_never_over_keep_what_is_kept_and_decide_the_same_twice() {
    let machines = [
        desktop(),
        machine(&["RTX 3060 12GB"], "Core i5-12400", 48),
        machine(&["RTX 4060 Ti 16GB", "RTX 3060 12GB"], "Ryzen 7 5800X", 64),
    ];
    let (mut steps, mut refused) = (std::collections::BTreeMap::new(), 0);
    for number in 0..40 {
        let mut dice = Dice::new(number);
        let whole = &machines[dice.below(machines.len())];
        let mut state = PoolState::new(whole.clone());
        for (name, _) in MODELS {
            if dice.percent(70) {
                let mut model = model(name, whole, &request(4096)).unwrap();
                (model.moves, model.priority) = (dice.percent(50), dice.one_of(&[1.0, 1.0, 3.0]));
                state.models.push(model);
            }
        }
        if state.models.is_empty() {
            continue;
        }
        if dice.percent(30) {
            state.models[0].keep = true;
        }
        if state.models.len() > 1 && dice.percent(30) {
            state.models[0].beside = vec![state.models[1].name.clone()];
        }
        for _ in 0..12 {
            state.now += Duration::from_secs(dice.below(90_u64));
            let free: Vec<u64> = whole.gpus.iter().map(|gpu| dice.share(gpu.free, 40, 100)).collect();
            let is_pressed = dice.percent(20);
            for ((gpu, free), whole) in state.machine.gpus.iter_mut().zip(free).zip(&whole.gpus) {
                gpu.free = if is_pressed { free } else { whole.free };
            }
            let count = state.models.len();
            for model in &mut state.models {
                model.waiting = 0;
                let is_busy = model.loaded.is_some() && dice.percent(25);
                model.texts = u32::from(is_busy);
                model.ends_in = Duration::from_secs(dice.below(20_u64));
            }
            let wanted = (!is_pressed).then(|| dice.below(count));
            if let Some(wanted) = wanted {
                state.models[wanted].demand.count_request(state.now, true);
                state.models[wanted].waiting = 1;
            }
            let name = wanted.map(|wanted| state.models[wanted].name.clone());
            let plan = match decide(&state, name.as_deref()) {
                Ok(plan) => plan,
                Err(Error::NoRoom { .. }) => {
                    refused += 1;
                    if is_pressed {
                        // The kept models do not fit beside the other program.
                        break;
                    }
                    continue;
                }
                Err(error) => panic!("case {number}: {error}"),
            };
            assert_eq!(decide(&state, name.as_deref()).unwrap(), plan, "case {number}");
            for step in &plan.steps {
                *steps.entry(step.to_string().split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
            }
            let is_held_off = matches!(plan.steps[..], [Step::HoldOff { .. }]);
            carry_out(&mut state, &plan);
            if let Some(name) = name.filter(|_| !is_held_off) {
                assert!(plan.model(&name).is_some(), "case {number}: {name} is not there\n{plan}");
            }
            // Whatever is loaded for the next request keeps the same promises.
            if let Some(wanted) = wanted {
                let name = state.models[wanted].name.clone();
                state.succession.wanted(&name, state.now);
                state.models.iter_mut().for_each(|model| model.waiting = 0);
            }
            let next = PoolPlan::anticipate(&state, |index, request, machine| {
                planned(&state.models[index].name, request, machine)
            });
            let plan = match next {
                Some(next) => {
                    *steps.entry("anticipate".to_owned()).or_insert(0) += 1;
                    carry_out(&mut state, &next);
                    next
                }
                None => plan,
            };
            for model in state.models.iter().filter(|model| model.loaded.is_some()) {
                for beside in &model.beside {
                    assert!(plan.model(beside).is_some(), "case {number}: {beside} is missing\n{plan}");
                }
            }
        }
    }
    println!("{steps:?}, {refused} refused");
    for kind in ["load", "unload", "shrink", "grow", "wait"] {
        assert!(steps.get(kind).is_some_and(|&count| count >= 5), "{kind}: {steps:?}");
    }
}
