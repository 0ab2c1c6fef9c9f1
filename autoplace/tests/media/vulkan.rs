//! A projector with a real driver. The tests use the first Vulkan device; on a machine without a card, this is Mesa's
//! software device.

use autoplace::llama_sys::{Backend, FlashAttention, Projector, ProjectorParams};
use autoplace::load::Verify;
use autoplace::memory::Headroom;
use autoplace::plan::GpuLayers;
use autoplace::{Isolation, Model, ModelBuilder, OnDeath};
use test_support::own_process::ran_in_one_of;

use crate::eyes::{ALL_FAMILIES, about, beside, files, image_max_tokens, picture, their_tokens};
use crate::heard::{heard, heard_parts, tone};
use crate::same_as_llama_cpp::{asked, parts, their_raw};
use crate::text_support::{complete, greedy, request, worker};

/// Without this variable, ggml ignores a device that computes on the CPU.
const NAMED: [(&str, &str); 1] = [("GGML_VK_VISIBLE_DEVICES", "0")];

/// How often a test is tried. While it computes, the software driver (Mesa 22.3) corrupts its own heap in one of four
/// runs.
const ATTEMPTS: u32 = 20;

/// How many tokens of the host and of the driver must be equal at least, although rounding is different.
const AGREE: usize = 4;

const N_CTX: u32 = 512;

/// A builder for the text model and the projector of a family. The projector is on the driver or on the host.
fn builder(family: &str, files: &(std::path::PathBuf, std::path::PathBuf), on_driver: bool) -> ModelBuilder {
    let layers = if on_driver { GpuLayers::All } else { GpuLayers::Exactly(0) };
    let request = request(N_CTX, 1, false).headroom(Headroom::Tight).n_gpu_layers(layers);
    beside(files, request, image_max_tokens(family)).without_learning().attempts(1).verify(Verify::Off)
}

#[test]
fn a_projector_takes_of_the_driver_and_of_the_host_what_was_planned() {
    if ran_in_one_of(ATTEMPTS, &NAMED) {
        return;
    }
    for family in ALL_FAMILIES.into_iter().chain(["Small Ultravox"]) {
        let folder = tempfile::tempdir().unwrap();
        let files = files(family, folder.path());
        for on_driver in [true, false] {
            let model = builder(family, &files, on_driver).load().unwrap();
            let (plan, report) = (model.placement(), model.report());
            let (planned, allocated) = (&plan.companions[0], report.projector.unwrap());
            assert_eq!(planned.gpu.is_some(), on_driver, "{family}: {plan}");
            assert_eq!(allocated.gpu.unwrap_or_default(), planned.bytes.gpu, "{family}: {report}");
            if !on_driver {
                assert_eq!(allocated.host, planned.bytes.host, "{family}: {report}");
            }
            assert_eq!(planned.bytes.gpu_uncertainty, 0, "{family}: {plan}");
        }
    }
}

/// The variable with the family that a process computes.
const FAMILY: &str = "AUTOPLACE_TEST_FAMILY";

/// Computes each family in a process of its own, which the driver may end.
fn each_alone(families: &[&str], compute: impl Fn(&str)) {
    if let Ok(family) = std::env::var(FAMILY) {
        return compute(&family);
    }
    for family in families {
        assert!(ran_in_one_of(ATTEMPTS, &[NAMED[0], (FAMILY, family)]));
        println!("{family}: the same");
    }
}

/// Our text about a picture (or about a sound) on the driver, beside llama.cpp's own loop with its projector there.
fn is_the_same(family: &str) {
    let folder = tempfile::tempdir().unwrap();
    let files = files(family, folder.path());
    let model = builder(family, &files, true).load().unwrap();
    assert!(model.placement().companions[0].gpu.is_some(), "{}", model.placement());
    let (image, sound) = (picture(60, 40, 2), tone(16_000, 16_000));
    let hears = family == "Small Ultravox";
    let (prompt, parts) = match hears {
        true => (heard(&sound), heard_parts(&sound)),
        false => (about(&image), parts(&image)),
    };
    let ours = complete(asked(&model, prompt).max_tokens(6), &model);
    let native = model.native().unwrap();
    let devices = Backend::init().unwrap().devices();
    let params = ProjectorParams {
        device: devices.into_iter().find(|device| device.name() == "Vulkan0"),
        n_threads: 1,
        flash_attention: FlashAttention::Enabled,
        image_min_tokens: None,
        image_max_tokens: image_max_tokens(family),
    };
    assert!(params.device.is_some());
    let mut projector = Projector::load(&native, &files.1, &params).unwrap();
    let chunks = projector.tokenize(&parts, true).unwrap();
    let theirs = their_tokens(their_raw(&model, &native), &mut projector, &chunks, 6);
    assert_eq!(ours.tokens, theirs, "{family}");
}

#[test]
fn the_text_about_a_picture_on_the_driver_is_llama_cpps_token_for_token() {
    each_alone(&["Small Gemma 3", "Small Qwen2.5-VL"], is_the_same);
}

#[test]
fn the_text_about_a_sound_on_the_driver_is_llama_cpps_token_for_token() {
    each_alone(&["Small Ultravox"], is_the_same);
}

/// Without Step3-VL: the software driver (Mesa 22.3) ends in every run, with a signal. It still looks at a buffer that
/// ggml-vulkan has destroyed. If no buffer is destroyed, this text is the same too
/// (benches/results/2026-11-30-epyc-2-cores/media.md).
#[test]
#[ignore = "minutes"]
fn the_text_about_a_picture_on_the_driver_is_llama_cpps_for_the_other_families() {
    let families = ALL_FAMILIES.into_iter().filter(|family| *family != "Small Step3-VL");
    each_alone(&families.collect::<Vec<_>>(), is_the_same);
}

/// The driver may end the worker, but the text continues.
#[test]
fn the_text_about_a_picture_on_the_driver_and_in_a_worker_is_the_hosts_for_a_while() {
    if ran_in_one_of(ATTEMPTS, &NAMED) {
        return;
    }
    for family in ["Small LLaVA", "Small Pixtral"] {
        let folder = tempfile::tempdir().unwrap();
        let files = files(family, folder.path());
        let worker = worker().on_death(OnDeath::Resume { attempts: ATTEMPTS });
        let isolated = builder(family, &files, true).isolation(Isolation::Process(worker)).load().unwrap();
        let [host, driver] = [false, true].map(|on_driver| builder(family, &files, on_driver).load().unwrap());
        let image = picture(30, 30, 2);
        let text = |model: &Model| complete(greedy(model, about(&image)).max_tokens(8), model).tokens;
        let (here, there, expected) = (text(&driver), text(&isolated), text(&host));
        assert_eq!(here, there, "{family}");
        assert_eq!(here[..AGREE], expected[..AGREE], "{family}");
    }
}
