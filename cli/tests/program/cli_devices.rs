//! The output of `autoplace devices`, for people and for scripts, and the file that it writes for `plan`.

use std::fs;

use crate::cli_support::{User, demo};
use autoplace::gguf::TensorType;
use autoplace::machine::{
    Gpu, GpuProcess, Host, LearnedHeadroom, Machine, MatrixShape, MeasuredRates, PciId, PcieLink, PcieRate, Reading,
    WeightRate, gib, mib,
};
use serde_json::json;

fn path(user: &User, name: &str) -> String {
    user.path(name).to_str().unwrap().to_owned()
}

/// Writes this text to a file, and returns the path.
fn file(user: &User, text: impl AsRef<[u8]>) -> String {
    fs::write(user.path("machine.json"), text).unwrap();
    path(user, "machine.json")
}

/// A machine that is certainly not this computer.
fn elsewhere() -> Machine {
    let card = Gpu::named("RTX 4090").unwrap().free(gib(22));
    Machine::new(Host::new(gib(512)).bandwidth(400_000_000_000)).with_gpu(card)
}

#[test]
fn the_machine_is_described_in_words_and_the_json_has_the_same() {
    let user = User::new();
    // If nothing can be written to the home folder, that is no error.
    fs::write(user.path("cache"), "no folder").unwrap();
    fs::write(user.path("Library"), "no folder").unwrap();
    let words = user.says(&["devices"]);
    let file = path(&user, "written.json");
    let json = user.json(&["devices", "--write", &file]);
    assert_eq!(json["version"], 1);
    assert_eq!(user.json(&["devices", "--machine", &file]), json);
    assert!(words.contains("\nhost: ") || words.starts_with("host: "), "{words}");
    assert!(!words.contains('\u{1b}'), "a pipe gets no colours: {words:?}");
    let gpus = json["gpus"].as_array().unwrap();
    assert!(gpus.iter().all(|gpu| words.contains(gpu["name"].as_str().unwrap())), "{words}");
    assert_eq!(words.starts_with("no GPU that can be used\n"), gpus.is_empty(), "{words}");
    assert!(json["host"]["total"].as_u64().unwrap() > 0);
}

#[test]
fn devices_are_measured_on_request_and_the_rates_are_stored() {
    let user = User::new();
    let rates = |args: &[&str]| {
        let json = user.json(&[&["devices"], args].concat());
        json["host"]["rates"].clone()
    };
    assert!(rates(&[]).is_null());
    let measured = rates(&["--measure=0"]);
    if measured.is_null() {
        // This machine has not enough free memory for the measurement.
        return;
    }
    assert!(measured["layer_ns"].as_u64().unwrap() > 0, "{measured}");
    assert!(measured["threads"].as_u64().unwrap() > 0, "{measured}");
    assert_eq!(rates(&[]), measured, "kept");
}

#[test]
fn a_machine_from_a_file_is_described_fully_and_written_unchanged() {
    let user = User::new();
    let mut machine = elsewhere();
    let mut rates = MeasuredRates::default();
    rates.threads = Some(16);
    rates.weights = vec![WeightRate::new(TensorType::Q4_K, false, 41_500_000_000)];
    let mut small = WeightRate::new(TensorType::Q4_1, false, 900_000_000);
    small.shape = MatrixShape::new(576, 1536);
    small.used = serde_json::from_value(json!({"per_second": 9_250_000_000_u64, "tokens": 80, "at": 5})).unwrap();
    small.conditions = serde_json::from_value(json!({"at": 1_795_824_000, "others": 190, "waited": 45})).unwrap();
    rates.weights.push(small);
    rates.layer_ns = 20_000;
    rates.conditions.layer = serde_json::from_value(json!({"at": 1_795_910_400, "others": 2})).unwrap();
    machine.host.rates = Some(rates);
    machine.host.cpu = Some("AMD Ryzen 9 7950X".to_owned());
    (machine.host.usable_cores, machine.host.physical_cores, machine.wsl) = (Some(8), Some(16), true);
    let card = &mut machine.gpus[0];
    (card.device, card.pci_id) = (Some("CUDA0".to_owned()), Some(PciId::new(0, 1, 0, 0)));
    let link = |generation| PcieRate::new(generation, 16).unwrap();
    card.pcie = Some(PcieLink::new(link(4)).current(link(1)));
    // The programs that use most memory are named; the others are only counted.
    let programs = (0..7).map(|_| GpuProcess::new(9).name("python").bytes(mib(80)));
    let programs = [GpuProcess::new(42).name("ollama").bytes(gib(6)), GpuProcess::new(7).bytes(mib(90))]
        .into_iter()
        .chain(programs);
    card.processes = Some(programs.chain([GpuProcess::new(8).name("Xorg")]).collect());
    card.driver = Some("550.54.14".to_owned());
    card.learned = Some(LearnedHeadroom::new(mib(40), mib(50)).work(u64::MAX, u64::MAX));
    card.ggml = Some(Reading::new(card.total, card.free));
    let file = file(&user, machine.to_json().unwrap());
    let python = "    held by   python (process 9): 80 MiB\n".repeat(6);
    let expected = format!(
        "\
RTX 4090 (CUDA0): 22.0 GiB free of 24.0 GiB
    device    NVIDIA GeForce RTX 4090 by CUDA at 0000:01:00.0
    memory    1008 GB/s by its data sheet
    link      PCIe 4.0 x16, 32 GB/s (now 1.0 x16)
    driver    550.54.14
    headroom  driver 40 MiB, growth 50 MiB, measured
    held by   ollama (process 42): 6.0 GiB
    held by   a program (process 7): 90 MiB
{python}    opened by 2 more programs
host: 512.0 GiB free of 512.0 GiB
    processor AMD Ryzen 9 7950X, 8 of 16 cores
    memory    400 GB/s as stated
    measured  with 16 threads
      Q4_K: 41.5 GB/s of weights
      Q4_1 576 x 1536: 0.9 GB/s of weights, 9.2 in use, 2026-11-28, beside other work (other programs used 1.9 cores; \
its threads waited for a core 45 % of the time)
      1 figure of attention, prompts and links: 2026-11-29
Linux runs inside Windows (WSL): Windows manages the GPU's memory
"
    );
    // `--write` works together with text output too.
    let written = path(&user, "written.json");
    assert_eq!(user.says(&["devices", "--machine", &file, "--write", &written]), expected);
    assert_eq!(Machine::read(&written).unwrap(), machine);
    let printed = user.says(&["devices", "--json", "--machine", &written]);
    assert_eq!(fs::read_to_string(&written).unwrap(), printed);
    // Bytes that count as taken: the learned bytes, and under WSL another 512 MiB.
    let taken = mib(40 + 50 + 512);
    for (headroom, bytes) in [
        ("tight", taken + mib(16)),
        ("default", taken + gib(22) / 100),
        ("Cautious", (gib(24) * 15).div_ceil(100)),
        ("600MiB", mib(600)),
    ] {
        let plan = ["plan", &demo(), "--machine", &file, "--headroom", headroom];
        assert_eq!(user.json(&plan)["devices"][0]["headroom"], bytes, "{headroom}");
    }
}

#[test]
fn a_plan_is_made_for_the_machine_in_a_file() {
    let user = User::new();
    let file = file(&user, elsewhere().to_json().unwrap());
    let plan = |args: &[&str]| user.json(&[&["plan", &demo()], args].concat());
    for probing in [&[][..], &["--no-probe"]] {
        let json = plan(&[&["--machine", &file], probing].concat());
        let devices = json["devices"].as_array().unwrap();
        assert_eq!((&devices[0]["name"], &devices[0]["free"]), (&"RTX 4090".into(), &gib(22).into()));
        assert_eq!(devices.last().unwrap()["total"], gib(512));
        assert_eq!(json["probe"].is_null(), !probing.is_empty());
        // The plan is equal to a plan for the same card on this host.
        let same = plan(&[&["--gpu", "RTX 4090,free=22GiB"], probing].concat());
        let keys = ["n_gpu_layers", "estimate", "probe"];
        assert_eq!(keys.map(|key| &json[key]), keys.map(|key| &same[key]));
    }
}

#[test]
fn a_card_with_unknown_allocation_rules_is_planned_by_arithmetic_alone() {
    let user = User::new();
    let mut machine = elsewhere();
    machine.gpus = vec![Gpu::named("Arc B580").unwrap()];
    let file = file(&user, machine.to_json().unwrap());
    let model = demo();
    user.fails(&["plan", &model, "--machine", &file], 1, &["Vulkan", "Arc B580", "--no-probe"]);
    user.says(&["plan", &model, "--machine", &file, "--no-probe"]);
}

#[test]
fn a_wrong_machine_file_is_named_with_its_field() {
    let user = User::new();
    let mut wrong = json!(elsewhere());
    wrong["gpus"][0]["total"] = "24GiB".into();
    let refused = |file: &str, words: &[&str]| {
        user.fails(&["devices", "--machine", file], 1, words);
        user.fails(&["plan", &demo(), "--machine", file], 1, words);
    };
    let written = "a machine is a file that `autoplace devices --write` writes";
    for (text, field) in [
        (wrong.to_string(), "gpus[0].total"),
        ("not JSON".to_owned(), "line 1 column 2"),
        ("[models.a]\nmodel = \"a.gguf\"\n".to_owned(), "line 1 column 2"),
        ("{\n  \"model\": 1\n}".to_owned(), "missing field `gpus` at line 3 column 1"),
        ("{\n  \"gpus\": [\n".to_owned(), "gpus[0]: EOF while parsing a list at line 3 column 0"),
    ] {
        let file = file(&user, text);
        refused(&file, &[&file, field, written]);
        user.fails(&["doctor", "--machine", &file], 1, &[&file, field, written, "`autoplace doctor --report` prints"]);
    }
    refused(&demo(), &[&demo(), "it is a GGUF file", written]);
    user.fails(&["doctor", "--machine", &demo()], 1, &[&demo(), "it is a GGUF file", written]);
    let missing = path(&user, "missing.json");
    refused(&missing, &[&missing]);
    let nowhere = path(&user, "no/such/folder/machine.json");
    user.fails(&["devices", "--write", &nowhere], 1, &[&nowhere]);
}

#[test]
fn arguments_that_make_no_sense_are_named() {
    let user = User::new();
    user.fails(&["devices", "--measure", "--machine", "x"], 2, &["--measure", "--machine"]);
    user.fails(&["devices", "--measure=soon"], 2, &["--measure", "seconds"]);
}
