//! Models that leave the memory: requests that come meanwhile, requests that are withdrawn, and models that come back.

use std::time::Duration;

use autoplace::plan::GpuLayers;
use autoplace::{Isolation, Model};
use autoplace_pool::{Error, Limits, ModelSpec, Residence};
use libtest_mimic::Failed;
use test_support::demo_path;

use crate::state;
use crate::support::{Card, TEXT, builder, held_alone, request, spec, text, until};

/// A model that is placed on the card or nowhere.
fn on_card(name: &str, n_ctx: u32) -> ModelSpec {
    spec(name).request(request().n_ctx(n_ctx).n_gpu_layers(GpuLayers::All))
}

/// A model was unloaded by its user, but its handle keeps it. A request for it waits until the handle is dropped, and
/// the pool's thread has nothing to decide before that.
pub(crate) fn waits_without_work() -> Result<(), Failed> {
    let card = Card::new(64 << 20);
    let pool = builder(&[&card]).look_every(Duration::from_secs(3600)).model(spec("a")).start()?;
    let held = pool.get("a").wait()?;
    until(|| pool.activity().is_settled);
    assert!(pool.unload("a")?);
    let waits = pool.get("a");
    let before = pool.activity().decisions;
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(pool.activity().decisions, before);
    assert_eq!(text(&held)?, TEXT.as_str());
    let process = held.worker_id();
    drop(held);
    let again = waits.wait()?;
    assert_ne!(again.worker_id(), process);
    assert_eq!(text(&again)?, TEXT.as_str());
    Ok(())
}

/// The specification goes while a request waits for a model that leaves: the request gets the error of a name that
/// nobody has, although a handle still keeps the model.
pub(crate) fn removed_while_it_leaves() -> Result<(), Failed> {
    let card = Card::new(64 << 20);
    let pool = builder(&[&card]).model(spec("a")).model(spec("b")).start()?;
    let held = pool.get("a").wait()?;
    assert!(pool.unload("a")?);
    let waits = pool.get("a");
    pool.set_models(vec![spec("b")], Limits::default())?;
    let error = waits.wait().unwrap_err();
    assert!(matches!(&error, Error::Unknown { name, known } if name == "a" && known == &["b"]), "{error}");
    assert_eq!(text(&held)?, TEXT.as_str());
    Ok(())
}

/// The pool waits for the texts of a model, so that it can unload it for another one. When the request for that one is
/// withdrawn, handles of the first model are given again, while its text still runs.
pub(crate) fn withdrawn() -> Result<(), Failed> {
    let card = Card::new(held_alone() * 5 / 4);
    let pool = builder(&[&card]).model(on_card("a", 512)).model(on_card("b", 512)).start()?;
    let held = pool.get("a").wait()?;
    let is_given = || pool.loaded("a").is_ok_and(|handle| handle.is_some());
    let wanted = pool.get("b");
    until(|| !is_given());
    drop(wanted);
    until(is_given);
    let another = pool.get("a").wait()?;
    assert_eq!(another.worker_id(), held.worker_id());
    assert_eq!(state(&pool, "b"), Residence::Unloaded);
    Ok(())
}

/// Another program took all memory, and gives a part of it back, in which only the second of two parked models has
/// room.
pub(crate) fn the_smaller_one_comes_back() -> Result<(), Failed> {
    let (large, small) = (8192, 512);
    let held = |n_ctx: u32| {
        let card = Card::new(1 << 30);
        let request = request().n_ctx(n_ctx).n_gpu_layers(GpuLayers::All);
        let model = Model::builder(demo_path()).request(request).n_threads(1).without_learning().load();
        model.map(|_model| card.used() + (256 << 10))
    };
    let (large_bytes, small_bytes) = (held(large)?, held(small)?);
    let total = 2 * (large_bytes + small_bytes);
    let card = Card::new(total);
    let pool = builder(&[&card]).look_every(Duration::from_millis(50));
    let pool = pool.model(on_card("large", large)).model(on_card("small", small)).start()?;
    for name in ["large", "small"] {
        drop(pool.get(name).wait()?);
    }
    card.take(total);
    until(|| ["large", "small"].iter().all(|name| state(&pool, name) == Residence::Parked));
    card.take(total - (large_bytes + small_bytes) / 2);
    until(|| state(&pool, "small") == Residence::Loaded);
    // The plan for the large one is made at each check, but as it is never carried out, it is not the last one.
    let before = pool.activity().memory_checks;
    until(|| pool.activity().memory_checks >= before + 2);
    assert_eq!(state(&pool, "large"), Residence::Parked);
    let plan = pool.last_plan().expect("a model was loaded");
    assert_eq!(plan.wanted.as_deref(), Some("small"), "{plan}");
    Ok(())
}

/// The application moves a model through its handle. The pool counts the model where it is then.
pub(crate) fn moved_by_the_application() -> Result<(), Failed> {
    let card = Card::new(64 << 20);
    let pool = builder(&[&card]).isolation(Isolation::None).look_every(Duration::from_millis(50));
    let pool = pool.model(spec("a")).start()?;
    let handle = pool.get("a").wait()?;
    let held = || pool.status()[0].held.clone().expect("it is loaded");
    let (context, bytes) = (pool.status()[0].n_ctx, held().gpus[0]);
    assert_eq!(context, Some(512));
    let smaller = Model::builder(demo_path()).request(request().n_ctx(256)).n_threads(1).without_learning().plan()?;
    handle.replace(Some(smaller))?;
    until(|| pool.status()[0].n_ctx == Some(256));
    assert!(held().gpus[0] < bytes, "{} of {bytes}", held().gpus[0]);
    Ok(())
}

/// A panic in the application's own code, which the pool's thread calls, leaves nobody waiting.
pub(crate) fn panics() -> Result<(), Failed> {
    let card = Card::new(64 << 20);
    let pool = builder(&[&card]).configure(|_, _| panic!("this panic is a test")).model(spec("a")).start()?;
    let waits = [pool.get("a"), pool.get("a")];
    for wait in waits {
        assert!(matches!(wait.wait(), Err(Error::Closed)));
    }
    assert!(matches!(pool.get("a").wait(), Err(Error::Closed)));
    Ok(())
}
