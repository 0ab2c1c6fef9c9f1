//! Tests with a real driver. They use the first Vulkan device; on a machine without a card, this is Mesa's software
//! device.

use crate::depth_support::crossing;
use crate::isolation::resuming_process;
use crate::leases::{Other, Task};
use crate::replace_support::text_of;
use crate::text_support::{PROMPT, SEED, chat, complete, random, sampled, words};
use autoplace::generate::Resumed;
use autoplace::load::{self, Verify};
use autoplace::machine::mib;
use autoplace::memory::{FlashAttention, Headroom, KvType, Place, TensorOverride};
use autoplace::plan::{GpuLayers, MoeCache, Request};
use autoplace::watch::{ModelSource, Source};
use autoplace::{Isolation, Model, ModelBuilder};
use autoplace_measure::{Measure, Outcome};
use test_support::demo_path;

/// The variable that selects the device. Without it, ggml ignores a device that computes on the CPU.
const NAMED: [(&str, &str); 1] = [("GGML_VK_VISIBLE_DEVICES", "0")];

macro_rules! on_a_driver {
    () => {
        if test_support::own_process::ran_with(&NAMED) {
            return;
        }
    };
}

const LAYERS: u32 = 7;
const TOKENS: usize = 24;
/// How many tokens at the beginning of two texts must be equal at least, although rounding is different.
const AGREE: usize = 8;

fn request() -> Request {
    Request::new().n_ctx(512).headroom(Headroom::Tight)
}

fn builder(layers: u32) -> ModelBuilder {
    let request = request().n_gpu_layers(GpuLayers::Exactly(layers));
    Model::builder(demo_path()).request(request).without_learning().n_threads(1).attempts(1)
}

fn text(model: &Model) -> String {
    model.generate(PROMPT).temp(0.0).max_tokens(TOKENS).text().unwrap()
}

#[test]
fn plan_probe_and_allocation_agree_at_every_split() {
    on_a_driver!();
    let machine = load::detect().unwrap();
    let [gpu] = machine.gpus.as_slice() else { panic!("{machine}") };
    assert_eq!(gpu.backend, "Vulkan");
    assert!(0 < gpu.free && gpu.free <= gpu.total, "{gpu}");
    for layers in 1..=LAYERS {
        // The GPU check asks for the same stages, and for computations after them.
        let measure = Measure::new(demo_path()).request(request().n_gpu_layers(GpuLayers::Exactly(layers)));
        let load = |load: ModelBuilder| load.without_learning().n_threads(1).attempts(1).verify(Verify::Off);
        let stages = measure.load_with(load).stages(&[]);
        assert_eq!((&stages.outcome, stages.n_gpu_layers), (&Outcome::Completed, layers));
        let [gpu] = stages.gpus.as_slice() else { panic!("{stages:?}") };
        assert_eq!(gpu.allocated, gpu.planned, "{layers} layers");
        assert!(gpu.stages.iter().all(|reading| reading.free.ggml.is_some()), "{stages:?}");
    }
    let model = builder(LAYERS).verify(Verify::Off).load().unwrap();
    let sample = ModelSource::new(&model).sample(false).unwrap();
    assert!(sample.devices.iter().all(|device| device.free.is_some()), "{sample:?}");
}

/// While it computes, the software driver (Mesa 22.3) corrupts its own heap in one of four runs. Then the worker dies,
/// and the text continues.
#[test]
fn a_text_of_the_driver_is_the_hosts_for_a_while_however_often_the_driver_dies() {
    on_a_driver!();
    let host = text(&builder(0).load().unwrap());
    let driver = builder(LAYERS).verify(Verify::Off);
    let driver = driver.isolation(Isolation::Process(resuming_process(20))).load().unwrap();
    assert_eq!(driver.placement().n_gpu_layers, LAYERS);
    let driver = text(&driver);
    assert!(driver.chars().take(AGREE).eq(host.chars().take(AGREE)), "{driver:?} and {host:?}");
}

/// The model is in this process, so the driver may end the process.
#[test]
fn a_text_goes_on_where_the_driver_has_fewer_layers_none_and_all_again() {
    if test_support::own_process::ran_in_one_of(20, &NAMED) {
        return;
    }
    let host = text(&builder(0).load().unwrap());
    let model = builder(LAYERS).verify(Verify::Off).load().unwrap();
    let plans = [3, 0, LAYERS].map(|layers| builder(layers).plan().unwrap());
    let mut plans = plans.iter();
    let stream = model.generate(PROMPT).temp(0.0).max_tokens(TOKENS);
    let text = text_of(stream, |stream, index| {
        if let Some(plan) = (index % 6 == 5).then(|| plans.next()).flatten() {
            let replaced = stream.replace(Some(plan.clone())).unwrap();
            assert_eq!(replaced.resumed, Resumed::Restored);
            assert!(replaced.saved > 0, "{replaced:?}");
            assert_eq!(*model.placement(), *plan);
        }
    });
    assert_eq!((plans.len(), model.placement().n_gpu_layers), (0, LAYERS));
    assert!(text.chars().take(AGREE).eq(host.chars().take(AGREE)), "{text:?} and {host:?}");
}

/// The host and the driver round in different ways. So a text that both have computed may differ from the text of
/// either. For this reason, another model stays on the host, and in each turn it answers the same conversation as the
/// model that moves. The beginnings of most of their answers are equal.
#[test]
fn a_chat_of_60_turns_moves_between_the_host_and_the_driver_with_its_depth() {
    /// From this number of live tokens on, the other placement is faster.
    const CROSSING: u32 = 160;
    const TURNS: usize = 60;
    if test_support::own_process::ran_in_one_of(20, &NAMED) {
        return;
    }
    let request = request().n_ctx(1024).n_ubatch(64);
    let exactly = |layers| {
        let request = request.clone().n_gpu_layers(GpuLayers::Exactly(layers));
        Model::builder(demo_path()).request(request).without_learning().n_threads(1).attempts(1).verify(Verify::Off)
    };
    let [shallow, deep] = [0, LAYERS].map(|layers| exactly(layers).plan().unwrap());
    let saved = crossing(&demo_path(), &request, [&shallow, &deep], CROSSING);
    let model = Model::builder(demo_path()).without_learning().n_threads(1).attempts(1).verify(Verify::Off);
    let model = model.follow(saved).load().unwrap();
    let stays = exactly(0).load().unwrap();
    let [mut moves, mut still] = [&model, &stays].map(|model| chat(model, "chatml"));
    let is_on_driver = || model.placement().n_gpu_layers == LAYERS;
    let (mut moved, mut alike) = (0, 0);
    for turn in 0..TURNS {
        if turn % 12 == 11 {
            // Begins another conversation.
            moves.messages_mut().clear();
        }
        *still.messages_mut() = moves.messages().to_vec();
        let before = is_on_driver();
        let [answer, expected] =
            [&mut moves, &mut still].map(|chat| chat.say("And it came to pass in those days").unwrap().text().unwrap());
        alike += usize::from(answer.chars().take(AGREE).eq(expected.chars().take(AGREE)));
        if is_on_driver() != before {
            moved += 1;
            let report = model.report();
            let last = report.moved.as_ref().unwrap();
            assert_eq!(last.tokens >= CROSSING, is_on_driver(), "turn {turn}: {last}");
        }
    }
    println!("{moved} moves, and {alike} of {TURNS} answers begin as the host's");
    // In each conversation, the model moves to the driver. In the next one it moves back.
    assert!(moved >= 8, "{moved} moves");
    assert!(alike * 10 >= TURNS * 9, "{alike} of {TURNS} answers begin as the host's");
}

#[test]
fn memory_that_another_process_is_about_to_take_is_not_free() {
    on_a_driver!();
    let folder = tempfile::tempdir().unwrap();
    let task = Task::of_a_driver(folder.path());
    let load = || task.builder().verify(Verify::Off).load().unwrap();
    let mut other = Other::start(&task);
    other.said("loading:");
    let model = load();
    assert_eq!(model.placement().n_gpu_layers, 0);
    let notes = &model.machine().notes;
    assert!(notes.iter().any(|note| note.text.contains("another load")), "{notes:?}");
    drop(model);
    other.end();
    assert_eq!(load().placement().n_gpu_layers, LAYERS);
}

/// Experts are computed where they lie: on the driver if they are in its cache, or on the host, which rounds in another
/// way.
#[test]
fn a_cache_of_experts_on_the_driver_takes_the_planned_bytes_and_changes_no_text() {
    if test_support::own_process::ran_in_one_of(20, &NAMED) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = random("qwen3moe", None, folder.path());
    let mut all = request().n_ubatch(64).n_gpu_layers(GpuLayers::All);
    all.params.flash_attn = FlashAttention::Off;
    (all.params.type_k, all.params.type_v) = (KvType::F32, KvType::F32);
    let on_host = all.clone().overrides(vec![TensorOverride::new("_exps", Place::Host)]);
    let load = |request: &Request, cache| {
        let builder = Model::builder(&path).request(request.clone()).moe_cache(cache).without_learning();
        builder.n_threads(1).attempts(1).verify(Verify::Off).load().unwrap()
    };
    let text = |model: &Model| complete(sampled(model, words(7, 40), SEED).max_tokens(16), model);
    let without = text(&load(&on_host, MoeCache::Off)).tokens;
    let whole = text(&load(&all, MoeCache::Off)).tokens;
    let mut last = 0;
    for size in [mib(4), mib(9) + 12_345, mib(64)] {
        let model = load(&on_host, MoeCache::Bytes(size));
        let (plan, report) = (model.placement(), model.report());
        let [gpu] = report.gpus.as_slice() else { panic!("{report:?}") };
        assert_eq!((gpu.allocated, gpu.grown), (Some(gpu.planned), 0), "{plan}");
        assert_eq!(report.host.planned.experts, report.host.allocated.experts, "{plan}");
        let experts = plan.gpus().next().unwrap().footprint.experts;
        assert!(last < experts && experts <= size, "{plan}");
        last = experts;
        let generated = text(&model);
        println!("{size} bytes: {:?}, without {without:?}, on the driver alone {whole:?}", generated.tokens);
        assert_eq!(generated.tokens, without, "with {size} bytes");
        assert!(generated.statistics().expert_hit_rate().is_some());
    }
}

#[test]
fn a_device_that_is_not_there_leaves_the_host() {
    if test_support::own_process::ran_with(&[("GGML_VK_VISIBLE_DEVICES", "77")]) {
        return;
    }
    assert_eq!(load::detect().unwrap().gpus, []);
    let model = Model::builder(demo_path()).request(request()).n_threads(1).load().unwrap();
    assert_eq!(model.placement().n_gpu_layers, 0);
}
