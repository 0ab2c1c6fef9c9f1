//! Specifications that are replaced while their models are loaded: a model stays loaded if a new specification
//! describes the same load, and is never loaded a second time beside itself.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use autoplace::machine::folder;
use autoplace_pool::{Error, Limits, ModelHandle, ModelSpec, Pool, Residence};
use libtest_mimic::Failed;
use test_support::demo_path;

use crate::state;
use crate::support::{Card, TEXT, builder, request, spec, text, until, workers};

fn set(pool: &Pool, models: &[ModelSpec]) -> Result<(), Error> {
    pool.set_models(models.to_vec(), Limits::default())
}

/// A specification for another load of the same file.
fn smaller(name: &str) -> ModelSpec {
    spec(name).request(request().n_ctx(256))
}

/// Checks that the model with this name is the one of the handle, and that no other process is there.
fn is_the_same(pool: &Pool, name: &str, held: &ModelHandle) -> Result<(), Failed> {
    until(|| pool.activity().is_settled);
    let again = pool.get(name).wait()?;
    assert_eq!((again.name(), again.worker_id()), (name, held.worker_id()));
    assert_eq!((text(held)?, text(&again)?), (TEXT.clone(), TEXT.clone()));
    until(|| workers() == Vec::from_iter(held.worker_id()));
    assert!(pool.status().iter().all(|model| !model.is_replaced));
    Ok(())
}

/// A model still writes texts when its specification is removed and added again. It is the same model then, and it
/// stays when these texts have ended.
pub(crate) fn added_again() -> Result<(), Failed> {
    let card = Card::new(128 << 20);
    let pool = builder(&[&card]).model(spec("a")).model(spec("b")).start()?;
    let held = pool.get("a").wait()?;
    let (all, without) = ([spec("a"), spec("b")], [spec("b")]);
    for _ in 0..3 {
        set(&pool, &without)?;
        assert!(matches!(pool.get("a").wait(), Err(Error::Unknown { .. })));
        set(&pool, &all)?;
        set(&pool, &all)?;
        is_the_same(&pool, "a", &held)?;
    }
    let process = held.worker_id();
    drop(held);
    until(|| pool.activity().is_settled);
    assert_eq!((state(&pool, "a"), pool.status()[0].process), (Residence::Loaded, process));
    // Without a second addition, it leaves.
    set(&pool, &without)?;
    until(|| workers().is_empty());
    assert_eq!(pool.status().len(), 1);
    Ok(())
}

/// A specification is changed and changed back while the first model writes texts.
pub(crate) fn changed_back() -> Result<(), Failed> {
    let card = Card::new(128 << 20);
    let pool = builder(&[&card]).model(spec("a")).start()?;
    let held = pool.get("a").wait()?;
    set(&pool, &[smaller("a")])?;
    set(&pool, &[spec("a")])?;
    is_the_same(&pool, "a", &held)?;
    // Now both are loaded. The one that was changed back stays, and the other one ends its texts.
    set(&pool, &[smaller("a")])?;
    let other = pool.get("a").wait()?;
    assert_ne!(other.worker_id(), held.worker_id());
    set(&pool, &[spec("a")])?;
    assert_eq!(text(&other)?, TEXT.as_str());
    drop(other);
    until(|| workers().len() == 1);
    is_the_same(&pool, "a", &held)
}

/// A loaded model gets another name, another path of its file, another template, and other rules of the pool. None of
/// this matters for its load.
pub(crate) fn same_load() -> Result<(), Failed> {
    let card = Card::new(128 << 20);
    let pool = builder(&[&card]).model(spec("a")).start()?;
    let held = pool.get("a").wait()?;
    let others = spec("a").alias("gpt-4o").idle(Duration::from_secs(3600)).priority(2.0).keep(true).preload(true);
    set(&pool, &[others])?;
    is_the_same(&pool, "a", &held)?;
    assert_eq!(pool.get("gpt-4o").wait()?.worker_id(), held.worker_id());
    set(&pool, &[spec("b").template("chatml")])?;
    is_the_same(&pool, "b", &held)?;
    let specification = pool.get("b").wait()?.specification().clone();
    assert_eq!((specification.template.as_deref(), held.specification().template.as_deref()), (Some("chatml"), None));
    assert!(matches!(pool.get("a").wait(), Err(Error::Unknown { .. })));
    Ok(())
}

/// A path with symbolic links is the file to which it leads.
pub(crate) fn other_path() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let link = folder.path().join("link.gguf");
    std::os::unix::fs::symlink(demo_path(), &link)?;
    let linked = |name: &str| ModelSpec::new(name, &link).request(request());
    let card = Card::new(128 << 20);
    let pool = builder(&[&card]).model(spec("a")).start()?;
    let held = pool.get("a").wait()?;
    set(&pool, &[linked("a")])?;
    is_the_same(&pool, "a", &held)?;
    // Then the path is that of another file, which is not the one that is loaded.
    std::fs::remove_file(&link)?;
    std::fs::copy(demo_path(), &link)?;
    set(&pool, &[linked("b")])?;
    assert_ne!(pool.get("b").wait()?.worker_id(), held.worker_id());
    Ok(())
}

/// The folder of one model's file does not answer. Requests for the model get an error, and the other model is served.
pub(crate) fn does_not_answer() -> Result<(), Failed> {
    let far = tempfile::tempdir()?;
    let file = far.path().join("far.gguf");
    std::fs::copy(demo_path(), &file)?;
    // Work that does not end stands in for a system's call that does not.
    let (answer, answered) = mpsc::channel::<()>();
    let hung = folder::ask(far.path(), move || Ok(answered.recv().is_ok())).unwrap_err();
    let card = Card::new(128 << 20);
    let pool = builder(&[&card]).model(spec("a")).model(ModelSpec::new("far", &file).request(request())).start()?;
    let (one, other) = (pool.get("far"), pool.get("a"));
    assert_eq!(text(&other.wait()?)?, TEXT.as_str());
    let Err(Error::Load { name, source }) = one.wait() else { return Err("it is loaded".into()) };
    assert!(name == "far" && source.to_string().contains(&hung.to_string()), "{source}");
    drop(answer);
    until(|| pool.get("far").wait().is_ok());
    assert_eq!(text(&pool.get("far").wait()?)?, TEXT.as_str());
    Ok(())
}

/// A model belongs to the specification with its name, even if another one describes the same load.
pub(crate) fn own_name() -> Result<(), Failed> {
    let card = Card::new(128 << 20);
    let pool = builder(&[&card]).model(spec("a")).start()?;
    let held = pool.get("a").wait()?;
    set(&pool, &[spec("b"), spec("a").priority(2.0)])?;
    assert_eq!((state(&pool, "b"), state(&pool, "a")), (Residence::Unloaded, Residence::Loaded));
    is_the_same(&pool, "a", &held)?;
    // An alias belongs to another model now, also for a request that waits.
    assert!(pool.unload("a")?);
    let waits = pool.get("a");
    set(&pool, &[smaller("b").alias("a"), spec("c")])?;
    assert_eq!(waits.wait()?.name(), "b");
    Ok(())
}

/// A specification is removed and added again while its model is being loaded.
pub(crate) fn added_again_in_a_load() -> Result<(), Failed> {
    let card = Card::new(128 << 20);
    let pool = builder(&[&card]).model(spec("a")).model(spec("b")).start()?;
    // The first load finds everything else ready.
    drop(pool.get("a").wait()?);
    for _ in 0..5 {
        assert!(pool.unload("a")?);
        until(|| pool.activity().is_settled && workers().is_empty());
        let wanted = pool.get("a");
        until(|| !workers().is_empty());
        set(&pool, &[spec("b")])?;
        set(&pool, &[spec("a"), spec("b")])?;
        assert!(matches!(wanted.wait(), Ok(_) | Err(Error::Unknown { .. })));
        let held = pool.get("a").wait()?;
        is_the_same(&pool, "a", &held)?;
    }
    Ok(())
}

/// Two threads replace the specifications again and again, while others use the models.
pub(crate) fn at_the_same_time() -> Result<(), Failed> {
    let card = Card::new(256 << 20);
    let pool = builder(&[&card]).model(spec("a")).model(spec("b")).start()?;
    let held = pool.get("a").wait()?;
    thread::scope(|scope| {
        let setters = [0, 1].map(|_| {
            scope.spawn(|| -> Result<(), Error> {
                for _ in 0..50 {
                    set(&pool, &[spec("b")])?;
                    set(&pool, &[spec("b"), spec("a")])?;
                }
                Ok(())
            })
        });
        setters.into_iter().try_for_each(|setter| setter.join().expect("no panic"))
    })?;
    is_the_same(&pool, "a", &held)
}

/// Somebody unloads a model while it is being loaded. It is loaded for the requests that came before, and leaves after
/// them; a later request keeps it.
pub(crate) fn unloaded_in_a_load() -> Result<(), Failed> {
    let card = Card::new(128 << 20);
    let pool = builder(&[&card]).model(spec("a")).start()?;
    drop(pool.get("a").wait()?);
    for is_wanted_again in [false, true] {
        pool.unload("a")?;
        until(|| pool.activity().is_settled && workers().is_empty());
        assert!(!pool.unload("a")?, "there is nothing to unload");
        let before = pool.get("a");
        assert!(pool.unload("a")?);
        assert!(pool.unload("a")?, "a second request changes nothing");
        let after = is_wanted_again.then(|| pool.get("a"));
        assert_eq!(text(&before.wait()?)?, TEXT.as_str());
        if let Some(after) = after {
            drop(after.wait()?);
        }
        until(|| pool.activity().is_settled);
        assert_eq!(state(&pool, "a") == Residence::Loaded, is_wanted_again);
        until(|| workers().len() == usize::from(is_wanted_again));
    }
    Ok(())
}
