//! The attacks: their requests, and the memory that the server may use for them.

use std::thread;

use super::Server;
use super::bodies::{BODY, OBJECT, TEXT, at_once, held, list, messages, objects, text};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

#[derive(Clone, Copy)]
pub(super) struct Attack {
    pub(super) name: &'static str,
    /// The MiB of memory that the server may use for the attack, in addition to the memory of an idle server.
    pub(super) most: u64,
    /// The allowed statuses of the answers.
    pub(super) answers: &'static [&'static str],
    pub(super) setup: Setup,
    pub(super) run: fn(&Server) -> Vec<String>,
}

/// The models of the attacked server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setup {
    /// The demo model.
    Plain,
    /// The demo model in a separate process.
    Isolated,
    /// A model with the tokens of fill-in-the-middle in its vocabulary.
    FillInTheMiddle,
    /// The demo model, and a reranker.
    Reranker,
    /// The demo model with a projector of images.
    Sees,
    /// The demo model under three names of a pool.
    Pool,
    /// The demo model under three names of a pool, with a key.
    PoolWithKey,
    /// The demo model under a thousand names of a pool.
    PoolOfThousand,
}

/// Sends all bodies at once.
pub(super) fn together(bodies: &[String], send: impl Fn(&str) -> String + Sync) -> Vec<String> {
    thread::scope(|scope| {
        let sent: Vec<_> = bodies.iter().map(|body| scope.spawn(|| send(body))).collect();
        let mut said: Vec<String> = sent.into_iter().map(|thread| thread.join().unwrap_or_default()).collect();
        said.sort();
        said
    })
}

/// The first id in an answer.
fn id_of(answer: &str) -> Option<&str> {
    answer.split_once(r#""id":""#)?.1.split('"').next()
}

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "a Lark grammar of 258 KB: classes of many ranges, repeated; 8 tokens",
        most: 256,
        answers: &["400", "200"],
        setup: Setup::Plain,
        run: |server| {
            let ranges: String = (0..100).map(|n| format!("\\u{:04x}-\\u{:04x}", 256 + 4 * n, 258 + 4 * n)).collect();
            let class = format!("/[{ranges}]/{{1,100}} ");
            let grammar = format!("%llguidance {{}}\nstart: {}", class.repeat((258_000) / class.len()));
            let grammar = grammar.replace('\\', "\\\\").replace('\n', "\\n");
            vec![server.post(TEXT, &format!(r#"{{"prompt": "a", "max_tokens": 8, "grammar": "{grammar}"}}"#))]
        },
    },
    Attack {
        name: "a body of 16 MiB of `{\"\":0},` that nobody reads",
        most: 64,
        answers: &["200"],
        setup: Setup::Plain,
        run: |server| vec![server.post(TEXT, &objects("x", BODY))],
    },
    Attack {
        name: "eight of them at once",
        most: 256,
        answers: &["200", "503"],
        setup: Setup::Plain,
        run: |server| at_once(8, || server.post(TEXT, &objects("x", BODY))),
    },
    Attack {
        name: "the same as a JSON schema",
        most: 64,
        answers: &["400"],
        setup: Setup::Plain,
        run: |server| vec![server.post(TEXT, &objects("json_schema", BODY))],
    },
    Attack {
        name: "eight chats at once, each with the most objects that its tools may have",
        most: 256,
        answers: &["200", "400"],
        setup: Setup::Plain,
        run: |server| {
            let objects = OBJECT.repeat(16_000);
            let tools = format!(
                r#"[{{"type": "function", "function": {{"name": "f", "parameters": {{"enum": [{objects}0]}}}}}}]"#
            );
            let body =
                format!(r#"{{"messages": [{{"role": "user", "content": "a"}}], "max_tokens": 1, "tools": {tools}}}"#);
            at_once(8, || server.post("/v1/chat/completions", &body))
        },
    },
    Attack {
        name: "a prompt of 16 MiB",
        most: 96,
        answers: &["400"],
        setup: Setup::Plain,
        run: |server| vec![server.post(TEXT, &format!(r#"{{"prompt": "{}"}}"#, "a".repeat(BODY)))],
    },
    Attack {
        name: "160,000 entries of `logit_bias`, with a grammar; 8 tokens",
        most: 64,
        answers: &["400"],
        setup: Setup::Plain,
        run: |server| {
            // The demo model has 1024 tokens, so the list names each token several times.
            let biases = (0..160_000).map(|n| format!("\"{}{}\": 1", "0".repeat(n / 1024), n % 1024));
            let biases: Vec<String> = biases.collect();
            let grammar = r#""%llguidance {}\nstart: /[a-z]{100}/""#;
            vec![server.post(
                TEXT,
                &format!(
                    r#"{{"prompt": "a", "max_tokens": 8, "grammar": {grammar}, "logit_bias": {{{}}}}}"#,
                    biases.join(",")
                ),
            )]
        },
    },
    Attack {
        name: "300 incomplete heads, with at most 256 open files",
        most: 64,
        answers: &["200"],
        setup: Setup::Plain,
        run: |server| held(server, 300, "GET /health HTTP/1.1\r\nho"),
    },
    Attack {
        name: "256 incomplete bodies, with at most 256 open files",
        most: 64,
        answers: &["200"],
        setup: Setup::Plain,
        run: |server| held(server, 256, &format!("{}{{\"prompt", server.head(TEXT, BODY))),
    },
    Attack {
        name: "the name of a stranger (DNS rebinding)",
        most: 64,
        answers: &["403"],
        setup: Setup::Plain,
        run: |server| vec![server.sent("GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n")],
    },
    Attack {
        name: "a worker that is stopped (SIGSTOP), and replaced after 5 s",
        most: 64,
        answers: &["200"],
        setup: Setup::Isolated,
        run: |server| {
            server.stop_worker();
            vec![server.post(TEXT, r#"{"prompt": "a", "max_tokens": 8}"#)]
        },
    },
    Attack {
        name: "`/v1/responses`: 16 MiB of `{\"\":0},` as input, as tools and as metadata, at once",
        most: 256,
        answers: &["400", "503"],
        setup: Setup::Plain,
        run: |server| {
            let objects = list(OBJECT, BODY);
            let bodies = [
                format!(r#"{{"input": {objects}}}"#),
                format!(r#"{{"input": "a", "tools": {objects}}}"#),
                format!(r#"{{"input": "a", "metadata": {objects}}}"#),
            ];
            together(&bodies, |body| server.post(RESPONSES, body))
        },
    },
    Attack {
        name: "`/v1/responses`: eight at once with the most objects that tools may have",
        most: 256,
        answers: &["200", "400"],
        setup: Setup::Plain,
        run: |server| {
            let tool = format!(
                r#"{{"type": "function", "name": "f", "parameters": {{"enum": {}}}}}"#,
                list(OBJECT, 16_000 * OBJECT.len())
            );
            let body = format!(r#"{{"input": "a", "max_output_tokens": 1, "tools": [{tool}]}}"#);
            at_once(8, || server.post(RESPONSES, &body))
        },
    },
    Attack {
        name: "stored responses: 1,200, each with 60 KiB of labels; 32 MiB are kept",
        most: 96,
        answers: &["200"],
        setup: Setup::Plain,
        run: |server| {
            let label = text("l", 60 << 10);
            let body = format!(r#"{{"input": "a", "max_output_tokens": 1, "user": {label}}}"#);
            (0..1200).map(|_| server.post(RESPONSES, &body)).collect()
        },
    },
    Attack {
        name: "stored responses: a chain in which each of 1,100 follows the one before, until the context is full",
        most: 96,
        answers: &["200", "400", "404"],
        setup: Setup::Plain,
        run: |server| {
            let mut said = Vec::new();
            let mut previous = String::new();
            for _ in 0..1100 {
                let body = format!(r#"{{"input": "a", "max_output_tokens": 1{previous}}}"#);
                let (status, answer) = server.answer(RESPONSES, &body);
                if let Some(id) = id_of(&answer).filter(|_| status == "200") {
                    previous = format!(r#", "previous_response_id": "{id}""#);
                }
                said.push(status);
            }
            said.sort();
            said
        },
    },
    Attack {
        name: "stored responses: 8,192 references to the oldest of 1,000 responses' items, eight requests at once",
        most: 128,
        answers: &["400"],
        setup: Setup::Plain,
        run: |server| {
            let mut item: Option<String> = None;
            for _ in 0..1000 {
                let (_, answer) = server.answer(RESPONSES, r#"{"input": "a", "max_output_tokens": 2}"#);
                let output = answer.split_once(r#""output":[{"#).map(|(_, output)| output);
                item = item.or_else(|| output.and_then(id_of).map(str::to_owned));
            }
            let reference = format!(r#"{{"type": "item_reference", "id": "{}"}}"#, item.unwrap_or_default());
            let body = format!(r#"{{"input": [{}]}}"#, vec![reference; 8192].join(","));
            at_once(8, || server.post(RESPONSES, &body))
        },
    },
    Attack {
        name: "stored responses: a million references, and ids that no response has (yet): a cycle cannot be asked for",
        most: 96,
        answers: &["400", "404"],
        setup: Setup::Plain,
        run: |server| {
            let references = r#"{"id":"msg_1"},"#.repeat(1_000_000);
            let many = server.post(RESPONSES, &format!(r#"{{"input": [{references}0]}}"#));
            let unknown = (0..100).map(|number| {
                let id = format!("resp_{number:032x}");
                server.post(RESPONSES, &format!(r#"{{"input": "a", "previous_response_id": "{id}"}}"#))
            });
            let mut said: Vec<String> = unknown.collect();
            let long = format!(r#"{{"input": "a", "previous_response_id": {}}}"#, text("r", BODY));
            said.extend([many, server.post(RESPONSES, &long)]);
            said.sort();
            said
        },
    },
    Attack {
        name: "`/v1/messages`: 16 MiB of messages, of blocks and of lines that look like the time, at once",
        most: 256,
        answers: &["400", "503"],
        setup: Setup::Plain,
        run: |server| {
            let message = r#"{"role":"user","content":"a"},"#;
            let block = r#"{"type":"text","text":"a"},"#;
            let bodies = [
                format!(r#"{{"messages": {}}}"#, list(message, BODY)),
                format!("{{{}}}", messages(&list(block, BODY))),
                format!(r#"{{{}, "system": {}}}"#, messages("\"a\""), text("Time: 10:00\\n", BODY)),
            ];
            together(&bodies, |body| server.post(MESSAGES, body))
        },
    },
    Attack {
        name: "`/v1/messages/count_tokens`: 16 MiB of text, and the most objects that tools may have, eight at once",
        most: 256,
        answers: &["200", "400", "503"],
        setup: Setup::Plain,
        run: |server| {
            let count = format!("{MESSAGES}/count_tokens");
            let schema =
                format!(r#"{{"name": "f", "input_schema": {{"enum": {}}}}}"#, list(OBJECT, 16_000 * OBJECT.len()));
            let tools = format!(r#"{{{}, "tools": [{schema}]}}"#, messages("\"a\""));
            let long = format!("{{{}}}", messages(&text("a ", BODY)));
            let mut said = vec![server.post(&count, &long)];
            said.extend(at_once(8, || server.post(&count, &tools)));
            said
        },
    },
    Attack {
        name: "`/v1/rerank`: a million documents, 2,048 of 8 KB, a query of 16 MiB",
        most: 192,
        answers: &["400"],
        setup: Setup::Reranker,
        run: |server| {
            let large = vec![text("a", 8000); 2048].join(",");
            let bodies = [
                format!(r#"{{"query": "a", "documents": {}}}"#, list("\"a\",", 4 << 20)),
                format!(r#"{{"query": "a", "documents": [{large}]}}"#),
                format!(r#"{{"query": {}, "documents": ["a"]}}"#, text("a", BODY)),
            ];
            bodies.iter().map(|body| server.post("/v1/rerank", body)).collect()
        },
    },
    Attack {
        name: "`/tokenize`: 200 KiB of text eight times at once; 16 MiB of text; a list of 16 MiB; 50,000 pieces",
        most: 512,
        answers: &["200", "400", "503"],
        setup: Setup::Plain,
        run: |server| {
            let allowed = format!(r#"{{"content": {}}}"#, text("a b ", 200 << 10));
            let mut said = at_once(8, || server.post("/tokenize", &allowed));
            for (content, more) in
                [(text("a", BODY), ""), (list("1,", BODY), ""), (text("a b ", 100 << 10), r#", "with_pieces": true"#)]
            {
                said.push(server.post("/tokenize", &format!(r#"{{"content": {content}{more}}}"#)));
            }
            said.sort();
            said
        },
    },
    Attack {
        name: "`/detokenize`: the most tokens eight times at once, and 16 MiB of tokens",
        most: 256,
        answers: &["200", "400", "503"],
        setup: Setup::Plain,
        run: |server| {
            let allowed = format!(r#"{{"tokens": {}}}"#, list("9,", 2 << 20));
            let mut said = at_once(8, || server.post("/detokenize", &allowed));
            said.push(server.post("/detokenize", &format!(r#"{{"tokens": {}}}"#, list("9,", BODY))));
            said.sort();
            said
        },
    },
    Attack {
        name: "`/apply-template`: a message of 16 MiB, and eight at once with the most objects that tools may have",
        most: 320,
        answers: &["200", "400"],
        setup: Setup::Plain,
        run: |server| {
            let parameters = format!(r#"{{"enum": {}}}"#, list(OBJECT, 16_000 * OBJECT.len()));
            let tool = format!(r#"{{"type": "function", "function": {{"name": "f", "parameters": {parameters}}}}}"#);
            let tools = format!(r#"{{{}, "tools": [{tool}]}}"#, messages("\"a\""));
            let mut said = at_once(8, || server.post("/apply-template", &tools));
            said.push(server.post("/apply-template", &format!("{{{}}}", messages(&text("a", BODY)))));
            said.sort();
            said
        },
    },
    Attack {
        name: "`/lora-adapters`: 16 MiB of scales and of names; prompts of 16 MiB to be counted, and responses by long ids",
        most: 512,
        answers: &["400", "404", "503"],
        setup: Setup::Plain,
        run: |server| {
            let long = text("a", BODY);
            let bodies = [
                ("/lora-adapters", list(r#"{"id":0,"scale":1e9},"#, BODY)),
                ("/lora-adapters", format!(r#"[{{"id": {long}, "scale": 1}}]"#)),
                ("/v1/chat/completions/input_tokens", format!("{{{}}}", messages(&long))),
                ("/v1/responses/input_tokens", format!(r#"{{"input": {long}}}"#)),
            ];
            let mut said: Vec<String> =
                bodies.iter().flat_map(|(path, body)| at_once(4, || server.post(path, body))).collect();
            said.extend([1_000, 60_000].map(|length| server.get(&format!("{RESPONSES}/resp_{}", "0".repeat(length)))));
            said.sort();
            said
        },
    },
    Attack {
        name: "`/infill`: a prefix and a suffix of 8 MiB, 1,024 files of 16 KB, a million files, a prompt of 16 MiB",
        most: 256,
        answers: &["200", "400"],
        setup: Setup::FillInTheMiddle,
        run: |server| {
            let half = text("a ", BODY / 2);
            let file = format!(r#"{{"text": {}}},"#, text("b ", 16_000));
            let files = |files: &str| {
                format!(r#"{{"input_prefix": "a", "input_suffix": "b", "n_predict": 1, "input_extra": [{files}]}}"#)
            };
            let bodies = [
                format!(r#"{{"input_prefix": {half}, "input_suffix": {half}, "n_predict": 1}}"#),
                files(file.repeat(1024).trim_end_matches(',')),
                files(r#"{"text":""},"#.repeat(1_000_000).trim_end_matches(',')),
                format!(r#"{{"input_prefix": "a", "input_suffix": "b", "prompt": {}}}"#, text("a", BODY)),
            ];
            bodies.iter().map(|body| server.post("/infill", body)).collect()
        },
    },
    Attack {
        name: "`/infill`: the model has no tokens for it; 16 MiB of text",
        most: 64,
        answers: &["501"],
        setup: Setup::Plain,
        run: |server| {
            let body = format!(r#"{{"input_prefix": {}, "input_suffix": "b"}}"#, text("a", BODY));
            vec![server.post("/infill", &body)]
        },
    },
    Attack {
        name: "`GET /`: the page 64 times at once, ten times",
        most: 64,
        answers: &["200"],
        setup: Setup::Plain,
        run: |server| (0..10).flat_map(|_| at_once(64, || server.get("/"))).collect(),
    },
    Attack {
        name: "`/slots`, `/props`, `/metrics` and `/v1/models`, 64 times at once, 20 times each",
        most: 64,
        answers: &["200"],
        setup: Setup::Plain,
        run: |server| {
            let paths = ["/slots", "/props", "/metrics", "/v1/models"];
            paths.into_iter().flat_map(|path| (0..20).flat_map(move |_| at_once(64, || server.get(path)))).collect()
        },
    },
];
