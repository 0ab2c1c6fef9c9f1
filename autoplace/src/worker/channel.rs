//! The connection between an application and its worker, apart from what either of them prints.
//!
//! On Unix it is a pair of connected sockets, of which the worker finds one as its standard input: a handle that the
//! standard library passes on safely, and that nobody writes text to. Elsewhere a handle goes one way only, and the
//! worker answers on its standard output.

use std::io::{self, BufReader, Read, Write};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Error;
use super::frame::{self, Failed};

/// Some hundred pieces of text.
const BUFFERED: usize = 32 << 10;

/// The end that messages come out of.
pub(crate) struct Receiver {
    reader: BufReader<Box<dyn Read + Send>>,
    buffer: Vec<u8>,
}

/// The end that messages go into. Clones send into the same connection.
#[derive(Clone)]
pub(crate) struct Sender {
    /// `None` once closed.
    inner: Arc<Mutex<Option<Outgoing>>>,
}

struct Outgoing {
    writer: Box<dyn Write + Send>,
    buffer: Vec<u8>,
}

impl Receiver {
    fn new(reader: impl Read + Send + 'static) -> Self {
        Self {
            reader: BufReader::with_capacity(BUFFERED, Box::new(reader)),
            buffer: Vec::new(),
        }
    }

    /// The next message; waits for it.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, Failed> {
        frame::read(&mut self.reader, &mut self.buffer)
    }

    /// Bytes before the first message.
    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).ok().map(|()| bytes)
    }
}

impl Sender {
    fn new(writer: impl Write + Send + 'static) -> Self {
        let outgoing = Outgoing {
            writer: Box::new(writer),
            buffer: Vec::new(),
        };
        Self {
            inner: Arc::new(Mutex::new(Some(outgoing))),
        }
    }

    /// Sends a message, whole. `false`: the other side is gone.
    pub(crate) fn send(&self, message: &impl Serialize) -> Result<bool, Error> {
        self.put(message)?;
        Ok(self.flush())
    }

    /// Has a message sent with the next one, or with the next [`flush`](Self::flush).
    pub(crate) fn put(&self, message: &impl Serialize) -> Result<(), Error> {
        match self.inner().as_mut() {
            Some(outgoing) => frame::write(&mut outgoing.buffer, message),
            None => Ok(()),
        }
    }

    /// Sends what is to be sent. `false`: the other side is gone.
    pub(crate) fn flush(&self) -> bool {
        let mut inner = self.inner();
        let Some(Outgoing { writer, buffer }) = inner.as_mut() else {
            return false;
        };
        let is_sent = writer.write_all(buffer).and_then(|()| writer.flush());
        buffer.clear();
        is_sent.is_ok()
    }

    fn inner(&self) -> MutexGuard<'_, Option<Outgoing>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends bytes that are no message.
    pub(super) fn bytes(&self, bytes: &[u8]) -> bool {
        self.inner()
            .as_mut()
            .is_some_and(|outgoing| outgoing.writer.write_all(bytes).is_ok())
    }

    /// Ends the connection, whoever else holds this.
    pub(super) fn close(&self) {
        *self.inner() = None;
    }
}

/// The application's end, once the child has its own.
pub(super) struct Prepared {
    #[cfg(unix)]
    stream: std::os::unix::net::UnixStream,
}

impl Prepared {
    /// Gives `command` the worker's end.
    #[cfg(unix)]
    pub(super) fn new(command: &mut Command) -> io::Result<Self> {
        let (stream, theirs) = std::os::unix::net::UnixStream::pair()?;
        command.stdin(std::os::fd::OwnedFd::from(theirs));
        Ok(Self { stream })
    }

    #[cfg(unix)]
    pub(super) fn connected(self, _: &mut Child) -> io::Result<(Receiver, Sender)> {
        let writer = self.stream.try_clone()?;
        Ok((Receiver::new(self.stream), Sender::new(writer)))
    }

    #[cfg(not(unix))]
    pub(super) fn new(command: &mut Command) -> io::Result<Self> {
        command.stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped());
        Ok(Self {})
    }

    #[cfg(not(unix))]
    pub(super) fn connected(self, child: &mut Child) -> io::Result<(Receiver, Sender)> {
        match (child.stdout.take(), child.stdin.take()) {
            (Some(stdout), Some(stdin)) => Ok((Receiver::new(stdout), Sender::new(stdin))),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// The worker's end, which it was started with.
#[cfg(unix)]
pub(crate) fn inherited() -> io::Result<(Receiver, Sender)> {
    use std::os::fd::AsFd;

    let stream = io::stdin().as_fd().try_clone_to_owned()?;
    let stream = std::os::unix::net::UnixStream::from(stream);
    // Anything but a socket is refused here: the variable came to this process from a worker, and the handle did not.
    stream.peer_addr()?;
    let writer = stream.try_clone()?;
    Ok((Receiver::new(stream), Sender::new(writer)))
}

/// The worker's end, which it was started with.
#[cfg(windows)]
pub(crate) fn inherited() -> io::Result<(Receiver, Sender)> {
    use std::os::windows::io::AsHandle;

    let reader = io::stdin().as_handle().try_clone_to_owned()?;
    let writer = io::stdout().as_handle().try_clone_to_owned()?;
    Ok((
        Receiver::new(std::fs::File::from(reader)),
        Sender::new(std::fs::File::from(writer)),
    ))
}
