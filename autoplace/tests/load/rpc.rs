//! Devices of other machines. The rpc-servers are real programs, reached over loopback. Some of them have a slow link,
//! and some die.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::isolation::resuming_process;
use crate::native_support::load_demo;
use crate::text_support::{PROMPT, worker};
use autoplace::generate::{self, GenerateRequest};
use autoplace::gguf::TensorType;
use autoplace::load::Error;
use autoplace::machine::{Gpu, GpuKind, Machine, mib};
use autoplace::memory::Headroom;
use autoplace::plan::{GpuLayers, Plan, Request, SavedPlan};
use autoplace::worker::Error as Lost;
use autoplace::{Isolation, Model, ModelBuilder};
use test_support::demo_path;
use test_support::random_weights::{self, Dice};
use test_support::running::Running;
use test_support::synthetic::{Dims, Sketch};

const TOKENS: usize = 32;

/// A running `autoplace-rpc-server` with this machine's CPU. When it is dropped, it is killed.
pub(crate) struct Server {
    child: Arc<Mutex<Running>>,
    pub(crate) endpoint: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_by(&[])
    }

    /// Starts the server. Another program is started, which then executes the server.
    fn start_by(launcher: &[&str]) -> Self {
        let (child, address) = Running::at_a_free_port(|address| {
            let endpoint = address.to_string();
            let line = [launcher, &[env!("CARGO_BIN_EXE_autoplace-rpc-server"), &endpoint, "CPU"]].concat();
            let mut command = Command::new(line[0]);
            command.args(&line[1..]).stdout(Stdio::null());
            command
        });
        Self { child: Arc::new(Mutex::new(child)), endpoint: address.to_string() }
    }

    /// Returns a function that kills the server.
    fn end(&self) -> impl Fn() + Send + use<> {
        let child = Arc::clone(&self.child);
        move || {
            let mut child = child.lock().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// An endpoint through which the server is reached. It adds this time to each round trip.
    fn behind(&self, trip: Duration) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (near, far) = (listener.local_addr().unwrap().to_string(), self.endpoint.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, Ok(server)) = (client.unwrap(), TcpStream::connect(&far)) else { return };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    carry(from.try_clone().unwrap(), to.try_clone().unwrap(), trip / 2);
                }
            }
        });
        near
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end()();
    }
}

/// Passes data on after a delay.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let _ = to.set_nodelay(true);
    let (pieces, queue) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (due, piece) in queue {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 18];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if pieces.send((Instant::now() + delay, buffer[..n].to_vec())).is_err() {
                break;
            }
        }
    });
}

fn builder(endpoints: &[&str]) -> ModelBuilder {
    let builder = Model::builder(demo_path()).n_ctx(512).n_threads(1).isolation(Isolation::Process(worker()));
    endpoints.iter().fold(builder, |builder, endpoint| builder.rpc(*endpoint))
}

/// A load in which all layers are on the servers.
fn everything(endpoints: &[&str]) -> ModelBuilder {
    builder(endpoints).n_gpu_layers(GpuLayers::All)
}

fn text(model: &Model) -> Result<String, generate::Error> {
    model.generate(PROMPT).temp(0.0).max_tokens(TOKENS).text()
}

/// A text that does not end before its server is killed, even if this thread gets no core for some time.
fn long(model: &Model) -> GenerateRequest {
    model.generate(PROMPT).temp(0.0).max_tokens(10 * TOKENS)
}

fn expected() -> String {
    text(&load_demo()).unwrap()
}

/// The machine that a worker has detected. Each server has `free` bytes.
fn with_free(endpoints: &[&str], free: u64) -> Machine {
    let mut seen = std::iter::repeat_with(|| everything(endpoints).load().unwrap().machine());
    // If the machine is busy, the time may not have been enough to measure the link.
    let is_linked = |gpu: &Gpu| gpu.rates.as_ref().is_some_and(|rates| rates.link.is_some());
    let mut machine = Machine::clone(&seen.find(|machine| machine.gpus.iter().all(is_linked)).unwrap());
    machine.gpus.iter_mut().for_each(|gpu| gpu.free = free);
    machine
}

#[test]
fn layers_on_two_machines_make_the_same_text_and_the_plan_says_what_is_carried() {
    let (one, other) = (Server::start(), Server::start());
    let endpoints = [one.endpoint.as_str(), other.endpoint.as_str()];
    let machine = with_free(&endpoints, mib(11));
    let model = everything(&endpoints).headroom(Headroom::Bytes(mib(1))).machine(machine).load().unwrap();
    let plan = model.placement();
    assert!(plan.full_offload && plan.gpus().count() == 2, "{plan}");
    for gpu in plan.gpus() {
        let carried = format!("to {} at", gpu.name);
        let is_said = |note: &String| note.starts_with("each load sends") && note.contains(&carried);
        assert!(plan.notes.iter().any(is_said), "{plan}");
    }
    let machine = model.machine();
    assert!(machine.gpus.iter().all(|gpu| gpu.kind == GpuKind::Remote && gpu.rates.as_ref().unwrap().link.is_some()));
    assert_eq!(text(&model).unwrap(), expected());
    // Only the worker has a connection.
    assert_matches!(model.better_plan(), Err(Error::Worker(Lost::Elsewhere { .. })));
    // To follow the saved plan, the worker connects too.
    let saved = SavedPlan::new(Plan::clone(&plan), Request::new(), model.header().unwrap()).unwrap();
    drop(model);
    let by_plan = Model::builder(demo_path()).n_threads(1).isolation(Isolation::Process(worker())).follow(saved);
    let followed = endpoints.into_iter().fold(by_plan, ModelBuilder::rpc).load().unwrap();
    assert_eq!(followed.placement().placements, plan.placements);
}

#[test]
fn a_far_machine_that_would_slow_the_model_gets_no_layers() {
    let server = Server::start();
    let far = server.behind(Duration::from_millis(20));
    // On a busy machine, the time of one plan may not be enough to measure the link.
    let machine = with_free(&[&far], mib(4096));
    let plan = builder(&[&far]).machine(machine.clone()).plan().unwrap();
    assert_eq!(plan.gpus().count(), 0, "{plan}");
    let forced = everything(&[&far]).machine(machine).plan().unwrap();
    let tokens = |plan: &Plan| plan.speed.as_ref().unwrap().tokens_per_second;
    assert!(tokens(&forced) < 50.0 && tokens(&forced) < tokens(&plan), "{forced}");
}

#[test]
fn servers_that_cannot_be_used_are_refused_before_anything_is_loaded() {
    let nobody = builder(&["127.0.0.1:1"]).load().map(drop);
    let Err(Error::Native(error)) = &nobody else { panic!("{nobody:?}") };
    assert!(error.to_string().contains("no server listens there"), "{error}");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = builder(&[&silent.local_addr().unwrap().to_string()]).plan().unwrap_err();
    assert!(busy.to_string().contains("serves one client at a time"), "{busy}");
    let far = builder(&["192.0.2.1:50052"]).load().map(drop);
    assert_matches!(far, Err(Error::UntrustedNetwork { .. }));
    // The `main` of this program does not begin like that of a worker. So no worker can start, and nobody connects.
    let here = Model::builder(demo_path()).rpc("127.0.0.1:1").load().map(drop);
    assert_matches!(here, Err(Error::Worker(Lost::NoWorkerMain)));
}

#[test]
fn a_server_that_dies_in_a_text_is_an_error_or_the_text_goes_on_without_it() {
    for process in [worker(), resuming_process(2)] {
        let servers = [Server::start(), Server::start()];
        let endpoints = [servers[0].endpoint.as_str(), servers[1].endpoint.as_str()];
        let goes_on = process == resuming_process(2);
        let builder = everything(&endpoints).without_learning();
        let model = builder.isolation(Isolation::Process(process)).load().unwrap();
        let used = model.placement().gpus().next().unwrap().name.clone();
        let mut stream = long(&model).stream().unwrap();
        let said: String = (&mut stream).take(5).map(Result::unwrap).collect();
        servers.iter().find(|server| server.endpoint == used).unwrap().end()();
        let rest: Result<String, _> = (&mut stream).collect();
        drop(stream);
        match rest {
            Ok(rest) if goes_on => assert_eq!(said + &rest, long(&load_demo()).text().unwrap()),
            Err(generate::Error::Worker(Lost::Died { .. })) if !goes_on => continue,
            rest => panic!("{rest:?}"),
        }
        let machine = model.machine();
        let gone = machine.unused_gpus.iter().map(ToString::to_string).find(|gpu| gpu.contains(&used));
        assert!(gone.is_some_and(|gone| gone.contains("does not answer")), "{machine}");
    }
}

/// In each round, a server is killed at a random moment of a load or of a text. The number of rounds is in
/// `AUTOPLACE_RPC_ROUNDS`.
#[test]
fn a_servers_death_at_any_time_gives_the_same_text_or_a_typed_error() {
    let rounds = std::env::var("AUTOPLACE_RPC_ROUNDS").map_or(6, |rounds| rounds.parse().unwrap());
    let expected = expected();
    let mut dice = Dice::new(20_261_125);
    let mut outcomes = [0; 3];
    for round in 0..rounds {
        let servers: Vec<Server> = (0..2 + dice.below(2)).map(|_| Server::start()).collect();
        let trip = Duration::from_micros(dice.below(2000));
        let mut endpoints: Vec<String> = servers.iter().map(|server| server.endpoint.clone()).collect();
        endpoints[0] = servers[0].behind(trip);
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        let attempts = dice.one_of(&[0, 1, 2]);
        let mut victim = Some(servers[dice.below(servers.len())].end());
        let (in_load, after) = (dice.percent(50), dice.below(40));
        let process = Isolation::Process(resuming_process(attempts));
        let mut builder = everything(&endpoints).isolation(process).without_learning();
        let mut ticks = 0;
        if in_load {
            let victim = victim.take().unwrap();
            builder = builder.progress(move |_| {
                ticks += 1;
                if ticks == after / 4 {
                    victim();
                }
                true
            });
        }
        let outcome = builder.load().map_err(generate::Error::from).and_then(|model| {
            let mut stream = model.generate(PROMPT).temp(0.0).max_tokens(TOKENS).stream()?;
            let mut said = String::new();
            for n in 0.. {
                if n == after && victim.take().is_some() {
                    // Chooses one of the servers that the model uses.
                    let used = model.placement().gpus().next().unwrap().name.clone();
                    servers[endpoints.iter().position(|endpoint| *endpoint == used).unwrap()].end()();
                }
                let Some(piece) = stream.next() else { break };
                said += &piece?;
            }
            Ok(said)
        });
        match outcome {
            Ok(text) => {
                assert_eq!(text, expected, "round {round}");
                outcomes[0] += 1;
            }
            Err(generate::Error::Worker(Lost::Died { .. })) => outcomes[1] += 1,
            // The server had ended before the request.
            Err(generate::Error::Native(_) | generate::Error::Load(_)) => outcomes[2] += 1,
            Err(error) => panic!("round {round}: {error:?}"),
        }
    }
    println!("{rounds} rounds: {} texts, {} deaths, {} refused", outcomes[0], outcomes[1], outcomes[2]);
}

/// Prints a table for benches/results. It contains the predicted and the measured time of a text, for a model of about
/// 400 MB: on one server or two, and near or far. Each server needs a core of its own. On one core, they would make
/// each other slower.
#[test]
#[ignore = "measures"]
fn predicted_beside_measured() {
    let folder = tempfile::tempdir().unwrap();
    let mut sketch = Sketch::new("llama", "of 400 MB", Dims::new([12, 1536, 4096, 12, 4, 128, 32_000]));
    sketch.vocabulary();
    sketch.ends(TensorType::Q8_0, Some(TensorType::Q8_0));
    for il in 0..12 {
        sketch.norms(il);
        sketch.attention(il, TensorType::Q8_0);
        sketch.feed_forward(il, TensorType::Q8_0, TensorType::Q8_0);
    }
    let path = random_weights::write(&sketch, folder.path());
    println!("| servers | there and back | predicted tok/s | measured | |\n|--:|--:|--:|--:|--:|");
    for count in [1, 2] {
        for trip in [100, 1000, 10_000].map(Duration::from_micros) {
            let servers: Vec<Server> =
                (0..count).map(|core| Server::start_by(&["taskset", "-c", &core.to_string()])).collect();
            let near: Vec<String> = servers.iter().map(|server| server.behind(trip)).collect();
            let kept = tempfile::tempdir().unwrap();
            let load = |machine: Option<Machine>| {
                let builder = Model::builder(&path).n_ctx(1024).n_threads(1).n_gpu_layers(GpuLayers::All);
                let builder = builder.isolation(Isolation::Process(worker())).headroom_folder(kept.path());
                let builder = near.iter().fold(builder, ModelBuilder::rpc);
                machine.into_iter().fold(builder, ModelBuilder::machine).load().unwrap()
            };
            let mut model = load(None);
            if count > 1 {
                let mut machine = (*model.machine()).clone();
                drop(model);
                machine.gpus.iter_mut().for_each(|gpu| gpu.free = mib(1100));
                model = load(Some(machine));
            }
            let plan = model.placement();
            assert_eq!(plan.gpus().count(), count, "{plan}");
            let mut stream = model.generate(PROMPT).temp(0.0).max_tokens(96).stream().unwrap();
            stream.by_ref().for_each(|piece| drop(piece.unwrap()));
            let measured = stream.statistics().tokens_per_second();
            let predicted = plan.speed.as_ref().unwrap().generation[0].tokens_per_second;
            let (ms, ratio) = (trip.as_secs_f64() * 1e3, predicted / measured);
            println!("| {count} | {ms} ms | {predicted:.1} | {measured:.1} | {ratio:.2} |");
        }
    }
}
