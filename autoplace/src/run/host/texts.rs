//! The worker's side of a run: an engine, and a thread that sends the pieces of the texts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use llama_sys::Token;

use crate::chat::{FinishReason, Media};
use crate::decode::error::Error;
use crate::decode::piece::{Piece, SequenceId};
use crate::decode::prompt::Prompt;
use crate::decode::request::{GenerateRequest, Spec};
use crate::load::{AbortHandle, Model};
use crate::run::engine::{Engine, EngineBuilder};
use crate::run::places::Shutdown;
use crate::run::remote::{Reply, Start, TextCall};
use crate::run::thread::{Notify, spawn};
use crate::run::token_stream::TokenStream;
use crate::sync::lock;
use crate::worker::{self, Sender};

/// Shortest time between two sends. Without a limit, a fast model would wake the application for every token, although
/// both need the same cores.
const OFTEN: Duration = Duration::from_millis(2);

/// The engine of a worker. Unfinished texts are cancelled when the engine is dropped.
pub(crate) struct Host {
    engine: Engine,
    outbox: Arc<Outbox>,
    thread: Option<JoinHandle<()>>,
    /// Pictures and sounds, by the numbers that the application gave them.
    kept: HashMap<u64, Media>,
}

/// The texts whose pieces go to the application.
struct Outbox {
    sender: Sender,
    /// The running texts. The flag of a text is true while its pieces are held back.
    texts: Mutex<HashMap<u64, (TokenStream, bool)>>,
    is_closing: AtomicBool,
    /// Notified when there may be a piece to send.
    notify: Arc<Notify>,
}

impl Host {
    /// Starts the engine. The handle aborts its computation.
    pub(crate) fn start(model: &Model, start: Start, sender: &Sender) -> Result<(Self, AbortHandle), Error> {
        let (engine, abort) = EngineBuilder::serve(model, start)?;
        let outbox = Arc::new(Outbox {
            sender: sender.clone(),
            texts: Mutex::default(),
            is_closing: AtomicBool::new(false),
            notify: Arc::default(),
        });
        model.counters().listen_to_moves(Some(Waker::from(Arc::clone(&outbox.notify))));
        let (open, of) = (Open(Arc::clone(&outbox)), engine.clone());
        let thread = spawn("autoplace-replies", move || open.0.send_all(&of))?;
        Ok((Self { engine, outbox, thread: Some(thread), kept: HashMap::new() }, abort))
    }

    /// Carries out a call. Returns false when the application is gone.
    pub(crate) fn carry_out(&mut self, call: TextCall) -> Result<bool, worker::Error> {
        match call {
            TextCall::Keep { number, media } => drop(self.kept.insert(number, media)),
            TextCall::Forget { numbers } => self.kept.retain(|number, _| !numbers.contains(number)),
            TextCall::Submit { id, spec, so_far } => return self.submit(id, *spec, &so_far),
            TextCall::Cancel { id } => {
                let text = lock(&self.outbox.texts).remove(&id);
                drop(text);
                self.outbox.notify.notify();
            }
            TextCall::Hold { id, is_held } => {
                if let Some(text) = lock(&self.outbox.texts).get_mut(&id) {
                    text.1 = is_held;
                }
                self.outbox.notify.notify();
            }
            TextCall::Close { how } => self.close(how),
            // The caller handles the start, and a run of texts has no session.
            TextCall::Start(_) | TextCall::Session(_) => {}
        }
        Ok(true)
    }

    fn submit(&self, id: u64, mut spec: Spec, so_far: &[Token]) -> Result<bool, worker::Error> {
        let Some(prompt) = spec.prompt.with_kept(|number| self.kept.get(&number).cloned()) else {
            return self.outbox.sender.send(&Reply::Failed { id, error: Prompt::unknown_number() });
        };
        spec.prompt = prompt;
        match self.engine.go_on(GenerateRequest { model: self.engine.model().clone(), spec }, so_far) {
            Ok(text) => {
                let is_heard = self.outbox.sender.send(&Reply::Accepted { id, statistics: text.statistics() });
                lock(&self.outbox.texts).insert(id, (text, false));
                self.outbox.notify.notify();
                is_heard
            }
            Err(error) => self.outbox.sender.send(&Reply::Failed { id, error }),
        }
    }

    fn close(&self, how: Shutdown) {
        self.engine.close(how);
        self.outbox.is_closing.store(true, Ordering::Release);
        self.outbox.notify.notify();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.close(Shutdown::Cancel);
        self.engine.model().counters().listen_to_moves(None);
        if let Some(thread) = self.thread.take() {
            // The panic was already printed, and the texts have ended with the engine.
            let _ = thread.join();
        }
    }
}

impl Outbox {
    /// Sends all pieces until the engine is closed and the last text has ended.
    fn send_all(&self, engine: &Engine) {
        let (mut known, mut known_move) = (engine.model().report(), None);
        loop {
            self.notify.wait();
            // The flag is read before the texts, so that the texts which the close has ended are still reported.
            let is_closing = self.is_closing.load(Ordering::Acquire);
            let mut replies = Vec::new();
            let moving = engine.model().counters().moving();
            if moving != known_move {
                replies.push(Reply::Moving(moving.clone()));
                known_move = moving;
            }
            // The report comes before the pieces that the new placement has computed.
            let report = engine.model().report();
            if !Arc::ptr_eq(&known, &report) {
                known = report;
                replies.push(Reply::Placed(engine.model().placed()));
            }
            let is_idle = self.take(&mut replies);
            let is_over = is_idle && is_closing;
            if is_over {
                engine.shutdown(Shutdown::Finish);
                replies.push(Reply::Closed);
            }
            replies.iter().for_each(|reply| self.put(reply));
            if !self.sender.flush() || is_over {
                return;
            }
            if !is_idle && !replies.is_empty() {
                thread::sleep(OFTEN);
            }
        }
    }

    /// Takes the available pieces of all texts. Returns true when all texts have ended.
    fn take(&self, replies: &mut Vec<Reply>) -> bool {
        let waker = Waker::from(Arc::clone(&self.notify));
        let mut context = Context::from_waker(&waker);
        let mut texts = lock(&self.texts);
        texts.retain(|&id, (text, is_held)| {
            if *is_held {
                return true;
            }
            loop {
                replies.push(match text.poll_piece(&mut context) {
                    Poll::Ready(Some(Ok(piece))) => {
                        let piece = Piece { sequence: SequenceId(id), ..piece };
                        Reply::Piece(Box::new((piece, text.statistics())))
                    }
                    Poll::Ready(Some(Err(error))) => Reply::Failed { id, error },
                    Poll::Pending => return true,
                    Poll::Ready(None) => {
                        if text.finish_reason() == Some(FinishReason::Aborted) {
                            replies.push(Reply::Failed { id, error: llama_sys::Error::Aborted.into() });
                        }
                        return false;
                    }
                });
            }
        });
        texts.is_empty()
    }

    /// Queues a reply for the next flush. If this fails, the process ends, because otherwise the application would wait
    /// for the reply forever.
    fn put(&self, reply: &Reply) {
        if let Err(error) = self.sender.put(reply) {
            tracing::error!(target: "autoplace::generate", "{error}");
            llama_sys::end_this_process();
        }
    }
}

/// Ends the process when the thread panics. Otherwise the connection would stay open, because other threads have
/// handles of it.
struct Open(Arc<Outbox>);

impl Drop for Open {
    fn drop(&mut self) {
        if thread::panicking() {
            llama_sys::end_this_process();
        }
    }
}
