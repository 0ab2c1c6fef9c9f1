//! A test hub that behaves like the real one, and fails on request.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::sleep;
use std::time::Duration;

use sha2::Digest;

use crate::http::{Request, serve};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file: its first bytes, then zeros up to its length.
#[derive(Clone)]
pub struct Content {
    head: Vec<u8>,
    bytes: u64,
    /// The hash that the hub announces: sha256 for a file in the large file storage, git's sha1 for any other file.
    pub etag: String,
}

impl Content {
    pub fn large(bytes: Vec<u8>) -> Self {
        let etag = hex(&sha2::Sha256::digest(&bytes));
        Self { bytes: bytes.len() as u64, head: bytes, etag }
    }

    /// A file that is stored in git itself.
    pub fn small(bytes: Vec<u8>) -> Self {
        let mut hash = sha1::Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
        hash.update(&bytes);
        Self { bytes: bytes.len() as u64, head: bytes, etag: hex(&hash.finalize()) }
    }

    /// A file with a claimed length and an unknown hash.
    pub fn hollow(head: Vec<u8>, bytes: u64) -> Self {
        Self { head, bytes, etag: "a".repeat(64) }
    }

    fn is_large(&self) -> bool {
        self.etag.len() != 40
    }

    fn part(&self, range: Range<u64>) -> Vec<u8> {
        let at = |n: u64| (n as usize).min(self.head.len());
        let mut bytes = self.head[at(range.start)..at(range.end)].to_vec();
        bytes.resize((range.end - range.start) as usize, 0);
        bytes
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A fault of an answer.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The answer has this status, and an extra header.
    Status(u16, &'static str),
    /// The connection ends after this many bytes of the body.
    Cut(u64),
    /// The answer claims another length of the file.
    WrongLength,
    /// The first byte is wrong.
    WrongBytes,
    /// The server ignores the range and sends the whole file.
    Whole,
    /// No answer comes, and the connection stays open.
    Silence,
}

/// A received request.
#[derive(Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub range: Option<Range<u64>>,
    pub authorization: Option<String>,
    /// Whether the request went to the address of the storage, and not to the address of the hub.
    pub at_storage: bool,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Content>,
    /// A listing that is sent in place of the listing of `files`.
    listing: Mutex<Option<String>>,
    /// Pending faults, each with the part of a path that triggers it.
    faults: Mutex<Vec<(String, Fault)>>,
    seen: Mutex<Vec<Seen>>,
    storage: OnceLock<SocketAddr>,
    sent: AtomicU64,
    /// Milliseconds between two pieces of a body.
    pause: AtomicU64,
    /// Once this many bytes were sent, no further piece is sent; 0 if there is no such limit.
    held_at: AtomicU64,
}

/// One repository at two addresses: the hub, and the storage to which the hub redirects.
pub struct Server {
    state: Arc<State>,
    address: SocketAddr,
}

impl Server {
    pub fn new<'a>(files: impl IntoIterator<Item = (&'a str, Content)>) -> Self {
        let files = files.into_iter().map(|(name, file)| (name.to_owned(), file)).collect();
        let state = Arc::new(State { files, ..State::default() });
        let at = |at_storage| {
            let state = state.clone();
            // A client may disconnect at any time.
            serve(move |request, stream| _ = state.answer(request, stream, at_storage))
        };
        let address = at(false);
        state.storage.get_or_init(|| at(true));
        Self { state, address }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes the next requests fail if their path contains `path`: `/api/`, `/resolve/`, `/storage/`, or a file name.
    pub fn fail(&self, path: &str, faults: impl IntoIterator<Item = Fault>) {
        self.state.faults.lock().unwrap().extend(faults.into_iter().map(|fault| (path.to_owned(), fault)));
    }

    /// The number of faults that no request has triggered yet.
    pub fn faults_left(&self) -> usize {
        self.state.faults.lock().unwrap().len()
    }

    pub fn list(&self, listing: String) {
        *self.state.listing.lock().unwrap() = Some(listing);
    }

    pub fn slow(&self, pause: Duration) {
        self.state.pause.store(pause.as_millis() as u64, SeqCst);
    }

    /// Sends no further piece once this many bytes were sent, until this is called again with 0. Bodies are in pieces
    /// if the server is [slow](Self::slow).
    pub fn hold_at(&self, bytes: u64) {
        self.state.held_at.store(bytes, SeqCst);
    }

    /// Bytes of bodies sent so far, including listings.
    pub fn sent(&self) -> u64 {
        self.state.sent.load(SeqCst)
    }

    /// Removes and returns the requests received so far.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.seen.lock().unwrap())
    }
}

impl State {
    fn answer(&self, request: &Request, stream: TcpStream, at_storage: bool) -> io::Result<()> {
        let range = request.header("range").and_then(|value| value.strip_prefix("bytes=")?.split_once('-'));
        let end = |end: &str| end.parse().map_or(u64::MAX, |end: u64| end + 1);
        let range = range.map(|(start, last)| start.parse().unwrap()..end(last));
        let authorization = request.header("authorization").map(str::to_owned);
        let (method, path) = (request.method.clone(), request.path.clone());
        let seen = Seen { method, path, range: range.clone(), authorization, at_storage };
        self.seen.lock().unwrap().push(seen);
        let (is_head, fault) = (request.method == "HEAD", self.fault(&request.path));
        let mut answer = Reply { state: self, stream, is_head, range, fault };
        match answer.fault {
            Some(Fault::Status(status, header)) => return answer.body(status, header, b""),
            // The time is longer than any client waits.
            Some(Fault::Silence) => sleep(Duration::from_secs(3600)),
            _ => {}
        }
        let path = request.path.split('?').next().unwrap_or_default();
        if path.starts_with("/api/models/some/thing/tree/") {
            return answer.body(200, "Content-Type: application/json\r\n", tree(&self.files).as_bytes());
        }
        if path.starts_with("/api/models/some/thing") {
            let listing = self.listing.lock().unwrap().clone().unwrap_or_else(|| listing(&self.files));
            return answer.body(200, "Content-Type: application/json\r\n", listing.as_bytes());
        }
        let name = match at_storage {
            true => path.strip_prefix("/storage/"),
            false => path.strip_prefix("/some/thing/resolve/").and_then(|rest| Some(rest.split_once('/')?.1)),
        };
        let name = name.unwrap_or_default();
        let Some(file) = self.files.get(name) else { return answer.body(404, "X-Error-Code: EntryNotFound\r\n", b"") };
        if at_storage {
            return answer.file(file, "");
        }
        let Content { etag, bytes, .. } = file;
        let mut headers = format!("X-Repo-Commit: {COMMIT}\r\nETag: \"{etag}\"\r\n");
        if !file.is_large() {
            return answer.file(file, &headers);
        }
        let storage = self.storage.get().unwrap();
        headers += &format!("X-Linked-ETag: \"{etag}\"\r\nX-Linked-Size: {bytes}\r\n");
        headers += &format!("Location: http://{storage}/storage/{name}?Signature=hidden\r\n");
        answer.body(302, &headers, b"")
    }

    fn fault(&self, path: &str) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let at = faults.iter().position(|(part, _)| path.contains(part.as_str()))?;
        Some(faults.remove(at).1)
    }
}

fn listing(files: &BTreeMap<String, Content>) -> String {
    let siblings = files.iter().map(|(name, file)| {
        let mut entry = serde_json::json!({ "rfilename": name, "size": file.bytes, "blobId": "b".repeat(40) });
        if file.is_large() {
            entry["lfs"] = serde_json::json!({ "sha256": file.etag, "size": file.bytes, "pointerSize": 135 });
        } else {
            entry["blobId"] = file.etag[..].into();
        }
        entry
    });
    let siblings: Vec<serde_json::Value> = siblings.collect();
    serde_json::json!({ "id": "some/thing", "sha": COMMIT, "siblings": siblings }).to_string()
}

/// The listing that the official client requests.
fn tree(files: &BTreeMap<String, Content>) -> String {
    let entries = files.iter().map(|(name, Content { bytes, etag, .. })| {
        let mut entry = serde_json::json!({ "type": "file", "path": name, "size": bytes, "oid": etag });
        if etag.len() != 40 {
            entry["lfs"] = serde_json::json!({ "oid": etag, "size": bytes, "pointerSize": 135 });
        }
        entry
    });
    serde_json::Value::Array(entries.collect()).to_string()
}

/// An answer in preparation.
struct Reply<'a> {
    state: &'a State,
    stream: TcpStream,
    /// Whether the request is for headers only.
    is_head: bool,
    range: Option<Range<u64>>,
    fault: Option<Fault>,
}

impl Reply<'_> {
    fn file(&mut self, file: &Content, headers: &str) -> io::Result<()> {
        let mut headers = format!("{headers}Accept-Ranges: bytes\r\n");
        let asked = self.range.clone().filter(|_| !matches!(self.fault, Some(Fault::Whole)));
        let Some(Range { start, end }) = asked else { return self.body(200, &headers, &file.part(0..file.bytes)) };
        let end = end.min(file.bytes);
        if start >= end {
            return self.body(416, "", b"");
        }
        let wrong = u64::from(matches!(self.fault, Some(Fault::WrongLength)));
        headers += &format!("Content-Range: bytes {start}-{}/{}\r\n", end - 1, file.bytes + wrong);
        let mut bytes = file.part(start..end);
        if let (Some(Fault::WrongBytes), Some(first)) = (&self.fault, bytes.first_mut()) {
            *first ^= 1;
        }
        self.body(206, &headers, &bytes)
    }

    fn body(&mut self, status: u16, headers: &str, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len();
        write!(self.stream, "HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n")?;
        let end = match self.fault {
            _ if self.is_head => 0,
            Some(Fault::Cut(end)) => length.min(end as usize),
            _ => length,
        };
        let is_slow = self.state.pause.load(SeqCst) > 0;
        for piece in bytes[..end].chunks(if is_slow { 8 << 10 } else { 1 << 20 }) {
            let is_held = || (1..=self.state.sent.load(SeqCst)).contains(&self.state.held_at.load(SeqCst));
            while is_held() {
                sleep(Duration::from_millis(1));
            }
            self.stream.write_all(piece)?;
            self.state.sent.fetch_add(piece.len() as u64, SeqCst);
            sleep(Duration::from_millis(self.state.pause.load(SeqCst)));
        }
        self.stream.flush()
    }
}
