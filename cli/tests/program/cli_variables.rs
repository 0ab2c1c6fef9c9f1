//! Variables of the environment that llama.cpp's programs read in place of flags.

use std::process::Stdio;

use serde_json::json;

use crate::cli_support::{User, text};
use crate::server::{FILE, Server, TEXT};

#[test]
fn a_server_is_configured_by_llama_cpps_variables() {
    let variables = [
        ("LLAMA_ARG_MODEL", FILE),
        ("LLAMA_ARG_ALIAS", "bible"),
        ("LLAMA_ARG_CTX_SIZE", "512"),
        ("LLAMA_ARG_N_PARALLEL", "2"),
        ("LLAMA_ARG_THREADS", "1"),
        ("LLAMA_ARG_PORT", "1"),
        ("LLAMA_ARG_CONT_BATCHING", "on"),
        ("LLAMA_ARG_SOON", "1"),
    ];
    let server = Server::start_without_model(&variables, &["--port", "0"]);
    let (status, answer) = server.post(TEXT, &json!({"model": "bible", "prompt": "a", "max_tokens": 1}).to_string());
    assert_eq!((status, &answer["model"]), (200, &json!("bible")), "{answer}");
    let (_, props) = server.get("/props");
    assert_eq!(props["total_slots"], 2, "{props}");
    let said = server.said();
    let used = said.lines().find(|line| line.starts_with("note: from the environment: ")).unwrap_or_default();
    for part in
        ["LLAMA_ARG_CTX_SIZE (--ctx=512)", "LLAMA_ARG_ALIAS (--alias=bible)", "LLAMA_ARG_N_PARALLEL (--parallel=2)"]
    {
        assert!(used.contains(part), "{said}");
    }
    assert!(said.contains("note: LLAMA_ARG_PORT is not used: the command line sets --port\n"), "{said}");
    assert!(said.contains("note: LLAMA_ARG_SOON is not a variable of llama.cpp"), "{said}");
}

#[test]
fn a_text_is_generated_with_the_variables_that_apply_to_it() {
    let user = User::new();
    let run = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = user.command(&[&["run", "--raw", "--threads", "1"], args].concat());
        let ended = command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
        (ended.status.code(), text(&ended.stdout).to_owned(), text(&ended.stderr).to_owned())
    };
    let variables = [
        ("LLAMA_ARG_MODEL", FILE),
        ("LLAMA_ARG_N_PREDICT", "8"),
        ("LLAMA_ARG_TEMPERATURE", "0"),
        ("LLAMA_ARG_SSL_KEY_FILE", "key.pem"),
        ("LLAMA_ARG_MMAP", "off"),
    ];
    let (code, by_variables, said) = run(&variables, &["-p", "In the beginning"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("LLAMA_ARG_N_PREDICT (--max-tokens=8)") && said.contains("(--no-mmap)"), "{said}");
    assert!(!said.contains("SSL"), "{said}");
    let flags = ["-m", FILE, "-n", "8", "--temp", "0", "-p", "In the beginning"];
    let (code, by_flags, said) = run(&[], &flags);
    assert_eq!((code, by_flags), (Some(0), by_variables), "{said}");
    for (variable, value, part) in [
        ("LLAMA_ARG_NUMA", "isolate", "error: LLAMA_ARG_NUMA: the system binds threads"),
        ("LLAMA_ARG_CTX_SIZE", "many", "error: LLAMA_ARG_CTX_SIZE: invalid value 'many' for '--ctx "),
    ] {
        let (code, _, said) = run(&[(variable, value)], &["-m", FILE, "-p", "a"]);
        assert!(code == Some(2) && said.contains(part), "{variable}: {said}");
    }
}
