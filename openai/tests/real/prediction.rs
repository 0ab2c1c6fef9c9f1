//! Compares predicted speeds with those that llama-bench measures. The predictions are those of a second load. The
//! first load runs at the same time as two busy processes. The predictions are made with all processors, and again in a
//! cgroup that gets the time of half a core (Linux, if the process may make such a group).
//!
//! Each load runs in its own process. Both loads use one cache folder, which is empty at first, so that nothing is
//! known before the first load. The ratios are not asserted, because they are meaningful only on a quiet machine.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, process, thread};

use autoplace::Model;
use autoplace::machine::Machine;
use autoplace::plan::{Request, Workload};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rows::{Outcome, Row};
use crate::setting::Setting;

/// An environment variable. A process of this program that has it does not run the checks, but plays the role that the
/// variable names: `busy` or `predict`.
const ROLE: &str = "AUTOPLACE_REAL_ROLE";

const PROMPT: u32 = 512;
/// The depths at which speeds are compared. With the time of half a core (in the cgroup), there are fewer depths,
/// because it would take minutes to compute 4,096 tokens before the measured one.
const DEPTHS: [u32; 4] = [64, 512, 2048, 4096];
const DEPTHS_OF_HALF: [u32; 3] = [64, 512, 2048];

/// How many tokens are generated at each depth. The group's first period costs no wait: with 32 tokens, it made some
/// measured speeds half as large again.
const TOKENS: u32 = 64;
/// How often each speed is measured.
const ROUNDS: u32 = 3;

/// The targets: a predicted speed divided by the measured speed may differ from 1 by at most this.
const GENERATION: f64 = 0.15;
const PROMPTS: f64 = 0.20;

/// `/proc/pressure/cpu` is an average over ten seconds. After this time it no longer contains the busy processes.
const FORGET: Duration = Duration::from_secs(30);

/// The quota for half a core: this many microseconds in each tenth of a second.
const HALF_A_CORE: u32 = 50_000;

/// If this process has a role, plays it.
pub(crate) fn role() -> Option<Outcome<()>> {
    let role = env::var(ROLE).ok()?;
    let path = PathBuf::from(env::args_os().nth(1).unwrap_or_default());
    Some(if role == "busy" { be_busy() } else { predict(&path) })
}

/// Compares predictions that are made with all processors.
pub(crate) fn check(setting: &Setting) -> Outcome<Vec<Row>> {
    compare(setting, None, &DEPTHS)
}

/// Compares predictions in a cgroup that is limited to the time of half a core.
pub(crate) fn half_a_core(setting: &Setting) -> Outcome<Vec<Row>> {
    if setting.tool("llama-bench").is_none() {
        return Ok(Vec::new());
    }
    let Some(group) = Group::new(HALF_A_CORE) else {
        return Ok(vec![Row::new("inside half a core").result("no control group could be made here")]);
    };
    compare(setting, Some(&group), &DEPTHS_OF_HALF)
}

/// Loads the model while two busy processes run, then loads it again alone. Compares the predictions of the second load
/// with llama-bench.
fn compare(setting: &Setting, group: Option<&Group>, depths: &[u32]) -> Outcome<Vec<Row>> {
    let Some(bench) = setting.tool("llama-bench") else { return Ok(Vec::new()) };
    let cache = tempfile::tempdir()?;
    {
        let _busy = [Busy::start()?, Busy::start()?];
        load(&setting.path, group, &cache)?;
    }
    thread::sleep(FORGET);
    let predicted = load(&setting.path, group, &cache)?;

    let threads = predicted["threads"].to_string();
    let listed: Vec<String> = depths.iter().map(u32::to_string).collect();
    let mut measured = Vec::new();
    for arguments in [
        ["-p", &PROMPT.to_string(), "-n", "0", "-d", "0"],
        ["-p", "0", "-n", &TOKENS.to_string(), "-d", &listed.join(",")],
    ] {
        let mut command = within(group, &bench);
        command.arg("-m").arg(&setting.path).args(arguments);
        command.args(["-t", &threads, "-fa", "1", "-r", &ROUNDS.to_string(), "-o", "json"]);
        let rows: Vec<Value> = serde_json::from_str(&output(&mut command)?)?;
        measured.extend(rows);
    }
    let place = if group.is_some() { "inside half a core" } else { "on all processors" };
    let row = |of: &Value| -> Outcome<Row> {
        let depth = of["n_depth"].as_u64().ok_or("llama-bench says no depth")?;
        let is_prompt = of["n_gen"] == 0;
        let (what, predicted, bar) = match is_prompt {
            true => (format!("a prompt of {PROMPT} tokens"), &predicted["prompt"], PROMPTS),
            false => (format!("tokens after {depth}"), &predicted["generation"][depth.to_string()], GENERATION),
        };
        let predicted = predicted.as_f64().ok_or("the plan predicts no speed")?;
        let (measured, spread) = (number(of, "avg_ts")?, number(of, "stddev_ts")?);
        let ratio = predicted / measured;
        // A ratio that is not a number is outside too.
        let is_within = (ratio - 1.0).abs() <= bar;
        let verdict = if is_within { "within" } else { "OUTSIDE OF" };
        let percent = bar * 100.0;
        let row = Row::new(format!("{what} {place}, beside llama-bench")).result(format!(
            "{predicted:.1} tok/s predicted, {measured:.1} ± {spread:.1} measured: {ratio:.2}, {verdict} {percent:.0} %"
        ));
        Ok(row.outside(!is_within))
    };
    let mut rows = measured.iter().map(row).collect::<Outcome<Vec<Row>>>()?;
    let basis = predicted["basis"].as_str().unwrap_or_default();
    rows.push(Row::new(format!("the source of the predictions {place}")).result(format!("{basis}, {threads} threads")));
    Ok(rows)
}

fn number(of: &Value, name: &str) -> Outcome<f64> {
    of[name].as_f64().ok_or_else(|| format!("llama-bench has no {name}").into())
}

/// The predictions of a load that runs in its own process.
fn load(path: &Path, group: Option<&Group>, cache: &TempDir) -> Outcome<Value> {
    let mut command = within(group, &env::current_exe()?);
    command.arg(path).env(ROLE, "predict").env("XDG_CACHE_HOME", cache.path()).env("HOME", cache.path());
    Ok(serde_json::from_str(&output(&mut command)?)?)
}

/// The role `predict`: loads, generates a short text, and prints the plan's predictions.
fn predict(path: &Path) -> Outcome<()> {
    let request =
        Request::new().n_ctx(8192).n_gpu_layers(0).n_ubatch(512).at(DEPTHS).workload(Workload::new(PROMPT, 64));
    let model = Model::builder(path).request(request).load()?;
    model.generate("Tell me about the sea.").temp(0.0).max_tokens(30).text()?;
    let plan = model.placement();
    let speed = plan.speed.as_ref().ok_or("the plan predicts no speed")?;
    let generation = speed.generation.iter().map(|at| (at.depth.to_string(), at.tokens_per_second.into()));
    let threads = Machine::detect().host.compute_threads().unwrap_or(1);
    let predicted = json!({
        "prompt": speed.prompt.tokens_per_second,
        "generation": generation.collect::<serde_json::Map<String, Value>>(),
        "basis": speed.basis.to_string(),
        "threads": threads,
    });
    println!("{predicted}");
    Ok(())
}

/// The role `busy`: computes until the checks end this process, or until their process has ended.
fn be_busy() -> Outcome<()> {
    thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        process::exit(0);
    });
    let mut x = 1_u64;
    loop {
        x = std::hint::black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7));
    }
}

/// A busy process. It ends when this value is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Outcome<Self> {
        let mut command = Command::new(env::current_exe()?);
        Ok(Self(command.env(ROLE, "busy").stdin(Stdio::piped()).spawn()?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The output of a process.
fn output(command: &mut Command) -> Outcome<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} has failed ({}): {said}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A command that starts a program, inside a group if there is one.
fn within(group: Option<&Group>, program: &Path) -> Command {
    let Some(group) = group else { return Command::new(program) };
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.0.join("cgroup.procs")).arg(program);
    command
}

/// A control group of Linux that limits processor time. It is removed when this is dropped.
struct Group(PathBuf);

impl Group {
    /// Makes a group inside the group of this process. The quota is in microseconds for each tenth of a second. `None`
    /// if no group can be made, as in most containers, or because the process lacks the rights.
    fn new(quota_us: u32) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let version_1 = |mount: &'static str| (mount, "cpu.cfs_quota_us", quota_us.to_string());
        let ways = [
            (":cpu:", version_1("/sys/fs/cgroup/cpu")),
            (":cpu,cpuacct:", version_1("/sys/fs/cgroup/cpu,cpuacct")),
            ("0::", ("/sys/fs/cgroup", "cpu.max", format!("{quota_us} 100000"))),
        ];
        ways.into_iter().find_map(|(of, (mount, file, quota))| {
            let inside = own.lines().find_map(|line| Some(line.split_once(of)?.1.trim_start_matches('/')))?;
            let folder = Path::new(mount).join(inside).join(format!("autoplace-real-{}", process::id()));
            fs::create_dir(&folder).ok()?;
            // If this fails, `made` is dropped, and the folder is removed.
            let made = Self(folder);
            let file = made.0.join(file);
            (file.exists() && fs::write(file, quota).is_ok()).then_some(made)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
