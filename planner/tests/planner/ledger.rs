//! The speed model, judged by speeds that others measured: docs/ledger/speeds.csv, a measurement a row.
//!
//! Each row is predicted by what a plan would know on that machine: the catalogue's data sheets, the memory that the
//! source states, and rates that marked rows of the machine calibrate (column `calibrates`). Calibrating rows are left
//! out of the errors. `cargo xtask ledger` prints the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use autoplace_planner::machine::{Gpu, Host, PcieLink, PcieRate, gib};
use autoplace_planner::memory::estimate::{Assignment, split_points};
use autoplace_planner::memory::{ContextParams, Place, TensorOverride};
use autoplace_planner::plan::Workload;
use autoplace_planner::plan::speed::{Rates, SpeedModel};
use autoplace_planner::profile::ModelProfile;

use crate::synthetic;

const LEDGER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ledger/speeds.csv");

/// The bars of the ledger: a median error of at most 12 %, nine rows in ten within 30 %, and the faster of two
/// placements that differ by more than a tenth named in 19 of 20 pairs. These constants are what holds today.
const MEDIAN_ERROR: f64 = 0.12;
const SHARE_WITHIN_30: f64 = 0.90;
const PAIRS_IN_ORDER: f64 = 0.95;

/// A measurement: the cells of its row by their columns.
struct Row(BTreeMap<String, String>);

impl Row {
    fn text(&self, column: &str) -> &str {
        self.0.get(column).map_or_else(|| panic!("the ledger has no column {column}"), String::as_str)
    }

    /// The number of a column; 0 where the cell is empty.
    fn number(&self, column: &str) -> f64 {
        match self.text(column) {
            "" => 0.0,
            text => text.parse().unwrap_or_else(|error| panic!("{column} {text}: {error}")),
        }
    }

    fn count(&self, column: &str) -> u32 {
        self.number(column) as u32
    }

    fn is_prompt(&self) -> bool {
        self.count("n_prompt") > 0
    }

    /// Whether weights or layers are on the host.
    fn uses_host(&self) -> bool {
        self.count("n_gpu_layers") < self.count("layers") || self.count("n_cpu_moe") > 0 || self.text("elsewhere") != ""
    }

    /// The machine and what it computed, without the placement.
    fn workload(&self) -> [&str; 6] {
        ["machine", "profile", "n_prompt", "n_gen", "n_depth", "type_k"].map(|column| self.text(column))
    }

    /// Where the weights are, and the options of llama.cpp.
    fn placement(&self) -> String {
        let mut words = vec![format!("ngl {}/{}", self.text("n_gpu_layers"), self.text("layers"))];
        words.extend((self.count("n_cpu_moe") > 0).then(|| format!("ncmoe {}", self.text("n_cpu_moe"))));
        words.extend((self.text("elsewhere") != "").then(|| "ffn on host".to_owned()));
        words.extend((self.text("options") != "").then(|| self.text("options").to_owned()));
        words.join(", ")
    }
}

/// The cells of a line, as RFC 4180 quotes them.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut is_quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            letter => cells.last_mut().unwrap().push(letter),
        }
    }
    cells
}

/// The rows whose model has a shape here. A submission names no shape until somebody adds it.
fn rows() -> Vec<Row> {
    let text = fs::read_to_string(LEDGER).unwrap_or_else(|error| panic!("{LEDGER}: {error}"));
    let mut lines = text.lines();
    let columns = cells(lines.next().unwrap());
    let row = |line| Row(columns.iter().cloned().zip(cells(line)).collect());
    lines.map(row).filter(|row| row.text("profile") != "").collect()
}

/// What a plan knows of a row's machine.
fn rates(row: &Row) -> Rates {
    let memory = gib(1).max(row.number("memory_bytes") as u64);
    let mut host = Host::named(row.text("cpu"), memory).unwrap_or_else(|_| Host::new(memory));
    if row.count("cores") > 0 {
        host.physical_cores = Some(row.count("cores"));
    }
    if row.text("memory") != "" {
        host.bandwidth = Some(Host::memory(row.text("memory")).unwrap());
    } else if row.number("memory_bytes_per_second") > 0.0 {
        host = host.bandwidth(row.number("memory_bytes_per_second") as u64);
    }
    let link = row.text("link").strip_prefix("PCIe ").and_then(|link| {
        let (generation, lanes) = link.split_once(".0 x")?;
        Some(PcieLink::new(PcieRate::new(generation.parse().ok()?, lanes.parse().ok()?)?))
    });
    let gpus = row.text("gpus").split("; ").filter(|gpu| *gpu != "none").map(|gpu| {
        let name = gpu.split(',').next().unwrap();
        let mut gpu = Gpu::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        gpu.pcie = link.or(gpu.pcie);
        gpu
    });
    let gpus: Vec<Gpu> = gpus.collect();
    Rates::of(&gpus.iter().collect::<Vec<_>>(), &host)
}

/// A placement to be predicted.
struct Placed<'r> {
    row: &'r Row,
    model: SpeedModel,
    assignment: Assignment,
}

impl<'r> Placed<'r> {
    fn new(row: &'r Row, profiles: &BTreeMap<String, ModelProfile>) -> Self {
        let name = row.text("profile");
        let profile = profiles.get(name).unwrap_or_else(|| panic!("no model is called {name}"));
        assert_eq!(profile.full_offload(), row.count("layers"), "{name}");
        let mut params = ContextParams::default();
        if row.text("type_k") != "" {
            params.type_k = row.text("type_k").to_lowercase().parse().unwrap();
            params.type_v = row.text("type_v").to_lowercase().parse().unwrap();
        }
        if row.count("n_ubatch") > 0 {
            params.n_ubatch = row.count("n_ubatch");
        }
        params.op_offload = !row.text("options").contains("-nopo 1");
        let rates = rates(row);
        let cards = row.text("gpus").split("; ").filter(|gpu| *gpu != "none").count();
        let points = split_points(&vec![1.0; cards]).unwrap();
        let assignment = Assignment::new(profile.n_layer(), row.count("n_gpu_layers"), &points);
        let mut overrides = Vec::new();
        if row.count("n_cpu_moe") > 0 {
            let blocks: Vec<String> = (0..row.count("n_cpu_moe")).map(|block| block.to_string()).collect();
            overrides.push(format!(r"^blk\.({})\.ffn_(up|down|gate)_exps", blocks.join("|")));
        }
        let elsewhere = row.text("elsewhere").split(' ').filter(|rule| !rule.is_empty());
        overrides.extend(elsewhere.map(|rule| rule.strip_suffix("=CPU").expect(rule).to_owned()));
        let on_host = |pattern| TensorOverride { pattern, place: Place::Host };
        let overrides: Vec<TensorOverride> = overrides.into_iter().map(on_host).collect();
        let model = SpeedModel::new(profile, &params, rates).overrides(profile, &overrides).unwrap();
        Self { row, model, assignment }
    }

    /// Tokens per second, given these rates.
    fn predicted(&self, rates: &Rates) -> f64 {
        let model = self.model.clone().with_rates(rates.clone());
        let (prompt, generated, before) =
            (self.row.count("n_prompt"), self.row.count("n_gen"), self.row.count("n_depth"));
        match self.row.is_prompt() {
            true => f64::from(prompt) / model.prompt_seconds(&self.assignment, &Workload::new(prompt, 0)),
            false => model.tokens_per_second(&self.assignment, before + generated / 2),
        }
    }

    fn measured(&self) -> f64 {
        self.row.number("median")
    }
}

/// Rates with one of them so many times as high.
fn scaled(rates: &Rates, which: &str, factor: f64) -> Rates {
    let mut rates = rates.clone();
    match which {
        "host" => rates.host.bytes_per_second *= factor,
        "gpu" => rates.gpus.iter_mut().for_each(|gpu| gpu.bytes_per_second *= factor),
        "link" => rates.gpus.iter_mut().for_each(|gpu| gpu.upload *= factor),
        "prompts" => rates.gpus.iter_mut().for_each(|gpu| gpu.flops *= factor),
        which => panic!("the ledger cannot calibrate {which}"),
    }
    rates
}

/// The rates of a machine: those of the data sheets, corrected until its marked rows are predicted as measured.
fn calibrated(of_machine: &[&Placed<'_>]) -> Rates {
    /// A marked row may depend on two rates: after so many rounds both fit.
    const ROUNDS: u32 = 30;
    let machine = of_machine[0].row.text("machine");
    let marked: Vec<_> = of_machine.iter().filter(|it| it.row.text("calibrates") != "").collect();
    let kinds: BTreeSet<&str> = marked.iter().map(|it| it.row.text("calibrates")).collect();
    assert_eq!(kinds.len(), marked.len(), "{machine}: a rate is calibrated by one row");
    let mut known = rates(of_machine[0].row);
    for _ in 0..ROUNDS {
        for row in &marked {
            let which = row.row.text("calibrates");
            // A higher rate makes no placement slower.
            let (mut low, mut high) = (1.0 / 64.0, 64.0);
            for _ in 0..60 {
                let middle = f64::sqrt(low * high);
                let is_slower = row.predicted(&scaled(&known, which, middle)) < row.measured();
                *(if is_slower { &mut low } else { &mut high }) = middle;
            }
            known = scaled(&known, which, low);
        }
    }
    for row in &marked {
        let error = row.predicted(&known) / row.measured() - 1.0;
        let which = row.row.text("calibrates");
        assert!(error.abs() < 0.01, "{machine}: no rate of `{which}` gives what was measured: {error}");
    }
    known
}

/// How far apart two speeds are: 0.25 where one is a quarter more than the other.
fn apart(one: f64, other: f64) -> f64 {
    (one / other).max(other / one) - 1.0
}

fn median(mut errors: Vec<f64>) -> f64 {
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}

#[test]
fn speeds_that_others_measured_are_predicted_within_the_bars_of_the_ledger() {
    let rows = rows();
    let sketches = synthetic::measured().into_iter();
    let profile = |sketch: synthetic::Sketch| {
        let header = sketch.builder().header().unwrap();
        (sketch.title(), ModelProfile::from_header(&header).unwrap())
    };
    let profiles: BTreeMap<String, ModelProfile> = sketches.map(profile).collect();
    let placed: Vec<Placed<'_>> = rows.iter().map(|row| Placed::new(row, &profiles)).collect();
    let mut machines: BTreeMap<&str, Vec<&Placed<'_>>> = BTreeMap::new();
    for it in &placed {
        machines.entry(it.row.text("machine")).or_default().push(it);
    }

    println!(
        "{:<20} {:<30} {:<24} {:>6} {:>8} {:>9} {:>9} {:>6}",
        "machine", "model", "placement", "depth", "computed", "measured", "predicted", "ratio"
    );
    let (mut errors, mut pairs, mut in_order) = (Vec::new(), 0, 0);
    for (name, of_machine) in &machines {
        let rates = calibrated(of_machine);
        let speeds: Vec<f64> = of_machine.iter().map(|it| it.predicted(&rates)).collect();
        for (it, &predicted) in of_machine.iter().zip(&speeds) {
            let row = it.row;
            let computed = match row.is_prompt() {
                true => format!("pp{}", row.text("n_prompt")),
                false => format!("tg{}", row.text("n_gen")),
            };
            let marked = match row.text("calibrates") {
                "" => String::new(),
                which => format!("calibrates {which}"),
            };
            println!(
                "{name:<20} {:<30} {:<24} {:>6} {computed:>8} {:>9.2} {predicted:>9.2} {:>6.2} {marked}",
                row.text("profile"),
                row.placement(),
                row.text("n_depth"),
                it.measured(),
                predicted / it.measured(),
            );
            if marked.is_empty() {
                errors.push((row, apart(predicted, it.measured())));
            }
        }
        for (index, (one, first)) in of_machine.iter().zip(&speeds).enumerate() {
            for (other, second) in of_machine.iter().zip(&speeds).skip(index + 1) {
                let is_pair = one.row.workload() == other.row.workload();
                let is_other = one.row.placement() != other.row.placement();
                if !is_pair || !is_other || apart(one.measured(), other.measured()) <= 0.1 {
                    continue;
                }
                pairs += 1;
                match (first > second) == (one.measured() > other.measured()) && first != second {
                    true => in_order += 1,
                    false => println!(
                        "{name}: {} at {:.2} and {} at {:.2} are predicted as {first:.2} and {second:.2}",
                        one.row.placement(),
                        one.measured(),
                        other.row.placement(),
                        other.measured(),
                    ),
                }
            }
        }
    }

    let of = |which: &dyn Fn(&Row) -> bool| -> Vec<f64> {
        errors.iter().filter(|(row, _)| which(row)).map(|(_, error)| *error).collect()
    };
    let within = |errors: &[f64]| errors.iter().filter(|error| **error <= 0.3).count() as f64 / errors.len() as f64;
    let all = of(&|_| true);
    let print = |what: &str, errors: Vec<f64>| {
        let share = 100.0 * within(&errors);
        println!(
            "{what}: {} rows, median error {:.1} %, {share:.0} % within 30 %",
            errors.len(),
            100.0 * median(errors)
        );
    };
    print("all", all.clone());
    print("generation", of(&|row| !row.is_prompt()));
    print("generation with weights on the host", of(&|row| !row.is_prompt() && row.uses_host()));
    print("generation on GPUs alone", of(&|row| !row.is_prompt() && !row.uses_host()));
    print("prompts", of(&Row::is_prompt));
    println!("the faster of two placements: {in_order} of {pairs} pairs");

    // The ledger stays as broad as it was.
    let count = |is: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| is(row)).count();
    let sources: BTreeSet<&str> = rows.iter().map(|row| row.text("source")).collect();
    assert!(rows.len() >= 60 && sources.len() >= 10, "{} rows of {} sources", rows.len(), sources.len());
    assert!(2 * count(&Row::uses_host) >= rows.len());
    assert!(rows.iter().all(|row| row.text("address").starts_with("https://")));
    for (what, least) in [("; ", 3), ("none", 10), ("Apple", 5)] {
        assert!(count(&|row| row.text("gpus").contains(what)) >= least, "{what}");
    }
    assert!(count(&|row| row.count("n_cpu_moe") > 0) >= 15 && count(&Row::is_prompt) >= 15);
    assert!(errors.len() * 10 >= rows.len() * 8, "too many rows calibrate");
    assert!(pairs >= 50, "{pairs} pairs");

    assert!(median(all.clone()) <= MEDIAN_ERROR);
    assert!(within(&all) >= SHARE_WITHIN_30);
    assert!(f64::from(in_order) >= PAIRS_IN_ORDER * f64::from(pairs));
}
