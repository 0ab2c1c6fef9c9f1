//! The checks without a card, in a small size. `run.sh --cpu` runs them from a folder with the archive's layout. The
//! tests also show that the checks can fail.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_gpu-check");

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn demo() -> PathBuf {
    repository().join("examples/model/autoplace-demo-q8_0.gguf")
}

fn json(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

fn rows(out: &Path, check: &str) -> Vec<Value> {
    let rows = &json(&out.join(format!("{check}.json")))["rows"];
    rows.as_array().unwrap().clone()
}

/// Creates a folder with the archive's layout, with the program that was built for this test.
fn bundle(root: &Path) {
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::create_dir_all(root.join("model")).unwrap();
    let script = repository().join("gpu-check/bundle/run.sh");
    fs::copy(script, root.join("run.sh")).unwrap();
    fs::write(root.join("BUILD.json"), "{\"made by\": \"a test\"}").unwrap();
    symlink(PROGRAM, root.join("bin/gpu-check")).unwrap();
    symlink(demo(), root.join("model/autoplace-demo-q8_0.gguf")).unwrap();
}

fn success(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{table}");
}

#[test]
fn without_a_card_every_check_passes_from_a_folder_like_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    bundle(folder.path());
    let out = folder.path().join("out");
    let output = Command::new("bash")
        .arg(folder.path().join("run.sh"))
        .args(["--cpu", "--out"])
        .arg(&out)
        .args(["--threads", "1", "--minutes", "0", "--cases", "10"])
        .output()
        .unwrap();
    success(&output);
    let summary = fs::read_to_string(out.join("summary.md")).unwrap();
    for check in ["identical", "bytes", "ballast", "cliff", "peers"] {
        assert!(summary.contains(&format!("| {check} | passed |")), "{summary}");
        assert!(out.join(format!("{check}.json")).is_file(), "{check}");
    }
    assert_eq!(json(&out.join("machine.json"))["simulated"], true);

    // The cases are not trivial, because some rows of every kind are split between card and host.
    let is_split = |row: &Value| {
        let on_card = row["n_gpu_layers"].as_u64().unwrap();
        on_card > 0 && on_card < row["layers"].as_u64().unwrap()
    };
    let bytes = rows(&out, "bytes");
    assert!(bytes.iter().filter(|row| is_split(row)).count() >= 5);
    for row in bytes.iter().filter(|row| row["end"] == "completed") {
        for card in row["gpus"].as_array().unwrap() {
            assert_eq!(card["planned"], card["allocated"]);
            let stages = card["stages"].as_array().unwrap();
            let names: Vec<_> = stages.iter().map(|stage| stage["stage"].as_str().unwrap()).collect();
            assert_eq!(names, ["opened", "loaded", "prompt", "decoded", "full"]);
        }
    }
    let ballast = rows(&out, "ballast");
    assert!(ballast.iter().any(is_split), "nothing was crowded");
    // The card's pools take half of the free memory. An additional layer that would otherwise have fitted is therefore
    // reported as failed.
    assert!(ballast.iter().any(|row| !row["one_more"].is_null()));
    every_split_is_measured_beside_a_prediction(&out);
    both_sides_fill_the_context_on_the_split_that_they_chose(&json(&out.join("peers.json")));
}

/// The speeds themselves are not asserted.
fn every_split_is_measured_beside_a_prediction(out: &Path) {
    let json = json(&out.join("cliff.json"));
    let points = json["measurement"]["points"].as_array().unwrap();
    let layers = json["layers"].as_u64().unwrap();
    assert_eq!(points.len() as u64, layers + 1, "few layers are all measured");
    for point in points {
        assert_eq!(point["failure"], Value::Null, "{point}");
        let generation = point["rows"].as_array().unwrap().iter().find(|row| row["n_gen"] != 0).unwrap();
        assert_eq!(generation["samples"].as_array().unwrap().len(), 3);
        assert!(generation["speed"]["median"].as_f64().unwrap() > 0.0);
        assert!(generation["predicted"].as_f64().unwrap() > 0.0);
    }
    let table = fs::read_to_string(out.join("cliff.csv")).unwrap();
    assert_eq!(table.lines().count(), points.len() + 1);
    let picture = fs::read_to_string(out.join("cliff.svg")).unwrap();
    // The picture shows each point twice: as a speed, and as a share of the highest speed.
    assert!(picture.matches("<circle").count() >= 2 * points.len());
}

fn both_sides_fill_the_context_on_the_split_that_they_chose(json: &Value) {
    for row in json["loops"].as_array().unwrap() {
        let rounds = row["work"]["rounds"].as_u64().unwrap();
        for side in ["ours", "theirs"] {
            assert_eq!(row[side].as_array().unwrap().len() as u64, rounds);
        }
        assert_eq!(row["ours_by_theirs"].as_array().unwrap().len(), 2);
    }
    let fits = json["fits"].as_array().unwrap();
    for row in fits {
        for side in ["ours", "theirs"] {
            let side = &row[side];
            assert_eq!((&side["end"], &side["depth"]), (&"completed".into(), &json["n_ctx"]));
            // There are four processes, and three of them repeat the question three times.
            assert_eq!(side["fresh_ms"].as_array().unwrap().len(), 4);
            assert_eq!(side["warm_ms"].as_array().unwrap().len(), 9);
            let free = |stage: &str| side[stage][0]["ggml"].as_u64().unwrap();
            assert!(free("opened") > free("loaded") && free("loaded") > free("full"));
        }
    }
    // If a part of the model fits, both sides find a split. llama.cpp's fit also finds a split with experts.
    assert!(fits.iter().any(|row| (1..9).contains(&row["ours"]["split"]["n_gpu_layers"].as_u64().unwrap())));
    let overrides = |row: &Value| row["theirs"]["split"]["overrides"].as_array().unwrap().len();
    assert!(fits.iter().any(|row| overrides(row) > 0));
}

#[test]
fn a_card_that_takes_more_memory_than_was_left_free_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM)
        .args(["bytes", "ballast", "--cpu", "--threads", "1", "--minutes", "0", "--cases", "8"])
        // The pools take nearly all of the 4 MiB that the third card has left, so any layer on it is too much.
        .args(["--sim-growth", "4000"])
        .arg("--model")
        .arg(demo())
        .arg("--out")
        .arg(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("| bytes | FAILED |"), "{table}");
    assert!(table.contains("| ballast | FAILED |"), "{table}");
}

#[test]
fn a_missing_file_is_named_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).args(arguments).current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["--cpu", "--model", "no-such.gguf"]);
    assert_eq!((code, said.as_str()), (Some(2), "error: --model: there is no file no-such.gguf\n"));
    let (code, said) = run(&["speed", "--model", "x"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("[possible values: identical, bytes, ballast, cliff, peers]"), "{said}");
}

#[test]
fn the_document_is_made_from_the_stored_results() {
    let output = Command::new(PROGRAM).arg("--document").arg(repository().join("benches/results")).output().unwrap();
    success(&output);
    let committed = fs::read_to_string(repository().join("docs/hardware.md")).unwrap();
    assert!(
        String::from_utf8(output.stdout).unwrap() == committed,
        "docs/hardware.md is not what benches/results makes it: \
         cargo run -p autoplace-gpu-check -- --document benches/results > docs/hardware.md"
    );
}
