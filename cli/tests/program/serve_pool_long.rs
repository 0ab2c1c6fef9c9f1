//! A long run of `autoplace serve` with three models, of which only two fit into memory at once. There are many
//! requests from several clients, some workers are killed, and a limit is lowered during the run. The numbers for
//! `benches/results` are printed.
//!
//! `AUTOPLACE_POOL_MODELS` names three GGUF files (default: the demo model). `AUTOPLACE_POOL_REQUESTS` is the number of
//! requests (default: 1,000). `AUTOPLACE_POOL_KILLS` is the probability, in percent, that a worker is killed within a
//! tenth of a second (default: 2, which means one worker in five seconds).

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::random_weights::Dice;

use crate::server::{FILE, Server, TEXT};

const NAMES: [&str; 3] = ["a", "b", "c"];
const CLIENTS: u64 = 4;

/// The text of a pool's file with this limit in bytes.
fn file(models: &[String], ram: u64) -> String {
    let mut text = format!("[pool]\nreloads_per_minute = 60\nram = {ram}\n");
    for (name, model) in NAMES.iter().zip(models) {
        text += &format!("[models.{name}]\nmodel = \"{model}\"\nctx = 512\nparallel = 2\n");
    }
    text
}

fn asked(model: &str) -> String {
    json!({"model": model, "prompt": "In the beginning", "max_tokens": 12, "temperature": 0}).to_string()
}

fn text_of(answer: &Value) -> Value {
    answer["choices"][0]["text"].clone()
}

/// How many bytes of host memory each model uses, and the text that it writes. Each model runs alone, in a server
/// without a limit.
fn alone(models: &[String], folder: &str) -> (Vec<u64>, Vec<Value>) {
    fs::write(format!("{folder}/alone.toml"), file(models, 1 << 40)).unwrap();
    let server = Server::start_pool(&["--models", &format!("{folder}/alone.toml")]);
    let each = NAMES.map(|name| {
        let (status, answer) = server.post(TEXT, &asked(name));
        assert_eq!(status, 200, "{answer}");
        let (_, model) = server.get(&format!("/v1/models/{name}"));
        let held = &model["placement"]["held"];
        (held["host"].as_u64().unwrap() + held["host_margin"].as_u64().unwrap(), text_of(&answer))
    });
    each.into_iter().unzip()
}

/// The resident bytes of a process and of its children. Pages that they share are counted once (PSS).
fn resident(process: u32) -> u64 {
    let of = |process: &str| {
        let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    of(&process.to_string()) + children(process).iter().map(|child| of(child)).sum::<u64>()
}

fn children(process: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
#[ignore = "some minutes: prints the figures of benches/results"]
fn a_thousand_requests_of_three_models_where_two_fit() {
    let named = std::env::var("AUTOPLACE_POOL_MODELS").unwrap_or_default();
    let mut models: Vec<String> = named.split_whitespace().map(str::to_owned).collect();
    if models.is_empty() {
        models = vec![FILE.to_owned(); 3];
    }
    let count: usize = std::env::var("AUTOPLACE_POOL_REQUESTS").ok().map_or(1000, |count| count.parse().unwrap());
    let kills: u64 = std::env::var("AUTOPLACE_POOL_KILLS").ok().map_or(2, |percent| percent.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let (held, texts) = alone(&models, folder);
    let mut sizes = held.clone();
    sizes.sort_unstable();
    // Any two of the models fit together, but not all three.
    let two = sizes[1] + sizes[2] + (8 << 20);
    let one = sizes[2] + (8 << 20);
    println!("bytes of the host: {held:?}; the limit holds two: {two}, later one: {one}");
    let path = format!("{folder}/pool.toml");
    fs::write(&path, file(&models, two)).unwrap();
    let server = Server::start_pool(&["--models", &path]);
    let (given, killed, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::<String>::new()));
    let (peak, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let times = Mutex::new(Vec::<f64>::new());
    let most_loaded = Mutex::new(BTreeMap::<u64, usize>::new());
    let begun = Instant::now();
    thread::scope(|scope| {
        let (server, texts) = (&server, &texts);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (given, times, wrong) = (&given, &times, &wrong);
                scope.spawn(move || {
                    let mut dice = Dice::new(client);
                    let mut model = 0;
                    while given.fetch_add(1, Ordering::Relaxed) < count {
                        // A client uses one model for a while, and then chooses again.
                        if dice.percent(8) {
                            model = dice.below(3_usize);
                        }
                        let asked_at = Instant::now();
                        let (status, answer) = server.post(TEXT, &asked(NAMES[model]));
                        times.lock().unwrap().push(asked_at.elapsed().as_secs_f64());
                        if status != 200 || text_of(&answer) != texts[model] {
                            wrong.lock().unwrap().push(format!("{}: {status} {answer}", NAMES[model]));
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut dice = Dice::new(99);
            let mut is_lowered = false;
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(100));
                let done = given.load(Ordering::Relaxed);
                peak.fetch_max(resident(server.id()), Ordering::Relaxed);
                let (_, listed) = server.get("/v1/models");
                let loaded = listed["data"].as_array().into_iter().flatten();
                let loaded = loaded.filter(|model| model["status"]["value"] == "loaded").count() as u64;
                *most_loaded.lock().unwrap().entry(loaded).or_default() += 1;
                if dice.percent(kills) {
                    let workers = children(server.id());
                    if let Some(worker) = workers.first() {
                        let kill = Command::new("kill").args(["-KILL", worker]).status();
                        killed.fetch_add(usize::from(kill.unwrap().success()), Ordering::Relaxed);
                    }
                }
                if !is_lowered && done > count * 3 / 4 {
                    is_lowered = true;
                    fs::write(&path, file(&models, one)).unwrap();
                    server.signal("-HUP");
                }
            }
        });
        clients.into_iter().for_each(|client| client.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    let mut times = times.into_inner().unwrap();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{} requests by {CLIENTS} clients in {:.0} s", times.len(), begun.elapsed().as_secs_f64());
    println!("seconds of a request: median {:.2}, nine of ten {:.2}, the longest {:.2}", at(0.5), at(0.9), at(1.0));
    println!("workers killed: {}", killed.into_inner());
    println!("memory of all processes together, shared pages counted once: {} MiB at most", peak.into_inner() >> 20);
    println!("looks with so many models loaded: {:?}", most_loaded.into_inner().unwrap());
    let (_, listed) = server.get("/v1/models");
    let loaded =
        listed["data"].as_array().into_iter().flatten().filter(|model| model["status"]["value"] == "loaded").count();
    println!("models loaded at the end: {loaded}");
    let wrong = wrong.into_inner().unwrap();
    println!("answers that were no text, or another one: {}", wrong.len());
    assert!(wrong.is_empty(), "{:#?}", &wrong[..wrong.len().min(5)]);
    assert!(loaded <= 1, "the lower limit holds one: {listed}");
}
