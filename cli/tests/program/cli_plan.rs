//! The output of `autoplace plan`, for people and for scripts: text, JSON, simulated GPUs, and errors for wrong
//! arguments.

use crate::cli_support::{demo, fails, succeeds};
use autoplace::gguf::Builder;
use autoplace::machine::{Host, Machine, gib};
use autoplace::memory::{ContextParams, Pooling};
use serde_json::{Value, json};
use test_support::shapes::{LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, Shape, TINY};

/// The output of `plan` for a valid model. stderr must be empty.
#[track_caller]
fn plan(model: &str, args: &[&str]) -> String {
    succeeds(&[&["plan", model], args].concat())
}

#[track_caller]
fn plan_json(model: &str, args: &[&str]) -> Value {
    plan(model, &[args, &["--json"]].concat()).parse().expect("JSON")
}

/// A sparse file that contains a model without data.
pub(crate) fn file(builder: &Builder) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a model's.gguf");
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

/// Calls a function for every element of an array, and returns the results.
#[track_caller]
fn array<T>(value: &Value, of: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().expect("an array").iter().map(of).collect()
}

#[track_caller]
fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a size"))
}

/// The rows of `estimate` or `probe`, without compute buffers.
fn held(rows: &Value) -> Vec<(Value, u64, u64)> {
    array(rows, |row| (row["name"].clone(), bytes(&row["weights"]), bytes(&row["kv"])))
}

/// Asserts that the plan's part on each device fits.
#[track_caller]
fn has_room(json: &Value) {
    for device in json["devices"].as_array().unwrap() {
        let needed: u64 =
            ["weights", "kv", "compute", "experts", "headroom"].map(|part| bytes(&device[part])).iter().sum();
        assert!(needed <= bytes(&device["free"]) && bytes(&device["free"]) <= bytes(&device["total"]), "{device}");
    }
}

/// Asserts that the object has exactly the keys that are documented, and that each value has the right type.
#[track_caller]
fn has_the_documented_shape(json: &Value, probed: bool) {
    let top = "by_depth context devices estimate full_offload kv_type model moe_cache n_gpu_layers notes overrides paging probe settings speed tensor_split took_ms";
    // All parameters of a context, including those that a saved plan leaves out because they are off.
    let mut params = ContextParams::default();
    (params.embeddings, params.mtp, params.n_rs_seq, params.moe_cache_size) = (Some(Pooling::Model), true, 1, 1);
    let mut params = json!(params);
    params["split_blocks"] = 0.into();
    assert_eq!(keys(&json["settings"]), keys(&params));
    assert_eq!(keys(json).join(" "), top);
    assert_eq!(keys(&json["model"]).join(" "), "architecture blocks file_bytes name path");
    for text in ["/model/path", "/model/name", "/model/architecture", "/kv_type"] {
        assert!(json.pointer(text).unwrap().is_string(), "{text}");
    }
    for size in ["/model/file_bytes", "/model/blocks", "/context"] {
        assert!(bytes(json.pointer(size).unwrap()) > 0, "{size}");
    }
    assert!(json["n_gpu_layers"].is_u64() && json["full_offload"].is_boolean());
    assert_eq!((&json["tensor_split"], &json["overrides"]), (&json!([]), &json!([])));

    has_room(json);
    for keys in array(&json["devices"], |device| keys(device).join(" ")) {
        assert_eq!(keys, "compute experts free headroom kind kv layers name of_host total weights");
    }
    let kinds = array(&json["devices"], |device| device["kind"].clone());
    assert_eq!(kinds, ["gpu", "host"][2 - kinds.len()..]);
    let layers: u64 = array(&json["devices"], |device| bytes(&device["layers"])).iter().sum();
    assert_eq!(layers, bytes(&json["model"]["blocks"]) + 1);

    let names = array(&json["devices"], |device| device["name"].clone());
    assert!(names.iter().all(Value::is_string));
    assert_eq!(json["probe"].is_null(), !probed);
    for key in ["estimate", "probe"].into_iter().filter(|key| probed || *key == "estimate") {
        assert_eq!(array(&json[key], |row| row["name"].clone()), names, "{key}");
        assert!(
            array(&json[key], |row| keys(row).join(" ")).iter().all(|keys| keys == "compute experts kv name weights")
        );
    }

    let took = &json["took_ms"];
    assert_eq!(keys(took).join(" "), "estimate header probe total");
    let parts = ["header", "estimate"].map(|part| took[part].as_f64().expect("a time"));
    assert_eq!(took["probe"].is_number(), probed);
    let sum = parts.iter().sum::<f64>() + took["probe"].as_f64().unwrap_or(0.0);
    assert!(sum <= took["total"].as_f64().expect("a time") + 0.01, "{took}");
}

#[test]
fn the_json_has_the_documented_keys_and_types_with_and_without_a_gpu() {
    // No layer is put on a GPU, because the test's machine may have one.
    for (args, devices) in [
        (&["--ngl", "0"][..], 1),
        (&["--gpu", "SIM 8G=8GiB"], 2),
        (&["--gpu", "SIM 8G=8GiB", "-ngl", "3", "-ub", "256", "-fa", "on", "--kv", "q8_0", "--seqs", "2"], 2),
    ] {
        let json = plan_json(&demo(), args);
        has_the_documented_shape(&json, true);
        assert_eq!(json["devices"].as_array().unwrap().len(), devices, "{args:?}");
    }
    let json = plan_json(&demo(), &["--gpu", "NVIDIA SIM 8G=8GiB,free=7.5G", "--ctx", "300"]);
    let gpu = &json["devices"][0];
    assert_eq!((&gpu["name"], &gpu["total"]), (&json!("NVIDIA SIM 8G"), &json!(gib(8))));
    assert_eq!(gpu["free"], gib(15) / 2);
    assert_eq!((&json["model"]["path"], &json["model"]["name"]), (&json!(demo()), &json!("autoplace demo")));
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
fn one_gpu_is_enough_where_more_would_take_no_more_layers() {
    let gpus = ["--gpu", "small=8GiB", "--gpu", "large#0=24GiB", "--gpu", "large#1=24GiB,free=12GiB"];
    let words = plan(&demo(), &gpus);
    assert!(words.contains("all 7 layers on large #0"), "{words}");
    assert!(words.contains("not used, as the plan would not be faster: small, large #1"), "{words}");
}

#[test]
fn experts_stay_on_the_host_unless_whole_layers_are_asked_for() {
    let (_dir, path) = file(&QWEN3_30B_A3B.builder());
    let gpu = ["--gpu", "RTX 3060 12GB", "--ctx", "2048"];
    let json = plan_json(&path, &gpu);
    assert_eq!((&json["n_gpu_layers"], &json["full_offload"]), (&49.into(), &false.into()));
    let overrides = array(&json["overrides"], |rule| rule.as_str().unwrap().to_owned());
    assert!(!overrides.is_empty());
    assert!(overrides.iter().all(|rule| rule.contains("_exps") && rule.ends_with("=CPU")), "{overrides:?}");
    assert_eq!(held(&json["estimate"]), held(&json["probe"]));
    // The plan has the same bytes as the probe.
    assert_eq!(held(&json["devices"]), held(&json["probe"]));
    for whole in [["--policy", "most-layers"], ["--host-parts", "none"]] {
        let json = plan_json(&path, &[&gpu[..], &whole].concat());
        assert!((15..49).contains(&json["n_gpu_layers"].as_u64().unwrap()), "{whole:?}");
        assert_eq!(json["overrides"], json!([]));
    }
}

#[test]
fn a_context_grows_as_far_as_it_costs_no_layer() {
    let context = |ctx: &str| plan_json(&demo(), &["--gpu", "X=8GiB", "--ctx", ctx])["context"].clone();
    assert_eq!(context("300"), 300);
    assert_eq!(context("300+"), context("auto"));
}

#[test]
fn a_plan_by_depth_has_both_placements_and_emits_the_requested_one() {
    let (dir, path) = file(&LLAMA_70B.builder());
    let machine = ["--gpu", "RTX 4090=24GiB", "--ram", "96GiB:60GB/s", "--ctx", "32768"];
    let words = plan(&path, &machine);
    let line = words.lines().find(|line| line.starts_with("  depth ")).unwrap_or_else(|| panic!("{words}"));
    assert!(line.contains(" of 81 layers on GPUs") && line.contains(" up to about "), "{line}");
    assert!(line.contains("feed-forward matrices of ") && line.contains(" to the end; moving takes about "), "{line}");

    let file = dir.path().join("both.json");
    let json = plan_json(&path, &[&machine[..], &["--save", file.to_str().unwrap()]].concat());
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(saved["plan"]["by_depth"]["crossing"], json["by_depth"]["crossing"]);
    assert_eq!(saved["plan"]["by_depth"]["plan"]["n_gpu_layers"], json["by_depth"]["plan"]["n_gpu_layers"]);
    let keys_of_both = "crossing in_words is_deeper moving_measured moving_seconds plan seconds workload_seconds";
    assert_eq!(keys(&json["by_depth"]).join(" "), keys_of_both);
    assert!(line.ends_with(json["by_depth"]["in_words"].as_str().unwrap()), "{line}");
    assert_eq!(json["by_depth"]["moving_measured"], Value::Null, "no load was measured");
    let crossing = json["by_depth"]["crossing"].as_u64().unwrap();
    assert!((100..32_768).contains(&crossing), "{crossing}");

    // The placement in the output is the one for the whole conversation, with a note, or the one for the depth that was
    // asked for.
    let emit = |args: &[&str]| {
        let args = [&["plan", &path], &machine[..], &["--emit", "llama.cpp"], args].concat();
        let output = crate::cli_support::User::new().autoplace(&args);
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let [followed, note] = emit(&[]);
    assert!(note.contains("the placement that is faster over a whole conversation"), "{note}");
    let [all, no_note] = emit(&["--depth", "all"]);
    assert_eq!((all, no_note.as_str()), (followed, ""));
    let [shallow, deep] = ["64", "32768"].map(|depth| emit(&["--depth", depth]));
    assert_eq!((shallow[1].as_str(), deep[1].as_str()), ("", ""));
    assert_ne!(shallow[0], deep[0]);
    assert!(!plan(&path, &[&machine[..], &["--depth", "64"]].concat()).contains("\n  depth "));
    for (wrong, words) in [("deep", "not a depth"), ("40000", "32768")] {
        let code = if wrong == "deep" { 2 } else { 1 };
        fails(&[&["plan", &path], &machine[..], &["--depth", wrong]].concat(), code, &[words]);
    }
}

#[test]
fn the_types_of_the_cache_get_smaller_where_that_is_faster() {
    let (_dir, path) = file(&LLAMA_8B.builder());
    let kv = |kv: &str, free: &str| {
        let gpu = format!("RTX 4090,free={free}");
        let args = ["--gpu", &gpu, "--ctx", "16384", "--kv", kv, "--no-probe"];
        plan_json(&path, &args)["kv_type"].as_str().unwrap().to_owned()
    };
    assert_eq!(kv("auto", "20GiB"), "f16");
    assert_eq!(kv("auto", "6.7GiB"), "q8_0");
    assert_eq!(kv("f16", "6.7GiB"), "f16");
}

#[test]
fn the_curve_shows_every_number_of_layers() {
    let words = plan(&demo(), &["--gpu", "RTX 4090", "--ram", "64GiB:60GB/s", "--curve"]);
    assert!(words.contains("speed  about "), "{words}");
    let rows = words.split("layers  tok/s").nth(1).unwrap().trim().lines();
    assert_eq!(rows.count(), 8, "{words}");
    assert!(words.contains("<- this plan"), "{words}");
    // If a card is not known, its speed is guessed.
    let words = plan(&demo(), &["--gpu", "X=8GiB", "--curve"]);
    assert!(words.contains("by a guess") && words.contains("<- this plan"), "{words}");
    for part in ["autoplace demo · Q8_0", "weights", "7 of 7 layers", "host", "why"] {
        assert!(words.contains(part), "no {part:?} in:\n{words}");
    }
    assert!(!words.contains('\u{1b}'), "a pipe gets no colours: {words:?}");
}

#[test]
fn several_gpus_share_the_layers_and_llama_cpp_agrees_where_each_byte_is() {
    let gpus = ["--gpu", "a=3GiB", "--gpu", "b=2GiB", "--gpu", "c=2.5GiB"];
    let (_dir, path) = file(&LLAMA_8B.builder());
    let json = plan_json(&path, &gpus);
    let layers = array(&json["devices"], |device| device["layers"].as_f64().unwrap());
    let split = array(&json["tensor_split"], |part| part.as_f64().unwrap());
    assert_eq!((split.len(), &split[..]), (layers.len() - 1, &layers[..3]));
    assert_eq!(split.iter().sum::<f64>(), json["n_gpu_layers"].as_f64().unwrap());
    assert_eq!(held(&json["estimate"]), held(&json["probe"]));
    has_room(&json);
}

#[test]
fn an_impossible_plan_is_refused_with_its_fault() {
    let demo = demo();
    let many_gpus = ["--gpu", "X=1GiB"].repeat(16);
    fails(&[&["plan", &demo][..], &many_gpus].concat(), 2, &["--gpu", "16", "15"]);
    for ctx in "1 -1 + 4k 4294967295".split(' ') {
        fails(&["plan", &demo, "--ctx", ctx], 2, &["--ctx", "2 to 2147483392"]);
    }
    fails(&["plan", &demo, "--lora", &demo], 1, &["is not a LoRA adapter", "general.type"]);
    for row in include_str!("cli_plan.txt").lines().filter(|row| !row.starts_with('#')) {
        let [args, code, words @ ..] = &row.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
        let args: Vec<&str> = args.split_whitespace().collect();
        fails(&[&["plan", &demo][..], &args].concat(), code.parse().unwrap(), words);
    }
    fails(&[], 2, &["plan"]);
    fails(&["plan"], 2, &["<MODEL>"]);
    fails(&["completions", "tcsh"], 2, &["tcsh"]);
}

#[test]
fn an_impossible_cache_of_experts_is_an_error_or_a_note() {
    let (_dir, mixture) = file(&QWEN3_30B_A3B.builder());
    let card = ["--gpu", "RTX 4070=12GiB,free=11GiB", "--no-probe"];
    let with = |args: &[&'static str]| [&["plan", &mixture][..], &card, args].concat();
    for (args, code, words) in [
        (&["--moe-cache", "30GiB"][..], 1, &["moe_cache is 32212254720", "RTX 4070 can use 10."][..]),
        (&["--moe-cache-mib", "30000"], 1, &["moe_cache is 31457280000"]),
        (&["--moe-cache", "1MiB"], 1, &["the experts of one token"]),
        (&["--moe-cache", "2GiB", "-sm", "tensor"], 2, &["-sm: the memory that `tensor` allocates"]),
        (&["--moe-cache", "lots"], 2, &["`lots` is not a size", "or auto, or off"]),
        (&["--moe-cache-mib", "-5"], 2, &["--moe-cache-mib: `-5` is not a number of MiB"]),
    ] {
        fails(&with(args), code, words);
    }
    let noted = |model: &str, machine: &[&str], why: &str| {
        let text = plan(model, &[machine, &["--no-probe", "--moe-cache", "1GiB"]].concat());
        let note = format!("note   no cache of 1.0 GiB for experts, although one was requested: {why}");
        assert!(text.contains(&note), "{text}");
    };
    noted(&demo(), &card[..2], "the model has no experts");
    noted(&mixture, &["--ram", "64GiB"], "there is no GPU that could hold the cache");
    noted(&mixture, &["--gpu", "RTX 4090", "--ctx", "4096"], "all experts are on GPUs");
    noted(&mixture, &["--gpu", "RTX 3060 12GB", "--policy", "most-layers"], "layers stay whole");
}

#[test]
fn a_file_that_is_not_a_model_is_named() {
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
fn a_model_of_unknown_memory_is_an_error_without_a_probe() {
    let shape = Shape { arch: "no-such-arch", ..TINY };
    let (_dir, path) = file(&shape.builder());
    fails(&["plan", &path, "--no-probe"], 1, &["cannot be computed", "no-such-arch"]);
    // llama.cpp does not know this architecture, either.
    fails(&["plan", &path], 1, &["no-such-arch"]);
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
    // The vectors and the logits of all tokens lie on the host.
    let results = |more: &[&str]| {
        let json = plan_json(&demo(), &[&["--gpu", "SIM 8G=8GiB"], more].concat());
        bytes(&json["devices"][1]["compute"])
    };
    let whole = results(&["--embeddings"]);
    assert!(whole > results(&[]));
    assert!(results(&["--embeddings=mean", "--ctx", "64"]) < whole);
    let said = plan(&demo(), &["--ngl", "0", "--embeddings", "--ctx", "100"]);
    // Each of the 16 texts has the same number of tokens.
    assert!(said.contains("texts of up to 112 tokens, or up to 16 shorter texts"), "{said}");
    let command = plan(&demo(), &["--ngl", "0", "--embeddings=last", "--emit", "llama.cpp"]);
    for part in ["--embeddings", "--pooling last", "-np 16"] {
        assert!(command.contains(part), "{command}");
    }
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
fn another_host_can_be_described() {
    let (_dir, path) = file(&LLAMA_8B.builder());
    let host = |args: &[&str]| {
        let mut json = plan_json(&path, &[&["--no-probe", "--ram"], args].concat());
        (json["devices"].as_array_mut().unwrap().pop().unwrap(), json["speed"]["host_rate"].take())
    };
    let (memory, rate) = host(&["64GiB:60GB/s", "--gpu", "RTX 3060 12GB"]);
    assert_eq!((bytes(&memory["free"]), bytes(&memory["total"])), (gib(64), gib(64)));
    assert!(rate.as_f64().unwrap() < 60e9);
    let dir = tempfile::tempdir().unwrap();
    let machine = dir.path().join("machine.json");
    Machine::new(Host::new(gib(8))).write(&machine).unwrap();
    let (memory, _) = host(&["32GiB", "--machine", machine.to_str().unwrap()]);
    assert_eq!(bytes(&memory["total"]), gib(32));
    let (_dir, large) = file(&LLAMA_70B.builder());
    let host = ["plan", &large, "--no-probe", "--gpu", "RTX 3060 12GB", "--ram", "16GiB:60GB/s"];
    // The error says which change would make the model fit, and that the model can be read from disk.
    fails(&host, 1, &["does not fit", "with --allow-paging", "tok/s"]);
    let paging = [&host[..], &["--allow-paging", "--disk-rate", "3GB/s"]].concat();
    let said = succeeds(&paging);
    for words in ["do not fit in memory", "for every token", "3.0 GB/s as stated"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let json: Value = succeeds(&[&paging[..], &["--json"]].concat()).parse().unwrap();
    assert!(json["paging"]["bytes"].as_u64().unwrap() > gib(10));
    assert_eq!(json["paging"]["disk"]["source"], "stated");
    fails(&[&host[..], &["--disk-rate", "3GB/s"]].concat(), 2, &["--allow-paging"]);
}
