//! Server-sent events. A thread sends the request and reads the events, so that an abort can end the wait.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;

use autoplace::AbortHandle;
use serde_json::Value;

use super::{Endpoint, Error};

/// Maximum number of unread events. At this number, no more are read from the server until the application has
/// read some.
const AHEAD: usize = 64;

/// Maximum bytes of one event.
const MAX_EVENT_BYTES: u64 = 16 << 20;

/// The events of a response. When this is dropped, the connection ends, at the latest when the next event arrives.
#[derive(Debug)]
pub(super) struct Events {
    endpoint: Endpoint,
    receiver: Receiver<Result<Event, Error>>,
    sender: SyncSender<Result<Event, Error>>,
    is_aborted: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(super) enum Event {
    Data(Value),
    /// The end of the stream: by `[DONE]` (true), or by the end of the connection (false).
    End(bool),
    Aborted,
}

impl Events {
    pub(super) fn start(endpoint: &Endpoint, path: &'static str, body: Value) -> Result<Self, Error> {
        let (sender, receiver) = sync_channel(AHEAD);
        let (here, to) = (endpoint.clone(), sender.clone());
        let read = move || {
            let last = read(&here, path, &body, |event| to.send(Ok(event)).is_ok());
            if let Err(error) = last {
                // If the receiver no longer exists, this fails, which does not matter.
                let _ = to.send(Err(error));
            }
        };
        let thread = thread::Builder::new().name("autoplace-endpoint".into()).spawn(read);
        thread.map_err(|error| Error::Thread { reason: error.to_string() })?;
        Ok(Self { endpoint: endpoint.clone(), receiver, sender, is_aborted: Arc::default() })
    }

    /// Waits for the next event.
    pub(super) fn next(&self) -> Result<Event, Error> {
        let silence = self.endpoint.silence;
        let event = self.receiver.recv_timeout(silence);
        if self.is_aborted.load(Ordering::Acquire) {
            return Ok(Event::Aborted);
        }
        match event {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => Err(self.endpoint.silent()),
            Err(RecvTimeoutError::Disconnected) => Ok(Event::End(false)),
        }
    }

    pub(super) fn abort_handle(&self) -> AbortHandle {
        let (is_aborted, sender) = (Arc::clone(&self.is_aborted), self.sender.clone());
        AbortHandle::new(move || {
            is_aborted.store(true, Ordering::Release);
            // If the channel is full, nobody waits for an event, and the flag is seen when the next one is read.
            let _: Result<(), TrySendError<_>> = sender.try_send(Ok(Event::Aborted));
        })
    }
}

fn read(endpoint: &Endpoint, path: &str, body: &Value, mut send: impl FnMut(Event) -> bool) -> Result<(), Error> {
    let response = endpoint.post(path, body)?;
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("text/event-stream") {
        return Err(endpoint.protocol(format!("{path} streams no events, but {kind:?}")));
    }
    let mut lines = BufReader::new(response.into_body().into_reader());
    let mut line = String::new();
    loop {
        line.clear();
        let read = lines.by_ref().take(MAX_EVENT_BYTES).read_line(&mut line);
        let read = read.map_err(|error| Error::CutOff { url: endpoint.url.to_string(), reason: error.to_string() })?;
        if read as u64 == MAX_EVENT_BYTES {
            return Err(endpoint.protocol(format!("an event of more than {MAX_EVENT_BYTES} bytes")));
        }
        // In this API each event has one `data` line. Comments and other fields are ignored.
        let event = match line.strip_prefix("data:").map(str::trim) {
            _ if read == 0 => Event::End(false),
            Some("[DONE]") => Event::End(true),
            Some(data) => Event::Data(data.parse().map_err(|error| endpoint.protocol(error))?),
            None => continue,
        };
        let is_last = matches!(event, Event::End(_));
        if !send(event) || is_last {
            return Ok(());
        }
    }
}
