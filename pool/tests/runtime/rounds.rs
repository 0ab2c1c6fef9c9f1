//! Random rounds: models, cards, requests from several threads, other programs, and killed workers.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use autoplace::Isolation;
use autoplace_pool::{Error, ModelSpec};
use libtest_mimic::Failed;
use test_support::random_weights::Dice;

use crate::support::{Card, TEXT, builder, held_alone, kill, spec};

pub(crate) fn some() -> Result<(), Failed> {
    run(0..4)
}

/// `AUTOPLACE_POOL_ROUNDS` has a number of rounds, or `FROM..TO`. Without it, there are a thousand rounds.
pub(crate) fn thousand() -> Result<(), Failed> {
    let asked = std::env::var("AUTOPLACE_POOL_ROUNDS").unwrap_or_else(|_| "1000".to_owned());
    let (from, to) = asked.split_once("..").unwrap_or(("0", &asked));
    run(from.parse()?..to.parse()?)
}

fn run(rounds: std::ops::Range<u64>) -> Result<(), Failed> {
    let whole = held_alone();
    let (mut texts, mut longest) = (0, 0);
    let mut errors = Errors::new();
    for number in rounds {
        let (written, refused, waited) = round(number, whole).map_err(|fault| format!("round {number}: {fault}"))?;
        texts += written;
        refused.into_iter().for_each(|(kind, count)| *errors.entry(kind).or_default() += count);
        longest = longest.max(waited);
        if number % 10 == 9 {
            println!("up to round {number}: {texts} texts, the longest wait {} s, errors {errors:?}", longest / 1000);
        }
    }
    println!("{texts} texts, the longest wait for a model {} s, errors {errors:?}", longest / 1000);
    let refused: u32 = errors.values().sum();
    if texts < refused { Err(format!("{texts} texts, {refused} errors").into()) } else { Ok(()) }
}

/// The number of errors of each kind.
type Errors = BTreeMap<String, u32>;

/// The name of an error's variant.
fn variant(error: &impl Debug) -> String {
    format!("{error:?}").chars().take_while(|letter| letter.is_alphanumeric()).collect()
}

/// The variant of a pool's error, and of the error of the load.
fn kind(error: &Error) -> String {
    match error {
        Error::Load { source, .. } => format!("Load: {}", variant(source)),
        Error::Plan { source, .. } => format!("Plan: {}", variant(source)),
        error => variant(error),
    }
}

/// One round: three to six models on one to three cards, and fifty requests. Returns the number of texts, the errors,
/// and the longest wait for a model in milliseconds.
fn round(number: u64, whole: u64) -> Result<(u32, Errors, u64), String> {
    let mut dice = Dice::new(number);
    let count = dice.one_of(&[1, 1, 1, 2, 3]);
    let cards: Vec<Card> = (0..count).map(|_| Card::new(dice.share(whole, 60, 220))).collect();
    let names = ["a", "b", "c", "d", "e", "f"];
    let models = &names[..3 + dice.below(4_usize)];
    let refs: Vec<&Card> = cards.iter().collect();
    let in_workers = dice.percent(60);
    let mut pool = builder(&refs).look_every(Duration::from_millis(40));
    if !in_workers {
        pool = pool.isolation(Isolation::None);
    }
    for name in models {
        let mut model: ModelSpec = spec(name);
        if dice.percent(15) {
            model = model.idle(Duration::from_millis(30));
        }
        pool = pool.model(model.keep(dice.percent(10)).priority(dice.one_of(&[1.0, 1.0, 4.0])));
    }
    let pool = pool.start().map_err(|error| error.to_string())?;
    let (written, refused, longest) = (AtomicU32::new(0), Mutex::new(Errors::new()), AtomicU64::new(0));
    let refuse = |kind: String| *refused.lock().unwrap().entry(kind).or_default() += 1;
    let seeds: Vec<u64> = (0..5).map(|thread| number * 100 + thread).collect();
    let outcome = thread::scope(|scope| {
        let users: Vec<_> = seeds
            .iter()
            .map(|&seed| {
                let (pool, written, refuse, longest, cards) = (&pool, &written, &refuse, &longest, &cards);
                scope.spawn(move || -> Result<(), String> {
                    let mut dice = Dice::new(seed);
                    for _ in 0..10 {
                        let name = models[dice.below(models.len())];
                        if dice.percent(10) {
                            // This request is dropped at once.
                            drop(pool.get(name));
                            continue;
                        }
                        if dice.percent(15) {
                            let card = &cards[dice.below(cards.len())];
                            card.take(dice.share(card.total(), 0, 40));
                        }
                        let asked = Instant::now();
                        let handle = pool.get(name).wait();
                        longest.fetch_max(asked.elapsed().as_millis() as u64, Ordering::Relaxed);
                        let handle = match handle {
                            Ok(handle) => handle,
                            Err(
                                error @ (Error::Load { .. }
                                | Error::Plan { .. }
                                | Error::NoRoom { .. }
                                | Error::TimedOut { .. }),
                            ) => {
                                refuse(kind(&error));
                                continue;
                            }
                            Err(error) => return Err(error.to_string()),
                        };
                        if in_workers && dice.percent(8) {
                            handle.worker_id().into_iter().for_each(kill);
                        }
                        let engine = handle.engine();
                        let answer = engine.and_then(|engine| {
                            engine.submit(
                                handle.generate(crate::support::PROMPT).temp(0.0).max_tokens(crate::support::TOKENS),
                            )
                        });
                        let answer = answer.and_then(autoplace::TokenStream::into_text);
                        match answer {
                            Ok((answer, _)) if answer == *TEXT => drop(written.fetch_add(1, Ordering::Relaxed)),
                            Ok((answer, _)) => return Err(format!("{answer:?} instead of {:?}", *TEXT)),
                            Err(error) => refuse(format!("text: {}", variant(&error))),
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        users.into_iter().map(|user| user.join().expect("no panic")).collect::<Result<Vec<()>, String>>()
    });
    outcome?;
    for card in &cards {
        if card.peak() > card.total() {
            return Err(format!("{} of {} bytes", card.peak(), card.total()));
        }
    }
    drop(pool);
    let left: u64 = cards.iter().map(Card::used).sum();
    if left > 0 {
        return Err(format!("{left} bytes are left"));
    }
    // A request waits for as long as the pool's patience, and for the step that runs then.
    let longest = longest.into_inner();
    if longest > 2 * 120_000 {
        return Err(format!("a request waited {} s", longest / 1000));
    }
    Ok((written.into_inner(), refused.into_inner().unwrap(), longest))
}
