//! Bodies of hostile requests, and ways to send them.

use std::thread;

use super::Server;
pub(super) use crate::server::TEXT;

/// Bytes of a body just below the size limit.
pub(super) const BODY: usize = (16 << 20) - 1000;
/// An object with one member, as an entry of a list. In most lists, this is the most expensive kind of entry.
pub(super) const OBJECT: &str = "{\"\":0},";

/// A request of about this many bytes. Its parameter `name` is a list of objects.
pub(super) fn objects(name: &str, bytes: usize) -> String {
    let objects = list(OBJECT, bytes);
    format!(r#"{{"prompt": "a", "max_tokens": 1, "{name}": {objects}}}"#)
}

pub(super) fn at_once(count: usize, ask: impl Fn() -> String + Sync) -> Vec<String> {
    thread::scope(|scope| {
        let asking: Vec<_> = (0..count).map(|_| scope.spawn(&ask)).collect();
        let mut answers: Vec<String> = asking.into_iter().map(|thread| thread.join().unwrap_or_default()).collect();
        answers.sort();
        answers
    })
}

/// Opens `count` connections that send only `bytes`, and returns the status of `/health` while they are open.
pub(super) fn held(server: &Server, count: usize, bytes: &str) -> Vec<String> {
    let _held: Vec<_> = (0..count).map(|_| server.connected(bytes)).collect();
    vec![server.get("/health")]
}

/// A list of about this many bytes. It repeats this entry, and ends with a zero.
pub(super) fn list(entry: &str, bytes: usize) -> String {
    format!("[{}0]", entry.repeat((bytes - 100) / entry.len()))
}

/// A JSON text of about this many bytes.
pub(super) fn text(part: &str, bytes: usize) -> String {
    format!("\"{}\"", part.repeat((bytes - 100) / part.len()))
}

/// A conversation with a single message, which has this content.
pub(super) fn messages(content: &str) -> String {
    format!(r#""messages": [{{"role": "user", "content": {content}}}]"#)
}
