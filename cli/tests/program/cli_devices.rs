//! The program `autoplace devices` as a person or a script meets it, and the file that it writes and `plan` reads.

use std::fs;

use crate::cli_support::{User, demo};
use autoplace::gguf::TensorType;
use autoplace::machine::{Gpu, Host, LearnedHeadroom, Machine, MeasuredRates, Reading, WeightRate, gib, mib};

/// The path of a file with this machine.
fn file(user: &User, machine: &Machine) -> String {
    text_file(user, &serde_json::to_string(machine).unwrap())
}

fn text_file(user: &User, text: &str) -> String {
    let path = user.path("machine.json");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A computer that is certainly not this one.
fn elsewhere() -> Machine {
    let card = Gpu::named("RTX 4090").unwrap().free(gib(22));
    Machine::new(Host::new(gib(512)).bandwidth(400_000_000_000)).with_gpu(card)
}

#[test]
fn the_machine_is_told_in_words_and_the_json_has_the_same() {
    let user = User::new();
    let words = user.says(&["devices"]);
    let json = user.json(&["devices"]);
    assert_eq!(json["version"], 1);
    assert!(words.contains("\nhost: ") || words.starts_with("host: "), "{words}");
    assert!(!words.contains('\u{1b}'), "a pipe gets no colours: {words:?}");
    let gpus = json["gpus"].as_array().unwrap();
    for gpu in gpus {
        let name = gpu["name"].as_str().unwrap();
        assert!(words.contains(name), "no {name:?} in: {words}");
    }
    if gpus.is_empty() {
        assert!(words.starts_with("no GPU that can be used\n"), "{words}");
    }
    assert!(json["host"]["total"].as_u64().unwrap() > 0);
}

#[test]
fn devices_are_measured_when_asked_and_it_is_kept() {
    let user = User::new();
    let rates = |args: &[&str]| {
        let json = user.json(&[&["devices"], args].concat());
        json["host"]["rates"].clone()
    };
    assert!(rates(&[]).is_null());
    let measured = rates(&["--measure=0"]);
    if measured.is_null() {
        // This machine has too little memory to spare.
        return;
    }
    assert!(measured["layer_ns"].as_u64().unwrap() > 0, "{measured}");
    assert!(measured["threads"].as_u64().unwrap() > 0, "{measured}");
    assert_eq!(rates(&[]), measured, "kept");
    user.fails(&["devices", "--measure=soon"], 2, &["--measure", "seconds"]);
}

#[test]
fn what_was_measured_is_told_and_stays_in_a_written_machine() {
    let user = User::new();
    let mut machine = elsewhere();
    let mut rates = MeasuredRates::default();
    rates.threads = Some(16);
    rates.weights =
        vec![WeightRate { tensor_type: TensorType::Q4_K, experts: false, bytes_per_second: 41_500_000_000 }];
    machine.host.rates = Some(rates);
    let file = file(&user, &machine);
    let words = user.says(&["devices", "--machine", &file]);
    let expected = "    measured  with 16 threads
      Q4_K: 41.5 GB/s of weights
";
    assert!(words.ends_with(expected), "{words}");
    let written = user.path("written.json");
    let written = written.to_str().unwrap();
    let json = user.json(&["devices", "--machine", &file, "--write", written]);
    assert_eq!(json["host"]["rates"]["weights"][0]["type"], "Q4_K");
    assert_eq!(Machine::read(written).unwrap(), machine);
}

#[test]
fn a_home_that_cannot_be_written_is_no_error() {
    let user = User::new();
    fs::write(user.path("cache"), "no folder").unwrap();
    fs::write(user.path("Library"), "no folder").unwrap();
    user.says(&["devices"]);
}

#[test]
fn what_is_written_to_a_file_is_what_json_says_and_is_read_again() {
    let user = User::new();
    let path = user.path("written.json");
    let file = path.to_str().unwrap();
    let printed = user.says(&["devices", "--json", "--write", file]);
    assert_eq!(fs::read_to_string(&path).unwrap(), printed);
    assert_eq!(user.says(&["devices", "--json", "--machine", file]), printed);
    // In words it is written too.
    let other = user.path("other.json");
    let words = user.says(&["devices", "--machine", file, "--write", other.to_str().unwrap()]);
    assert!(words.contains("host: "), "{words}");
    assert_eq!(fs::read_to_string(&other).unwrap(), printed);
}

#[test]
fn a_machine_from_a_file_is_described_instead_of_this_one() {
    let user = User::new();
    let file = file(&user, &elsewhere());
    assert_eq!(
        user.says(&["devices", "--machine", &file]),
        "RTX 4090: 22.0 GiB free of 24.0 GiB\n    device    NVIDIA GeForce RTX 4090 by CUDA\n    \
         memory    1008 GB/s by its data sheet\nhost: 512.0 GiB free of 512.0 GiB\n    \
         memory    400 GB/s as stated\n"
    );
}

#[test]
fn what_was_learned_of_a_card_is_told_and_left_free() {
    let user = User::new();
    let mut machine = elsewhere();
    let card = &mut machine.gpus[0];
    card.driver = Some("550.54.14".to_owned());
    card.learned = Some(LearnedHeadroom::new(mib(40), mib(50)).work(u64::MAX, u64::MAX));
    card.ggml = Some(Reading::new(card.total, card.free));
    let file = file(&user, &machine);
    let words = user.says(&["devices", "--machine", &file]);
    let told = "    driver    550.54.14\n    headroom  driver 40 MiB, growth 50 MiB, measured\nhost:";
    assert!(words.contains(told), "{words}");
    let json = user.json(&["devices", "--machine", &file]);
    assert_eq!(json["gpus"][0]["learned"]["growth"], mib(50));
    let plan = ["plan", &demo(), "--machine", &file, "--headroom", "tight"];
    assert_eq!(user.json(&plan)["devices"][0]["headroom"], mib(40 + 50 + 16));
}

#[test]
fn a_plan_is_made_for_the_machine_in_a_file() {
    let user = User::new();
    let file = file(&user, &elsewhere());
    let plan = |args: &[&str]| user.json(&[&["plan", &demo()], args].concat());
    for probing in [&[][..], &["--no-probe"]] {
        let json = plan(&[&["--machine", &file], probing].concat());
        let devices = json["devices"].as_array().unwrap();
        assert_eq!((&devices[0]["name"], &devices[0]["free"]), (&"RTX 4090".into(), &gib(22).into()));
        assert_eq!(devices.last().unwrap()["total"], gib(512));
        assert_eq!(json["probe"].is_null(), !probing.is_empty());
        // The same as the same card on this host.
        let same = plan(&[&["--gpu", "RTX 4090,free=22GiB"], probing].concat());
        assert_eq!(json["n_gpu_layers"], same["n_gpu_layers"]);
        assert_eq!(json["estimate"], same["estimate"]);
        assert_eq!(json["probe"], same["probe"]);
    }
}

#[test]
fn a_card_whose_rules_only_it_knows_is_planned_for_by_arithmetic_alone() {
    let user = User::new();
    let mut machine = elsewhere();
    machine.gpus = vec![Gpu::named("Arc B580").unwrap()];
    let file = file(&user, &machine);
    let model = demo();
    user.fails(&["plan", &model, "--machine", &file], 1, &["Vulkan", "Arc B580", "--no-probe"]);
    user.says(&["plan", &model, "--machine", &file, "--no-probe"]);
}

#[test]
fn a_file_that_is_no_machine_is_named_with_the_field() {
    let user = User::new();
    let mut wrong = serde_json::to_value(elsewhere()).unwrap();
    wrong["gpus"][0]["total"] = "24GiB".into();
    for (text, field) in [(wrong.to_string(), "gpus[0].total"), ("not JSON".to_owned(), "line 1")] {
        let file = text_file(&user, &text);
        for args in [&["devices", "--machine", &file][..], &["plan", &demo(), "--machine", &file]] {
            user.fails(args, 1, &["error: ", &file, field]);
        }
    }
    let missing = user.path("missing.json");
    let missing = missing.to_str().unwrap();
    user.fails(&["devices", "--machine", missing], 1, &[missing]);
    user.fails(&["plan", &demo(), "--machine", missing], 1, &[missing]);
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let user = User::new();
    let file = user.path("no/such/folder/machine.json");
    let file = file.to_str().unwrap();
    user.fails(&["devices", "--write", file], 1, &["error: ", file]);
}

#[test]
fn what_excludes_each_other_is_refused() {
    let user = User::new();
    user.fails(&["devices", "--measure", "--machine", "x"], 2, &["--measure", "--machine"]);
    let model = demo();
    let both = ["plan", &model, "--gpu", "RTX 4090", "--machine", "x"];
    user.fails(&both, 2, &["--gpu", "--machine"]);
    user.fails(&["devices", "--frobnicate"], 2, &["--frobnicate"]);
    user.fails(&["devices", "model.gguf"], 2, &["model.gguf"]);
}
