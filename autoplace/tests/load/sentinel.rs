//! Sentinels that watch loaded models on simulated GPUs: what they report, what they cost, and how they end.
//!
//! The tests take the samples of a loaded model and replace values in them with values that a driver could report:
//! heat, other programs, a slow GPU.

use std::collections::VecDeque;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sim_support::{card, card_of};
use crate::text_support::status;
use autoplace::load::ThreadBasis;
use autoplace::machine::{GpuProcess, mib};
use autoplace::memory::Headroom;
use autoplace::plan::GpuLayers;
use autoplace::watch::{
    Cause, DepthCost, DeviceSample, Error, Event, Generated, ModelSource, Sample, Sentinel, SentinelBuilder, Source,
    Watched,
};
use autoplace::{Model, ModelBuilder, load};
use test_support::{demo_path, settled, wait};

/// If the sentinel reports nothing for this time, the test fails. No test takes longer because of this.
const DEAD: Duration = Duration::from_secs(120);

fn builder() -> ModelBuilder {
    Model::builder(demo_path()).headroom(Headroom::Bytes(0)).n_threads(1)
}

/// A sentinel that takes a sample often.
fn quick() -> SentinelBuilder {
    Sentinel::builder().interval(Duration::from_millis(1))
}

fn next(sentinel: &Sentinel) -> Event {
    sentinel.events().recv_timeout(DEAD).expect("an event")
}

/// Generates until there is an event.
fn generate_until_event(model: &Model, sentinel: &Sentinel) -> Event {
    loop {
        for piece in model.generate("And it came to pass").temp(0.0).max_tokens(64).stream().unwrap() {
            piece.unwrap();
            match sentinel.events().try_recv() {
                Ok(event) => return event,
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => panic!("the sentinel has ended"),
            }
        }
    }
}

fn watched(model: &Model) -> Watched {
    ModelSource::new(model).watched().unwrap()
}

/// The values that replace those in the samples of a model.
#[derive(Default)]
struct Script {
    device: Option<DeviceSample>,
    /// The time that each further token takes, according to the samples.
    token_time: Duration,
    /// How many samples were taken.
    samples: u64,
}

struct Scripted {
    model: ModelSource,
    script: Arc<Mutex<Script>>,
    generated: Generated,
}

impl Source for Scripted {
    fn watched(&mut self) -> Option<Watched> {
        // How fast a simulated GPU should be is not known.
        Some(Watched { depth_cost: DepthCost::default(), ..self.model.watched()? })
    }

    fn sample(&mut self, processes: bool) -> Option<Sample> {
        let mut sample = self.model.sample(processes)?;
        let mut script = self.script.lock().unwrap();
        script.samples += 1;
        if let Some(device) = &script.device {
            sample.devices = vec![device.clone()];
        }
        let tokens = sample.generated.tokens - self.generated.tokens;
        let took = script.token_time * u32::try_from(tokens).unwrap();
        sample.generated.time = self.generated.time + took;
        self.generated = sample.generated;
        Some(sample)
    }
}

/// A source that counts its samples, and those of its samples that include programs.
struct Counted(ModelSource, Arc<Mutex<[u64; 2]>>);

impl Source for Counted {
    fn watched(&mut self) -> Option<Watched> {
        self.0.watched()
    }

    fn sample(&mut self, processes: bool) -> Option<Sample> {
        let mut asked = self.1.lock().unwrap();
        *asked = [asked[0] + 1, asked[1] + u64::from(processes)];
        self.0.sample(processes)
    }
}

#[test]
fn programs_are_checked_as_often_as_requested() {
    let model = builder().load().unwrap();
    for (interval, is_each) in [(Duration::ZERO, true), (Duration::MAX, false)] {
        let asked = Arc::new(Mutex::new([0; 2]));
        let source = Counted(ModelSource::new(&model), Arc::clone(&asked));
        let sentinel = quick().process_interval(interval).watch_source(source).unwrap();
        wait("is sampled", || asked.lock().unwrap()[0] >= 20);
        drop(sentinel);
        let [samples, programs] = *asked.lock().unwrap();
        assert_eq!(programs, if is_each { samples } else { 1 }, "{interval:?}");
    }
}

#[test]
fn the_threads_that_generate_are_sampled() {
    let model = builder().load().unwrap();
    let mut source = ModelSource::new(&model);
    let threads = source.sample(false).unwrap().threads.unwrap();
    assert_eq!((threads.threads, threads.most, threads.before), (1, 1, 0.0));
}

#[test]
fn ballast_during_a_stream_is_memory_pressure_and_its_removal_is_relief() {
    own_process!();
    let gpu = card(mib(64));
    let model = builder().load().unwrap();
    let received = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&received);
    let listening = quick().on_event(move |event| listener.lock().unwrap().push(event.clone()));
    let sentinel = listening.memory_below(mib(8)).watch(&model).unwrap();
    let device = gpu.device().name();
    gpu.set_taken(gpu.free() - mib(7));
    // Skips events about the speed of this machine, because this test is not about them.
    let next = || loop {
        match generate_until_event(&model, &sentinel) {
            Event::Slowdown { .. } | Event::SpeedRecovered { .. } => {}
            event => return event,
        }
    };
    let pressure = Event::MemoryPressure { device: device.clone(), free: mib(7), needed: mib(8) };
    assert_eq!(next(), pressure);
    gpu.set_taken(0);
    let relieved = Event::MemoryRelieved { device, free: gpu.free() };
    assert_eq!(next(), relieved);
    drop(sentinel);
    let received = received.lock().unwrap();
    assert!([pressure, relieved].iter().all(|event| received.contains(event)), "the callback has heard {received:?}");
}

#[test]
fn a_plan_says_what_must_stay_free() {
    own_process!();
    let gpu = card(mib(2048));
    let planned = || builder().headroom(Headroom::Default);
    let model = planned().load().unwrap();
    let headroom = model.placement().gpus().next().unwrap().headroom;
    let said = watched(&model);
    let [device] = &said.devices[..] else { panic!("{said:?}") };
    assert_eq!(device.device, gpu.device().name());
    assert_eq!((device.needed, device.notable), (headroom.growth, headroom.margin));
    assert_eq!(device.room, None, "all of it is on the GPU");
    assert!(headroom.growth > 0 && !device.spills);
    // Under WSL, Windows may move memory without a message. So the headroom for WSL must stay free.
    let mut machine = load::detect().unwrap();
    machine.wsl = true;
    let said = watched(&planned().machine(machine).load().unwrap());
    assert_eq!(said.devices[0].needed, mib(512));
    assert!(said.devices[0].spills);
    // If a plan has no headroom, no memory need be free.
    let said = watched(&builder().n_gpu_layers(GpuLayers::Exactly(3)).load().unwrap());
    assert_eq!(said.devices[0].needed, 0);
    assert!(said.devices[0].room > Some(0));
    // A model that is only on the host is watched too.
    let model = builder().n_gpu_layers(GpuLayers::Exactly(0)).load().unwrap();
    assert_eq!(watched(&model).devices, []);
    assert!(Sentinel::watch(&model).unwrap().is_watching());
    // A model that was dropped cannot be watched.
    let source = ModelSource::new(&model);
    drop(model);
    let refused = Sentinel::builder().watch_source(source).map(drop);
    assert_matches!(refused, Err(Error::NothingToWatch));
}

#[test]
fn a_single_graph_copy_by_an_empty_override_leaves_nothing_on_the_host() {
    own_process!();
    let _pair = [(); 2].map(|()| card_of(mib(64)).asynchronous(true).register().unwrap());
    let single = |quarters| {
        let mut machine = load::detect().unwrap();
        machine.gpus.iter_mut().for_each(|gpu| gpu.free = quarters * mib(1) / 4);
        let whole = Model::builder(demo_path()).headroom(Headroom::Bytes(0)).n_gpu_layers(GpuLayers::All);
        let whole = whole.machine(machine);
        let plan = whole.plan().ok()?;
        (plan.full_offload && !plan.overrides.is_empty()).then(|| whole.load().unwrap())
    };
    let model = (16..64).find_map(single).unwrap();
    assert_eq!(model.report().threads.basis, ThreadBasis::FullOffload);
    assert!(watched(&model).devices.iter().all(|device| device.room.is_none()));
}

#[test]
fn generated_tokens_of_a_stream_are_counted_one_by_one() {
    own_process!();
    let model = builder().n_gpu_layers(GpuLayers::Exactly(0)).load().unwrap();
    let mut source = ModelSource::new(&model);
    assert_eq!(source.sample(true).unwrap().generated, Generated::default());
    let mut stream = model.generate("And it came to pass").temp(0.0).max_tokens(9).stream().unwrap();
    stream.by_ref().for_each(|piece| drop(piece.unwrap()));
    let statistics = stream.statistics();
    // The first token is computed together with the prompt, which has another speed.
    let (prompt, tokens) = (statistics.prompt_tokens as u64, 8);
    let depths = (1..=tokens).map(|n| prompt + n).sum();
    let expected = Generated { tokens, time: statistics.generation_time, depths };
    assert_eq!(source.sample(true).unwrap().generated, expected);
}

#[test]
fn a_stream_that_becomes_slow_is_reported_with_its_likely_cause() {
    own_process!();
    let _gpu = card(mib(64));
    let model = builder().load().unwrap();
    let token_time = Duration::from_millis(10);
    let script = Arc::new(Mutex::new(Script { token_time, ..Script::default() }));
    let (source, generated) = (ModelSource::new(&model), Generated::default());
    let scripted = Scripted { model: source, script: Arc::clone(&script), generated };
    let sentinel = quick().watch_source(scripted).unwrap();
    // Changes the script. Then waits for a sample that began after the change.
    let change = |change: &dyn Fn(&mut Script)| {
        let samples = || script.lock().unwrap().samples;
        change(&mut script.lock().unwrap());
        // One sample may already be running.
        let enough = samples() + 2;
        wait("samples", || samples() >= enough);
    };
    // First, the sentinel learns how fast the model itself is.
    for _ in 0..4 {
        model.generate("And").max_tokens(64).stream().unwrap().into_text().unwrap();
        change(&|_| {});
    }
    change(&|script| script.device = Some(DeviceSample::new(mib(40)).processes([])));
    let other = GpuProcess::new(7).name("game").bytes(mib(900));
    change(&|script| script.device = Some(DeviceSample::new(mib(40)).processes([other.clone()])));
    assert_matches!(next(&sentinel), Event::OtherProcess { pid: 7, bytes, .. } if *bytes == mib(900));
    change(&|script| script.token_time = Duration::from_millis(30));
    let event = generate_until_event(&model, &sentinel);
    let Event::Slowdown { expected, observed, likely_cause } = &event else { panic!("{event}") };
    assert!((expected - 100.0).abs() < 1e-6 && (33.0..70.0).contains(observed), "{event}");
    assert_matches!(likely_cause, Cause::OtherProcess { pid: 7, .. });
    change(&|script| script.token_time = token_time);
    assert_matches!(generate_until_event(&model, &sentinel), Event::SpeedRecovered { .. });
}

/// Samples that were taken elsewhere. The watching ends with them.
struct Recorded(VecDeque<Sample>);

impl Source for Recorded {
    fn watched(&mut self) -> Option<Watched> {
        Some(Watched::default())
    }

    fn sample(&mut self, _processes: bool) -> Option<Sample> {
        self.0.pop_front()
    }
}

#[test]
fn a_slowdown_is_reported_by_the_settings_of_its_builder() {
    // Eight tokens per sample: fast, slow, and the same once more. The slow ones have 0.8 of the speed.
    let (fast, slow) = (Duration::from_millis(10), Duration::from_micros(12_500));
    let times = [fast, slow, fast, slow, fast].into_iter().flat_map(|time| [time; 16]);
    let mut generated = Generated::default();
    let samples = times.map(|time| {
        generated.tokens += 8;
        generated.time += 8 * time;
        Sample { generated, ..Sample::default() }
    });
    let samples: VecDeque<Sample> = samples.collect();
    let events = |set: fn(SentinelBuilder) -> SentinelBuilder| {
        let at_once = quick().patience(Duration::ZERO).calm(Duration::ZERO);
        let builder = set(at_once.warm_up(8).window(8).slower_than(0.9));
        let sentinel = builder.watch_source(Recorded(samples.clone())).unwrap();
        let events = sentinel.events().iter().map(|event| match event {
            Event::Slowdown { .. } => "slow",
            Event::SpeedRecovered { .. } => "recovered",
            other => panic!("{other}"),
        });
        events.collect::<Vec<_>>()
    };
    assert_eq!(events(|builder| builder), ["slow", "recovered", "slow", "recovered"]);
    assert!(events(|builder| builder.slower_than(0.7)).is_empty());
    assert!(events(|builder| builder.slower_than(f64::NAN)).is_empty());
    assert!(events(|builder| builder.window(100_000)).is_empty());
    assert!(events(|builder| builder.warm_up(100_000)).is_empty());
    assert!(events(|builder| builder.patience(Duration::from_secs(3600))).is_empty());
    // Without an end that is reported, there is no second beginning.
    assert_eq!(events(|builder| builder.calm(Duration::from_secs(3600))), ["slow"]);
}

#[test]
fn a_re_placement_ends_pressure_and_the_new_placement_is_watched() {
    own_process!();
    let gpu = card(mib(64));
    let model = builder().load().unwrap();
    let sentinel = quick().memory_below(mib(8)).watch(&model).unwrap();
    gpu.set_taken(gpu.free() - mib(7));
    assert_matches!(next(&sentinel), Event::MemoryPressure { .. });
    // In the memory that is left, there is no room for a layer. So there is nothing to watch.
    gpu.set_taken(mib(64));
    model.replace(None).unwrap();
    assert_eq!(model.placement().gpus().count(), 0);
    assert_matches!(next(&sentinel), Event::MemoryRelieved { .. });
    assert!(sentinel.is_watching());
}

#[test]
fn the_watching_ends_with_the_model_which_it_does_not_keep_loaded() {
    own_process!();
    let gpu = card(mib(64));
    let model = builder().load().unwrap();
    let sentinel = quick().watch(&model).unwrap();
    let mut stream = model.generate("And").max_tokens(4).stream().unwrap();
    drop(model);
    stream.next().unwrap().unwrap();
    assert!(sentinel.is_watching(), "a stream is left");
    drop(stream);
    assert_eq!(sentinel.events().recv_timeout(DEAD), Err(RecvTimeoutError::Disconnected));
    assert_eq!(gpu.used(), 0);
}

#[test]
fn an_interval_of_for_ever_is_one_sample_until_it_is_dropped() {
    own_process!();
    let _gpu = card(mib(64));
    let model = builder().load().unwrap();
    let sentinel = Sentinel::builder().interval(Duration::MAX).watch(&model).unwrap();
    // If the thread had panicked, the channel would be disconnected.
    let waiting = sentinel.events().recv_timeout(Duration::from_millis(200));
    assert_eq!(waiting, Err(RecvTimeoutError::Timeout));
}

#[test]
fn a_callback_may_drop_the_sentinel() {
    own_process!();
    let gpu = card(mib(64));
    let model = builder().load().unwrap();
    gpu.set_taken(gpu.free());
    let held: Arc<Mutex<Option<Sentinel>>> = Arc::default();
    let (of_callback, (sender, dropped)) = (Arc::clone(&held), std::sync::mpsc::channel());
    let mut guard = held.lock().unwrap();
    let sentinel = quick().memory_below(mib(8)).on_event(move |_| {
        drop(of_callback.lock().unwrap().take());
        sender.send(()).unwrap();
    });
    *guard = Some(sentinel.watch(&model).unwrap());
    drop(guard);
    dropped.recv_timeout(DEAD).unwrap();
}

#[test]
fn three_hundred_sentinels_leave_no_thread() {
    own_process!();
    let _gpu = card(mib(64));
    let model = builder().load().unwrap();
    let before = settled(|| status("Threads"));
    for _ in 0..300 {
        // Some sentinels are dropped before their first sample, and some after it.
        drop(Sentinel::builder().watch(&model).unwrap());
    }
    // After a thread was joined, the system lists it for another moment.
    wait("has no thread of theirs", || status("Threads") == before);
}

#[test]
fn a_plan_with_known_device_speeds_has_a_cost_of_depth() {
    own_process!();
    let _gpu = card(mib(64));
    let mut machine = load::detect().unwrap();
    machine.host = machine.host.bandwidth(50_000_000_000);
    machine.gpus = vec![machine.gpus[0].clone().bandwidth(500_000_000_000)];
    let model = builder().machine(machine).load().unwrap();
    let cost = watched(&model).depth_cost;
    assert!(cost.is_known());
    let n_ctx = f64::from(model.placement().context.n_ctx);
    assert!(cost.at(0.0) < cost.at(n_ctx / 2.0));
    assert!(cost.at(n_ctx / 2.0) < cost.at(n_ctx));
    // The cost agrees with the speed that the plan states for its depth.
    let speed = model.placement().speed.clone().unwrap();
    let share = 1.0 / cost.at(f64::from(speed.depth)) / speed.tokens_per_second;
    assert!((0.99..1.01).contains(&share), "{share} {speed:?}");
}
