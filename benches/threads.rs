//! Measures the speed of generation by the number of threads, on a machine with other programs. The ways to generate
//! are one thread, all threads, all threads with passive waits of OpenMP, and the library's own choice. At the same
//! time, none, one or two other programs compute. Prints a table of tokens per second, the medians of the rounds.
//!
//! Each way runs in its own process, because OpenMP reads its environment only once. The processes keep the model
//! loaded, and take turns. The library's own choice is measured twice: with a model that was loaded on the quiet
//! machine, and with a model that was loaded while the other programs ran.
//!
//!     cargo bench -p autoplace-benches --bench threads

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use autoplace::Model;
use autoplace::gguf::TensorType;
use test_support::synthetic::{Dims, Sketch};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
/// The role of a process: one of the ways, or one of the other programs.
const ROLE: &str = "AUTOPLACE_BENCH_ROLE";
/// The sizes of a model with the width of Llama 3.2 3B and blocks for 2 GiB of Q8_0. The CPU does not repack this type
/// here.
const WIDE: Dims =
    Dims { n_layer: 18, n_embd: 3072, n_ff: 8192, n_head: 24, n_head_kv: 8, head_dim: 128, n_vocab: 32000 };
/// Maximum number of tokens of one text.
const TOKENS: usize = 200;

fn main() {
    match std::env::var(ROLE).as_deref() {
        Ok("busy") => compute_for_ever(),
        Ok(threads) => serve(threads),
        Err(_) => measure(),
    }
}

/// Computes until its parent ends it or is gone. This is one of the other programs.
fn compute_for_ever() -> ! {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let mut x = 1_u64;
    loop {
        x = std::hint::black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7));
    }
}

/// Runs one way: loads the model, and answers each line of input. A line has the number of milliseconds to generate.
/// The answer has the tokens per second and the threads.
fn serve(threads: &str) {
    let path = std::env::args().nth(1).expect("a model");
    let builder = Model::builder(path).n_ctx(512);
    let builder = match threads {
        "default" => builder,
        threads => builder.n_threads(threads.parse().expect("a number")),
    };
    let model = builder.load().expect("the model loads");
    println!("loaded");
    eprintln!("{}", model.report().threads);
    for (seed, line) in (0..).zip(std::io::stdin().lines()) {
        let line = line.expect("a line");
        let slice = Duration::from_millis(line.parse().expect("milliseconds"));
        let (mut took, mut tokens) = (Duration::ZERO, 0);
        // The number of tokens that were computed with each number of threads.
        let mut threads = BTreeMap::new();
        while took < slice {
            let generate = model.generate("And it came to pass").seed(seed);
            let mut stream = generate.max_tokens(TOKENS).stream().expect("it fits");
            while took + stream.statistics().generation_time < slice && stream.next().is_some() {
                *threads.entry(stream.statistics().threads).or_insert(0) += 1;
            }
            let statistics = stream.statistics();
            took += statistics.generation_time;
            tokens += statistics.generated_tokens.saturating_sub(1);
        }
        let most = threads.into_iter().max_by_key(|&(_, tokens)| tokens);
        let most = most.map_or(0, |(threads, _)| threads);
        println!("{} {most}", tokens as f64 / took.as_secs_f64());
    }
}

/// A process that is ended when this value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process of this program in another role.
fn start(role: &str, passive: bool, model: Option<&Path>) -> Process {
    let mut command = Command::new(std::env::current_exe().expect("its own path"));
    command.env(ROLE, role).args(model);
    if passive {
        command.env("OMP_WAIT_POLICY", "passive");
    }
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Process(command.spawn().expect("another process"))
}

struct Way {
    name: &'static str,
    _process: Process,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    speeds: Vec<f64>,
    threads: String,
}

impl Way {
    fn load(name: &'static str, threads: &str, passive: bool, model: &Path) -> Self {
        let mut process = start(threads, passive, Some(model));
        let to = process.0.stdin.take().expect("piped");
        let from = BufReader::new(process.0.stdout.take().expect("piped"));
        let mut way = Self { name, _process: process, to, from, speeds: Vec::new(), threads: String::new() };
        assert_eq!(way.line(), "loaded");
        way
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    fn go(&mut self, slice: Duration) -> f64 {
        writeln!(self.to, "{}", slice.as_millis()).expect("it listens");
        let line = self.line();
        let (speed, threads) = line.split_once(' ').expect("two words");
        self.threads = threads.to_owned();
        speed.parse().expect("a number")
    }
}

fn measure() {
    // `cargo test` also runs benches, without this argument. One short round then shows that this benchmark works.
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut models = vec![("demo", PathBuf::from(DEMO), 800)];
    if is_bench {
        let mut sketch = Sketch::new("llama", "wide", WIDE);
        sketch.vocabulary();
        sketch.ends(TensorType::Q8_0, Some(TensorType::Q8_0));
        for il in 0..WIDE.n_layer {
            sketch.norms(il);
            sketch.attention(il, TensorType::Q8_0);
            sketch.feed_forward(il, TensorType::Q8_0, TensorType::Q8_0);
        }
        let path = sketch.write(folder.path());
        test_support::random_weights::fill_large(&path).expect("room for 2 GiB");
        models.push(("2 GiB", path, 4000));
    }
    let rounds = if is_bench { 5 } else { 1 };
    println!(
        "| model | other programs | way | threads that computed most | tok/s | rounds |\n|---|---|---|---|---|---|"
    );
    for (model, path, slice) in models {
        let slice = Duration::from_millis(if is_bench { slice } else { 20 });
        situations(model, &path, slice, rounds);
    }
}

fn situations(model: &str, path: &Path, slice: Duration, rounds: usize) {
    let all = autoplace::load::detect().map_or(1, |machine| machine.host.physical_cores.unwrap_or(1));
    let all = all.to_string();
    let mut ways = vec![
        Way::load("1 thread", "1", false, path),
        Way::load("all", &all, false, path),
        Way::load("all, passive waits", &all, true, path),
        Way::load("default", "default", false, path),
    ];
    let mut busy = Vec::new();
    for others in 0..=2 {
        while busy.len() < others {
            busy.push(start("busy", false, None));
        }
        ways.push(Way::load("default, loaded so", "default", false, path));
        // This first round is not counted, because the ways must first adapt to the new situation.
        for way in &mut ways {
            way.speeds.clear();
            way.go(slice);
        }
        for _ in 0..rounds {
            for way in &mut ways {
                let speed = way.go(slice);
                way.speeds.push(speed);
            }
        }
        for way in &mut ways {
            let rounds: Vec<String> = way.speeds.iter().map(|speed| format!("{speed:.1}")).collect();
            let rounds = rounds.join(", ");
            way.speeds.sort_by(f64::total_cmp);
            let median = way.speeds[way.speeds.len() / 2];
            let (name, threads) = (way.name, &way.threads);
            println!("| {model} | {others} | {name} | {threads} | {median:.1} | {rounds} |");
        }
        ways.pop();
    }
}
