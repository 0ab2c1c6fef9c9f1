//! What `autoplace doctor` says. Each cause has its case and its near miss in the library's tests.

use std::path::Path;

use crate::cli_support::{User, demo, text};
use serde_json::Value;

/// The verdict in JSON, and the exit code.
fn judged(user: &User, args: &[&str]) -> (Value, i32) {
    let output = user.autoplace(&[&["doctor", "--json"], args].concat());
    assert_eq!(text(&output.stderr), "", "{args:?}");
    (serde_json::from_str(&text(&output.stdout)).unwrap(), output.status.code().unwrap())
}

#[test]
fn every_report_that_somebody_sent_is_judged_as_it_was() {
    let user = User::new();
    let cases = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")).unwrap();
    let mut seen = 0;
    for case in cases {
        let path = case.unwrap().path();
        let cause = path.file_stem().unwrap().to_str().unwrap();
        let (verdict, code) = judged(&user, &["--machine", path.to_str().unwrap()]);
        if cause == "normal" {
            assert_eq!((&verdict["findings"], code), (&serde_json::json!([]), 0), "{verdict}");
        } else {
            assert_eq!((&verdict["findings"][0]["cause"], code), (&cause.into(), 3), "{cause}");
        }
        seen += 1;
    }
    assert!(seen > 5, "{seen} cases");
}

#[test]
fn a_model_that_is_parted_is_told_with_what_would_bring_it_together() {
    let user = User::new();
    let demo = demo();
    let card = ["--gpu", "X=11MiB", "--headroom", "0"];
    let parted = ["doctor", &demo, "--gpu", "X=11MiB", "--headroom", "0", "--ctx", "4096"];
    let output = user.autoplace(&parted);
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{told}");
    let mut lines = told.lines();
    assert!(lines.next().unwrap().starts_with("verdict: "), "{told}");
    assert!(told.contains("  mend: ") && told.contains("tok/s measured"), "{told}");

    // A report says the same elsewhere, and reads no file of this computer.
    let report = user.path("report.md");
    let output = user.autoplace(&[&parted[..], &["--report"]].concat());
    std::fs::write(&report, &output.stdout).unwrap();
    let (verdict, code) = judged(&user, &["--machine", report.to_str().unwrap()]);
    assert_eq!(code, 3);
    let first = text(&output.stdout);
    assert!(first.lines().nth(1).unwrap().trim() == verdict["findings"][0]["evidence"], "{first}");
    assert!(!first.contains(&demo), "{first}");

    // Of the machine that was reported another model can be asked.
    let args = [&["--machine", report.to_str().unwrap(), &demo, "--ctx", "64"], &card[2..]].concat();
    assert_eq!(judged(&user, &args).0["evidence"]["model"]["measured"], Value::Null);
}

#[test]
fn what_is_no_report_is_refused_with_its_reason() {
    let user = User::new();
    let file = user.path("report.md");
    std::fs::write(&file, "words\n```json\n{\"version\": 1, \"machine\": 3}\n```\n").unwrap();
    user.fails(&["doctor", "--machine", file.to_str().unwrap()], 1, &["report.md", "its JSON"]);
    user.fails(&["doctor", "no-such-model.gguf"], 1, &["no-such-model.gguf"]);
    user.fails(&["doctor", "--report", "--json"], 2, &["--json"]);
}
