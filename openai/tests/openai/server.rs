//! A server of the demo model, in this process.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use autoplace::Model;
use autoplace::chat::ChatTemplate;
use autoplace::generate::Engine;
use autoplace_openai::Api;
use serde_json::Value;
use tokio::sync::Notify;

use test_support::demo_path;

pub(crate) const MODEL: &str = "autoplace-demo";

pub(crate) struct Server {
    pub(crate) engine: Engine,
    address: SocketAddr,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server with a context of this size.
    pub(crate) fn start(n_ctx: u32, template: ChatTemplate) -> Self {
        let model = Model::builder(demo_path()).n_ctx(n_ctx).n_threads(1).load().unwrap();
        let engine = Engine::new(&model).unwrap();
        Self::serve(Api::new(&model, &engine, MODEL).template(template), &engine)
    }

    pub(crate) fn serve(api: Api, engine: &Engine) -> Self {
        Self::run(autoplace_openai::Server::new(api), engine)
    }

    pub(crate) fn run(server: autoplace_openai::Server, engine: &Engine) -> Self {
        let engine = engine.clone();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), Arc::new(Notify::new()));
        let stopped = Arc::clone(&stop);
        let run = move || {
            tokio::runtime::Runtime::new().unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                server.serve(listener, stopped.notified()).await;
            });
        };
        Self { engine, address, stop, thread: Some(thread::spawn(run)) }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The answer to a request.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        ureq::post(self.url(path)).send_json(body).unwrap().body_mut().read_json().unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        ureq::get(self.url(path)).call().unwrap().body_mut().read_json().unwrap()
    }

    /// Waits until no request is running or waiting.
    #[track_caller]
    pub(crate) fn until_idle(&self) {
        for _ in 0..12_000 {
            let metrics = self.engine.metrics();
            if metrics.running == 0 && metrics.queued == 0 {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{:?}", self.engine.metrics());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.notify_one();
        self.thread.take().map(JoinHandle::join);
    }
}
