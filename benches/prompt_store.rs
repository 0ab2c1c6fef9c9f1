//! Measures the savings and the cost of a prompt store, on one model in one run. It measures the first token of three
//! conversations, and compares it with computing the prompt again: eight other conversations have displaced the first
//! conversation, the model of the second one was re-placed, and the third one goes on after a restart. It measures the
//! tokens per second of texts that reuse nothing, and compares them with a model without a store. It also measures the
//! longest wait for a token of a running text while another text is being stored. Prints rows of a Markdown table.
//!
//!     AUTOPLACE_BENCH_MODEL=model.gguf AUTOPLACE_BENCH_DEPTH=4000 \
//!         cargo bench -p autoplace-benches --bench prompt_store
//!
//! Instead of a path, the model may be `windowed` or `hybrid`: a small model with random weights. Arguments select the
//! measurements: `... --bench prompt_store -- first-token`, `throughput` or `stall`. After `throughput` or `stall` they
//! also select the stores: `... -- throughput memory full folder`, `... -- stall none memory folder`.

mod paired;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use autoplace::generate::{Engine, GenerateRequest, TokenStream};
use autoplace::llama_sys::Token;
use autoplace::load::Replacement;
use autoplace::plan::Request;
use autoplace::store::{PromptStore, StoreOptions};
use autoplace::{Model, ModelBuilder};
use paired::{Paired, Run, is_measured, model_path, paired};
use test_support::random_weights;

/// Places of each engine. Eight other texts displace the least recently used text.
const PLACES: u32 = 8;
/// Tokens of an answer.
const ANSWER: usize = 16;
/// Tokens of the message after the answer.
const MESSAGE: usize = 20;
const MEMORY: u64 = 2 << 30;
const FOLDER: u64 = 16 << 30;

fn main() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let (path, name) = model(folder.path());
    let chosen: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let (parts, stores) = (["first-token", "throughput", "stall"], ["none", "memory", "full", "folder"]);
    // `cargo test WORD` gives its word to each bench, too.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    for word in chosen.iter().filter(|_| is_bench) {
        let is_known = parts.iter().chain(&stores).any(|known| known == word);
        assert!(is_known, "{word:?} is none of {parts:?} and {stores:?}");
    }
    let among = |names: &[&str], name: &str| {
        let chosen: Vec<&String> = chosen.iter().filter(|name| names.contains(&name.as_str())).collect();
        chosen.is_empty() || chosen.iter().any(|chosen| *chosen == name)
    };
    let is_chosen = |part: &str| among(&parts, part);
    let has_store = |kind: &str| among(&stores, kind);
    let depth = depth();
    if is_chosen("first-token") {
        first_tokens(&path, &name, depth, &folder.path().join("first-token"));
    }
    if is_chosen("throughput") {
        throughput(&path, &name, &folder.path().join("throughput"), has_store);
    }
    if is_chosen("stall") {
        stall(&path, &name, depth, &folder.path().join("stall"), has_store);
    }
}

/// The model's file, and its name in the tables.
fn model(folder: &Path) -> (PathBuf, String) {
    let path = model_path();
    let arch = match path.as_str() {
        "windowed" => "gpt-oss",
        "hybrid" => "jamba",
        _ => {
            let path = PathBuf::from(path);
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            return (path, name);
        }
    };
    let mut sketch =
        random_weights::all().into_iter().find(|sketch| sketch.arch == arch).expect("a model of each kind");
    sketch.vocabulary();
    (random_weights::write(&sketch, folder), format!("random {arch}"))
}

fn depth() -> usize {
    let asked = std::env::var("AUTOPLACE_BENCH_DEPTH").ok().and_then(|depth| depth.parse().ok());
    asked.unwrap_or(if is_measured() { 4000 } else { 300 })
}

fn builder(path: &Path, places: u32, each: usize) -> ModelBuilder {
    // Without full windows, a windowed model keeps only its windows, which is the default.
    Model::builder(path).request(Request::new()).parallel(places, each as u32).swa_full(false)
}

fn store(folder: &Path) -> PromptStore {
    PromptStore::open(StoreOptions::new(MEMORY).folder(folder, FOLDER)).expect("the folder can be used")
}

/// Pseudo-random tokens that are words in every model.
fn words(seed: u32, n: usize) -> Vec<Token> {
    let mut state = seed.wrapping_mul(2_654_435_761);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        259 + (state >> 16) as Token % 200
    };
    (0..n).map(next).collect()
}

fn greedy(model: &Model, prompt: &[Token], n: usize) -> GenerateRequest {
    model.generate(prompt).temp(0.0).ignore_eos().max_tokens(n)
}

/// The measurements of one turn.
struct Turn {
    first_token: Duration,
    restored: usize,
    history: Vec<Token>,
}

fn turn(engine: &Engine, request: GenerateRequest, prompt: &[Token]) -> Turn {
    let begun = Instant::now();
    let mut stream = engine.submit(request).expect("the prompt fits");
    let (mut first_token, mut history) = (None, prompt.to_vec());
    for piece in stream.pieces() {
        let piece = piece.expect("the model generates");
        first_token.get_or_insert_with(|| begun.elapsed());
        history.extend(piece.token);
    }
    let restored = stream.statistics().restored_tokens;
    Turn { first_token: first_token.expect("a token"), restored, history }
}

fn first_tokens(path: &Path, name: &str, depth: usize, folder: &Path) {
    let each = depth + 4 * (ANSWER + MESSAGE) + 64;
    let kept = store(folder);
    let model = builder(path, PLACES, each).prompt_store(kept.clone()).load().expect("the model loads");
    let engine = Engine::new(&model).expect("the context is free");
    let ask = |engine: &Engine, model: &Model, history: &[Token], seed: u32| {
        let prompt = [history, &words(seed, MESSAGE)].concat();
        turn(engine, greedy(model, &prompt, ANSWER), &prompt)
    };
    let displace = |first: u32| {
        for seed in first..first + PLACES {
            let prompt = words(seed, depth / 8);
            turn(&engine, greedy(&model, &prompt, ANSWER), &prompt);
        }
    };
    let begun = ask(&engine, &model, &words(1, depth), 2);
    displace(10);
    let displaced = ask(&engine, &model, &begun.history, 3);
    model.request_replace(Replacement::Replan);
    while engine.last_replaced().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let replaced = ask(&engine, &model, &displaced.history, 4);
    drop(engine);
    drop(model);
    drop(kept);
    let model = builder(path, PLACES, each).prompt_store(store(folder)).load().expect("the model loads");
    // Opening the engine also opens the folder of the store.
    let opening = Instant::now();
    let engine = Engine::new(&model).expect("the context is free");
    let opening = opening.elapsed();
    let restarted = ask(&engine, &model, &replaced.history, 5);
    let prompt = [&restarted.history[..], &words(6, MESSAGE)].concat();
    let again = turn(&engine, greedy(&model, &prompt, ANSWER).cache_prompt(false), &prompt).first_token;
    for (what, measured, bar) in
        [("displaced by eight others", &displaced, 0.05), ("re-placed", &replaced, 0.1), ("restarted", &restarted, 0.1)]
    {
        let first = measured.first_token + if what == "restarted" { opening } else { Duration::ZERO };
        let ratio = first.as_secs_f64() / again.as_secs_f64();
        println!(
            "| {name} | {depth} tokens, {what} | {} restored | {:.1} ms | computed again {:.1} ms | {ratio:.4} (bar {bar}) |",
            measured.restored,
            first.as_secs_f64() * 1e3,
            again.as_secs_f64() * 1e3,
        );
    }
}

/// Generates texts that share nothing, on eight places. The time ends when their `copied` bytes are in the store, and
/// in its folder: otherwise the next run would pay for them.
fn texts(engine: &Engine, model: &Model, first: u32, store: Option<(&PromptStore, u64)>) -> Run {
    let (count, prompt, n) = if is_measured() { (16, 64, 16) } else { (9, 20, 4) };
    let before = store.map(|(store, _)| store.usage().copied_bytes);
    let begun = Instant::now();
    let streams: Vec<TokenStream> = (first..first + count)
        .map(|seed| engine.submit(greedy(model, &words(seed, prompt), n)).expect("the prompt fits"))
        .collect();
    let tokens = streams.into_iter().map(|stream| {
        let (_, statistics) = stream.into_text().expect("the model generates");
        // Random texts may share a token or two at the beginning.
        let (cached, restored) = (statistics.cached_tokens, statistics.restored_tokens);
        assert!(cached < 8 && restored == 0, "{cached} tokens are reused, {restored} of them from the store");
        statistics.prompt_tokens + statistics.generated_tokens
    });
    let tokens = tokens.sum();
    if let (Some((store, copied)), Some(before)) = (store, before) {
        let patience = Instant::now() + Duration::from_secs(5);
        while store.usage().copied_bytes < before + copied && Instant::now() < patience {
            std::thread::sleep(Duration::from_micros(100));
        }
        store.flush();
    }
    (begun.elapsed(), tokens)
}

fn throughput(path: &Path, name: &str, folder: &Path, is_chosen: impl Fn(&str) -> bool) {
    let kinds = [
        ("memory", "memory", PromptStore::new(MEMORY)),
        // With this size, each text evicts earlier ones.
        ("full", "memory, full", PromptStore::new(64 << 20)),
        ("folder", "memory and a folder", store(folder)),
    ];
    // The number of threads is fixed. A model that tries other numbers would differ from the other model for seconds.
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32);
    for (_, kind, store) in kinds.into_iter().filter(|kind| is_chosen(kind.0)) {
        let builder = || builder(path, PLACES, 512).n_threads(threads);
        let plain = builder().load().expect("the model loads");
        let stored = builder().prompt_store(store.clone()).load().expect("the model loads");
        let engines = [&plain, &stored].map(|model| Engine::new(model).expect("the context is free"));
        let mut seed = 1000;
        let mut next = || {
            seed += 100;
            seed
        };
        let mut runs = (next(), next(), Duration::ZERO);
        // Each run copies as many bytes as this first run, after which the store is left alone for a moment.
        texts(&engines[1], &stored, 900, None);
        std::thread::sleep(Duration::from_millis(300));
        let before = store.usage();
        let Paired { rounds, first, second, speed_ratio, interval: (low, high), .. } = paired(
            &mut runs,
            |runs| {
                runs.0 += 200;
                let run = texts(&engines[1], &stored, runs.0, Some((&store, before.copied_bytes)));
                runs.2 += run.0;
                run
            },
            |runs| {
                runs.1 += 200;
                texts(&engines[0], &plain, runs.1, None)
            },
        );
        let after = store.usage();
        let copying = after.copying_time - before.copying_time;
        let megabytes = (after.copied_bytes - before.copied_bytes) as f64 / 1e6;
        println!(
            "| {name} | nothing reused, store in {kind} | {rounds} rounds | {first:.1} us/token | without a store \
             {second:.1} us/token | {speed_ratio:.4} of its speed, 95 % {low:.4} to {high:.4} (bar 0.99) | copying \
             {megabytes:.0} MB took {:.2} % of the time |",
            100.0 * copying.as_secs_f64() / runs.2.as_secs_f64(),
        );
    }
}

/// The waits for tokens of a text, measured from the moment at which another text ended.
fn waits(engine: &Engine, model: &Model, depth: usize, seed: u32) -> Vec<Duration> {
    let generated = if is_measured() { 400 } else { 20 };
    let long = words(seed, depth);
    let prompt = words(seed + 1, 32);
    let mut running = engine.submit(greedy(model, &prompt, generated)).expect("the prompt fits");
    let mut pieces = running.pieces();
    pieces.next().expect("a token").expect("the model generates");
    // The long text ends after its second token, and its sequence is idle from then on.
    turn(engine, greedy(model, &long, 2), &long);
    let mut waits = Vec::new();
    // Pieces that were generated in the meantime arrive at once.
    let mut last = Instant::now();
    for piece in pieces {
        piece.expect("the model generates");
        waits.push(last.elapsed());
        last = Instant::now();
    }
    waits
}

fn stall(path: &Path, name: &str, depth: usize, folder: &Path, is_chosen: impl Fn(&str) -> bool) {
    let each = depth + 1024;
    let kinds = [("none", None), ("memory", Some(PromptStore::new(MEMORY))), ("folder", Some(store(folder)))];
    for (kind, kept) in kinds.into_iter().filter(|kind| is_chosen(kind.0)) {
        let builder = builder(path, 2, each);
        let builder = kept.clone().into_iter().fold(builder, ModelBuilder::prompt_store);
        let model = builder.load().expect("the model loads");
        // The engine may run far ahead of the reader, so that the measured waits are waits for the engine.
        let engine = Engine::builder(&model).prompt_chunk(512).ahead(4096).start().expect("the context is free");
        let asked = std::env::var("AUTOPLACE_BENCH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
        let rounds = if is_measured() { asked.unwrap_or(3) } else { 1 };
        let mut all: Vec<Duration> = Vec::new();
        for round in 0..rounds {
            all.extend(waits(&engine, &model, depth, 100 * (round + 1)));
        }
        all.sort();
        let at = |part: f64| all.get((all.len() as f64 * part) as usize).or(all.last()).map_or(0.0, |wait| ms(*wait));
        let longest = all.last().map_or(0.0, |wait| ms(*wait));
        let usage = kept.map(|kept| kept.usage()).unwrap_or_default();
        println!(
            "| {name} | waits for a token while {depth} tokens are stored, store: {kind} | {} tokens | median {:.1} ms | \
             99 % {:.1} ms | longest {longest:.1} ms, {:.1} ms beyond the median (bar 20) | copied {:.0} MB, at most {:.1} \
             ms between two tokens |",
            all.len(),
            at(0.5),
            at(0.99),
            longest - at(0.5),
            usage.copied_bytes as f64 / 1e6,
            ms(usage.longest_pause),
        );
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
