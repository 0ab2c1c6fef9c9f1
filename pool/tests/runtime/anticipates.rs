//! A running pool loads the model that usually follows, before that model is requested.

use std::thread;
use std::time::{Duration, Instant};

use autoplace::plan::GpuLayers;
use autoplace_pool::{Limits, Pool, Residence};
use libtest_mimic::Failed;

use crate::state;
use crate::support::{
    Card, TEXT, builder, held_alone, kill, machine_without_room, request, spec, text, until, workers,
};

/// Makes each load long enough to be worth hiding: the demo model is loaded in no time.
const LOAD: Duration = Duration::from_millis(400);

/// A pool of two models on a card with room for one, each of which was wanted after the other several times. Also
/// returns the longest time that an answer has taken.
fn alternating(card: &Card) -> Result<(Pool, Duration), Failed> {
    let pool = builder(&[card]).machine(machine_without_room(card)).configure(|_, builder| {
        thread::sleep(LOAD);
        builder.n_threads(1).without_learning()
    });
    // Neither is placed smaller beside the other.
    let whole = |name| spec(name).request(request().n_gpu_layers(GpuLayers::All));
    // The default limit depends on how long loads take on this machine.
    let pool = pool.limits(Limits::default().reloads_per_minute(1000));
    let pool = pool.model(whole("a")).model(whole("b")).start()?;
    let mut longest = LOAD;
    alternate(&pool, &mut longest)?;
    Ok((pool, longest))
}

/// Requests both models in turn, with a pause after each request. A load fits into the pause, however slow the machine
/// is: only then is it worthwhile to load the other model in advance.
fn alternate(pool: &Pool, longest: &mut Duration) -> Result<(), Failed> {
    for _ in 0..5 {
        for name in ["a", "b"] {
            let begun = Instant::now();
            answered(pool, name)?;
            *longest = begun.elapsed().max(*longest);
            thread::sleep(2 * *longest);
        }
    }
    Ok(())
}

/// A request for this model is answered with the text of the model alone.
fn answered(pool: &Pool, name: &str) -> Result<(), Failed> {
    let handle = pool.get(name).wait()?;
    assert_eq!(text(&handle)?, TEXT.as_str());
    Ok(())
}

fn small_card() -> Card {
    Card::new(held_alone() * 5 / 4)
}

pub(crate) fn what_follows() -> Result<(), Failed> {
    let card = small_card();
    let (pool, _) = alternating(&card)?;
    for (last, next) in [("b", "a"), ("a", "b"), ("b", "a")] {
        until(|| state(&pool, next) == Residence::Loaded);
        assert_eq!(state(&pool, last), Residence::Unloaded);
        let plan = pool.last_plan().expect("a decision");
        let reason = format!("{next} is expected to be requested soon after {last}");
        assert!(plan.wanted.is_none() && plan.reasons.contains(&reason), "{plan}");
        answered(&pool, next)?;
    }
    assert!(card.peak() <= card.total(), "{} of {}", card.peak(), card.total());
    Ok(())
}

pub(crate) fn never_what_is_wanted() -> Result<(), Failed> {
    let card = small_card();
    let (pool, mut longest) = alternating(&card)?;
    // While somebody uses `b`, `a` does not take its place, even if other uses of `b` end.
    let held = pool.get("b").wait()?;
    drop(held.clone());
    until(|| pool.activity().is_settled);
    assert_eq!((state(&pool, "a"), state(&pool, "b")), (Residence::Unloaded, Residence::Loaded));
    assert_eq!(text(&held)?, TEXT.as_str());
    drop(held);
    // A request for `b` that comes while `a` is being loaded in its place is still answered. First, both are again
    // requested in turn, because `b` was just requested after itself.
    alternate(&pool, &mut longest)?;
    until(|| state(&pool, "a") != Residence::Unloaded);
    answered(&pool, "b")?;
    // A model that somebody has unloaded is loaded for a request alone.
    alternate(&pool, &mut longest)?;
    until(|| state(&pool, "a") == Residence::Loaded);
    pool.unload("a")?;
    until(|| state(&pool, "a") == Residence::Unloaded);
    answered(&pool, "b")?;
    until(|| pool.activity().is_settled);
    assert_eq!(state(&pool, "a"), Residence::Unloaded);
    answered(&pool, "a")?;
    assert!(card.peak() <= card.total(), "{} of {}", card.peak(), card.total());
    Ok(())
}

pub(crate) fn killed() -> Result<(), Failed> {
    let card = small_card();
    let (pool, _) = alternating(&card)?;
    for round in 0..6 {
        for (last, next) in [("a", "b"), ("b", "a")] {
            answered(&pool, last)?;
            // In every other round the worker dies while it loads the model.
            let is_far_enough = |residence| match round % 2 {
                0 => residence == Residence::Loaded,
                _ => residence == Residence::Loading || residence == Residence::Loaded,
            };
            until(|| {
                let workers = if is_far_enough(state(&pool, next)) { workers() } else { Vec::new() };
                let is_any = !workers.is_empty();
                workers.into_iter().for_each(kill);
                is_any
            });
        }
    }
    assert!(card.peak() <= card.total(), "{} of {}", card.peak(), card.total());
    Ok(())
}
