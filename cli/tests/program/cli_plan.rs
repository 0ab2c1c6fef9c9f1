//! The program `autoplace plan` as a person or a script meets it: words, JSON, simulated GPUs, wrong uses.

use std::path::PathBuf;

use crate::cli_support::{demo, fails, succeeds};
use crate::shapes::{LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, Shape, TINY};
use autoplace::gguf::Builder;
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::memory::{ContextParams, Pooling};
use serde_json::Value;

/// What `plan` prints of a model that it can plan, with nothing on stderr.
#[track_caller]
fn plan(model: &str, args: &[&str]) -> String {
    succeeds(&[&["plan", model], args].concat())
}

#[track_caller]
fn plan_json(model: &str, args: &[&str]) -> Value {
    serde_json::from_str(&plan(model, &[args, &["--json"]].concat())).expect("JSON")
}

/// `fails` for a plan of the demo model, with the exit code of a question that cannot be understood.
#[track_caller]
fn misused(args: &[&str], words: &[&str]) {
    fails(&[&["plan", &demo()], args].concat(), 2, words);
}

/// A model without data in a file that takes no space.
fn file(builder: &Builder) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("model.gguf");
    builder.write_sparse(&path).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

fn keys(value: &Value) -> Vec<&str> {
    let object = value.as_object().expect("an object");
    let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// Something of every element of an array.
#[track_caller]
fn array<T>(value: &Value, of: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().expect("an array").iter().map(of).collect()
}

#[track_caller]
fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no size"))
}

/// What a row of `estimate` or `probe` says, but for the compute buffers.
fn held(rows: &Value) -> Vec<(String, u64, u64)> {
    let rows = rows.as_array().expect("rows").iter();
    rows.map(|row| {
        let name = row["name"].as_str().expect("a name").to_owned();
        (name, bytes(&row["weights"]), bytes(&row["kv"]))
    })
    .collect()
}

/// Every key that the documentation promises, no other, and each of the right type.
#[track_caller]
fn has_the_documented_shape(json: &Value, probed: bool) {
    let top = "context devices estimate full_offload kv_type model n_gpu_layers notes overrides probe settings speed tensor_split took_ms";
    // All of a context's parameters, those included that are left out of a saved plan where they are off.
    let mut params = ContextParams::default();
    (params.embeddings, params.mtp, params.n_rs_seq) = (Some(Pooling::Model), true, 1);
    let params = serde_json::to_value(params).expect("JSON");
    let mut settings = keys(&params);
    settings.push("parted_blocks");
    settings.sort_unstable();
    assert_eq!(keys(&json["settings"]), settings);
    assert_eq!(keys(json).join(" "), top);
    assert_eq!(keys(&json["model"]).join(" "), "architecture blocks file_bytes name path");
    for text in ["/model/path", "/model/name", "/model/architecture", "/kv_type"] {
        assert!(json.pointer(text).unwrap().is_string(), "{text}");
    }
    for size in ["/model/file_bytes", "/model/blocks", "/context"] {
        assert!(bytes(json.pointer(size).unwrap()) > 0, "{size}");
    }
    assert!(json["n_gpu_layers"].is_u64() && json["full_offload"].is_boolean());
    assert_eq!((&json["tensor_split"], &json["overrides"]), (&serde_json::json!([]), &serde_json::json!([])));

    let devices = json["devices"].as_array().expect("devices");
    for device in devices {
        assert_eq!(keys(device).join(" "), "compute free headroom kind kv layers name of_host total weights");
        assert!(device["name"].is_string());
        for size in ["total", "free", "layers", "weights", "kv", "compute", "headroom"] {
            bytes(&device[size]);
        }
        let needed = bytes(&device["weights"]) + bytes(&device["kv"]) + bytes(&device["compute"]);
        assert!(needed + bytes(&device["headroom"]) <= bytes(&device["free"]), "{device}");
    }
    let (host, gpus) = devices.split_last().expect("a device");
    assert_eq!(host["kind"], "host");
    assert!(gpus.iter().all(|gpu| gpu["kind"] == "gpu"), "{gpus:?}");
    let layers: u64 = devices.iter().map(|device| bytes(&device["layers"])).sum();
    assert_eq!(layers, bytes(&json["model"]["blocks"]) + 1);

    let names = array(&json["devices"], |device| device["name"].clone());
    assert_eq!(json["probe"].is_null(), !probed);
    for key in ["estimate", "probe"].into_iter().filter(|key| probed || *key == "estimate") {
        assert_eq!(array(&json[key], |row| row["name"].clone()), names, "{key}");
        for row in json[key].as_array().unwrap() {
            assert_eq!(keys(row).join(" "), "compute kv name weights", "{key}");
        }
    }

    let took = &json["took_ms"];
    assert_eq!(keys(took).join(" "), "estimate header probe total");
    let parts = ["header", "estimate"].map(|part| took[part].as_f64().expect("a time"));
    assert_eq!(took["probe"].is_number(), probed);
    let sum = parts.iter().sum::<f64>() + took["probe"].as_f64().unwrap_or(0.0);
    let total = took["total"].as_f64().expect("a time");
    assert!(sum <= total + 0.01, "{took}");
}

#[test]
fn the_json_has_the_documented_keys_and_types_with_and_without_a_gpu() {
    // A GPU of the machine that runs this would be used: one layer on none is asked for.
    for (args, devices) in [
        (&["--ngl", "0"][..], 1),
        (&["--gpu", "SIM 8G=8GiB"], 2),
        (&["--gpu", "SIM 8G=8GiB", "--ngl", "3", "--kv", "q8_0", "--seqs", "2"], 2),
    ] {
        let json = plan_json(&demo(), args);
        has_the_documented_shape(&json, true);
        assert_eq!(json["devices"].as_array().unwrap().len(), devices, "{args:?}");
    }
}

#[test]
fn a_simulated_gpu_stands_in_the_answer_as_it_was_written() {
    let json = plan_json(&demo(), &["--gpu", "NVIDIA SIM 8G=8GiB,free=7.5G", "--ctx", "300"]);
    let gpu = &json["devices"][0];
    assert_eq!(gpu["name"], "NVIDIA SIM 8G");
    assert_eq!(gpu["kind"], "gpu");
    assert_eq!(bytes(&gpu["total"]), gib(8));
    assert_eq!(bytes(&gpu["free"]), gib(15) / 2);
    assert_eq!(json["model"]["path"], demo());
    assert_eq!(json["model"]["name"], "autoplace demo");
    assert_eq!((&json["n_gpu_layers"], &json["full_offload"]), (&7.into(), &true.into()));
    assert_eq!((&json["context"], &json["kv_type"]), (&300.into(), &"f16".into()));
}

#[test]
fn without_a_probe_the_answer_is_the_arithmetic_alone() {
    let args = ["--gpu", "SIM 8G=8GiB", "--no-probe"];
    let json = plan_json(&demo(), &args);
    has_the_documented_shape(&json, false);
    assert_eq!(held(&json["devices"]), held(&json["estimate"]));
    let probed = plan_json(&demo(), &args[..2]);
    assert_eq!(probed["n_gpu_layers"], json["n_gpu_layers"]);
    assert_eq!(probed["estimate"], json["estimate"]);
}

#[test]
fn a_model_of_unknown_memory_is_an_error_without_a_probe() {
    let shape = Shape { arch: "no-such-arch", ..TINY };
    let (_dir, path) = file(&shape.builder());
    fails(&["plan", &path, "--no-probe"], 1, &["cannot be computed", "no-such-arch"]);
    // llama.cpp does not know it either.
    fails(&["plan", &path], 1, &["no-such-arch"]);
}

#[test]
fn one_gpu_is_enough_where_more_would_take_no_more_layers() {
    let gpus = ["--gpu", "small=8GiB", "--gpu", "large#0=24GiB", "--gpu", "large#1=24GiB,free=12GiB"];
    let words = plan(&demo(), &gpus);
    assert!(words.contains("all 7 layers on large #0"), "{words}");
    assert!(words.contains("not used, as the plan would not be faster: small, large #1"), "{words}");
    let json = plan_json(&demo(), &gpus);
    assert_eq!(json["devices"].as_array().unwrap().len(), 2);
    assert_eq!(bytes(&json["devices"][0]["free"]), gib(24));
    assert_eq!(json["tensor_split"], serde_json::json!([]));
}

#[test]
fn experts_stay_on_the_host_unless_whole_layers_are_asked_for() {
    let (_dir, path) = file(&QWEN3_30B_A3B.builder());
    let gpu = ["--gpu", "RTX 3060 12GB", "--ctx", "2048"];
    let json = plan_json(&path, &gpu);
    assert_eq!(json["n_gpu_layers"], 49);
    assert_eq!(json["full_offload"], false);
    let overrides = array(&json["overrides"], |rule| rule.as_str().unwrap().to_owned());
    assert!(!overrides.is_empty());
    for rule in &overrides {
        assert!(rule.contains("_exps") && rule.ends_with("=CPU"), "{rule}");
    }
    assert_eq!(held(&json["estimate"]), held(&json["probe"]));
    // The plan's own bytes are the probe's.
    assert_eq!(held(&json["devices"]), held(&json["probe"]));
    for whole in [["--policy", "most-layers"], ["--host-parts", "none"]] {
        let json = plan_json(&path, &[&gpu[..], &whole].concat());
        assert!((15..49).contains(&json["n_gpu_layers"].as_u64().unwrap()), "{whole:?}");
        assert_eq!(json["overrides"], serde_json::json!([]));
    }
}

#[test]
fn a_context_grows_as_far_as_it_costs_no_layer() {
    let context = |ctx: &str| {
        let json = plan_json(&demo(), &["--gpu", "X=8GiB", "--ctx", ctx]);
        bytes(&json["context"])
    };
    let trained = context("auto");
    assert_eq!(context("300"), 300);
    assert_eq!(context("300+"), trained);
}

#[test]
fn the_curve_shows_every_number_of_layers() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::new(Host::new(gib(64)).bandwidth(60_000_000_000)).with_gpu(Gpu::named("RTX 4090").unwrap());
    let path = dir.path().join("machine.json");
    let mut json = serde_json::to_value(&machine).unwrap();
    json["version"] = serde_json::json!(1);
    std::fs::write(&path, json.to_string()).unwrap();
    let words = plan(&demo(), &["--machine", path.to_str().unwrap(), "--curve"]);
    assert!(words.contains("speed  about "), "{words}");
    let rows = words.split("layers  tok/s").nth(1).unwrap().trim().lines();
    assert_eq!(rows.count(), 8, "{words}");
    assert!(words.contains("<- this plan"), "{words}");
    // Of a card of which nothing is known it is a guess.
    let words = plan(&demo(), &["--gpu", "X=8GiB", "--curve"]);
    assert!(words.contains("by a guess") && words.contains("<- this plan"), "{words}");
}

#[test]
fn several_gpus_share_the_layers_and_llama_cpp_agrees_where_each_byte_is() {
    let gpus = ["--gpu", "a=3GiB", "--gpu", "b=2GiB", "--gpu", "c=2.5GiB"];
    let (_dir, path) = file(&LLAMA_8B.builder());
    let json = plan_json(&path, &gpus);
    assert_eq!(json["devices"].as_array().unwrap().len(), 4);
    let split: Vec<f64> = array(&json["tensor_split"], |part| part.as_f64().unwrap());
    let layers = array(&json["devices"], |device| device["layers"].as_f64().unwrap());
    assert_eq!(split, layers[..3]);
    assert_eq!(split.iter().sum::<f64>(), json["n_gpu_layers"].as_f64().unwrap());
    let held = |of: &Value| array(of, |bytes| (bytes["weights"].clone(), bytes["kv"].clone()));
    assert_eq!(held(&json["estimate"]), held(&json["probe"]));
    for device in json["devices"].as_array().unwrap() {
        let parts = ["weights", "kv", "compute", "headroom"];
        let needed: u64 = parts.iter().map(|part| bytes(&device[part])).sum();
        assert!(needed <= bytes(&device["free"]), "{device}");
    }
}

#[test]
fn words_are_the_plan_as_the_library_prints_it() {
    let words = plan(&demo(), &["--gpu", "SIM 8G=8GiB"]);
    for part in ["autoplace demo · Q8_0", "weights", "SIM 8G", "7 of 7 layers", "host", "why"] {
        assert!(words.contains(part), "no {part:?} in:\n{words}");
    }
    assert!(!words.contains('\u{1b}'), "a pipe gets no colours: {words:?}");
}

#[test]
fn a_split_that_does_not_fit_is_an_error_with_the_missing_bytes() {
    let model = demo();
    let args = ["plan", &model, "--ngl", "3", "--gpu", "X=100MiB"];
    fails(&args, 1, &["3 of 7 layers", "missing on X"]);
    let args = ["plan", &model, "--ngl", "3", "--gpu", "X=1GiB,free=0"];
    fails(&args, 1, &["no usable GPU"]);
}

#[test]
fn a_context_that_no_memory_holds_is_an_error_of_which_nothing_is_allocated() {
    // llama.cpp's notes of so many cells alone would take 89 GiB.
    let args = ["plan", &demo(), "--ctx", "2000000000"];
    fails(&args, 1, &["the host has no room for 89.4 GiB"]);
}

#[test]
fn a_parameter_out_of_its_range_is_named() {
    for ctx in ["0", "1", "-1", "+", "4k", "4294967295"] {
        misused(&["--ctx", ctx], &["--ctx", "2 to 2147483392"]);
    }
    misused(&["--ubatch", "0"], &["--ubatch"]);
    misused(&["--ubatch", "2147483393"], &["--ubatch"]);
    misused(&["--seqs", "0"], &["--seqs", "1..=256"]);
    misused(&["--seqs", "257"], &["--seqs"]);
    misused(&["--ngl", "-1"], &["--ngl"]);
    misused(&["--headroom", "200%"], &["--headroom", "200%"]);
    misused(&["--headroom", "much"], &["--headroom", "much"]);
    misused(&["--kv", "iq2_xs"], &["--kv", "q8_0"]);
    misused(&["--flash-attn", "maybe"], &["--flash-attn", "auto, on, off"]);
}

#[test]
fn a_gpu_that_cannot_be_is_named() {
    misused(&["--gpu", "X=8GiB,free=9GiB"], &["--gpu", "X=8GiB,free=9GiB"]);
    let twice = ["--gpu", "RTX 4090", "--gpu", "RTX 4090"];
    misused(&twice, &["two GPUs are called `RTX 4090`", "`RTX 4090#1`"]);
    let many = ["--gpu", "X=1GiB"].repeat(16);
    misused(&many, &["--gpu", "16", "15"]);
}

#[test]
fn a_combination_that_llama_cpp_would_refuse_says_what_is_wrong() {
    let model = demo();
    let args = ["plan", &model, "--kv", "q8_0", "--flash-attn", "off"];
    fails(&args, 1, &["flash attention", "Q8_0"]);
    let args = ["plan", &model, "--ctx", "2", "--seqs", "3"];
    fails(&args, 1, &["n_seq_max is 3"]);
}

#[test]
fn a_command_line_that_says_nothing_or_nonsense_says_what_is_missing() {
    fails(&[], 2, &["plan"]);
    fails(&["plan"], 2, &["<MODEL>"]);
    fails(&["plan", &demo(), "--rpc", "127.0.0.1:1"], 1, &["127.0.0.1:1", "nothing listens there"]);
    fails(&["plan", &demo(), "--rpc", "192.0.2.1:1"], 1, &["192.0.2.1:1", "rpc_trusted_network"]);
    fails(&["frobnicate"], 2, &["frobnicate"]);
    misused(&["--frobnicate"], &["--frobnicate"]);
    misused(&["--headroom"], &["--headroom"]);
    misused(&["another.gguf"], &["another.gguf"]);
}

#[test]
fn a_model_that_is_none_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (garbage, empty, cut) = (path("garbage.gguf"), path("empty.gguf"), path("cut.gguf"));
    std::fs::write(&garbage, "[package]\nname = \"no model\"\n").unwrap();
    std::fs::write(&empty, "").unwrap();
    let demo = std::fs::read(demo()).unwrap();
    std::fs::write(&cut, &demo[..demo.len() / 2]).unwrap();
    for wrong in [&garbage, &empty, &cut, "/nonexistent.gguf", "/"] {
        for args in [&["plan", wrong][..], &["plan", wrong, "--no-probe", "--json"]] {
            fails(args, 1, &[wrong]);
        }
    }
}

#[test]
fn an_error_is_one_line_whatever_the_model_is_called() {
    let builder = TINY.builder().str("general.name", "two\n\nlines \u{1b}[31m");
    let (_dir, path) = file(&builder);
    let args = ["plan", &path, "--ngl", "1", "--gpu", "X=1MiB", "--no-probe"];
    fails(&args, 1, &["does not fit"]);
}

#[test]
fn embeddings_are_planned_by_llama_cpp_alone() {
    // The vectors and logits of all tokens are the host's.
    let results = |more: &[&str]| {
        let json = plan_json(&demo(), &[&["--gpu", "SIM 8G=8GiB"], more].concat());
        bytes(&json["devices"][1]["compute"])
    };
    let whole = results(&["--embeddings"]);
    assert!(whole > results(&[]));
    assert!(results(&["--embeddings=mean", "--ctx", "64"]) < whole);
    let path = demo();
    let said = plan(&path, &["--ngl", "0", "--embeddings", "--ctx", "100"]);
    // As many tokens for each of 16 texts.
    assert!(said.contains("texts of up to 112 tokens, 16 of them"), "{said}");
    let emit = ["--ngl", "0", "--embeddings=last", "--emit", "llama.cpp"];
    let command = plan(&path, &emit);
    for part in ["--embeddings", "--pooling last", "-np 16"] {
        assert!(command.contains(part), "{command}");
    }
    let without_probe = ["plan", &path, "--embeddings", "--no-probe"];
    fails(&without_probe, 1, &["embeddings"]);
    misused(&["--embeddings=median"], &["median"]);
}

#[test]
fn help_and_version_are_no_errors() {
    let plan = "--ctx --kv --ubatch --seqs --flash-attn --ngl --gpu --headroom --no-probe --json";
    for (verb, arguments) in [("plan", plan), ("devices", "--json --write --measure --machine")] {
        let help = succeeds(&[verb, "--help"]);
        for argument in arguments.split(' ') {
            assert!(help.contains(argument), "{verb} {argument}");
        }
    }
    assert!(succeeds(&["--version"]).contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_host_that_one_does_not_have_is_described() {
    let (_dir, path) = file(&LLAMA_8B.builder());
    let args = |host: &[&'static str]| [&["--gpu", "RTX 3060 12GB", "--no-probe"], host].concat();
    let json = plan_json(&path, &args(&["--ram", "64GiB:60GB/s"]));
    let host = |json: &Value| json["devices"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(bytes(&host(&json)["free"]), gib(64));
    assert!(json["speed"]["host_rate"].as_f64().unwrap() < 60e9);
    let file = Machine::new(Host::new(gib(8)));
    let dir = tempfile::tempdir().unwrap();
    let machine = dir.path().join("machine.json");
    file.write(&machine).unwrap();
    let machine = machine.to_str().unwrap();
    let json = plan_json(&path, &["--machine", machine, "--no-probe", "--ram", "32GiB"]);
    assert_eq!(bytes(&host(&json)["total"]), gib(32));
    misused(&["--ram", "0"], &["more than 0"]);
    misused(&["--ram", "64GiB:fast"], &["rate"]);
}

#[test]
fn a_model_larger_than_memory_is_an_error() {
    let (_dir, path) = file(&LLAMA_70B.builder());
    let host = ["--no-probe", "--gpu", "RTX 3060 12GB", "--ram", "16GiB:60GB/s"];
    fails(&[&["plan", path.as_str()], &host[..]].concat(), 1, &["does not fit"]);
}
