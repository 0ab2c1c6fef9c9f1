//! What `autoplace measure` measures, and its output. Speeds are not asserted.

use std::collections::BTreeSet;
use std::fs;
use std::mem::{Discriminant, discriminant};

use crate::cli_support::{User, demo, text};
use autoplace::memory::KvType;
use autoplace_measure::Measurement;
use serde_json::Value;
use test_support::llama_source;

/// Arguments for a card that has room for half of the demo model, and for a small number of tokens.
const SHORT: &str =
    "--policy most-layers --gpu X=6MiB --headroom 0 --ctx 256 --prompt-tokens 8 -n 4 --threads 1 --at 0,32";

/// Measures, writes the result to a file, and reads the file.
fn measured(user: &User, args: &[&str]) -> (String, Measurement) {
    let file = user.path("measured.json").to_str().unwrap().to_owned();
    let demo = demo();
    let short: Vec<&str> = SHORT.split(' ').collect();
    user.says(&[&["measure", &demo, "--write", &file][..], &short, args].concat());
    let read = Measurement::from_json(&fs::read_to_string(&file).unwrap()).unwrap();
    (file, read)
}

#[test]
fn a_stored_measurement_is_shown_in_every_format() {
    let user = User::new();
    let (file, measurement) = measured(&user, &["--rounds", "1"]);
    let show = |format| user.says(&["measure", &file, "--format", format]);

    let names: Vec<&str> = measurement.points.iter().map(|point| point.name.as_str()).collect();
    assert!(names.contains(&"plan") && names.contains(&"ngl 0"), "{names:?}");
    let (table, markdown) = (show("table"), show("markdown"));
    for name in names {
        assert!(table.contains(name) && markdown.contains(&format!("| {name} |")), "{table}{markdown}");
    }
    assert!(table.contains("does not fit"), "{table}");
    assert_eq!(Measurement::from_json(&show("json")).unwrap(), measurement);
}

#[test]
fn a_measurement_is_shown_even_if_a_file_cannot_be_written() {
    let user = User::new();
    let (file, _) = measured(&user, &["--rounds", "1", "--steps", "2"]);
    // No file system has such a long name.
    let names = ["", &"x".repeat(300), "it.svg"];
    let [folder, long, picture] = names.map(|name| user.path(name).display().to_string());
    let table = user.says(&["measure", &file]);
    let output = user.autoplace(&["measure", &file, "--write", &long, "--picture", &picture]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), table));
    assert!(text(&output.stderr).contains(&long), "{}", text(&output.stderr));
    user.fails(&["measure", &file, "--write", &folder], 1, &["this is a folder"]);
    assert!(fs::read_to_string(picture).unwrap().starts_with("<svg"));
}

/// The keys of an object in their order, each with the type of its value.
fn shape(line: &str) -> Vec<(String, Discriminant<Value>)> {
    let object: serde_json::Map<String, Value> = line.parse().unwrap();
    object.into_iter().map(|(key, value)| (key, discriminant(&value))).collect()
}

#[test]
fn llama_bench_has_the_same_keys_and_no_sample_is_lost() {
    let user = User::new();
    let (file, measurement) = measured(&user, &["--rounds", "1", "--steps", "2"]);
    let lines = user.says(&["measure", &file, "--format", "llama-bench"]);
    let readme = llama_source::read("tools/llama-bench/README.md");
    let theirs = readme.lines().find(|line| line.starts_with("{\"build_commit\"")).unwrap();
    let rows: Vec<_> = measurement.points.iter().flat_map(|point| &point.rows).collect();
    assert_eq!(lines.lines().count(), rows.len());
    let mut layers = BTreeSet::new();
    for (line, row) in lines.lines().zip(rows) {
        assert_eq!(shape(line), shape(theirs));
        let json: Value = line.parse().unwrap();
        let ns: Vec<Value> = row.samples.iter().map(|sample| sample.ns.into()).collect();
        assert_eq!(json["samples_ns"], Value::Array(ns));
        assert_eq!([&json["n_prompt"], &json["n_gen"], &json["n_depth"]], [row.n_prompt, row.n_gen, row.n_depth]);
        layers.insert(json["n_gpu_layers"].as_u64().unwrap());
    }
    assert_eq!(layers.len(), 2, "the plan's layers, and none: {layers:?}");
}

#[test]
fn two_placements_are_compared() {
    let user = User::new();
    let [plan, file] = ["plan.json", "measured.json"].map(|name| user.path(name).display().to_string());
    let demo = demo();
    user.says(&["plan", &demo, "--ctx", "256", "--kv", "q8_0", "--save", &plan]);
    let both = ["--before", "-ngl 0 -ctk bf16", "--after", &plan, "--rounds", "2"];
    let measure = ["measure", &demo, "--write", &file, "--prompt-tokens", "8", "-n", "4", "--at", "0"];
    let table = user.says(&[&measure[..], &both].concat());
    assert!(table.contains("after / before, tg4 @ d8: ") && table.contains(" times as fast ("), "{table}");
    let measurement = Measurement::from_json(&fs::read_to_string(&file).unwrap()).unwrap();
    let keys = |name| measurement.point(name).unwrap().placement.as_ref().unwrap().settings.type_k;
    assert_eq!((keys("before"), keys("after")), (KvType::BF16, KvType::Q8_0));

    for (flags, word) in [
        ("-ngl", "-ngl is missing"),
        ("-ngl many", "-ngl many"),
        ("-ctk q9", "-ctk q9"),
        ("-fa maybe", "-fa maybe"),
        ("-ngl 3 --mlock", "--mlock is not a known flag"),
        ("-ngl '5", "quotation mark"),
    ] {
        user.fails(&["measure", &demo, "--before", flags], 2, &["--before", word]);
    }
}

#[test]
fn an_impossible_measurement_is_refused_before_anything_is_measured() {
    let user = User::new();
    let demo = demo();
    let empty = user.path("empty.txt");
    fs::write(&empty, "\n").unwrap();
    let empty = empty.to_str().unwrap();
    user.fails(&["measure", &demo, "--prompts", empty], 1, &["empty.txt", "no prompt"]);
    user.fails(&["measure", &demo, "--ctx", "256", "--at", "250"], 1, &["context", "256"]);
    user.fails(&["measure", empty], 1, &["empty.txt"]);
    let json = user.path("other.json");
    fs::write(&json, "{\"version\": 7}").unwrap();
    let written = "a measurement is a file that `autoplace measure --write` writes";
    user.fails(
        &["measure", json.to_str().unwrap()],
        1,
        &["other.json", "missing field", "at line 1 column 14", written],
    );
    let cut = user.path("cut.txt");
    fs::write(&cut, "[\"one\",\n").unwrap();
    let listed = ["cut.txt", "EOF while parsing a value at line 2 column 0", "prompts are a JSON list of texts, or"];
    user.fails(&["measure", &demo, "--prompts", cut.to_str().unwrap()], 1, &listed);
    user.fails(&["measure", &demo, "--prompts", &demo], 1, &[&demo, "it is a GGUF file", "prompts are"]);
    let not_plan = ["other.json", "version is 7, but this program reads only versions up to 1"];
    user.fails(&["measure", &demo, "--before", json.to_str().unwrap()], 1, &not_plan);
    let machine = user.path("machine.json");
    fs::write(&machine, "{\"version\": 1}").unwrap();
    let not_plan = ["machine.json", "missing field `made_by` at line 1 column 14", "a plan is a file that"];
    user.fails(&["measure", &demo, "--before", machine.to_str().unwrap()], 1, &not_plan);
    user.fails(&["measure", json.to_str().unwrap(), "--full"], 1, &["only shown again"]);
    user.fails(&["measure", &demo, "--steps", "1"], 2, &["--steps"]);
    user.fails(&["measure", &demo, "--ready", "--format", "markdown"], 1, &["--ready"]);
    user.fails(&["measure", json.to_str().unwrap(), "--ready"], 1, &["only shown again"]);
    let nowhere = user.path("nowhere/plan.json");
    user.fails(&["measure", &demo, "--ready", "--save", nowhere.to_str().unwrap()], 1, &["the folder does not exist"]);
    for (wrong, word) in [
        (["--quick", "--at=0"], "--at"),
        (["--quick", "--json"], "--ready"),
        (["--ready=1", "--quick"], "2.."),
        (["--ready", "--full"], "--full"),
        (["--ready", "--drift=-1"], "percent"),
        (["--ready", "--over=soon"], "seconds"),
    ] {
        user.fails(&[&["measure", &demo][..], &wrong].concat(), 2, &[word]);
    }
}

#[test]
fn a_placement_that_lasts_is_saved_and_one_that_does_not_exits_with_3() {
    let user = User::new();
    let plan = user.path("plan.json");
    let demo = demo();
    let ready = |drift, more: &[&str]| {
        let saved = plan.to_str().unwrap();
        let args = ["measure", &demo, "--ctx", "256", "--ready=3", "--over", "0", "--drift", drift, "--save", saved];
        user.autoplace(&[&args[..], more].concat())
    };
    // If the allowed drift is 0, this fails, because no two runs take exactly the same time. It may fail for another
    // reason too, because the machine is busy.
    let output = ready("0", &[]);
    let table = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(3), ""), "{table}");
    assert!(table.contains("a context of 256, 3 runs at its end"), "{table}");
    assert!(table.contains("FAIL  drift") && table.ends_with("not ready: no placement passed\n"), "{table}");
    assert!(!plan.exists());

    let output = ready("1e9", &["--json"]);
    let json: Value = text(&output.stdout).parse().unwrap();
    let trials = json["trials"].as_array().unwrap();
    let passed = |trial: &Value| trial["checks"].as_array().unwrap().iter().all(|check| check["passed"] == true);
    let is_ready = trials.last().is_some_and(passed);
    assert_eq!(output.status.code(), Some(if is_ready { 0 } else { 3 }), "{json:#}");
    assert_eq!((is_ready, is_ready), (!json["plan"].is_null(), plan.exists()), "{json:#}");
    let drift = &trials[0]["checks"][0];
    assert_eq!((&drift["aspect"], &drift["passed"]), (&"drift".into(), &true.into()), "{json:#}");
    if is_ready {
        let followed = user.autoplace(&["run", &demo, "--plan", plan.to_str().unwrap(), "-n", "4", "Once"]);
        assert!(followed.status.success(), "{}", text(&followed.stderr));
    }
}

#[test]
fn a_submission_shows_its_content_and_has_no_path_text_or_name() {
    let user = User::new();
    let [texts, file, page] = ["texts", "mine.json", "page.html"].map(|name| user.path(name).display().to_string());
    fs::write(&texts, "My name is Zoe.\n").unwrap();
    let (measured, _) = measured(&user, &["--rounds", "1", "--steps", "2", "--prompts", &texts]);
    let output = user.autoplace(&["measure", &measured, "--submission", &file, "--picture", &page]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("contains:") && said.contains("model: autoplace demo") && said.contains("placements: "),
        "{said}"
    );
    let submission = fs::read_to_string(&file).unwrap();
    let folder = user.path("").display().to_string();
    for private in ["Zoe", "0.gguf", &folder, "/home", "/tmp"] {
        assert!(!submission.contains(private), "{private}: {submission}");
    }
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("<svg") && page.contains("<table>") && !page.contains("<script"), "{page}");
}
