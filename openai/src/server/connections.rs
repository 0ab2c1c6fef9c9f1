//! A limited number of connections, and a log line for each request.

use std::convert::Infallible;
use std::io::Write;
use std::mem;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response};
use chrono::{DateTime, SecondsFormat, Utc};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tower::ServiceExt;

/// Maximum bytes of the head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// A client's connection.
pub(super) struct Connection {
    peer: SocketAddr,
    /// How long a client may take to send a head (counted from the connection or from its last request), and then to
    /// send a body.
    pub(super) timeout: Duration,
    /// Whether the engine is working on a request of this connection. If not, the connection may be closed to make
    /// room.
    pub(super) is_answered: AtomicBool,
    closes: Notify,
}

/// Accepts connections until `stop`, then lets running answers finish for at most `timeout`. Then the remaining
/// connections are closed, which cancels their texts.
///
/// If there are more than `most` connections, the oldest one without a running answer is closed. So silent clients
/// cannot block others. If all connections have running answers, a new one is refused.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    most: usize,
    timeout: Duration,
    stop: impl Future<Output = ()>,
) {
    let open = Arc::new(Mutex::new(Vec::<Arc<Connection>>::new()));
    let shutdown = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
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
        let connection = Connection { peer, timeout, is_answered: false.into(), closes: Notify::new() };
        let connection = Arc::new(connection);
        {
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            if open.len() >= most {
                let is_idle = |connection: &Arc<Connection>| !connection.is_answered.load(Ordering::Relaxed);
                let Some(oldest) = open.iter().position(is_idle) else {
                    continue;
                };
                open.remove(oldest).closes.notify_one();
            }
            open.push(Arc::clone(&connection));
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
        });
    }
    drop(listener);
    if tokio::time::timeout(timeout, shutdown.shutdown()).await.is_ok() {
        return;
    }
    let open = mem::take(&mut *open.lock().unwrap_or_else(PoisonError::into_inner));
    log(&format!("{timeout:?} after the stop, answers still run; open connections, which are closed: {}", open.len()));
    for connection in open {
        connection.closes.notify_one();
    }
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
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(connection);
    let response = routes.oneshot(request).await?;
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
        self.connection.is_answered.store(false, Ordering::Relaxed);
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
