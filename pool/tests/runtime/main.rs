//! The pool at work on simulated cards, with the demo model under several names: in workers, which are this program,
//! and in this process. Each text must equal the text of the model alone, and no card ever exceeds its memory.

mod anticipates;
mod leaving;
mod neighbours;
mod replaced;
mod rounds;
mod several;
mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use autoplace::generate::Prompt;
use autoplace::plan::{self, GpuLayers};
use autoplace::store::StoreOptions;
use autoplace::{Image, Isolation};
use autoplace_pool::{Error, Limits, ModelHandle, ModelSpec, Pool, Residence};
use libtest_mimic::{Arguments, Failed, Trial};
use test_support::random_weights::fill;
use test_support::synthetic::mmproj;

use support::{Card, TEXT, TOKENS, builder, held_alone, spec, text, until};

type Test = fn() -> Result<(), Failed>;

fn main() {
    // A worker uses the cards of the test that started it.
    let _cards = support::cards_of_a_worker();
    autoplace::worker_main();
    let tests: [(&str, Test); 39] = [
        ("a_model_is_loaded_when_it_is_wanted_and_shared_while_it_is", loaded_and_shared),
        ("what_does_not_fit_beside_an_idle_model_takes_its_place", takes_its_place),
        ("a_model_in_use_is_not_unloaded_and_the_other_is_placed_smaller", placed_smaller),
        ("a_model_shrinks_in_the_middle_of_its_text_and_the_text_stays_the_same", shrinks),
        ("a_model_that_cannot_be_loaded_is_an_error_for_those_who_asked_alone", failed),
        ("a_worker_that_is_killed_takes_nobody_with_it_and_is_replaced", killed),
        ("a_worker_that_is_killed_while_it_loads_for_a_request_is_replaced", killed_while_it_loads),
        ("memory_that_another_program_takes_is_made_free_and_the_model_comes_back", pressure),
        ("an_idle_model_is_unloaded_and_a_kept_one_is_not", idle),
        ("a_pool_is_settled_once_it_has_loaded_what_it_should_without_a_request", settled),
        ("a_request_that_waits_too_long_or_for_a_pool_that_ends_is_an_error", waiting),
        ("specifications_can_be_replaced_while_a_text_runs", replaced),
        ("a_conversation_goes_on_from_its_store_after_an_unload_and_a_reload", stored),
        ("a_model_with_a_projector_sees_after_each_load_and_its_bytes_are_in_the_plan", sees),
        ("what_usually_follows_is_loaded_before_it_is_wanted", anticipates::what_follows),
        ("what_is_wanted_is_never_unloaded_for_what_may_follow", anticipates::never_what_is_wanted),
        ("a_worker_that_is_killed_while_it_loads_in_advance_is_replaced", anticipates::killed),
        ("a_request_for_a_model_that_leaves_waits_without_work_for_the_pool", leaving::waits_without_work),
        ("a_request_whose_model_is_removed_while_it_leaves_is_told_so", leaving::removed_while_it_leaves),
        ("a_request_that_is_withdrawn_gives_the_model_back_that_was_to_leave", leaving::withdrawn),
        ("the_smaller_of_two_parked_models_comes_back_alone", leaving::the_smaller_one_comes_back),
        ("a_model_that_the_application_moves_is_counted_where_it_is", leaving::moved_by_the_application),
        ("a_panic_of_the_application_in_the_pools_thread_leaves_nobody_waiting", leaving::panics),
        ("a_model_whose_specification_was_removed_and_added_again_is_not_loaded_twice", replaced::added_again),
        ("a_model_whose_specification_was_changed_and_changed_back_is_not_loaded_twice", replaced::changed_back),
        ("a_change_that_does_not_matter_for_the_load_leaves_the_model_loaded", replaced::same_load),
        ("another_path_of_the_same_file_leaves_the_model_loaded", replaced::other_path),
        ("a_folder_that_does_not_answer_stops_no_model_elsewhere", replaced::does_not_answer),
        ("a_loaded_model_goes_to_the_specification_with_its_name", replaced::own_name),
        ("a_model_that_is_removed_and_added_again_in_its_load_is_loaded_once", replaced::added_again_in_a_load),
        ("specifications_that_two_threads_replace_leave_a_model_as_it_is", replaced::at_the_same_time),
        ("a_model_that_is_unloaded_in_its_load_leaves_after_the_requests_before", replaced::unloaded_in_a_load),
        ("texts_of_a_model_for_several_at_once_are_those_of_the_model_alone", several::run_together),
        ("a_model_for_several_texts_gets_fewer_places_beside_one_in_use", several::fewer_places),
        ("all_handles_of_a_model_get_one_engine_even_if_they_ask_at_the_same_time", several::one_engine),
        ("a_pool_gives_another_one_the_memory_of_a_model_that_nobody_uses", neighbours::gives),
        ("a_pool_looks_at_what_others_lack_only_with_something_to_give", neighbours::looks_only_with_something_to_give),
        ("two_pools_that_ask_each_other_never_wait_for_ever", neighbours::both_ask),
        ("random_rounds_are_never_over_and_every_text_is_the_one_alone", rounds::some),
    ];
    let mut arguments = Arguments::from_args();
    // All tests of a process share its cards, so they run one by one.
    arguments.test_threads = Some(1);
    let mut trials: Vec<Trial> = tests.into_iter().map(|(name, test)| Trial::test(name, test)).collect();
    let long = Trial::test("a_thousand_random_rounds", rounds::thousand).with_ignored_flag(true);
    trials.push(long);
    libtest_mimic::run(&arguments, trials).exit();
}

fn state(pool: &Pool, name: &str) -> Residence {
    pool.status().into_iter().find(|model| model.name == name).unwrap().residence
}

fn loaded_and_shared() -> Result<(), Failed> {
    let card = Card::new(64 << 20);
    let lowered = spec("lowered").request(support::request().n_batch(32));
    let pool = builder(&[&card]).model(spec("a").alias("gpt-4o")).model(spec("b")).model(lowered).start()?;
    assert_eq!(state(&pool, "a"), Residence::Unloaded);
    let first = pool.get("gpt-4o").wait()?;
    assert_eq!((first.name(), state(&pool, "a")), ("a", Residence::Loaded));
    // The model runs in a process of its own, on the card.
    assert!(first.worker_id().is_some_and(|id| id != std::process::id()));
    assert!(card.used() > 0);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let second = runtime.block_on(async { pool.get("a").await })?;
    assert_eq!(first.worker_id(), second.worker_id());
    assert_eq!(pool.status()[0].in_use, 2);
    assert_eq!(text(&second)?, TEXT.as_str());
    drop((first, second));
    // Model `b` fits beside `a`.
    assert_eq!(text(&pool.get("b").wait()?)?, TEXT.as_str());
    assert_eq!((state(&pool, "a"), pool.status()[0].in_use), (Residence::Loaded, 0));
    assert!(pool.unload("a")?);
    until(|| state(&pool, "a") == Residence::Unloaded);
    assert!(matches!(pool.get("c").wait(), Err(Error::Unknown { .. })));
    // The state has what a person should know of a load.
    let notes = || pool.status()[2].notes.clone();
    assert_eq!(notes(), [""; 0]);
    let lowered = pool.get("lowered").wait()?;
    assert!(notes().iter().any(|note| note.contains("32 tokens are computed at once (n_batch)")), "{:?}", notes());
    assert_eq!(notes(), lowered.notes());
    drop(lowered);
    drop(pool);
    assert_eq!(card.used(), 0);
    Ok(())
}

fn sees() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("mmproj.gguf");
    mmproj::named("Small LLaVA").write_sparse(&file)?;
    fill(&file);
    let card = Card::new(128 << 20);
    let pool = builder(&[&card]).model(spec("seeing").mmproj(&file)).model(spec("b")).start()?;
    let picture = Image::from_rgb(2, 1, vec![250, 0, 0, 0, 0, 250])?;
    let asked = |handle: &ModelHandle| {
        let prompt = Prompt::text("Behold,").then_media(picture.clone()).then_text("And it came to pass");
        handle.generate(prompt).temp(0.0).max_tokens(TOKENS).text()
    };
    let first = {
        let handle = pool.get("seeing").wait()?;
        assert!(handle.has_projector());
        let plan = handle.placement();
        let [projector] = &plan.companions[..] else { panic!("{plan}") };
        let bytes = projector.bytes.gpu.total();
        assert!(bytes > 0 && plan.placements[0].companions >= bytes, "{plan}");
        // A text without a picture is the same as before.
        assert_eq!(text(&handle)?, TEXT.as_str());
        asked(&handle)?
    };
    let plain = pool.get("b").wait()?;
    assert!(!plain.has_projector() && asked(&plain).is_err());
    drop(plain);
    assert!(pool.unload("seeing")?);
    until(|| state(&pool, "seeing") == Residence::Unloaded);
    assert_eq!(asked(&pool.get("seeing").wait()?)?, first);
    assert!(card.peak() <= card.total());
    Ok(())
}

fn takes_its_place() -> Result<(), Failed> {
    // The card has room for one and a half models.
    let total = held_alone() * 3 / 2;
    let card = Card::new(total);
    let pool = builder(&[&card]).model(spec("a")).model(spec("b")).start()?;
    for _ in 0..3 {
        for name in ["a", "b"] {
            assert_eq!(text(&pool.get(name).wait()?)?, TEXT.as_str());
            assert!(card.peak() <= total, "{} of {total}", card.peak());
        }
    }
    let plan = pool.last_plan().expect("something was loaded");
    assert!(!plan.reasons.is_empty(), "{plan}");
    Ok(())
}

fn placed_smaller() -> Result<(), Failed> {
    let total = held_alone() * 3 / 2;
    let card = Card::new(total);
    let pool = builder(&[&card]).model(spec("a")).model(spec("b")).start()?;
    let held = pool.get("a").wait()?;
    let all = held.placement().n_gpu_layers;
    let other = pool.get("b").wait()?;
    assert!(other.placement().n_gpu_layers < all, "{}", other.placement());
    assert_eq!((text(&held)?, text(&other)?), (TEXT.clone(), TEXT.clone()));
    assert!(card.peak() <= total);
    Ok(())
}

fn shrinks() -> Result<(), Failed> {
    let whole = held_alone();
    let card = Card::new(whole * 5 / 4);
    let pool = builder(&[&card]).isolation(Isolation::None).model(spec("a")).model(spec("b").priority(50.0));
    let pool = pool.start()?;
    let held = pool.get("a").wait()?;
    let expected = held.generate(support::PROMPT).temp(0.0).max_tokens(400).text()?;
    let is_over = AtomicBool::new(false);
    let (written, other) = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let written = held.generate(support::PROMPT).temp(0.0).max_tokens(400).text();
            is_over.store(true, Ordering::Release);
            written
        });
        let other = pool.get("b").wait();
        (writer.join().expect("it writes"), other)
    });
    let other = other?;
    assert_eq!(written?, expected);
    assert_eq!(text(&other)?, TEXT.as_str());
    assert!(card.peak() <= whole * 5 / 4);
    let plan = pool.last_plan().expect("a plan");
    // The model whose requests count fifty times has the faster placement.
    let layers = |name: &str| pool.status().into_iter().find(|model| model.name == name).unwrap().layers.unwrap().0;
    assert!(layers("b") >= layers("a"), "{plan}");
    Ok(())
}

fn failed() -> Result<(), Failed> {
    let card = Card::new(64 << 20);
    let folder = tempfile::tempdir()?;
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, b"GGUF, but no more")?;
    let pool = builder(&[&card]).model(spec("a")).model(ModelSpec::new("broken", &broken));
    let pool = pool.model(ModelSpec::new("missing", folder.path().join("missing.gguf")));
    // No card holds all layers with such a context.
    let large = support::request().n_ctx(1 << 22).n_gpu_layers(GpuLayers::All);
    let pool = pool.model(spec("impossible").request(large)).start()?;
    let held = pool.get("a").wait()?;
    for name in ["broken", "missing", "impossible"] {
        // All waiting requests get the error, and so do later ones.
        let waits = [pool.get(name), pool.get(name)];
        for wait in waits {
            let error = wait.wait().unwrap_err();
            let is_right = match &error {
                Error::Plan { source, .. } => {
                    name == "impossible" && matches!(&**source, plan::Error::DoesNotFit { .. })
                }
                error => name != "impossible" && matches!(error, Error::Load { .. }),
            };
            assert!(is_right && error.to_string().contains(name), "{error}");
        }
        assert!(pool.get(name).wait().is_err());
        let status = pool.status().into_iter().find(|model| model.name == name).expect("it is listed");
        assert!(status.failure.is_some() && status.residence == Residence::Unloaded);
    }
    assert_eq!(text(&held)?, TEXT.as_str());
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let card = Card::new(64 << 20);
    let pool = builder(&[&card]).model(spec("a")).model(spec("b")).start()?;
    let (one, other) = (pool.get("a").wait()?, pool.get("b").wait()?);
    let process = one.worker_id().expect("a worker");
    let mut stream = other.generate(support::PROMPT).temp(0.0).max_tokens(TOKENS).stream()?;
    let mut written = stream.next().expect("a piece")?;
    support::kill(process);
    for piece in stream {
        written += &piece?;
    }
    assert_eq!(written, TEXT.as_str());
    // The text of the killed worker goes on in another worker.
    assert_eq!(text(&one)?, TEXT.as_str());
    assert_ne!(one.worker_id(), Some(process));
    drop(one);
    // After an idle worker is killed, the next request gets another worker.
    let process = pool.get("a").wait()?.worker_id().expect("a worker");
    support::kill(process);
    assert_eq!(text(&pool.get("a").wait()?)?, TEXT.as_str());
    Ok(())
}

fn killed_while_it_loads() -> Result<(), Failed> {
    let card = Card::new(64 << 20);
    let pool = builder(&[&card]).model(spec("a")).start()?;
    // The first load finds everything else ready: the ladder, and the text of the model alone.
    assert_eq!(text(&pool.get("a").wait()?)?, TEXT.as_str());
    for _ in 0..5 {
        assert!(pool.unload("a")?);
        until(|| pool.activity().is_settled && support::workers().is_empty());
        let wanted = pool.get("a");
        until(|| {
            let workers = support::workers();
            workers.iter().copied().for_each(support::kill);
            !workers.is_empty()
        });
        assert_eq!(text(&wanted.wait()?)?, TEXT.as_str());
    }
    Ok(())
}

fn pressure() -> Result<(), Failed> {
    let whole = held_alone();
    let total = whole * 5 / 4;
    let card = Card::new(total);
    let pool = builder(&[&card]).look_every(Duration::from_millis(50)).model(spec("a")).start()?;
    drop(pool.get("a").wait()?);
    let layers = || pool.status()[0].layers.map(|(layers, _)| layers);
    let all = layers().expect("it is loaded");
    // A game takes more memory than is left.
    card.take(total * 6 / 10);
    until(|| layers().is_none_or(|layers| layers < all));
    until(|| card.used() + card.taken() <= total);
    assert_eq!(text(&pool.get("a").wait()?)?, TEXT.as_str());
    card.take(0);
    until(|| {
        // The model is requested again and again.
        drop(pool.get("a").wait());
        layers() == Some(all)
    });
    assert_eq!(text(&pool.get("a").wait()?)?, TEXT.as_str());
    Ok(())
}

fn idle() -> Result<(), Failed> {
    let card = Card::new(128 << 20);
    let pool = builder(&[&card])
        .model(spec("a").idle(Duration::from_millis(50)))
        .model(spec("b").keep(true).idle(Duration::from_millis(50)))
        .model(spec("c").idle(Duration::MAX))
        .start()?;
    drop(pool.get("c").wait()?);
    // A kept model is loaded with the pool.
    until(|| state(&pool, "b") == Residence::Loaded);
    let held = pool.get("a").wait()?;
    thread::sleep(Duration::from_millis(120));
    assert_eq!(state(&pool, "a"), Residence::Loaded);
    drop(held);
    until(|| state(&pool, "a") == Residence::Unloaded);
    assert_eq!((state(&pool, "b"), state(&pool, "c")), (Residence::Loaded, Residence::Loaded));
    assert_eq!(text(&pool.get("a").wait()?)?, TEXT.as_str());
    Ok(())
}

fn settled() -> Result<(), Failed> {
    let card = Card::new(64 << 20);
    let pool = builder(&[&card]).model(spec("a").preload(true)).model(spec("b").keep(true)).start()?;
    until(|| pool.activity().is_settled);
    assert_eq!((state(&pool, "a"), state(&pool, "b")), (Residence::Loaded, Residence::Loaded));
    assert!(pool.unload("a")?);
    until(|| pool.activity().is_settled);
    assert_eq!(state(&pool, "a"), Residence::Unloaded);
    pool.set_models(vec![spec("b").keep(true), spec("c").preload(true)], Limits::default())?;
    until(|| pool.activity().is_settled);
    assert_eq!(state(&pool, "c"), Residence::Loaded);
    Ok(())
}

fn waiting() -> Result<(), Failed> {
    let card = Card::new(held_alone() * 5 / 4);
    let host = support::machine_without_room(&card);
    // The first model has room. So it is loaded within this time, unless the pool's thread gets no core for so long.
    let patience = Duration::from_secs(2);
    let pool = builder(&[&card]).machine(host).patience(patience).model(spec("a")).model(spec("b")).start()?;
    let held = pool.get("a").wait()?;
    let error = pool.get("b").wait().unwrap_err();
    let is_right = |error: &Error| match error {
        Error::TimedOut { time, .. } => *time == patience,
        error => matches!(error, Error::NoRoom { .. }),
    };
    assert!(is_right(&error), "{error}");
    // A request that is dropped is withdrawn.
    drop(pool.get("b"));
    let waits = pool.get("b");
    drop(held);
    drop(pool);
    let outcome = waits.wait();
    assert!(matches!(outcome, Err(Error::Closed | Error::TimedOut { .. } | Error::NoRoom { .. })) || outcome.is_ok());
    Ok(())
}

fn replaced() -> Result<(), Failed> {
    let card = Card::new(64 << 20);
    let pool = builder(&[&card]).model(spec("a").alias("gpt-4o")).model(spec("b")).start()?;
    let held = pool.get("a").wait()?;
    drop(pool.get("b").wait()?);
    // `a` is gone, `b` stays, `c` is new. As `c` has another context, the model of `a` cannot become the one of `c`.
    let new = spec("c").alias("gpt-4o").request(support::request().n_ctx(256));
    pool.set_models(vec![spec("b"), new], Limits::default())?;
    assert!(matches!(pool.get("a").wait(), Err(Error::Unknown { .. })));
    assert_eq!(state(&pool, "b"), Residence::Loaded);
    assert_eq!(text(&held)?, TEXT.as_str());
    // It has no name or alias that another model may have now.
    let gone = pool.status().into_iter().find(|model| model.is_replaced).expect("it is loaded");
    assert!(gone.residence == Residence::Loaded && gone.name != "a" && gone.aliases.is_empty(), "{gone:?}");
    drop(held);
    until(|| pool.status().len() == 2);
    assert!(pool.status().iter().all(|model| !model.is_replaced));
    assert_eq!(text(&pool.get("c").wait()?)?, TEXT.as_str());
    let twice = pool.set_models(vec![spec("b"), spec("b")], Limits::default());
    assert!(matches!(twice, Err(Error::Specification { .. })));
    Ok(())
}

/// The store gets another size while the model with the former store is in use. The folder belongs to the former store
/// until its model is unloaded.
fn resized_store(folder: &Path) -> Result<(), Failed> {
    let options = |bytes: u64| StoreOptions::new(bytes).folder(folder, 1 << 30);
    let card = Card::new(64 << 20);
    let pool = builder(&[&card]).model(spec("a").prompt_store(options(70 << 20))).start()?;
    let restored = |prompt: &str| -> Result<usize, Failed> {
        let held = pool.get("a").wait()?;
        let generate = held.generate(prompt).temp(0.0).max_tokens(TOKENS).cache_prompt(true);
        Ok(generate.stream()?.into_text()?.1.restored_tokens)
    };
    let prompts = ["While. ", "After. "].map(|first| format!("{first}{}", support::PROMPT.repeat(20)));
    let in_use = pool.get("a").wait()?;
    // The model opens its store when its first text begins.
    drop(in_use.generate(support::PROMPT).max_tokens(2).text()?);
    pool.set_models(vec![spec("a").prompt_store(options(80 << 20))], Limits::default())?;
    assert_eq!(restored(&prompts[0])?, 0);
    drop(in_use);
    until(|| pool.status().iter().all(|model| !model.is_replaced));
    assert_eq!(restored(&prompts[1])?, 0);
    assert!(pool.unload("a")?);
    until(|| state(&pool, "a") == Residence::Unloaded);
    for prompt in &prompts {
        let restored = restored(prompt)?;
        assert!(restored > 64, "{restored}");
    }
    Ok(())
}

fn stored() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    // A model in this process can keep its store in memory. The memory of a worker ends with the worker.
    let in_folder = StoreOptions::new(8 << 20).folder(folder.path().join("a"), 1 << 30);
    let prompt = support::PROMPT.repeat(20);
    for (isolated, options) in [(false, StoreOptions::new(8 << 20)), (true, in_folder)] {
        let card = Card::new(64 << 20);
        let builder = builder(&[&card]).model(spec("a").prompt_store(options));
        let pool = if isolated { builder } else { builder.isolation(Isolation::None) }.start()?;
        let text = || -> Result<(String, usize), Failed> {
            let held = pool.get("a").wait()?;
            let generate = held.generate(&*prompt).temp(0.0).max_tokens(TOKENS).cache_prompt(true);
            let (text, statistics) = generate.stream()?.into_text()?;
            Ok((text, statistics.restored_tokens))
        };
        let (first, restored) = text()?;
        assert_eq!(restored, 0);
        assert!(pool.unload("a")?);
        until(|| state(&pool, "a") == Residence::Unloaded);
        let (again, restored) = text()?;
        assert_eq!(again, first);
        assert!(restored > 64, "{isolated}: {restored}");
        // The store's limit counts as memory that the model holds.
        let held = pool.status().remove(0).held.expect("it is loaded").host;
        assert!(held >= if isolated { 64 << 20 } else { 8 << 20 }, "{held}");
    }
    resized_store(&folder.path().join("b"))?;
    // A folder that others can use, or a path that is not a folder, is named before anything is loaded.
    let file = folder.path().join("file");
    std::fs::write(&file, "")?;
    let error = builder(&[]).model(spec("a").prompt_store(StoreOptions::new(0).folder(&file, 1 << 30))).start();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the model `a`") && error.contains("file"), "{error}");
    Ok(())
}
