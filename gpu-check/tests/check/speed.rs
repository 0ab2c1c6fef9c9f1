//! The checks that measure speeds, without a card: not how fast, but that everything was measured and both
//! sides did their work.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// The results of a check that has passed.
fn passed(check: &str) -> (TempDir, Value) {
    let out = tempfile::tempdir().unwrap();
    let demo: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/model/autoplace-demo-q8_0.gguf");
    let output = Command::new(env!("CARGO_BIN_EXE_gpu-check"))
        .args([check, "--cpu", "--threads", "1", "--minutes", "0"])
        .arg("--model")
        .arg(demo)
        .arg("--out")
        .arg(out.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = fs::read(out.path().join(format!("{check}.json"))).unwrap();
    (out, serde_json::from_slice(&text).unwrap())
}

#[test]
fn every_split_of_the_sweep_is_measured_beside_a_prediction() {
    let (out, json) = passed("cliff");
    let points = json["points"].as_array().unwrap();
    let layers = json["layers"].as_u64().unwrap();
    assert_eq!(points.len() as u64, layers + 1, "few layers are all measured");
    for point in points {
        assert_eq!(point["end"], "completed");
        assert_eq!(point["rounds"].as_array().unwrap().len(), 3);
        assert!(point["generation"].as_f64().unwrap() > 0.0);
        assert!(point["predicted"].as_f64().unwrap() > 0.0);
    }
    let table = fs::read_to_string(out.path().join("cliff.csv")).unwrap();
    assert_eq!(table.lines().count(), points.len() + 1);
    let picture = fs::read_to_string(out.path().join("cliff.svg")).unwrap();
    assert_eq!(picture.matches("<circle").count(), points.len());
}

#[test]
fn both_sides_fill_the_context_on_the_split_that_they_chose() {
    let (_out, json) = passed("peers");
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
            assert_eq!(side["end"], "completed");
            assert_eq!(side["depth"], json["n_ctx"]);
            // Four processes, three of which ask three times more.
            assert_eq!(side["fresh_ms"].as_array().unwrap().len(), 4);
            assert_eq!(side["warm_ms"].as_array().unwrap().len(), 9);
            let free = |stage: &str| side[stage][0]["ggml"].as_u64().unwrap();
            assert!(free("opened") > free("loaded") && free("loaded") > free("full"));
        }
    }
    // Where a part of the model has room, both find a split, and llama.cpp's fit one of experts too.
    let on_card = |row: &Value, side: &str| row[side]["split"]["n_gpu_layers"].as_u64().unwrap();
    assert!(fits.iter().any(|row| (1..9).contains(&on_card(row, "ours"))));
    assert!(fits.iter().any(|row| {
        let overrides = &row["theirs"]["split"]["overrides"];
        !overrides.as_array().unwrap().is_empty()
    }));
}
