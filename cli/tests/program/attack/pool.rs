//! Attacks on a server of several models.

use super::Server;
use super::bodies::{BODY, TEXT, at_once, text};
use super::rows::{Attack, Setup};
use crate::server::FILE;

/// The API key of the server that requires one.
pub(super) const KEY: &str = "secret";

/// The file of a pool with this many models, named `m0`, `m1` and so on.
pub(super) fn file(models: usize) -> String {
    (0..models).map(|number| format!("[models.m{number}]\nmodel = \"{FILE}\"\nctx = 256\n")).collect()
}

/// A request for a short text of this model.
pub(super) fn asked(model: &str) -> String {
    format!(r#"{{"model": "{model}", "prompt": "a", "max_tokens": 2}}"#)
}

fn named(model: &str) -> String {
    format!(r#"{{"model": "{model}"}}"#)
}

/// Names of models that are paths, or that a careless program would open as files.
const PATHS: [&str; 8] = [
    "/etc/passwd",
    "../../../../etc/passwd",
    "file:///etc/passwd",
    "m0/../m1",
    "hf:owner/name",
    "models/m0.gguf",
    "m0\\u0000",
    "con",
];

/// Requests 400 loads and 400 unloads of this many models, eight of each at once, and then a text of each model.
fn storm(server: &Server, models: usize) -> Vec<String> {
    let ask = |path: &str, from: usize| {
        let names = (from..from + 50).map(|number| format!("m{}", number % models));
        names.map(|name| server.post(path, &named(&name))).collect::<Vec<_>>()
    };
    let mut said: Vec<String> = std::thread::scope(|scope| {
        let paths = ["/models/load", "/models/unload"];
        let all: Vec<_> = (0..16).map(|index| scope.spawn(move || ask(paths[index % 2], 50 * (index / 2)))).collect();
        all.into_iter().flat_map(|one| one.join().unwrap_or_default()).collect()
    });
    // An answer that is not a text is a failure, because its status is not allowed for this attack.
    let texts = (0..models).map(|model| server.post(TEXT, &asked(&format!("m{model}"))));
    said.extend(texts.map(|status| if status == "200" { status } else { format!("a text: {status}") }));
    said.sort();
    said
}

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "a pool: names that are paths, on ten surfaces; a name of 16 MiB; names that are lists and numbers",
        most: 96,
        answers: &["400", "404"],
        setup: Setup::Pool,
        run: |server| {
            let surfaces = [
                TEXT,
                "/v1/chat/completions",
                "/v1/responses",
                "/v1/messages",
                "/v1/embeddings",
                "/v1/rerank",
                "/tokenize",
                "/infill",
                "/models/load",
                "/models/unload",
            ];
            let posted = |body: &str| surfaces.map(|path| server.post(path, body));
            let mut said: Vec<String> = PATHS.iter().flat_map(|path| posted(&named(path))).collect();
            said.extend(PATHS.iter().map(|path| server.get(&format!("/v1/models/{}", path.replace('\\', "%5C")))));
            said.extend(PATHS.iter().map(|path| server.get(&format!("/props?model={}", path.replace('/', "%2F")))));
            said.extend(posted(r#"{"model": ["m0"]}"#));
            said.extend(posted(r#"{"model": 0}"#));
            said.push(server.post(TEXT, &format!(r#"{{"model": {}}}"#, text("m", BODY))));
            said.sort();
            said
        },
    },
    Attack {
        name: "a pool of a thousand names: the list 64 times at once, ten times; a thousand names that nobody has",
        most: 128,
        answers: &["200", "404"],
        setup: Setup::PoolOfThousand,
        run: |server| {
            let mut said: Vec<String> = (0..10).flat_map(|_| at_once(64, || server.get("/v1/models"))).collect();
            said.extend((0..10).flat_map(|_| at_once(64, || server.get("/metrics"))));
            said.extend((0..1000).map(|number| server.post(TEXT, &asked(&format!("n{number}")))));
            said.sort();
            said
        },
    },
    Attack {
        name: "a pool: 400 loads and 400 unloads of three models, eight at once, and a text of each at the end",
        most: 128,
        answers: &["200", "400", "503"],
        setup: Setup::Pool,
        run: |server| storm(server, 3),
    },
    Attack {
        name: "a pool of a thousand names: 400 loads and 400 unloads of 40 of them, and a text of each at the end",
        most: 256,
        answers: &["200", "400", "503"],
        setup: Setup::PoolOfThousand,
        run: |server| storm(server, 40),
    },
    Attack {
        name: "a pool: 300 texts of three models at once",
        most: 128,
        answers: &["200", "503", "no answer"],
        setup: Setup::Pool,
        run: |server| {
            let number = std::sync::atomic::AtomicUsize::new(0);
            at_once(300, || {
                let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                server.post(TEXT, &asked(&format!("m{}", number % 3)))
            })
        },
    },
    Attack {
        name: "a pool with a key: every path without it, and with keys that are wrong",
        most: 64,
        answers: &["401"],
        setup: Setup::PoolWithKey,
        run: |server| {
            let gets = ["/", "/v1/models", "/models", "/v1/models/m0", "/props", "/metrics", "/slots?model=m0"];
            let posts = [TEXT, "/v1/messages", "/v1/embeddings", "/models/load", "/models/unload", "/anything"];
            let mut said: Vec<String> = gets.iter().map(|path| server.get(path)).collect();
            said.extend(posts.iter().map(|path| server.post(path, &asked("m0"))));
            for key in ["Bearer wrong", "Bearer secret2", "Basic c2VjcmV0", "Bearer  secret", "secret"] {
                let host = &server.address;
                said.extend(gets[1..].iter().map(|path| {
                    server.sent(&format!(
                        "GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: {key}\r\nconnection: close\r\n\r\n"
                    ))
                }));
            }
            said.sort();
            said
        },
    },
];
