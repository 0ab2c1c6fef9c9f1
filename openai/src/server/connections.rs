//! A limited number of connections, and a log line for each request.

use std::convert::Infallible;
use std::io::Write;
use std::mem;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response};
use chrono::{DateTime, SecondsFormat, Utc};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tower::ServiceExt;

use super::http::stopping;

/// Maximum bytes of the head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long clients may take to read the error with which a stopping server ends their answers.
const TO_READ_THE_ERROR: Duration = Duration::from_secs(2);
/// How long a client has at least to send a whole request. Clients that connect all at once send their requests
/// when all of them have connected.
const TO_ASK: Duration = Duration::from_secs(2);

/// A client's connection.
pub(super) struct Connection {
    peer: SocketAddr,
    /// How long a client may take to send a head (counted from the connection or from its last request), and then to
    /// send a body.
    pub(super) timeout: Duration,
    /// Since when the client has sent no whole request; `None` while it waits for its answer.
    idle_since: Mutex<Option<Instant>>,
    closes: Notify,
    /// Tells the server that this connection may be closed, or has ended.
    room: Arc<Notify>,
    /// Whether the server ends the answers that still run.
    cuts_off: watch::Receiver<bool>,
}

impl Connection {
    /// Records that a whole request has arrived. Until it is answered, the connection isn't closed to make room.
    pub(super) fn request_arrived(&self) {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Records that the client has its answer.
    fn answer_ended(&self) {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.room.notify_one();
    }

    /// Since when the client has sent no whole request.
    fn idle_since(&self) -> Option<Instant> {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the server ends the answers that still run, because it stops.
    pub(super) async fn cut_off(self: Arc<Self>) {
        let mut cuts_off = self.cuts_off.clone();
        // An error means that the server has ended. Then this connection is closed too.
        let _ = cuts_off.wait_for(|cuts_off| *cuts_off).await;
    }
}

/// Accepts connections until `stop`, then lets running answers finish for at most `timeout`. Then the remaining answers
/// end with an error, which cancels their texts. Connections of clients that do not read it are closed.
///
/// If there would be more than `most` connections, the one is closed that has been idle longest, and for [`TO_ASK`] at
/// least. So silent clients cannot block others. If there is none, a new client waits.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    most: usize,
    timeout: Duration,
    stop: impl Future<Output = ()>,
) {
    let open = Arc::new(Mutex::new(Vec::<Arc<Connection>>::new()));
    let room = Arc::new(Notify::new());
    let shutdown = GracefulShutdown::new();
    let (cut_off, cuts_off) = watch::channel(false);
    let mut stop = pin!(stop);
    'accepting: loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                log(&format!("cannot take a connection: {error}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let cuts_off = cuts_off.clone();
        let (closes, room_of) = (Notify::new(), Arc::clone(&room));
        let idle_since = Some(Instant::now()).into();
        let connection = Arc::new(Connection { peer, timeout, idle_since, closes, room: room_of, cuts_off });
        loop {
            let admitted = admit(&mut open.lock().unwrap_or_else(PoisonError::into_inner), &connection, most);
            let Err(wait) = admitted else { break };
            tokio::select! {
                () = room.notified() => {}
                () = tokio::time::sleep(wait) => {}
                () = &mut stop => break 'accepting,
            }
        }
        // Each token is to be sent at once.
        let _ = stream.set_nodelay(true);
        let (of, routes) = (Arc::clone(&connection), routes.clone());
        let service = service_fn(move |request| answer(routes.clone(), request, Arc::clone(&of)));
        let spoken = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(timeout)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let spoken = shutdown.watch(spoken);
        let open = Arc::clone(&open);
        tokio::spawn(async move {
            tokio::select! {
                // A connection that breaks is not logged, because each of its requests has its own line.
                _ = spoken => {}
                () = connection.closes.notified() => {}
            }
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|other| !Arc::ptr_eq(other, &connection));
            connection.room.notify_one();
        });
    }
    drop(listener);
    let mut ended = pin!(shutdown.shutdown());
    if tokio::time::timeout(timeout, &mut ended).await.is_ok() {
        return;
    }
    let still = open.lock().unwrap_or_else(PoisonError::into_inner).len();
    log(&format!("{timeout:?} after the stop, requests still run; open connections, whose requests end now: {still}"));
    cut_off.send_replace(true);
    if tokio::time::timeout(TO_READ_THE_ERROR, ended).await.is_ok() {
        return;
    }
    for connection in mem::take(&mut *open.lock().unwrap_or_else(PoisonError::into_inner)) {
        connection.closes.notify_one();
    }
}

/// Adds a connection to the open ones. If there are `most` already, closes the one that has been idle longest. If none
/// has been idle for [`TO_ASK`], the error says after how much time to try again.
fn admit(open: &mut Vec<Arc<Connection>>, connection: &Arc<Connection>, most: usize) -> Result<(), Duration> {
    if open.len() >= most {
        let idle = open.iter().enumerate().filter_map(|(index, other)| Some((other.idle_since()?, index)));
        let Some((since, index)) = idle.min() else { return Err(TO_ASK) };
        let wait = TO_ASK.saturating_sub(since.elapsed());
        if !wait.is_zero() {
            return Err(wait);
        }
        open.remove(index).closes.notify_one();
    }
    open.push(Arc::clone(connection));
    Ok(())
}

async fn answer(
    routes: Router,
    request: Request<Incoming>,
    connection: Arc<Connection>,
) -> Result<Response<Answer>, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut line = Line {
        time: Utc::now(),
        begun: Instant::now(),
        connection: Arc::clone(&connection),
        method,
        path,
        status: None,
        bytes: 0,
    };
    // A request with a body is whole when the body has been read.
    if request.body().is_end_stream() {
        connection.request_arrived();
    }
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Arc::clone(&connection));
    let response = tokio::select! {
        biased;
        response = routes.oneshot(request) => response?,
        () = connection.cut_off() => stopping(&line.path),
    };
    line.status = Some(response.status().as_u16());
    Ok(response.map(|body| Answer { body, line }))
}

/// A line of the access log. It contains neither the request, nor the answer, nor the key. It is written when the
/// answer has ended, or when the client has disconnected.
struct Line {
    time: DateTime<Utc>,
    begun: Instant,
    connection: Arc<Connection>,
    method: Method,
    path: String,
    /// The status of the answer; `None` if the client disconnected before there was one.
    status: Option<u16>,
    /// Bytes of the answer's body.
    bytes: usize,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.connection.answer_ended();
        let line = json!({
            "time": self.time.to_rfc3339_opts(SecondsFormat::Micros, true), "peer": self.connection.peer.to_string(),
            "method": self.method.as_str(), "path": self.path, "status": self.status,
            "bytes": self.bytes, "ms": self.begun.elapsed().as_millis() as u64,
        });
        log(&line.to_string());
    }
}

/// Writes to stderr. Errors are ignored, so that the server continues even if nobody reads stderr.
fn log(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The body of a response, together with its log line.
struct Answer {
    body: Body,
    line: Line,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.line.bytes += frame.data_ref().map_or(0, Bytes::len);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_that_send_no_whole_request_make_room_for_others() {
        let (_cut_off, cuts_off) = watch::channel(false);
        let long_ago = Instant::now().checked_sub(2 * TO_ASK).expect("the system runs for some seconds");
        let connection = |idle_since: Option<Instant>| {
            Arc::new(Connection {
                peer: ([127, 0, 0, 1], 1).into(),
                timeout: Duration::ZERO,
                idle_since: idle_since.into(),
                closes: Notify::new(),
                room: Arc::default(),
                cuts_off: cuts_off.clone(),
            })
        };
        let (asked, silent, new) = (connection(None), connection(Some(long_ago)), connection(Some(long_ago)));
        let mut open = vec![Arc::clone(&asked), Arc::clone(&silent)];
        assert_eq!(admit(&mut open, &new, 2), Ok(()));
        assert!(Arc::ptr_eq(&open[0], &asked) && Arc::ptr_eq(&open[1], &new) && open.len() == 2);
        new.answer_ended();
        assert!(admit(&mut open, &silent, 2).is_err_and(|wait| wait <= TO_ASK), "it may send another request");
        new.request_arrived();
        assert_eq!(admit(&mut open, &silent, 2), Err(TO_ASK));
        assert_eq!(open.len(), 2);
        open.pop();
        assert_eq!(admit(&mut open, &silent, 2), Ok(()));
    }
}
