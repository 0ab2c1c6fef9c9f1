//! Measures the savings and the cost of a prompt store, on one model in one run. It measures the first token of three
//! conversations, and compares it with computing the prompt: eight other conversations have displaced the first
//! conversation, the model of the second one was re-placed, and the third one goes on after a restart. It measures the
//! tokens per second of texts that reuse nothing, and compares them with a model without a store. It also measures the
//! longest waits for a token of a running text: while another text is being stored, compared with a model without a
//! store, and while another text is being restored, compared with a text that the context still holds. Prints rows of a
//! Markdown table.
//!
//!     AUTOPLACE_BENCH_MODEL=model.gguf AUTOPLACE_BENCH_DEPTH=4000 \
//!         cargo bench -p autoplace-benches --bench prompt_store
//!
//! Instead of a path, the model may be `windowed` or `hybrid`, which are small models with random weights, or `wide:N`:
//! N blocks of the width of Llama 3 8B in Q8_0 with random weights. Each block has 0.22 GiB, and the other weights have
//! 0.26 GiB. Arguments select the measurements: `... --bench prompt_store -- first-token`, `throughput`, `stall` or
//! `restore`. After `throughput` or `stall` they also select the stores: `... -- throughput memory full folder`, `...
//! -- stall memory folder`. With `own-threads`, the engines of `throughput` choose their threads themselves. With
//! `AUTOPLACE_BENCH_WAIT=1`, `stall` and `restore` wait for a line of input before they measure, because their long
//! texts take minutes to compute, for which the machine need not be quiet.

mod paired;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use autoplace::generate::{Engine, GenerateRequest, TokenStream};
use autoplace::gguf::TensorType;
use autoplace::llama_sys::Token;
use autoplace::load::Replacement;
use autoplace::plan::Request;
use autoplace::store::{PromptStore, StoreOptions};
use autoplace::{Model, ModelBuilder};
use paired::{Paired, Run, is_measured, model_path, paired};
use test_support::random_weights;
use test_support::synthetic::{Dims, Sketch};

/// Places of each engine. Eight other texts displace the least recently used text.
const PLACES: u32 = 8;
/// Tokens of an answer.
const ANSWER: usize = 16;
/// Tokens of the message after the answer.
const MESSAGE: usize = 20;
/// The maximum number of tokens in a text that displaces another one.
const LONGEST_OTHER: usize = 32;
const MEMORY: u64 = 2 << 30;
const FOLDER: u64 = 16 << 30;

fn main() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let (path, name) = model(folder.path());
    let chosen: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let parts = ["first-token", "throughput", "stall", "restore"];
    let (stores, others) = (["memory", "full", "folder"], ["own-threads"]);
    // `cargo test WORD` gives its word to each bench, too.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    for word in chosen.iter().filter(|_| is_bench) {
        let is_known = parts.iter().chain(&stores).chain(&others).any(|known| known == word);
        assert!(is_known, "{word:?} is none of {parts:?}, {stores:?} and {others:?}");
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
        let own_threads = chosen.iter().any(|word| word == "own-threads");
        throughput(&path, &name, &folder.path().join("throughput"), own_threads, has_store);
    }
    if is_chosen("stall") {
        stall(&path, &name, depth, &folder.path().join("stall"), has_store);
    }
    if is_chosen("restore") {
        restore(&path, &name, depth);
    }
}

/// The model's file, and its name in the tables.
fn model(folder: &Path) -> (PathBuf, String) {
    let path = model_path();
    let arch = match path.as_str() {
        "windowed" => "gpt-oss",
        "hybrid" => "jamba",
        _ => {
            if let Some(blocks) = path.strip_prefix("wide:") {
                return wide(blocks.parse().expect("a number of blocks"), folder);
            }
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

/// A model with the width of Llama 3 8B, and with this number of blocks.
fn wide(n_layer: u64, folder: &Path) -> (PathBuf, String) {
    let dims = Dims { n_layer, n_embd: 4096, n_ff: 14336, n_head: 32, n_head_kv: 8, head_dim: 128, n_vocab: 32000 };
    let mut sketch = Sketch::new("llama", "wide", dims);
    sketch.vocabulary();
    sketch.ends(TensorType::Q8_0, Some(TensorType::Q8_0));
    for il in 0..n_layer {
        sketch.norms(il);
        sketch.attention(il, TensorType::Q8_0);
        sketch.feed_forward(il, TensorType::Q8_0, TensorType::Q8_0);
    }
    let path = sketch.write(folder);
    random_weights::fill_large(&path).expect("room for the model");
    let gib = path.metadata().map_or(0, |file| file.len()) as f64 / (1_u64 << 30) as f64;
    (path, format!("{n_layer} blocks as wide as Llama 3 8B, Q8_0, {gib:.1} GiB"))
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
            let prompt = words(seed, (depth / 8).min(LONGEST_OTHER));
            turn(&engine, greedy(&model, &prompt, 2), &prompt);
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
    // The later prompts are up to 108 tokens longer, so computing them again would take a little longer.
    let computed = begun.first_token;
    for (what, measured, bar) in
        [("displaced by eight others", &displaced, 0.05), ("re-placed", &replaced, 0.1), ("restarted", &restarted, 0.1)]
    {
        let first = measured.first_token + if what == "restarted" { opening } else { Duration::ZERO };
        let ratio = first.as_secs_f64() / computed.as_secs_f64();
        println!(
            "| {name} | {depth} tokens, {what} | {} restored | {:.1} ms | computed {:.1} ms | {ratio:.4} (bar {bar}) |",
            measured.restored,
            first.as_secs_f64() * 1e3,
            computed.as_secs_f64() * 1e3,
        );
    }
}

/// A fixed number of threads. A model that tries other numbers would differ from another model for seconds.
fn threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32)
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
        store.flush().unwrap();
    }
    (begun.elapsed(), tokens)
}

fn throughput(path: &Path, name: &str, folder: &Path, own_threads: bool, is_chosen: impl Fn(&str) -> bool) {
    let kinds = [
        ("memory", "memory", PromptStore::new(MEMORY)),
        // With this size, each text evicts earlier ones.
        ("full", "memory, full", PromptStore::new(64 << 20)),
        ("folder", "memory and a folder", store(folder)),
    ];
    for (_, kind, store) in kinds.into_iter().filter(|kind| is_chosen(kind.0)) {
        let builder = || {
            let builder = builder(path, PLACES, 512);
            if own_threads { builder } else { builder.n_threads(threads()) }
        };
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

/// A wait for a token, and the time of the step that computed it.
#[derive(Clone, Copy)]
struct Wait {
    whole: Duration,
    step: Duration,
}

impl Wait {
    /// The time in which no token of the text was computed.
    fn outside(&self) -> Duration {
        self.whole.saturating_sub(self.step)
    }
}

/// Reads the tokens of a running text until `ends`, or the text ends.
fn waits_until(running: &mut TokenStream, ends: impl Fn() -> bool) -> Vec<Wait> {
    let mut waits = Vec::new();
    let mut before = running.statistics().generation_time;
    let mut last = Instant::now();
    while !ends() {
        let piece = running.pieces().next();
        let Some(piece) = piece else { break };
        piece.expect("the model generates");
        let generating = running.statistics().generation_time;
        waits.push(Wait { whole: last.elapsed(), step: generating.saturating_sub(before) });
        (last, before) = (Instant::now(), generating);
    }
    waits
}

/// A text of 400 tokens that has begun.
fn running(engine: &Engine, model: &Model, seed: u32) -> TokenStream {
    let generated = if is_measured() { 400 } else { 20 };
    let mut running = engine.submit(greedy(model, &words(seed, 32), generated)).expect("the prompt fits");
    running.pieces().next().expect("a token").expect("the model generates");
    running
}

/// The waits for tokens of a text, measured from the moment at which another text ended.
fn waits(engine: &Engine, model: &Model, long: &[Token], seed: u32) -> Vec<Wait> {
    let mut running = running(engine, model, seed);
    // The long text is still in the context, and ends after its second token. From then on its sequence is idle.
    turn(engine, greedy(model, long, 2), long);
    // Pieces that were generated in the meantime arrive at once.
    let all = waits_until(&mut running, || false);
    all.into_iter().skip_while(|wait| wait.whole < wait.step / 2).collect()
}

/// A model, and its engine, which holds a long text and has two more places. The engine may run far ahead of its
/// readers, so that the measured waits are waits for the engine.
fn with_long_text(builder: ModelBuilder, long: &[Token]) -> (Model, Engine) {
    let model = builder.n_threads(threads()).load().expect("the model loads");
    let engine = Engine::builder(&model).prompt_chunk(512).ahead(4096).start().expect("the context is free");
    turn(&engine, greedy(&model, long, 2), long);
    (model, engine)
}

fn rounds() -> u32 {
    let asked = std::env::var("AUTOPLACE_BENCH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    if is_measured() { asked.unwrap_or(4) } else { 1 }
}

/// Waits for a line of input, if the environment says so.
fn wait_for_quiet() {
    if std::env::var_os("AUTOPLACE_BENCH_WAIT").is_some() {
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).expect("a line");
    }
}

/// Median, 99th percentile and longest value, in milliseconds.
fn spread(times: impl Iterator<Item = Duration>) -> [f64; 3] {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).or(times.last()).map_or(0.0, |time| ms(*time));
    [at(0.5), at(0.99), at(1.0)]
}

/// The waits, and the two parts of them: the steps, and the time outside of the steps.
fn described(waits: Vec<Wait>) -> String {
    let [median, most, longest] = spread(waits.iter().map(|wait| wait.whole));
    let [_, most_steps, longest_step] = spread(waits.iter().map(|wait| wait.step));
    let [_, most_outside, longest_outside] = spread(waits.iter().map(Wait::outside));
    format!(
        "{} tokens | wait: median {median:.1} ms, 99 % {most:.1} ms, longest {longest:.1} ms | step: 99 % {most_steps:.1} \
         ms, longest {longest_step:.1} ms | outside of the step: 99 % {most_outside:.1} ms, longest \
         {longest_outside:.1} ms (bar 20)",
        waits.len(),
    )
}

fn stall(path: &Path, name: &str, depth: usize, folder: &Path, is_chosen: impl Fn(&str) -> bool) {
    let long = words(100, depth);
    let builder = || builder(path, 3, depth + 1024);
    let (plain, without) = with_long_text(builder(), &long);
    let kinds = [("memory", PromptStore::new(MEMORY)), ("folder", store(folder))];
    for (kind, kept) in kinds.into_iter().filter(|kind| is_chosen(kind.0)) {
        let (stored, with) = with_long_text(builder().prompt_store(kept.clone()), &long);
        wait_for_quiet();
        let mut all = [Vec::new(), Vec::new()];
        for round in 0..rounds() {
            // The order alternates, so that a drifting clock speed favours neither.
            for with_store in [round % 2 == 0, round % 2 == 1] {
                let seed = 1000 + 10 * round;
                if with_store {
                    // Otherwise the store would hold the long text already.
                    kept.clear().unwrap();
                    all[1].extend(waits(&with, &stored, &long, seed));
                    kept.flush().unwrap();
                } else {
                    all[0].extend(waits(&without, &plain, &long, seed));
                }
            }
        }
        let usage = kept.usage();
        let [without, with] = all.map(described);
        println!(
            "| {name} | while {depth} tokens are stored, store: {kind} | {with} | copied {:.0} MB in all, at most {:.1} ms between two tokens |",
            usage.copied_bytes as f64 / 1e6,
            ms(usage.longest_pause)
        );
        println!("| {name} | the same without a store | {without} | |");
    }
}

fn restore(path: &Path, name: &str, depth: usize) {
    let long = words(100, depth);
    let kept = PromptStore::new(MEMORY);
    let builder = builder(path, 3, depth + 1024).prompt_store(kept.clone());
    let (model, engine) = with_long_text(builder, &long);
    wait_for_quiet();
    let mut all = [Vec::new(), Vec::new()];
    let mut firsts = [Duration::ZERO; 2];
    for round in 0..rounds() {
        for is_displaced in [true, false] {
            if is_displaced {
                let others = (0..3).map(|at| greedy(&model, &words(2000 + 10 * round + at, 64), 2));
                let others: Vec<_> = others.map(|text| engine.submit(text).expect("the prompt fits")).collect();
                others.into_iter().for_each(|text| drop(text.into_text().expect("the model generates")));
            }
            let mut running = running(&engine, &model, 3000 + 10 * round + u32::from(is_displaced));
            let prompt = [&long[..], &words(4000 + 2 * round + u32::from(is_displaced), MESSAGE)].concat();
            let is_there = AtomicBool::new(false);
            let (waits, again) = std::thread::scope(|scope| {
                let asked = scope.spawn(|| {
                    let again = turn(&engine, greedy(&model, &prompt, 2), &prompt);
                    is_there.store(true, Ordering::Relaxed);
                    again
                });
                let waits = waits_until(&mut running, || is_there.load(Ordering::Relaxed));
                (waits, asked.join().expect("the model generates"))
            });
            assert_eq!(again.restored > 0, is_displaced, "{} tokens are restored", again.restored);
            drop(running.into_text());
            all[usize::from(is_displaced)].extend(waits);
            firsts[usize::from(is_displaced)] += again.first_token;
        }
    }
    let pause = ms(kept.usage().longest_pause);
    let [held, displaced] = all.map(described);
    let [of_held, of_displaced] = firsts.map(|first| ms(first / rounds()));
    println!(
        "| {name} | while {depth} tokens are restored | {displaced} | at most {pause:.1} ms between two tokens | first token {of_displaced:.0} ms |"
    );
    println!("| {name} | while the context still holds them | {held} | | first token {of_held:.0} ms |");
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
