//! A hub that does as the real one does, and fails as it is told: what this crate and huggingface_hub ask of it.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::Digest;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file: its beginning, and zeros up to its length.
#[derive(Clone)]
pub(crate) struct Content {
    head: Vec<u8>,
    bytes: u64,
    /// What the hub calls it: a sha256 of what is in its large file storage, git's sha1 of what is not.
    pub(crate) etag: String,
}

impl Content {
    pub(crate) fn large(bytes: Vec<u8>) -> Self {
        let etag = hex(&sha2::Sha256::digest(&bytes));
        Self { bytes: bytes.len() as u64, head: bytes, etag }
    }

    /// A file in git itself.
    pub(crate) fn small(bytes: Vec<u8>) -> Self {
        let mut hash = sha1::Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
        hash.update(&bytes);
        Self { bytes: bytes.len() as u64, head: bytes, etag: hex(&hash.finalize()) }
    }

    /// A file that is said to be this long, and whose hash nobody knows.
    pub(crate) fn hollow(head: Vec<u8>, bytes: u64) -> Self {
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

/// How an answer goes wrong.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// With a further header.
    Status(u16, &'static str),
    /// The connection ends after so many bytes of the body.
    Cut(u64),
    /// The file is said to have another length.
    WrongLength,
    /// The first byte is another one.
    WrongBytes,
    /// The range is not heard.
    Whole,
    /// No answer comes, and the connection stays.
    Silence,
}

/// A request that has come.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) range: Option<Range<u64>>,
    pub(crate) authorization: Option<String>,
    /// At the storage's address and not at the hub's.
    at_storage: bool,
    method: String,
}

impl Seen {
    pub(crate) fn is_at_storage(&self) -> bool {
        self.at_storage
    }
}

#[derive(Default)]
struct State {
    files: Mutex<BTreeMap<String, Content>>,
    /// The listing where it is not that of `files`.
    listing: Mutex<Option<String>>,
    /// By a part of the path of the requests that they wait for.
    faults: Mutex<Vec<(String, Fault)>>,
    seen: Mutex<Vec<Seen>>,
    storage: Mutex<String>,
    sent: AtomicU64,
    /// Milliseconds between two pieces of a body.
    pause: AtomicU64,
    ended: AtomicBool,
}

/// One repository, at two addresses: the hub, and the storage that it redirects to.
pub(crate) struct Server {
    state: Arc<State>,
    addresses: [SocketAddr; 2],
}

impl Server {
    pub(crate) fn new<'a>(files: impl IntoIterator<Item = (&'a str, Content)>) -> Self {
        let state = Arc::new(State::default());
        *state.files.lock().unwrap() = files.into_iter().map(|(name, file)| (name.to_owned(), file)).collect();
        let addresses = [false, true].map(|is_storage| listen(&state, is_storage));
        *state.storage.lock().unwrap() = format!("http://{}", addresses[1]);
        Self { state, addresses }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.addresses[0])
    }

    /// Lets the next request fail whose path contains this: `/api/`, `/resolve/`, `/storage/`, a file's name.
    pub(crate) fn fail(&self, path: &str, faults: impl IntoIterator<Item = Fault>) {
        self.state.faults.lock().unwrap().extend(faults.into_iter().map(|fault| (path.to_owned(), fault)));
    }

    /// Faults that no request has met yet.
    pub(crate) fn faults_left(&self) -> usize {
        self.state.faults.lock().unwrap().len()
    }

    pub(crate) fn list(&self, listing: String) {
        *self.state.listing.lock().unwrap() = Some(listing);
    }

    pub(crate) fn slow(&self, pause: Duration) {
        self.state.pause.store(pause.as_millis() as u64, SeqCst);
    }

    /// Bytes of bodies that have been sent, the listing's too.
    pub(crate) fn sent(&self) -> u64 {
        self.state.sent.load(SeqCst)
    }

    /// What has been asked, and forgets it.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.seen.lock().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.ended.store(true, SeqCst);
        for address in self.addresses {
            // Wakes whoever waits for the next connection.
            let _ = TcpStream::connect(address);
        }
    }
}

fn listen(state: &Arc<State>, is_storage: bool) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let state = state.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if state.ended.load(SeqCst) {
                break;
            }
            let state = state.clone();
            // A client may leave at any time.
            std::thread::spawn(move || stream.and_then(|stream| state.answer(stream, is_storage)));
        }
    });
    address
}

impl State {
    fn answer(&self, stream: TcpStream, at_storage: bool) -> io::Result<()> {
        let request = read_request(&stream, at_storage)?;
        self.seen.lock().unwrap().push(request.clone());
        let fault = self.fault(&request.path);
        let mut answer = Reply { state: self, stream, request, fault };
        match answer.fault {
            Some(Fault::Status(status, header)) => return answer.empty(status, header),
            Some(Fault::Silence) => {
                while !self.ended.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                return Ok(());
            }
            _ => {}
        }
        let path = answer.request.path.split('?').next().unwrap_or_default().to_owned();
        let files = self.files.lock().unwrap().clone();
        if path.starts_with("/api/models/some/thing") {
            let listing = self.listing.lock().unwrap().clone().unwrap_or_else(|| listing(&files));
            return answer.body(200, "Content-Type: application/json\r\n", listing.as_bytes());
        }
        let name = match at_storage {
            true => path.strip_prefix("/storage/"),
            false => path.strip_prefix("/some/thing/resolve/").and_then(|it| Some(it.split_once('/')?.1)),
        };
        let name = name.unwrap_or_default();
        let Some(file) = files.get(name) else { return answer.empty(404, "X-Error-Code: EntryNotFound\r\n") };
        if at_storage {
            return answer.file(file, "");
        }
        let Content { etag, bytes, .. } = file;
        let mut headers = format!("X-Repo-Commit: {COMMIT}\r\nETag: \"{etag}\"\r\n");
        if !file.is_large() {
            return answer.file(file, &headers);
        }
        let storage = self.storage.lock().unwrap().clone();
        headers += &format!("X-Linked-ETag: \"{etag}\"\r\nX-Linked-Size: {bytes}\r\n");
        headers += &format!("Location: {storage}/storage/{name}?Signature=hidden\r\n");
        answer.empty(302, &headers)
    }

    fn fault(&self, path: &str) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let at = faults.iter().position(|(part, _)| path.contains(part.as_str()))?;
        Some(faults.remove(at).1)
    }
}

fn read_request(stream: &TcpStream, at_storage: bool) -> io::Result<Seen> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut seen = Seen { method, path, range: None, authorization: None, at_storage };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        if name.eq_ignore_ascii_case("authorization") {
            seen.authorization = Some(value.to_owned());
        } else if name.eq_ignore_ascii_case("range") {
            let range = value.strip_prefix("bytes=").and_then(|it| it.split_once('-'));
            seen.range =
                range.map(|(start, end)| start.parse().unwrap()..end.parse().map_or(u64::MAX, |end: u64| end + 1));
        }
    }
    Ok(seen)
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

/// An answer on its way.
struct Reply<'a> {
    state: &'a State,
    stream: TcpStream,
    request: Seen,
    fault: Option<Fault>,
}

impl Reply<'_> {
    fn empty(&mut self, status: u16, headers: &str) -> io::Result<()> {
        self.body(status, headers, b"")
    }

    fn file(&mut self, file: &Content, headers: &str) -> io::Result<()> {
        let all = 0..file.bytes;
        let asked = self.request.range.clone().filter(|_| !matches!(self.fault, Some(Fault::Whole)));
        let range = asked.clone().map_or(all, |it| it.start..it.end.min(file.bytes));
        if range.start > range.end || range.is_empty() && asked.is_some() {
            return self.empty(416, "");
        }
        let wrong = u64::from(matches!(self.fault, Some(Fault::WrongLength)));
        let mut headers = format!("{headers}Accept-Ranges: bytes\r\n");
        let status = if asked.is_some() { 206 } else { 200 };
        if asked.is_some() {
            let Range { start, end } = range;
            headers += &format!("Content-Range: bytes {start}-{}/{}\r\n", end - 1, file.bytes + wrong);
        }
        let mut bytes = file.part(range);
        if let (Some(Fault::WrongBytes), Some(first)) = (&self.fault, bytes.first_mut()) {
            *first ^= 1;
        }
        self.body(status, &headers, &bytes)
    }

    fn body(&mut self, status: u16, headers: &str, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len();
        write!(self.stream, "HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n")?;
        if self.request.method == "HEAD" {
            return Ok(());
        }
        let end = match self.fault {
            Some(Fault::Cut(end)) => length.min(end as usize),
            _ => length,
        };
        let pause = self.state.pause.load(SeqCst);
        for piece in bytes[..end].chunks(if pause == 0 { 1 << 20 } else { 8 << 10 }) {
            self.stream.write_all(piece)?;
            self.state.sent.fetch_add(piece.len() as u64, SeqCst);
            if pause > 0 {
                std::thread::sleep(Duration::from_millis(pause));
            }
        }
        self.stream.flush()
    }
}
