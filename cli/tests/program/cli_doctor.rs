//! The output of `autoplace doctor`. For each cause, measure/tests/measure/doctor.rs has a case with the cause and
//! a near miss without it.

use std::path::Path;

use crate::cli_support::{User, demo, text};
use serde_json::{Value, json};

/// The verdict as JSON. Checks that the exit code says whether there are findings.
pub(crate) fn judged(user: &User, args: &[&str]) -> Value {
    let output = user.autoplace(&[&["doctor", "--json"], args].concat());
    assert_eq!(text(&output.stderr), "", "{args:?}");
    let verdict: Value = text(&output.stdout).parse().unwrap();
    let code = if verdict["findings"] == json!([]) { 0 } else { 3 };
    assert_eq!(output.status.code(), Some(code), "{verdict}");
    verdict
}

#[test]
fn every_recorded_report_has_the_expected_verdict() {
    let user = User::new();
    let cases = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")).unwrap();
    let cases = cases.map(|case| {
        let path = case.unwrap().path();
        let cause = path.file_stem().unwrap().to_str().unwrap();
        let verdict = judged(&user, &["--machine", path.to_str().unwrap()]);
        let expected = if cause == "normal" { Value::Null } else { cause.into() };
        assert_eq!(verdict["findings"][0]["cause"], expected, "{verdict}");
        let remedy = verdict["findings"][0]["remedy"].as_str().unwrap_or_default();
        if let Some(words) = remedy.strip_prefix("autoplace ").and_then(shlex::split) {
            assert!(user.command(&[]).args(words).arg("--help").output().unwrap().status.success(), "{remedy}");
        }
    });
    assert!(cases.count() > 6);
}

#[test]
fn a_partly_offloaded_model_is_reported_with_a_remedy() {
    let user = User::new();
    let demo = demo();
    let parted = ["doctor", &demo, "--ctx", "4096", "--gpu", "X=11MiB", "--headroom", "0"];
    let output = user.autoplace(&parted);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.starts_with("verdict: "), "{printed}");
    assert!(printed.contains("  fix: ") && printed.contains("tok/s measured"), "{printed}");

    // On another computer, which does not have the files of this one, the report leads to the same verdict.
    let report = user.path("report.md");
    let printed = text(&user.autoplace(&[&parted[..], &["--report"]].concat()).stdout);
    std::fs::write(&report, &printed).unwrap();
    let machine = ["--machine", report.to_str().unwrap()];
    let verdict = judged(&user, &machine);
    assert!(printed.lines().nth(1).unwrap().trim() == verdict["findings"][0]["evidence"], "{printed}");
    assert!(!printed.contains(&demo), "{printed}");

    // Another model can be judged on the machine that was reported.
    let verdict = judged(&user, &[&machine[..], &[&demo, "--ctx", "64", "--headroom", "0"]].concat());
    assert_eq!(verdict["evidence"]["model"]["measured"], Value::Null);
}

#[test]
fn a_file_that_is_not_a_report_is_refused_with_a_reason() {
    let user = User::new();
    let file = user.path("report.md");
    std::fs::write(&file, "words\n```json\n{\"version\": 1, \"machine\": 3}\n```\n").unwrap();
    user.fails(&["doctor", "--machine", file.to_str().unwrap()], 1, &["report.md", "its JSON"]);
    user.fails(&["doctor", "no-such-model.gguf"], 1, &["no-such-model.gguf"]);
    user.fails(&["doctor", "--report", "--json"], 2, &["--json"]);
}
