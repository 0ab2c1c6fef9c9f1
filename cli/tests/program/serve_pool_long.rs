//! A long run of `autoplace serve` with three models, of which only two fit into memory at once. There are many
//! requests from several clients, some workers are killed, and a limit is lowered during the run. The numbers for
//! `benches/results` are printed.
//!
//! `AUTOPLACE_POOL_MODELS` names three GGUF files (default: the demo model). `AUTOPLACE_POOL_REQUESTS` is the number of
//! requests (default: 1,000), and `AUTOPLACE_POOL_SECONDS` the time after which no further one is made. With
//! `AUTOPLACE_POOL_SEED` other requests are made, so that a long run can be made in parts. `AUTOPLACE_POOL_KILLS` is
//! the probability, in percent, that a worker is killed within a tenth of a second (default: 2, which means one worker
//! in five seconds).

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

/// The number in an environment variable.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().unwrap())
}

/// Bytes of the host that a listed model takes, and the margin that must stay free beside all models together; 0 for a
/// model that is not loaded.
fn held(model: &Value) -> [u64; 2] {
    ["host", "host_margin"].map(|part| model["placement"]["held"][part].as_u64().unwrap_or(0))
}

/// The models of a list that are loaded, and the bytes of the host that they take together with the margin.
fn loaded(listed: &Value) -> (usize, u64) {
    let models = listed["data"].as_array().into_iter().flatten();
    let loaded: Vec<[u64; 2]> = models.map(held).filter(|[bytes, _]| *bytes > 0).collect();
    let margin = loaded.iter().map(|[_, margin]| *margin).max().unwrap_or(0);
    (loaded.len(), loaded.iter().map(|[bytes, _]| bytes).sum::<u64>() + margin)
}

/// How many bytes of host memory each model takes without the margin, the margin, and the text that each writes. The
/// models answer one after the other, in a server without a limit.
fn alone(models: &[String], folder: &str) -> (Vec<u64>, u64, Vec<Value>) {
    fs::write(format!("{folder}/alone.toml"), file(models, 1 << 40)).unwrap();
    let server = Server::start_pool(&["--models", &format!("{folder}/alone.toml")]);
    let each = NAMES.map(|name| {
        let (status, answer) = server.post(TEXT, &asked(name));
        assert_eq!(status, 200, "{answer}");
        let (_, model) = server.get(&format!("/v1/models/{name}"));
        let [bytes, margin] = held(&model);
        assert!(bytes > 0, "{model}");
        (bytes, margin, text_of(&answer))
    });
    let margin = each.iter().map(|(_, margin, _)| *margin).max().unwrap_or(0);
    let (held, texts) = each.into_iter().map(|(bytes, _, text)| (bytes, text)).unzip();
    (held, margin, texts)
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
    let count = number("AUTOPLACE_POOL_REQUESTS").unwrap_or(1000) as usize;
    let seconds = number("AUTOPLACE_POOL_SECONDS").unwrap_or(3600);
    let seed = number("AUTOPLACE_POOL_SEED").unwrap_or(0);
    let kills = number("AUTOPLACE_POOL_KILLS").unwrap_or(2);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let (held, margin, texts) = alone(&models, folder);
    let mut sizes = held.clone();
    sizes.sort_unstable();
    // Any two of the models fit together, but not all three, not even with one text at once. All models share the
    // margin.
    let slack = sizes[0] / 4;
    let two = sizes[1] + sizes[2] + margin + slack;
    // The largest one fits.
    let one = sizes[2] + margin + slack;
    println!("bytes of the host: {held:?}, and a margin of {margin}; the limit is {two}, later {one}");
    let path = format!("{folder}/pool.toml");
    fs::write(&path, file(&models, two)).unwrap();
    let server = Server::start_pool(&["--models", &path]);
    let (given, killed, died) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::<String>::new()));
    let wrong = Mutex::new(Vec::<String>::new());
    let (peak, most_held, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let times = Mutex::new(Vec::<f64>::new());
    let most_loaded = Mutex::new(BTreeMap::<u64, usize>::new());
    let begun = Instant::now();
    thread::scope(|scope| {
        let (server, texts) = (&server, &texts);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (given, died, times, wrong) = (&given, &died, &times, &wrong);
                scope.spawn(move || {
                    let mut dice = Dice::new(1000 * seed + client);
                    let mut model = dice.below(3_usize);
                    while begun.elapsed().as_secs() < seconds && given.fetch_add(1, Ordering::Relaxed) < count {
                        // A client uses one model for a while, and then chooses again.
                        if dice.percent(8) {
                            model = dice.below(3_usize);
                        }
                        let asked_at = Instant::now();
                        let (status, answer) = server.post(TEXT, &asked(NAMES[model]));
                        times.lock().unwrap().push(asked_at.elapsed().as_secs_f64());
                        if status == 500 && answer["error"]["code"] == "worker_died" {
                            died.lock().unwrap().push(answer["error"]["message"].to_string());
                        } else if status != 200 || text_of(&answer) != texts[model] {
                            wrong.lock().unwrap().push(format!("{}: {status} {answer}", NAMES[model]));
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut dice = Dice::new(1000 * seed + 99);
            let mut is_lowered = false;
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(100));
                let done = given.load(Ordering::Relaxed);
                peak.fetch_max(resident(server.id()), Ordering::Relaxed);
                let (_, listed) = server.get("/v1/models");
                let (loaded, bytes) = loaded(&listed);
                *most_loaded.lock().unwrap().entry(loaded as u64).or_default() += 1;
                most_held.fetch_max(bytes, Ordering::Relaxed);
                if dice.percent(kills) {
                    let workers = children(server.id());
                    if !workers.is_empty() {
                        let kill = Command::new("kill").args(["-KILL", &workers[dice.below(workers.len())]]).status();
                        killed.fetch_add(usize::from(kill.unwrap().success()), Ordering::Relaxed);
                    }
                }
                let is_late = done > count * 3 / 4 || begun.elapsed().as_secs() > seconds * 3 / 4;
                if !is_lowered && is_late {
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
    println!("memory of all processes together, shared pages counted once: {} MiB at most", peak.into_inner() >> 20);
    println!("looks with so many models loaded: {:?}", most_loaded.into_inner().unwrap());
    println!(
        "bytes that the loaded models take of the host with the margin, at most: {}",
        most_held.load(Ordering::Relaxed)
    );
    // The limit may have been lowered only seconds ago, so that the pool has yet to unload a model.
    let begun = Instant::now();
    let (mut count, mut bytes) = loaded(&server.get("/v1/models").1);
    while bytes > one && begun.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(100));
        (count, bytes) = loaded(&server.get("/v1/models").1);
    }
    println!("at the end {count} models are loaded, of {bytes} bytes with the margin");
    let (died, killed) = (died.into_inner().unwrap(), killed.into_inner());
    println!("workers killed: {killed}; answers that say that the worker died: {}", died.len());
    died.iter().for_each(|message| println!("  {message}"));
    let wrong = wrong.into_inner().unwrap();
    println!("answers with another text or another error: {}", wrong.len());
    assert!(wrong.is_empty() && died.len() <= killed, "{:#?}", &wrong[..wrong.len().min(5)]);
    assert!(most_held.into_inner() <= two && bytes <= one, "{bytes} of {one} bytes");
}
