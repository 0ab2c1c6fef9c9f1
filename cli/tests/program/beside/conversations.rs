//! Measures many conversations (`cargo xtask conversations`) on servers with few places: `autoplace serve`, and the
//! llama-server of the latest llama.cpp whose whole source a package has. It reports the share of the prompts that each
//! server computes, the total time, and the memory.
//!
//! In: a model, and both servers, compiled with the same options. Out: Markdown tables on standard output. Both servers
//! get the same trace. In the mixed trace, conversations continue after turns of other conversations, and there are
//! edits of earlier turns, and forks. In the other trace, all conversations begin one after another, and then all
//! continue in the same order. All conversations begin with the same system message.

use std::collections::VecDeque;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Arguments, Kind, Random, Server, servers, words};

/// The number of places of each server, and of requests that run at the same time.
const PLACES: usize = 8;
/// Tokens of context for each place.
const TOKENS_EACH: usize = 4096;
/// Tokens of each answer.
const ANSWER: usize = 24;
/// The average number of turns of a conversation.
const TURNS: usize = 4;
/// Words of the system message.
const SYSTEM: usize = 300;
/// Words of each other message.
const MESSAGE: usize = 120;

/// The names of the two traces, which can be measured separately.
const MIXED: &str = "mixed";
const IN_TURN: &str = "in turn";

/// One request of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    conversation: usize,
    kind: Turn,
    /// The seed that determines the words of the message.
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Continues the conversation.
    Next,
    /// Replaces the user's last message and everything after it.
    Edit,
    /// Begins a conversation with all but the last turn of another one.
    Fork { of: usize },
}

/// The trace of `conversations` conversations. The conversations begin one after another. In two of three cases, a
/// later turn belongs to one of the last forty conversations, and otherwise to any conversation.
fn trace(conversations: usize) -> Vec<Request> {
    let mut random = Random(7);
    let (mut requests, mut begun) = (Vec::new(), 0);
    while requests.len() < conversations * TURNS {
        let seed = requests.len() as u64 + 1;
        let is_new = begun == 0 || (begun < conversations && random.below(TURNS) == 0);
        if is_new {
            let kind =
                if begun > 4 && random.below(5) == 0 { Turn::Fork { of: random.below(begun) } } else { Turn::Next };
            requests.push(Request { conversation: begun, kind, seed });
            begun += 1;
            continue;
        }
        let recent = begun.min(40);
        let conversation = if random.below(3) < 2 { begun - 1 - random.below(recent) } else { random.below(begun) };
        let kind = if random.below(6) == 0 { Turn::Edit } else { Turn::Next };
        requests.push(Request { conversation, kind, seed });
    }
    requests
}

/// The trace of `conversations` conversations of two turns each. Before a conversation continues, all others have had a
/// turn.
fn in_turn(conversations: usize) -> Vec<Request> {
    let request = |n: usize| Request { conversation: n % conversations, kind: Turn::Next, seed: n as u64 + 1 };
    (0..2 * conversations).map(request).collect()
}

/// A conversation so far: the user's messages, each with its answer.
type History = Vec<(String, String)>;

/// The figures of a server for the whole trace.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    prompt_tokens: u64,
    computed: u64,
    seconds: f64,
    /// The peak memory of the process, in MiB.
    peak: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prompt_tokens, computed, seconds, peak } = self;
        write!(f, "{prompt_tokens} | {computed} | {seconds:.0} s | {peak} MiB")
    }
}

/// The second argument is the number of conversations; the default is 200.
#[test]
#[ignore = "minutes, beside a llama-server: `cargo xtask conversations MODEL`"]
fn the_tokens_that_many_conversations_on_few_places_compute() -> Result<()> {
    let usage = "conversations MODEL [CONVERSATIONS] [mixed|in turn]";
    let arguments = Arguments::from_environment(usage, 200, &[MIXED, IN_TURN])?;
    let servers = servers()?;
    let count = arguments.number;
    for (name, trace) in [(MIXED, trace(count)), (IN_TURN, in_turn(count))] {
        if arguments.has(name) {
            compare(&servers, &arguments.model, &trace, &format!("{count} conversations, {name}"))?;
        }
    }
    Ok(())
}

/// Prints the table of one trace.
fn compare(servers: &[Kind; 2], model: &Path, trace: &[Request], name: &str) -> Result<()> {
    let count = trace.iter().map(|request| request.conversation + 1).max().unwrap_or(0);
    println!("\n| {name}, {} requests | tokens of prompts | computed | time | peak memory |", trace.len());
    println!("|---|--:|--:|--:|--:|");
    let mut figures = Vec::new();
    for server in servers {
        let measured = measure(server, model, trace, count)?;
        println!("| {} | {measured} |", server.name());
        figures.push(measured);
    }
    let [ours, theirs] = figures[..] else { return Ok(()) };
    let of_computed = ours.computed as f64 / theirs.computed.max(1) as f64;
    let of_memory = ours.peak as f64 / theirs.peak.max(1) as f64;
    println!("| *ratio* | | {of_computed:.2} | {:.2} | {of_memory:.2} |", ours.seconds / theirs.seconds);
    Ok(())
}

fn measure(kind: &Kind, model: &Path, trace: &[Request], count: usize) -> Result<Figures> {
    let server = &Server::start(kind, model, PLACES, PLACES * TOKENS_EACH, &[])?;
    let histories: &Vec<Mutex<History>> = &(0..count).map(|_| Mutex::default()).collect();
    let queue = &Mutex::new(trace.iter().copied().collect::<VecDeque<_>>());
    let begun = Instant::now();
    let client = || -> Result<Figures> {
        let mut figures = Figures::default();
        loop {
            let Some(request) = queue.lock().expect("nobody panics").pop_front() else { return Ok(figures) };
            let other = match request.kind {
                Turn::Fork { of } => {
                    let mut begin = histories[of].lock().expect("nobody panics").clone();
                    begin.pop();
                    Some(begin)
                }
                _ => None,
            };
            let mut history = histories[request.conversation].lock().expect("nobody panics");
            if let Some(begin) = other {
                *history = begin;
            }
            if request.kind == Turn::Edit {
                history.pop();
            }
            // A conversation that would become too long for its place begins anew.
            if history.len() * (2 * MESSAGE + 2 * ANSWER) + SYSTEM * 2 > TOKENS_EACH / 2 {
                history.clear();
            }
            let message = words(request.seed, MESSAGE);
            let (answer, prompt, computed) = ask(server, &history, &message)?;
            history.push((message, answer));
            figures.prompt_tokens += prompt;
            figures.computed += computed;
        }
    };
    let mut all = thread::scope(|scope| {
        let clients: Vec<_> = (0..PLACES).map(|_| scope.spawn(client)).collect();
        let mut all = Figures::default();
        for client in clients {
            let one = client.join().expect("it does not panic")?;
            all.prompt_tokens += one.prompt_tokens;
            all.computed += one.computed;
        }
        Ok::<_, anyhow::Error>(all)
    })?;
    all.seconds = begun.elapsed().as_secs_f64();
    all.peak = server.peak_memory().unwrap_or(0) >> 20;
    Ok(all)
}

/// Requests the next answer. Returns the answer, the number of tokens in the prompt, and the number of these tokens
/// that the server computed.
fn ask(server: &Server, history: &History, message: &str) -> Result<(String, u64, u64)> {
    let mut messages = vec![json!({"role": "system", "content": words(99, SYSTEM)})];
    for (asked, answered) in history {
        messages.push(json!({"role": "user", "content": asked}));
        messages.push(json!({"role": "assistant", "content": answered}));
    }
    messages.push(json!({"role": "user", "content": message}));
    let body = json!({"messages": messages, "max_tokens": ANSWER, "temperature": 0, "cache_prompt": true});
    let mut text = String::new();
    server.ask(&body)?.read_to_string(&mut text)?;
    let (_, answer) = text.split_once("\r\n\r\n").with_context(|| text.clone())?;
    let answer: Value = serde_json::from_str(&answer[answer.find('{').unwrap_or(0)..=answer.rfind('}').unwrap_or(0)])
        .with_context(|| text.clone())?;
    let content = answer["choices"][0]["message"]["content"].as_str().with_context(|| text.clone())?;
    let usage = &answer["usage"];
    let prompt = usage["prompt_tokens"].as_u64().context("no count of the prompt")?;
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().context("no count of cached tokens")?;
    Ok((content.to_owned(), prompt, prompt - cached.min(prompt)))
}

#[test]
fn the_trace_has_all_kinds_of_turns_and_is_always_the_same() {
    let requests = trace(200);
    assert_eq!(requests.len(), 200 * TURNS);
    assert_eq!(requests, trace(200));
    let count = |is: fn(Turn) -> bool| requests.iter().filter(|request| is(request.kind)).count();
    assert!(count(|turn| turn == Turn::Edit) > 60);
    assert!(count(|turn| matches!(turn, Turn::Fork { .. })) > 15);
    let conversations: std::collections::BTreeSet<_> = requests.iter().map(|request| request.conversation).collect();
    assert!(conversations.len() > 180, "{}", conversations.len());
}

#[test]
fn in_the_trace_of_turns_every_conversation_continues_after_all_others() {
    let order: Vec<usize> = in_turn(3).iter().map(|request| request.conversation).collect();
    assert_eq!(order, [0, 1, 2, 0, 1, 2]);
}
