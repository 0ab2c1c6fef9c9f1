//! The verb `cache`, and servers that have different keys but use the same folder.

use serde_json::{Value, json};

use crate::cli_support::{User, demo, text};
use crate::server::{Server, TEXT, rest};

/// For a server with this key, the number of a prompt's tokens that it did not need to compute.
fn cached(server: &Server, key: &str) -> u64 {
    let prompt = "In the beginning God created the heaven and the earth. ".repeat(6);
    let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0}).to_string();
    let head = [
        format!("POST {TEXT} HTTP/1.1"),
        format!("host: {}", server.address),
        format!("authorization: Bearer {key}"),
        "content-type: application/json".to_owned(),
        format!("content-length: {}", body.len()),
        "connection: close".to_owned(),
    ];
    let answer = rest(&server.connected(&format!("{}\r\n\r\n{body}", head.join("\r\n"))));
    let (_, answer) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let answer: Value = serde_json::from_str(answer).expect("JSON");
    answer["timings"]["cache_n"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn a_folder_is_listed_counted_and_cleared_and_each_key_finds_its_own_texts() {
    let user = User::new();
    let folder = user.path("prompts");
    let dir = folder.to_str().unwrap();
    user.fails(&["cache", "stat", dir], 1, &["prompts: this folder does not exist"]);
    let ask = |key: &str| {
        let mut server = Server::start(&["--cache-dir", dir, "--api-key", key]);
        let cached = cached(&server, key);
        // Only the server may write to the folder and remove its files.
        user.fails(&["cache", "clear", dir], 1, &["another process writes into this folder"]);
        let beside = user.autoplace(&["run", &demo(), "Once", "-n", "1", "--ctx", "64", "--cache-dir", dir]);
        let beside = text(&beside.stderr);
        assert!(beside.contains("\nwarning: another process writes to "), "{beside}");
        server.interrupt();
        assert_eq!(server.wait().code(), Some(0));
        cached
    };
    assert_eq!(ask("one"), 0);
    let known = ask("one");
    assert!(known > 32, "{known}");
    assert_eq!(ask("other"), 0);
    // The texts of two owners are two entries of the same model.
    let list = user.says(&["cache", "list", dir]);
    assert_eq!(list.lines().count(), 3, "{list}");
    let stat = user.says(&["cache", "stat", dir]);
    assert!(stat.contains(" tokens from 2 models"), "{stat}");
    let cleared = user.says(&["cache", "clear", dir]);
    assert!(cleared.starts_with("removed ") && cleared.contains(dir), "{cleared}");
    assert_eq!(user.says(&["cache", "list", dir]).trim_end(), format!("nothing is stored in {dir}"));
}
