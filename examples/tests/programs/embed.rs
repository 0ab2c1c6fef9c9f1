//! Tests of the `embed` example, as a user runs it.

use test_support::program::Program;

const EMBED: Program = Program("embed");

const LIGHT: &str = "And God saw the light, that it was good";
const NOISE: &str = "1234567890 %%%% {}";

#[test]
fn texts_of_arguments_and_of_a_file_are_put_in_the_order_of_the_query() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lines.txt");
    std::fs::write(&file, format!("{NOISE}\n{LIGHT}\n")).unwrap();
    let query = "And God said, Let there be light";
    let out = EMBED.succeeds(&["--pooling", "mean", "-q", query, "-f", file.to_str().unwrap(), query]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert_eq!(lines[0], format!("1.0000  {query}"));
    assert!(lines[1].ends_with(LIGHT) && lines[2].ends_with(NOISE), "{out}");
}

#[test]
fn vectors_are_printed_as_json_the_querys_first() {
    let args = ["--pooling", "last", "--json"];
    let vectors = |more: &[&str]| -> Vec<Vec<f32>> {
        serde_json::from_str(&EMBED.succeeds(&[&args[..], more].concat())).unwrap()
    };
    let alone = vectors(&[LIGHT]);
    let length: f32 = alone[0].iter().map(|x| x * x).sum();
    assert!(alone.len() == 1 && alone[0].len() > 16 && (length - 1.0).abs() < 1e-3, "{length}");
    let two = vectors(&["-q", LIGHT, NOISE]);
    assert_eq!((two.len(), two[0][0]), (2, alone[0][0]));
}

#[test]
fn a_text_that_is_too_long_is_cut_where_that_is_asked_for() {
    EMBED.succeeds(&["--pooling", "mean", "--ctx", "4", "--truncate", LIGHT]);
}
