//! Two pools that see each other through a folder of leases, as pools of two processes do.

use std::thread;
use std::time::Duration;

use autoplace::load::{Leases, loaded_models};
use autoplace_pool::{Pool, Residence};
use libtest_mimic::Failed;

use crate::support::{Card, TEXT, builder, held_alone, spec, text, until};

fn pool(card: &Card, leases: &Leases, name: &str) -> Result<Pool, autoplace_pool::Error> {
    let builder = builder(&[card]).leases(leases.clone()).look_every(Duration::from_millis(100));
    builder.model(spec(name)).start()
}

pub(crate) fn gives() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let leases = Leases::in_dir(folder.path().join("leases"));
    let total = held_alone() * 5 / 4;
    let card = Card::new(total);
    let (one, other) = (pool(&card, &leases, "a")?, pool(&card, &leases, "b")?);
    let all = {
        let held = one.get("a").wait()?;
        let [model] = &loaded_models(&leases)[..] else { return Err("one model is loaded".into()) };
        assert_eq!((Some(model.process), model.application), (held.worker_id(), Some(std::process::id())));
        // While somebody uses the model, the other pool gets only the remaining memory, and waits for some seconds at
        // most.
        let smaller = other.get("b").wait()?;
        assert!(smaller.placement().n_gpu_layers < held.placement().n_gpu_layers);
        assert_eq!((text(&held)?, text(&smaller)?), (TEXT.clone(), TEXT.clone()));
        held.placement().n_gpu_layers
    };
    assert!(other.unload("b")?);
    // A model that is unloaded takes its memory until its worker has ended.
    until(|| other.status()[0].residence == Residence::Unloaded && loaded_models(&leases).len() == 1);
    // A pool that has not asked before is given the memory of the idle model.
    let third = pool(&card, &leases, "c")?;
    thread::sleep(Duration::from_millis(1200));
    let whole = third.get("c").wait()?;
    assert_eq!(whole.placement().n_gpu_layers, all, "{}", whole.placement());
    assert_eq!(one.status()[0].residence, Residence::Unloaded);
    assert_eq!(text(&whole)?, TEXT.as_str());
    assert!(card.peak() <= total);
    Ok(())
}

pub(crate) fn both_ask() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let leases = Leases::in_dir(folder.path().join("leases"));
    let total = held_alone() * 5 / 4;
    let card = Card::new(total);
    let pools = ["a", "b"].map(|name| (name, pool(&card, &leases, name)));
    let outcome = thread::scope(|scope| {
        let users: Vec<_> = pools
            .iter()
            .map(|(name, pool)| {
                scope.spawn(move || -> Result<(), String> {
                    let pool = pool.as_ref().map_err(ToString::to_string)?;
                    for _ in 0..6 {
                        let model = pool.get(name).wait().map_err(|error| error.to_string())?;
                        let written = text(&model).map_err(|error| error.to_string())?;
                        if written != *TEXT {
                            return Err(format!("{written:?}"));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        users.into_iter().map(|user| user.join().expect("no panic")).collect::<Result<Vec<()>, String>>()
    });
    outcome?;
    assert!(card.peak() <= total);
    Ok(())
}

/// Waits until the pool has read the memory after this call: the first check may have begun before.
fn looked(pool: &Pool) {
    let before = pool.activity().memory_checks;
    until(|| pool.activity().memory_checks >= before + 2);
}

pub(crate) fn looks_only_with_something_to_give() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path().join("leases");
    // A file that a killed pool has left: any process that reads it removes it.
    let left = folder.join("lacking/1-0.json");
    let leave = || std::fs::create_dir_all(folder.join("lacking")).and_then(|()| std::fs::write(&left, "{}"));
    let card = Card::new(64 << 20);
    let builder = builder(&[&card]).leases(Leases::in_dir(&folder)).look_every(Duration::from_millis(100));
    let pool = builder.model(spec("a")).model(spec("b")).start()?;
    let held = pool.get("a").wait()?;
    drop(pool.get("b").wait()?);
    leave()?;
    // A model is given only if it was idle for a second. Once `b` may be given, the use of `a` began longer ago.
    until(|| !left.exists());
    pool.unload("b")?;
    until(|| pool.status()[1].residence == Residence::Unloaded);
    leave()?;
    looked(&pool);
    assert!(left.exists(), "the model is in use");
    drop(held);
    until(|| !left.exists());
    pool.unload("a")?;
    until(|| pool.status()[0].residence == Residence::Unloaded);
    leave()?;
    looked(&pool);
    assert!(left.exists(), "nothing is loaded");
    Ok(())
}
