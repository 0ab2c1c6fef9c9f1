//! Measures the memory of `autoplace serve` and of llama.cpp's llama-server after many requests, and
//! after many clients that come and go.
//!
//! In: a model, and both servers, compiled with the same options. Out: Markdown tables on standard output. Both servers
//! get the same requests (`cargo xtask server-memory`). The test fails if an answer is incomplete, or if a place of a
//! server is still occupied at the end.

use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Arguments, Kind, Random, Server, servers};

/// The number of places of each server, and of requests that run at the same time in the first part.
const PLACES: usize = 8;
/// Tokens of context for each place.
const TOKENS_EACH: usize = 2048;
/// Tokens of each answer.
const ANSWER: usize = 16;
/// Tokens of an answer that the client does not read to its end.
const LEFT_ANSWER: usize = 160;
/// The maximum number of events that the client reads of such an answer.
const EVENTS: usize = 40;
/// Words of the shortest and of the longest prompt.
const WORDS: (usize, usize) = (20, 120);
/// The number of clients that come and go together.
const CLIENTS: usize = 64;
/// The number of requests of each client.
const VISITS: usize = 4;
/// How many times all clients come.
const WAVES: usize = 3;
/// The time that a server has to notice that its clients have left.
const REST: Duration = Duration::from_secs(3);

/// The names of the two parts, which can be measured separately.
const REQUESTS: &str = "requests";
const COMING: &str = "clients";

/// The second argument is the number of requests; the default is 1,000.
#[test]
#[ignore = "minutes, beside a llama-server: `cargo xtask server-memory MODEL`"]
fn the_memory_after_many_requests_and_many_clients() -> Result<()> {
    let usage = "server-memory MODEL [REQUESTS] [requests|clients]";
    let arguments = Arguments::from_environment(usage, 1000, &[REQUESTS, COMING])?;
    let servers = servers()?;
    if arguments.has(REQUESTS) {
        let n = arguments.number;
        println!("\n| {n} requests, {PLACES} at once | started | after a half | after all | peak | time |");
        println!("|---|--:|--:|--:|--:|--:|");
        for kind in &servers {
            println!("| {} | {} |", kind.name(), after_requests(kind, &arguments.model, n)?);
        }
    }
    if arguments.has(COMING) {
        println!(
            "\n| {CLIENTS} clients that come and go, {WAVES} times | started | after the first time | after the last \
             | peak | complete answers | left answers | time |"
        );
        println!("|---|--:|--:|--:|--:|--:|--:|--:|");
        for kind in &servers {
            println!("| {} | {} |", kind.name(), after_clients(kind, &arguments.model)?);
        }
    }
    Ok(())
}

fn start(kind: &Kind, model: &Path) -> Result<Server> {
    // The demo model has no chat template.
    Server::start(kind, model, PLACES, PLACES * TOKENS_EACH, &["--chat-template", "chatml"])
}

fn mib(bytes: Option<u64>) -> Result<String> {
    let bytes = bytes.context("the memory of a process is read from /proc, so this works on Linux only")?;
    Ok(format!("{} MiB", bytes >> 20))
}

/// Requests complete answers. Returns a row of the table.
fn after_requests(kind: &Kind, model: &Path, requests: usize) -> Result<String> {
    let server = &start(kind, model)?;
    let started = mib(server.memory())?;
    let begun = Instant::now();
    ask(server, 0..requests / 2)?;
    let halfway = mib(server.memory())?;
    ask(server, requests / 2..requests)?;
    let seconds = begun.elapsed().as_secs_f64();
    let (after, peak) = (mib(server.memory())?, mib(server.peak_memory())?);
    Ok(format!("{started} | {halfway} | {after} | {peak} | {seconds:.0} s"))
}

/// Requests these texts, [`PLACES`] at a time.
fn ask(server: &Server, numbers: Range<usize>) -> Result<()> {
    let numbers = Mutex::new(numbers);
    together(PLACES, |_| {
        loop {
            let Some(number) = numbers.lock().expect("nobody panics").next() else { return Ok(()) };
            server.text(number, words(number), ANSWER, || {})?;
        }
    })
}

/// Lets clients come and go. Each visit reads its whole answer, or closes the connection at a random point in the
/// middle. Returns a row of the table.
fn after_clients(kind: &Kind, model: &Path) -> Result<String> {
    let server = &start(kind, model)?;
    let started = mib(server.memory())?;
    let (complete, left) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
    let begun = Instant::now();
    let mut after = Vec::new();
    for wave in 0..WAVES {
        together(CLIENTS, |client| {
            let mut random = Random((wave * CLIENTS + client) as u64 + 1);
            for visit in 0..VISITS {
                let number = (wave * CLIENTS + client) * VISITS + visit;
                if random.below(2) == 0 {
                    server.leave(number, words(number), LEFT_ANSWER, random.below(EVENTS))?;
                    left.fetch_add(1, Ordering::Relaxed);
                } else {
                    server.text(number, words(number), ANSWER, || {})?;
                    complete.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        })?;
        thread::sleep(REST);
        // All places of the server must be free again.
        together(PLACES, |client| server.text(client, WORDS.0, ANSWER, || {}).map(|_| ()))?;
        after.push(mib(server.memory())?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let peak = mib(server.peak_memory())?;
    let (complete, left) = (complete.load(Ordering::Relaxed), left.load(Ordering::Relaxed));
    let (first, last) = (&after[0], &after[WAVES - 1]);
    Ok(format!("{started} | {first} | {last} | {peak} | {complete} | {left} | {seconds:.0} s"))
}

/// The number of words of a prompt. All lengths between the shortest and the longest occur, in no order.
fn words(number: usize) -> usize {
    WORDS.0 + number * 37 % (WORDS.1 - WORDS.0)
}

/// Runs `task` in `n` threads, and returns the first error.
fn together(n: usize, task: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let task = &task;
        let threads: Vec<_> = (0..n).map(|number| scope.spawn(move || task(number))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })
}
