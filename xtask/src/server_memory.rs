//! `server-memory`: the memory of `autoplace serve` and of the llama-server of the pinned llama.cpp after many
//! requests, and after many clients that come and go.
//!
//! In: a model, and both servers, compiled with the same options. Out: a Markdown table on standard output. Both
//! servers get the same requests.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::first_token::{Kind, Server, model_file, servers};
use crate::workspace::Workspace;

/// Places of each server, and the requests that are under way at once before the clients come and go.
const PLACES: usize = 8;
/// Tokens of context for each place.
const TOKENS_EACH: usize = 2048;
/// Tokens of each answer.
const ANSWER: usize = 16;
/// Words of the shortest and of the longest prompt.
const WORDS: (usize, usize) = (20, 120);
/// Clients that come and go, and the requests of each.
const CLIENTS: usize = 64;
const VISITS: usize = 4;
/// The time that a server has to notice that its clients have left.
const REST: Duration = Duration::from_secs(3);

/// MiB of one server at four moments, and the seconds of both parts.
struct Figures {
    started: u64,
    after_requests: u64,
    after_clients: u64,
    peak: u64,
    seconds: (f64, f64),
}

/// Measures with this model. The second argument is the number of requests; the default is 1,000.
pub(crate) fn server_memory(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    const USAGE: &str = "cargo xtask server-memory MODEL [REQUESTS]";
    let (model, requests) = match arguments {
        [model] => (model, 1000),
        [model, requests] => (model, requests.parse().context(USAGE)?),
        _ => anyhow::bail!("usage: {USAGE}"),
    };
    let model = model_file(model)?;
    println!(
        "| memory | started | after {requests} requests | after {CLIENTS} clients | peak | time of the requests | \
         time of the clients |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for server in &servers(workspace)? {
        let Figures { started, after_requests, after_clients, peak, seconds } = measure(server, &model, requests)?;
        println!(
            "| {} | {started} MiB | {after_requests} MiB | {after_clients} MiB | {peak} MiB | {:.0} s | {:.0} s |",
            server.name(),
            seconds.0,
            seconds.1
        );
    }
    Ok(())
}

fn measure(kind: &Kind, model: &Path, requests: usize) -> Result<Figures> {
    let server = &Server::start(kind, model, PLACES, PLACES * TOKENS_EACH)?;
    let memory =
        |of: Option<u64>| of.map(|bytes| bytes >> 20).context("the memory of a process is read from /proc: Linux only");
    let started = memory(server.memory())?;

    let begun = Instant::now();
    let next = &AtomicUsize::new(0);
    together(PLACES, |_| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= requests {
                return Ok(());
            }
            server.text(number, words(number), ANSWER, || {})?;
        }
    })?;
    let of_requests = begun.elapsed().as_secs_f64();
    let after_requests = memory(server.memory())?;

    let begun = Instant::now();
    together(CLIENTS, |client| {
        for visit in 0..VISITS {
            let number = requests + client * VISITS + visit;
            // Every second client leaves in the middle of its answer.
            if (client + visit) % 2 == 0 {
                server.leave(number, words(number), 10 * ANSWER)?;
            } else {
                server.text(number, words(number), ANSWER, || {})?;
            }
        }
        Ok(())
    })?;
    thread::sleep(REST);
    // All of its places are free again.
    together(PLACES, |client| server.text(client, 20, ANSWER, || {}).map(|_| ()))?;
    let of_clients = begun.elapsed().as_secs_f64();
    let after_clients = memory(server.memory())?;
    let peak = memory(server.peak_memory())?;
    Ok(Figures { started, after_requests, after_clients, peak, seconds: (of_requests, of_clients) })
}

/// Prompts of all lengths between the shortest and the longest, in no order.
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
