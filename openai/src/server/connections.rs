//! A limited number of connections, and a log line for each request.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Write};
use std::mem;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use autoplace::llama_sys;
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
use tokio::sync::{Notify, Semaphore, watch};
use tower::ServiceExt;

use super::Waits;
use super::connection::Connection;
use super::http::stopping;
use super::socket::Socket;

/// Maximum bytes of the head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long clients may take to read the error with which a stopping server ends their answers.
const TO_READ_THE_ERROR: Duration = Duration::from_secs(2);
/// How long a client has at least to send a whole request. Clients that connect all at once send their requests
/// when all of them have connected.
const TO_ASK: Duration = Duration::from_secs(2);

/// So many connections more are open for clients that have sent no whole request, if this process may open so many
/// files.
const MORE_SILENT: usize = 512;
/// If so many clients have sent no whole request, a new client makes one of them leave, however short it has been
/// silent. A burst of fewer clients loses none.
const CROWD: usize = 400;
/// Files that the process may need besides its connections.
const OTHER_FILES: usize = 128;
/// Connections that were closed, and whose tasks are about to end.
const LEAVING: usize = 64;

/// Accepts connections until `stop`, then lets running answers finish for at most `timeout`. Then the remaining answers
/// end with an error, which cancels their texts. Connections of clients that do not read it are closed.
///
/// `most` is the number of connections for which there is always room. If there is no room for a new client, a silent
/// client leaves ([`admit`]). If none may leave yet, the new client waits.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    most: usize,
    waits: Waits,
    stop: impl Future<Output = ()>,
) {
    let most = most + more_silent(most, llama_sys::most_open_files());
    let places = Arc::new(Semaphore::new(most + LEAVING));
    let open = Arc::new(Mutex::new(Vec::<Arc<Connection>>::new()));
    let room = Arc::new(Notify::new());
    let shutdown = GracefulShutdown::new();
    let (cut_off, cuts_off) = watch::channel(false);
    let mut stop = pin!(stop);
    'accepting: loop {
        let accepted = async {
            // Connections that were closed still take files until their tasks have ended.
            let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
            Ok((listener.accept().await?, place))
        };
        let accepted: io::Result<_> = tokio::select! {
            accepted = accepted => accepted,
            () = &mut stop => break,
        };
        let ((stream, peer), place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                log(&format!("cannot take a connection: {error}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let connection = Arc::new(Connection::new(peer, waits, Arc::clone(&room), cuts_off.clone()));
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
        let socket = Socket::new(stream, Arc::clone(&connection));
        let spoken = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(waits.timeout)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(socket), service);
        let spoken = shutdown.watch(spoken);
        let open = Arc::clone(&open);
        tokio::spawn(async move {
            let _place = place;
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
    let timeout = waits.timeout;
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

/// The number of connections for silent clients, besides `most` others, if the process may open so many files.
fn more_silent(most: usize, files: Option<u64>) -> usize {
    let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    files.saturating_sub(most + LEAVING + OTHER_FILES).min(MORE_SILENT)
}

/// Adds a connection to the open ones. If there are `most` already, closes the one that has been idle longest. If none
/// has been idle for [`TO_ASK`], closes one of a [`CROWD`]. If there is no crowd, the error says after how much time to
/// try again.
fn admit(open: &mut Vec<Arc<Connection>>, connection: &Arc<Connection>, most: usize) -> Result<(), Duration> {
    if open.len() >= most {
        let idle = open.iter().enumerate().filter_map(|(index, other)| Some((other.idle_since()?, index)));
        let idle: Vec<(Instant, usize)> = idle.collect();
        let Some((since, oldest)) = idle.iter().min().copied() else { return Err(TO_ASK) };
        let wait = TO_ASK.saturating_sub(since.elapsed());
        let leaves = match wait.is_zero() {
            true => oldest,
            false if idle.len() < CROWD => return Err(wait),
            false => crowding(open, &idle).unwrap_or(oldest),
        };
        open.remove(leaves).closes.notify_one();
    }
    open.push(Arc::clone(connection));
    Ok(())
}

/// Of the address with the most idle connections, the one that has been idle longest. So a client that asks at once is
/// answered, whatever number of silent ones arrives, and clients at other addresses lose nothing.
fn crowding(open: &[Arc<Connection>], idle: &[(Instant, usize)]) -> Option<usize> {
    let mut of_address: HashMap<IpAddr, (usize, Reverse<(Instant, usize)>)> = HashMap::new();
    for &(since, index) in idle {
        let (count, oldest) = of_address.entry(open[index].peer.ip()).or_insert((0, Reverse((since, index))));
        *count += 1;
        *oldest = (*oldest).max(Reverse((since, index)));
    }
    let (_, Reverse((_, index))) = of_address.into_values().max()?;
    Some(index)
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
    connection.begins(request.version());
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
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
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

    fn connection(address: u8) -> Arc<Connection> {
        let peer = ([127, 0, 0, address], 1).into();
        Arc::new(Connection::new(peer, Waits::default(), Arc::default(), watch::channel(false).1))
    }

    fn long_ago() -> Instant {
        Instant::now().checked_sub(2 * TO_ASK).expect("the system runs for some seconds")
    }

    #[test]
    fn a_crowd_of_silent_clients_makes_no_other_client_wait() {
        let mut open = Vec::new();
        let most = CROWD + 2;
        let (asked, other, new) = (connection(1), connection(2), connection(1));
        asked.request_arrived();
        for connection in [Arc::clone(&asked), Arc::clone(&other)].into_iter().chain((0..CROWD).map(|_| connection(1)))
        {
            assert_eq!(admit(&mut open, &connection, most), Ok(()));
        }
        let first = Arc::clone(&open[2]);
        assert_eq!(admit(&mut open, &new, most), Ok(()));
        // The oldest of the address with the most silent clients has left.
        let stays = |connection| open.iter().any(|other| Arc::ptr_eq(other, connection));
        assert!(!stays(&first) && [&asked, &other, &new].into_iter().all(stays));
        // Fewer clients may be a burst that is about to ask.
        let mut burst = (0..CROWD - 1).map(|_| connection(1)).collect();
        assert!(admit(&mut burst, &new, CROWD - 1).is_err_and(|wait| wait <= TO_ASK));
    }

    #[test]
    fn more_silent_clients_are_admitted_only_if_there_are_files_for_them() {
        assert_eq!(more_silent(129, Some(256)), 0);
        assert_eq!(more_silent(129, Some(1024)), MORE_SILENT);
        assert_eq!(more_silent(576, Some(1024)), 1024 - 576 - LEAVING - OTHER_FILES);
        assert_eq!(more_silent(129, None), MORE_SILENT);
    }

    #[test]
    fn only_clients_that_send_no_whole_request_make_room_for_others() {
        let connection = |asks: bool| {
            let connection = connection(1);
            connection.asks().since = long_ago();
            if asks {
                connection.request_arrived();
            }
            connection
        };
        let (asked, silent, new) = (connection(true), connection(false), connection(false));
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
