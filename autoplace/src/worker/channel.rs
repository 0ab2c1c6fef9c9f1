//! The connection between an application and its worker. The connection is separate from the output of the two
//! processes.
//!
//! On Unix, it is a pair of connected sockets, one of which is the worker's standard input. On other systems, handles
//! have only one direction, so the worker answers on its standard output. A message consists of its length, as a
//! little-endian number of four bytes, and of at least one byte in postcard's format. A length of zero is a sign of
//! life. The first message is [`Hello`].

use std::io::{self, BufReader, Read, Write};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Error;
use crate::sync::lock;

/// Buffer size in bytes, enough for a few hundred pieces of text.
const BUFFERED: usize = 32 << 10;

/// The receiving end of a connection.
pub(crate) struct Receiver {
    reader: BufReader<Box<dyn Read + Send>>,
    buffer: Vec<u8>,
}

/// The sending end of a connection. Clones share the same connection.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    /// `None` after the connection was closed.
    inner: Arc<Mutex<Option<Outgoing>>>,
}

struct Outgoing {
    writer: Box<dyn Write + Send>,
    buffer: Vec<u8>,
}

debug_with!(Outgoing:);

impl Receiver {
    pub(crate) fn new(reader: impl Read + Send + 'static) -> Self {
        Self { reader: BufReader::with_capacity(BUFFERED, Box::new(reader)), buffer: Vec::new() }
    }

    /// Waits for the next message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, Failed> {
        self.receive_after_signs(&|| ())
    }

    /// Waits for the next message, and calls `sign` for each [sign of life](Sender::sign) before it.
    pub(crate) fn receive_after_signs<T: DeserializeOwned>(&mut self, sign: &dyn Fn()) -> Result<T, Failed> {
        self.read(sign)?;
        decode(&self.buffer).map_err(|error| Failed::Senseless(error.to_string()))
    }

    /// Reads the bytes of one message. Memory grows with the bytes that arrive, not with the announced length.
    fn read(&mut self, sign: &dyn Fn()) -> Result<(), Failed> {
        let length = loop {
            let mut length = [0; 4];
            self.reader.read_exact(&mut length).map_err(|error| gone(&error))?;
            match u32::from_le_bytes(length) {
                0 => sign(),
                length => break length,
            }
        };
        if !usize::try_from(length).is_ok_and(|length| length <= MAX_MESSAGE) {
            return Err(Failed::Senseless(format!("a message of {length} bytes, at most {MAX_MESSAGE}")));
        }
        self.buffer.clear();
        let mut message = self.reader.by_ref().take(length.into());
        let read = message.read_to_end(&mut self.buffer).map_err(|error| gone(&error))?;
        if read < length as usize { Err(Failed::Gone) } else { Ok(()) }
    }
}

impl Sender {
    pub(crate) fn new(writer: impl Write + Send + 'static) -> Self {
        let outgoing = Outgoing { writer: Box::new(writer), buffer: Vec::new() };
        Self { inner: Arc::new(Mutex::new(Some(outgoing))) }
    }

    /// Sends a message. Returns false if the other side is gone.
    pub(crate) fn send(&self, message: &impl Serialize) -> Result<bool, Error> {
        self.put(message)?;
        Ok(self.flush())
    }

    /// Queues a message for the next send or [`flush`](Self::flush).
    pub(crate) fn put(&self, message: &impl Serialize) -> Result<(), Error> {
        match lock(&self.inner).as_mut() {
            Some(outgoing) => write_message(&mut outgoing.buffer, &|buffer| encode(buffer, message)),
            None => Ok(()),
        }
    }

    /// Sends the queued messages. Returns false if the other side is gone.
    pub(crate) fn flush(&self) -> bool {
        let mut inner = lock(&self.inner);
        let Some(Outgoing { writer, buffer }) = inner.as_mut() else { return false };
        let is_sent = writer.write_all(buffer).and_then(|()| writer.flush());
        buffer.clear();
        if is_sent.is_err() {
            // Half a message may have been sent.
            *inner = None;
        }
        is_sent.is_ok()
    }

    /// Sends a sign of life, a message of zero bytes.
    pub(crate) fn sign(&self) -> bool {
        lock(&self.inner).as_mut().is_some_and(|outgoing| outgoing.writer.write_all(&[0; 4]).is_ok())
    }

    /// Closes the connection for all clones.
    pub(crate) fn close(&self) {
        *lock(&self.inner) = None;
    }
}

/// The application's end of a connection.
pub(super) struct Connection {
    #[cfg(unix)]
    stream: std::os::unix::net::UnixStream,
}

impl Connection {
    /// Shuts the connection down for all readers and writers.
    pub(super) fn shut_down(&self) {
        #[cfg(unix)]
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Passes the worker's end to `command`.
    #[cfg(unix)]
    pub(super) fn new(command: &mut Command) -> io::Result<Self> {
        let (stream, theirs) = std::os::unix::net::UnixStream::pair()?;
        command.stdin(std::os::fd::OwnedFd::from(theirs));
        Ok(Self { stream })
    }

    /// Opens both directions, after the child has got its end.
    #[cfg(unix)]
    pub(super) fn open(&self, _: &mut Child, timeout: Duration) -> io::Result<(Receiver, Sender)> {
        // A worker that reads nothing gets no more time than a worker that sends nothing.
        self.stream.set_write_timeout(Some(timeout.max(Duration::from_millis(1))))?;
        Ok((Receiver::new(self.stream.try_clone()?), Sender::new(self.stream.try_clone()?)))
    }

    #[cfg(not(unix))]
    pub(super) fn new(command: &mut Command) -> io::Result<Self> {
        command.stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped());
        Ok(Self {})
    }

    #[cfg(not(unix))]
    pub(super) fn open(&self, child: &mut Child, _: Duration) -> io::Result<(Receiver, Sender)> {
        match (child.stdout.take(), child.stdin.take()) {
            (Some(stdout), Some(stdin)) => Ok((Receiver::new(stdout), Sender::new(stdin))),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// The worker's end of the connection, which the worker inherits when it starts.
#[cfg(unix)]
pub(crate) fn inherited() -> io::Result<(Receiver, Sender)> {
    use std::os::fd::AsFd;

    let stream = std::os::unix::net::UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Refuses anything but a socket. This process may have inherited only the variable from a worker, and not the
    // socket.
    stream.peer_addr()?;
    Ok((Receiver::new(stream.try_clone()?), Sender::new(stream)))
}

/// The worker's end of the connection, which the worker inherits when it starts.
#[cfg(windows)]
pub(crate) fn inherited() -> io::Result<(Receiver, Sender)> {
    use std::os::windows::io::AsHandle;

    let reader = io::stdin().as_handle().try_clone_to_owned()?;
    let writer = io::stdout().as_handle().try_clone_to_owned()?;
    // The output of libraries must not be mixed with the messages. If this call fails, the process has no other
    // standard output, so the failure does not matter.
    let _ = llama_sys::print_to_stderr();
    Ok((Receiver::new(std::fs::File::from(reader)), Sender::new(std::fs::File::from(writer))))
}

/// Environment variable that marks a worker.
pub(super) const VARIABLE: &str = "AUTOPLACE_WORKER";

/// Environment variable with the milliseconds between two signs of life.
pub(super) const SIGNS: &str = "AUTOPLACE_WORKER_SIGNS";

/// Interval between two signs of life of this worker.
pub(crate) fn sign_every() -> Duration {
    let asked = std::env::var(SIGNS).ok().and_then(|value| value.parse().ok());
    Duration::from_millis(asked.unwrap_or(5000).clamp(1, 5000))
}

/// Environment variable with the log level that the application requests.
pub(super) const LEVEL: &str = "AUTOPLACE_WORKER_LOG";

/// The first message of a worker: the name of its build. Two equal builds understand each other's messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The value of `load::worker_build`.
    pub(crate) build: String,
}

/// Whether `main` has called the guard. If `main` has not called it, this program would not become a worker if it were
/// started again, but a second application.
static IS_GUARDED: AtomicBool = AtomicBool::new(false);

/// Records the call of the guard. Returns whether this process was started as a worker.
pub(crate) fn guard() -> bool {
    IS_GUARDED.store(true, Ordering::Relaxed);
    is_worker()
}

pub(super) fn is_guarded() -> bool {
    IS_GUARDED.load(Ordering::Relaxed)
}

pub(super) fn is_worker() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Maximum bytes of a message. The longest messages are prompts that fill a context, or the tokens of such prompts. A
/// million tokens take about 3 MB.
pub(super) const MAX_MESSAGE: usize = 64 << 20;

/// Appends the message that `encode` writes to `buffer`. After an error, `buffer` is unchanged.
///
/// # Errors
///
/// [`Error::TooLong`]; [`Error::Protocol`] if a value cannot be encoded, because it contains a path that is not UTF-8.
fn write_message(buffer: &mut Vec<u8>, encode: &dyn Fn(&mut Vec<u8>) -> postcard::Result<()>) -> Result<(), Error> {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    let written = encode(buffer).map_err(|error| Error::Protocol {
        doing: "writing a message to it",
        reason: match error {
            // Postcard drops the text of a custom error. Such an error comes only from a path that is not UTF-8.
            postcard::Error::SerdeSerCustom => "it contains a path that is not UTF-8".to_owned(),
            error => error.to_string(),
        },
    });
    let bytes = buffer.len() - start - 4;
    let fits =
        u32::try_from(bytes).ok().filter(|_| bytes <= MAX_MESSAGE).ok_or(Error::TooLong { bytes, limit: MAX_MESSAGE });
    let length = written.and(fits).inspect_err(|_| buffer.truncate(start))?;
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// The reason why no message was received.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The other side is gone, perhaps in the middle of a message.
    Gone,
    /// The other side sent bytes that are not a message.
    Senseless(String),
}

/// Encodes messages and the errors in them. The format has no names of variants, so the skipped variants of an enum
/// must come last.
pub(crate) fn encode(buffer: &mut Vec<u8>, value: &impl Serialize) -> postcard::Result<()> {
    postcard::to_io(value, buffer).map(drop)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> postcard::Result<T> {
    match postcard::take_from_bytes(bytes)? {
        (value, []) => Ok(value),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}

/// If the connection between two local processes breaks in any way, the other process is gone.
fn gone(error: &io::Error) -> Failed {
    if error.kind() != io::ErrorKind::UnexpectedEof {
        tracing::debug!("the connection to a worker broke: {error}");
    }
    Failed::Gone
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_message(&mut bytes, &|buffer| encode(buffer, message)).unwrap();
        bytes
    }

    fn read_back<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failed> {
        Receiver::new(io::Cursor::new(bytes.to_vec())).receive()
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_it_is_read() {
        let error = read_back::<String>(&[0xff; 64]).unwrap_err();
        assert!(matches!(error, Failed::Senseless(reason) if reason.contains("4294967295")));
    }

    #[test]
    fn a_message_beyond_the_limit_is_not_sent() {
        let text = "x".repeat(MAX_MESSAGE);
        let mut buffer = framed(&1);
        let error = write_message(&mut buffer, &|buffer| encode(buffer, &text)).unwrap_err();
        assert_eq!(buffer, framed(&1));
        assert!(matches!(error, Error::TooLong { bytes, limit: MAX_MESSAGE } if bytes > MAX_MESSAGE));
    }

    proptest! {
        #[test]
        fn a_message_that_is_cut_off_is_not_received(text: String, cut: prop::sample::Index) {
            let bytes = framed(&text);
            let cut = cut.index(bytes.len());
            prop_assert!(matches!(read_back::<String>(&bytes[..cut]), Err(Failed::Gone)));
            prop_assert!(matches!(read_back::<(String, u32)>(&bytes), Err(Failed::Senseless(_))));
            prop_assert!(matches!(read_back::<()>(&bytes), Err(Failed::Senseless(_))));
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes: Vec<u8>) {
            let _ = read_back::<String>(&bytes);
        }
    }
}
