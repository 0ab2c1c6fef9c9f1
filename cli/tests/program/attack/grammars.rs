//! Hostile grammars in GBNF, llama.cpp's notation, that are sent over HTTP: the grammars of
//! `autoplace/tests/generate/constrained_limits.rs`, and the largest grammar that a request may contain.

use serde_json::json;

use super::Server;
use super::bodies::{BODY, TEXT, at_once};
use super::rows::{Attack, Setup};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "GBNF: sixteen grammars that are ambiguous, recursive, repeated or nested, one after the other; 8 tokens",
        most: 256,
        answers: &["200", "400"],
        setup: Setup::Plain,
        run: |server| hostile().iter().map(|grammar| ask(server, grammar)).collect(),
    },
    Attack {
        name: "GBNF: each of them eight times at once",
        most: 512,
        answers: &["200", "400", "503"],
        setup: Setup::Plain,
        run: |server| hostile().iter().flat_map(|grammar| at_once(8, || ask(server, grammar))).collect(),
    },
    Attack {
        name: "GBNF: 16 MiB of rules, of brackets and of a class, eight at once",
        most: 256,
        answers: &["400", "503"],
        setup: Setup::Plain,
        run: |server| {
            let grammars = ["r ::= r\\n", "(", "[a-z"].map(|part| {
                let part = part.repeat((BODY - 1000) / part.len());
                format!(r#"{{"prompt": "a", "max_tokens": 8, "grammar": "root ::= {part}"}}"#)
            });
            grammars.iter().flat_map(|body| at_once(8, || server.post(TEXT, body))).collect()
        },
    },
];

fn ask(server: &Server, grammar: &str) -> String {
    server.post(TEXT, &json!({"prompt": "a", "max_tokens": 8, "grammar": grammar}).to_string())
}

fn hostile() -> Vec<String> {
    let rules = |count: usize, rule: &dyn Fn(usize) -> String| (0..count).map(rule).collect::<String>();
    let words: Vec<String> = (0..2_000).map(|i| format!("\"w{i}\"")).collect();
    let ranges = rules(100, &|i| format!("\\u{:04x}-\\u{:04x}", 256 + 4 * i, 258 + 4 * i));
    vec![
        "root ::= (a a)* \"b\"\na ::= (\"x\" | \"x\" a | a2)*\na2 ::= \"x\"* \"x\"* \"x\"*".to_owned(),
        "root ::= ((((\"x\"{40}){40}){40}){40})".to_owned(),
        "root ::= \"x\"{2000} | [^x]{0,99999999999999999999}".to_owned(),
        "root ::= \"(\" root root | \"(\" root | \"\"".to_owned(),
        "root ::= root root | \"a\"".to_owned(),
        "root ::= [\\x00-\\U0010FFFF]{1,100000}".to_owned(),
        "root ::= ([a-z]* [a-z]* [a-z]* [a-z]*)* \"!\"".to_owned(),
        format!("root ::= {}", "(".repeat(1_000)),
        format!("root ::= {}\"a\"{}", "(".repeat(1_000), ")*".repeat(1_000)),
        format!("root ::= {}", "\"a\"? ".repeat(8_000)),
        format!("root ::= ({}\"b\") root | \"\"", "\"a\"? ".repeat(8_000)),
        format!("root ::= {}", format!("[{ranges}]{{1,100}} ").repeat(250_000 / ranges.len())),
        format!("root ::= r59\nr0 ::= \"x\" | \"y\"?\n{}", rules(59, &|i| format!("r{} ::= r{i} r{i}\n", i + 1))),
        format!("root ::= (word | ({}) root [a-z0-9])\nword ::= [a-z] word?", words.join(" | ")),
        format!(
            "root ::= r0\n{}r1900 ::= root\nr1901 ::= \"z\"",
            rules(1_900, &|i| format!("r{i} ::= \"a\" r{} | r{}?\n", i + 1, i + 2))
        ),
        format!("root ::= r0\n{}r20000 ::= \"z\"", rules(20_000, &|i| format!("r{i} ::= r{}\n", i + 1))),
    ]
}
