//! Measures the time of a text while other programs run, with different ways in which the CPU's threads wait for each
//! other. Prints a table of seconds. These are the medians of rounds in which the ways take turns.
//!
//!     cargo xtask company [MODEL|2GiB...]
//!
//! In the company "the same program generates", the other program generates in the same way as the text that is
//! measured: autoplace beside autoplace, OpenMP's threads beside OpenMP's threads.
//!
//! The command builds llama.cpp two more times, with OpenMP and with ggml's own threads, and then runs this benchmark.
//! Each text runs in its own process, which loads the model while the other programs run. The time covers the prompt
//! and the generation, but not the load.

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use autoplace::Model;
use autoplace::gguf::TensorType;
use test_support::synthetic::{Dims, Sketch};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");
const PROMPT: &str = "Tell me a long story about the sea.";
/// The role of a process of this program: `text MODEL TOKENS` generates one text, `texts MODEL` generates texts without
/// end, and `busy` computes without end.
const ROLE: &str = "AUTOPLACE_BENCH_ROLE";
/// The folder of llama.cpp programs to compare with: `openmp/loop` and `pool/loop`. If the variable is not set, these
/// programs are not run.
const PEERS: &str = "AUTOPLACE_BENCH_PEERS";
/// llama.cpp's source. A compiler that reads its headers is one of the other programs.
const LLAMA_CPP: &str = "AUTOPLACE_BENCH_LLAMA_CPP";
/// The tokens of the texts and the number of rounds, such as `60,600` and `5`.
const TOKENS: &str = "AUTOPLACE_BENCH_TOKENS";
const ROUNDS: &str = "AUTOPLACE_BENCH_ROUNDS";
/// Selects the ways to measure by parts of their names, such as `autoplace,passive,1 thread`. If the variable is not
/// set, all ways are measured.
const WAYS: &str = "AUTOPLACE_BENCH_WAYS";
/// Selects the companies by parts of their names, such as `quiet,the same program`. If the variable is not set, the ways
/// are measured in all companies.
const COMPANIES: &str = "AUTOPLACE_BENCH_COMPANIES";
/// If the variable is set, the other programs run in sessions of their own, like programs of another terminal. Linux
/// shares the processors between sessions (`sched_autogroup_enabled`), and within a session between its threads.
const SESSIONS: &str = "AUTOPLACE_BENCH_SESSIONS";
/// Maximum time for each token of a text. A slower text is ended, and counts as if it had taken the maximum.
const MAX_TOKEN_TIME: Duration = Duration::from_millis(250);
/// The same maximum beside another process of the same program. Two programs with OpenMP's spinning threads take up to
/// 0.6 s for a token.
const MAX_TOKEN_TIME_BESIDE_ITSELF: Duration = Duration::from_secs(1);
/// How long the other programs run before a text is measured beside them. They load their models in this time.
const HEAD_START: Duration = Duration::from_secs(2);
/// The tokens of a text of a bare loop that is one of the other programs. The loop starts again after it.
const NEIGHBOUR_TOKENS: usize = 3000;
/// The argument that means the model of [`WIDE`], which is written to a temporary folder.
const WIDE_MODEL: &str = "2GiB";
/// The sizes of a model with the width of Llama 3.2 3B and blocks for 2 GiB of Q8_0. The CPU does not repack this type
/// here.
const WIDE: Dims =
    Dims { n_layer: 18, n_embd: 3072, n_ff: 8192, n_head: 24, n_head_kv: 8, head_dim: 128, n_vocab: 32000 };

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match std::env::var(ROLE).as_deref() {
        Ok("busy") => compute_for_ever(),
        Ok("texts") => generate_for_ever(&arguments[0]),
        Ok(_) => {
            let tokens = arguments[1].parse().expect("a number of tokens");
            println!("{:.4}", text(&arguments[0], tokens).as_secs_f64());
        }
        Err(_) => measure(&arguments),
    }
}

/// Ends the process when its parent closes the pipe.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}

/// Computes without end. This is one of the other programs.
fn compute_for_ever() -> ! {
    end_with_parent();
    let mut x = 1_u64;
    loop {
        x = std::hint::black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7));
    }
}

/// Generates one text after another. This is one of the other programs.
fn generate_for_ever(path: &str) -> ! {
    end_with_parent();
    let model = Model::builder(path).n_ctx(4096).load().expect("the model loads");
    loop {
        model.generate(PROMPT).temp(0.0).ignore_eos().max_tokens(600).text().expect("it fits");
    }
}

/// Loads the model, and returns the seconds from the prompt to the last token.
fn text(path: &str, tokens: usize) -> Duration {
    let model = Model::builder(path).n_ctx(4096).load().expect("the model loads");
    let begin = Instant::now();
    let generate = model.generate(PROMPT).temp(0.0).ignore_eos().max_tokens(tokens);
    for piece in generate.stream().expect("it fits") {
        piece.expect("it generates");
    }
    begin.elapsed()
}

/// A process that is ended when this value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that runs this program in another role.
fn role(role: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("its own path"));
    command.env(ROLE, role).args(arguments);
    command
}

/// A command that runs the bare loop of the llama.cpp program `build`.
fn bare(peers: &Path, build: &str, model: &Path, tokens: usize, threads: u32, poll: i32) -> Command {
    let mut command = Command::new(peers.join(build).join("loop"));
    command.arg(model).arg(PROMPT).args([tokens.to_string(), threads.to_string(), poll.to_string()]);
    command
}

/// A way to generate.
struct Way {
    name: &'static str,
    /// Generates the text that is measured.
    text: Command,
    /// Generates one long text or many texts, as the way's own neighbour.
    neighbour: Command,
}

fn ways(peers: Option<&Path>, model: &Path, tokens: usize, threads: u32) -> Vec<Way> {
    let path = model.to_str().expect("a path in UTF-8");
    let text = role("text", &[path, &tokens.to_string()]);
    let mut ways = vec![Way { name: "autoplace", text, neighbour: role("texts", &[path]) }];
    if let Some(peers) = peers {
        let way = |name, build, threads, poll| {
            let bare = |tokens| bare(peers, build, model, tokens, threads, poll);
            Way { name, text: bare(tokens), neighbour: bare(NEIGHBOUR_TOKENS) }
        };
        let mut passive = way("llama.cpp, OpenMP passive", "openmp", threads, -1);
        for command in [&mut passive.text, &mut passive.neighbour] {
            command.env("OMP_WAIT_POLICY", "passive");
        }
        ways.extend([
            way("llama.cpp, OpenMP (its default)", "openmp", threads, -1),
            passive,
            way("llama.cpp, own pool, poll 0", "pool", threads, 0),
            way("llama.cpp, own pool, poll 50", "pool", threads, 50),
            way("llama.cpp, own pool, poll 100", "pool", threads, 100),
            way("llama.cpp, 1 thread", "openmp", 1, -1),
        ]);
    }
    ways
}

/// A set of other programs.
struct Company {
    name: &'static str,
    /// The programs that run beside all ways.
    programs: Vec<Command>,
    /// Whether each way runs beside its own neighbour.
    is_same_program: bool,
}

fn companies(peers: Option<&Path>, model: &Path, threads: u32) -> Vec<Company> {
    let path = model.to_str().expect("a path in UTF-8");
    let of = |name, programs| Company { name, programs, is_same_program: false };
    let mut companies = vec![
        of("quiet", Vec::new()),
        of("autoplace generates", vec![role("texts", &[path])]),
        of("two busy loops", vec![role("busy", &[]), role("busy", &[])]),
        Company { name: "the same program generates", programs: Vec::new(), is_same_program: true },
    ];
    if let Some(peers) = peers {
        let neighbour = bare(peers, "openmp", model, NEIGHBOUR_TOKENS, threads, -1);
        companies.push(of("llama.cpp generates", vec![neighbour]));
        let headers = PathBuf::from(std::env::var_os(LLAMA_CPP).expect("set beside the peers"));
        let compiler = || {
            let mut command = Command::new("c++");
            command.args(["-std=c++17", "-O2", "-o", "/dev/null"]);
            for folder in ["include", "ggml/include"] {
                command.arg("-I").arg(headers.join(folder));
            }
            command.arg("-c").arg(peers.join("loop.cpp"));
            command
        };
        companies.push(of("a compiler, two jobs", vec![compiler(), compiler()]));
    }
    companies
}

/// Sets its flag when it is dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Calls `measure` while the programs run. A program that ends is started again.
fn beside<T>(programs: &mut [Command], head_start: Duration, measure: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    let head_start = if programs.is_empty() { Duration::ZERO } else { head_start };
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        for program in programs {
            scope.spawn(|| run_again(program, &is_over));
        }
        std::thread::sleep(head_start);
        measure()
    })
}

/// Runs a program again and again until the flag is set.
fn run_again(program: &mut Command, is_over: &AtomicBool) {
    let mut apart = std::env::var_os(SESSIONS).map(|_| in_own_session(program));
    let program = apart.as_mut().unwrap_or(program);
    let program = program.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    while !is_over.load(Relaxed) {
        let mut process = Process(program.spawn().expect("another process"));
        while !is_over.load(Relaxed) {
            if let Some(status) = process.0.try_wait().expect("its status") {
                assert!(status.success(), "{program:?} ended: {status}");
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The same program, started in a session of its own.
fn in_own_session(program: &Command) -> Command {
    let mut apart = Command::new("setsid");
    apart.arg(program.get_program()).args(program.get_args());
    let variables = program.get_envs().filter_map(|(name, value)| Some((name, value?)));
    apart.envs(variables);
    apart
}

/// The seconds that a way reports, or `longest` if it takes longer.
fn seconds(command: &mut Command, longest: Duration) -> f64 {
    let mut errors = tempfile::tempfile().expect("a temporary file");
    let log = errors.try_clone().expect("a file has two handles");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn();
    let mut process = Process(child.expect("another process"));
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = process.0.try_wait().expect("its status") {
            break status;
        }
        if begin.elapsed() > longest {
            return longest.as_secs_f64();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut said = String::new();
    process.0.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
    said.trim().parse().unwrap_or_else(|_| {
        let mut log = String::new();
        let read = errors.rewind().and_then(|()| errors.read_to_string(&mut log));
        panic!("{command:?} ended: {status}; its last words {read:?}: {}", &log[log.len().saturating_sub(2000)..])
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(models: &[String]) {
    // `cargo test` also runs benches, without these programs. One short round then shows that this benchmark works.
    let peers = std::env::var_os(PEERS).map(PathBuf::from);
    let is_measured = peers.is_some();
    let list = std::env::var(TOKENS).unwrap_or_else(|_| if is_measured { "60,600" } else { "4" }.to_owned());
    let rounds = std::env::var(ROUNDS).ok().and_then(|rounds| rounds.parse().ok());
    let rounds: usize = rounds.unwrap_or(if is_measured { 5 } else { 1 });
    let [wanted_ways, wanted_companies] = [WAYS, COMPANIES].map(|list| std::env::var(list).unwrap_or_default());
    let is_wanted = |wanted: &str, name: &str| wanted.split(',').any(|part| name.contains(part));
    let head_start = if is_measured { HEAD_START } else { Duration::ZERO };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut models: Vec<PathBuf> = models.iter().map(PathBuf::from).collect();
    if models.is_empty() {
        models.push(DEMO.into());
        if is_measured {
            models.push(WIDE_MODEL.into());
        }
    }
    for model in models.iter_mut().filter(|model| *model == Path::new(WIDE_MODEL)) {
        *model = two_gib(folder.path());
    }
    let threads = autoplace::load::detect().map_or(1, |machine| machine.host.physical_cores.unwrap_or(1));
    println!("| model | tokens | company | way | seconds | rounds |\n|---|---|---|---|---|---|");
    for model in &models {
        let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for tokens in list.split(',').map(|tokens| tokens.parse().expect("a number of tokens")) {
            let mut companies = companies(peers.as_deref(), model, threads);
            companies.retain(|company| is_wanted(&wanted_companies, company.name));
            for Company { name: company, mut programs, is_same_program } in companies {
                let token_time = if is_same_program { MAX_TOKEN_TIME_BESIDE_ITSELF } else { MAX_TOKEN_TIME };
                let longest = token_time * tokens as u32;
                let mut ways = ways(peers.as_deref(), model, tokens, threads);
                ways.retain(|way| is_wanted(&wanted_ways, way.name));
                let mut took = vec![Vec::new(); ways.len()];
                beside(&mut programs, head_start, || {
                    for round in 0..rounds {
                        // The order alternates, so that no program always runs after the same one.
                        let mut order: Vec<usize> = (0..ways.len()).collect();
                        if round % 2 == 1 {
                            order.reverse();
                        }
                        for at in order {
                            let way = &mut ways[at];
                            let neighbours = std::slice::from_mut(&mut way.neighbour);
                            let neighbours = if is_same_program { neighbours } else { &mut [] };
                            took[at].push(beside(neighbours, head_start, || seconds(&mut way.text, longest)));
                        }
                    }
                });
                for (Way { name: way, .. }, took) in ways.iter().zip(&mut took) {
                    let rounds: Vec<String> = took.iter().map(|seconds| format!("{seconds:.2}")).collect();
                    let median = median(took);
                    println!("| {name} | {tokens} | {company} | {way} | {median:.2} | {} |", rounds.join(", "));
                }
            }
        }
    }
}

/// A model of 2 GiB with random weights.
fn two_gib(folder: &Path) -> PathBuf {
    let mut sketch = Sketch::new("llama", "wide", WIDE);
    sketch.vocabulary();
    sketch.ends(TensorType::Q8_0, Some(TensorType::Q8_0));
    for il in 0..WIDE.n_layer {
        sketch.norms(il);
        sketch.attention(il, TensorType::Q8_0);
        sketch.feed_forward(il, TensorType::Q8_0, TensorType::Q8_0);
    }
    let path = sketch.write(folder);
    test_support::random_weights::fill_large(&path).expect("room for 2 GiB");
    path
}
