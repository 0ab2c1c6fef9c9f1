//! A test server, which accepts connections and lets the test answer each request.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// A client's request.
pub struct Request {
    pub method: String,
    pub path: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    /// Reads a request; `None` if the client has disconnected.
    fn read(stream: &TcpStream) -> Option<Self> {
        let mut reader = BufReader::new(stream);
        let mut head = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty());
        let first = head.next()?;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let headers = head.filter_map(|line| line.split_once(": ").map(|(name, value)| (name.into(), value.into())));
        let mut request = Self { method, path, headers: headers.collect(), body: Vec::new() };
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        request.body.resize(length, 0);
        reader.read_exact(&mut request.body).ok()?;
        Some(request)
    }
}

/// Answers each request as it arrives, until the process ends. Returns the address.
pub fn serve(answer: impl Fn(&Request, TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            thread::spawn(move || Request::read(&stream).map(|request| answer(&request, stream)));
        }
    });
    address
}
