//! The `embed` example as a person at a terminal meets it.

use crate::program::Program;

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
    let alone = EMBED.succeeds(&[&args[..], &[LIGHT]].concat());
    let numbers = alone.trim().strip_prefix("[[").unwrap();
    let numbers = numbers.strip_suffix("]]").unwrap().split(", ");
    let vector: Vec<f32> = numbers.map(|number| number.parse().unwrap()).collect();
    let length: f32 = vector.iter().map(|x| x * x).sum();
    assert!(vector.len() > 16 && (length - 1.0).abs() < 1e-3, "{length}");
    let two = EMBED.succeeds(&[&args[..], &["-q", LIGHT, NOISE]].concat());
    assert_eq!(two.matches('[').count(), 3, "{two}");
    let (first, _) = alone.trim().split_once(", ").unwrap();
    assert!(two.starts_with(first), "{two}");
}

#[test]
fn what_does_not_work_is_one_line() {
    EMBED.fails(&[], 1, "no texts");
    EMBED.fails(&["-f", "/nowhere/lines.txt"], 1, "/nowhere/lines.txt");
    EMBED.fails(&["-m", "/nowhere/model.gguf", "a"], 1, "/nowhere/model.gguf");
    // The demo model generates, and names no pooling.
    EMBED.fails(&["-q", LIGHT, NOISE], 1, "Pooling::Mean");
    EMBED.fails(&["--rerank", "-q", LIGHT, NOISE], 1, "classification head");
    EMBED.fails(&["--pooling", "mean", "--ctx", "4", LIGHT], 1, "truncate");
    EMBED.fails(&["--pooling", "median", LIGHT], 2, "median");
    EMBED.fails(&["--rerank", LIGHT], 2, "required");
    EMBED.succeeds(&["--pooling", "mean", "--ctx", "4", "--truncate", LIGHT]);
}
