//! Tests that run the examples as programs.

mod chat;
mod embed;
mod generate;
mod json;
mod many;

use test_support::program::Program;

#[test]
fn what_is_wrong_is_one_line_that_names_it() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let long = "and it came to pass ".repeat(200);
    Program("generate").fails(&["--ctx", "256", "-p", &long], 1, "the context holds 256");
    Program("many").fails(&["And", &long], 1, "the context holds 512");
    Program("generate").fails(&["-m", manifest], 1, "Cargo.toml");
    for (example, args, code, word) in [
        ("generate", "-m /nonexistent", 1, "/nonexistent"),
        ("generate", "--ctx 0", 2, "--ctx"),
        ("generate", "--ctx 4294967290", 1, "n_ctx"),
        ("generate", "--ngl -5", 2, "--ngl"),
        ("generate", "-n -1", 2, "-n"),
        ("generate", "--temp hot", 2, "--temp"),
        ("generate", "--temp -1", 1, "temp"),
        ("generate", "--seed -1", 2, "--seed"),
        ("generate", "--unknown", 2, "--unknown"),
        ("chat", "-n 4", 1, "no chat template"),
        ("chat", "--template /nowhere/at/all.jinja", 1, "cannot read"),
        ("chat", "-m /nowhere/at/all.gguf", 1, "all.gguf"),
        ("chat", "--ctx 0", 2, "--ctx"),
        ("many", "-m /nonexistent", 1, "/nonexistent"),
        ("many", "--at-once 0", 2, "--at-once"),
        ("many", "--temp -1", 1, "temp"),
        // An answer that a limit cuts short is an error.
        ("json", "-n 3", 1, "max_tokens"),
        ("embed", "", 1, "no texts"),
        ("embed", "-f /nowhere/lines.txt", 1, "/nowhere/lines.txt"),
        ("embed", "-m /nowhere/model.gguf a", 1, "/nowhere/model.gguf"),
        // The demo model is not an embedding model and names no pooling.
        ("embed", "-q light noise", 1, "Pooling::Mean"),
        ("embed", "--rerank -q light noise", 1, "classification head"),
        ("embed", "--pooling mean --ctx 4 And-God-saw-the-light", 1, "truncate"),
        ("embed", "--pooling median light", 2, "median"),
        ("embed", "--rerank light", 2, "required"),
    ] {
        let args: Vec<&str> = args.split_whitespace().collect();
        Program(example).fails(&args, code, word);
    }
}
