//! On a driver instead of a simulation: the first Vulkan device, Mesa's software one where there is no card.

use crate::isolation::resuming_process;
use crate::native_support::demo_path;
use crate::replace_support::PROMPT;
use autoplace::load::{self, Verify};
use autoplace::memory::Headroom;
use autoplace::plan::{GpuLayers, Request};
use autoplace::watch::{ModelSource, Source};
use autoplace::{Isolation, Model, ModelBuilder};

/// ggml leaves a device that computes on the CPU out unless it is named.
macro_rules! on_a_driver {
    () => {
        if crate::own_process::ran_with(&[("GGML_VK_VISIBLE_DEVICES", "0")]) {
            return;
        }
    };
}

const LAYERS: u32 = 7;
const TOKENS: usize = 24;
/// As many as agree at least, whatever was rounded how.
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
fn what_is_planned_is_probed_and_allocated_at_every_split() {
    on_a_driver!();
    let machine = load::detect().unwrap();
    let [gpu] = machine.gpus.as_slice() else { panic!("{machine}") };
    assert_eq!(gpu.backend, "Vulkan");
    assert!(0 < gpu.free && gpu.free <= gpu.total, "{gpu}");
    for layers in 1..=LAYERS {
        let model = builder(layers).verify(Verify::Off).load().unwrap();
        let report = model.report();
        let [gpu] = report.gpus.as_slice() else { panic!("{report:?}") };
        assert_eq!(gpu.layers, layers);
        assert_eq!((gpu.allocated, gpu.grown), (Some(gpu.planned), 0), "{layers} layers");
        let sample = ModelSource::new(&model).sample(false).unwrap();
        assert!(sample.devices.iter().all(|device| device.free.is_some()), "{sample:?}");
    }
}

/// The software driver (Mesa 22.3) breaks its own heap in one run of four, computing: the worker is lost, the text goes
/// on.
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

#[test]
fn a_device_that_is_not_there_leaves_the_host() {
    if crate::own_process::ran_with(&[("GGML_VK_VISIBLE_DEVICES", "77")]) {
        return;
    }
    assert_eq!(load::detect().unwrap().gpus, []);
    let model = Model::builder(demo_path()).request(request()).n_threads(1).load().unwrap();
    assert_eq!(model.placement().n_gpu_layers, 0);
}
