//! The formula of the compute buffers beside recorded figures, and the laws that it keeps. The figures come from a
//! simulation of llama.cpp's graphs that its own loads were equal to, to the byte.

use autoplace_planner::gguf::Header;
use autoplace_planner::machine::{Gpu, gib, mib};
use autoplace_planner::memory::{ContextParams, Estimate, FlashAttention, KvType, Place, TensorOverride};
use autoplace_planner::profile::ModelProfile;

use crate::shapes::{LLAMA_1B, LLAMA_8B, LLAMA_70B, QWEN_14B, QWEN3_8B, QWEN3_30B_A3B, Shape};
use crate::synthetic;
use crate::table::rows;

/// One placement a line: model | n_ctx n_ubatch n_outputs_max flash-attention cache-type n_seq_max cache-on
/// op_offload | backends | layers | what an override keeps on the host | bytes of the compute buffers of each
/// GPU, then of the host (logits left out). Each GPU has 24 GiB free, and allocates in steps of 64 bytes where
/// that is its own affair.
const RECORDED: &str = include_str!("compute_buffers.txt");

/// A line of the record.
struct Recorded<'a> {
    model: &'a str,
    params: ContextParams,
    gpus: Vec<Gpu>,
    layers: u32,
    kept: Option<&'a str>,
    bytes: Vec<u64>,
}

impl<'a> Recorded<'a> {
    fn new([model, params, gpus, layers, kept, bytes]: [&'a str; 6]) -> Self {
        let number = |text: &str| text.parse().unwrap();
        let words: Vec<&str> = params.split(' ').collect();
        let cache = if words[4] == "f16" { KvType::F16 } else { KvType::Q8_0 };
        let mut params = ContextParams::default();
        [params.n_ctx, params.n_ubatch, params.n_outputs_max] = [0, 1, 2].map(|i| number(words[i]));
        params.n_seq_max = number(words[5]);
        params.flash_attn = match words[3] {
            "off" => FlashAttention::Off,
            _ => FlashAttention::Auto,
        };
        (params.type_k, params.type_v) = (cache, cache);
        (params.offload_kqv, params.op_offload) = (words[6] == "gpu", words[7] == "op");
        let backends = gpus.split(',').filter(|&backend| backend != "-");
        let gpu = |backend: &str| {
            let gpu = Gpu::new("card").total(gib(48)).free(gib(24)).backend(backend);
            if backend == "Vulkan" { gpu.alignment(64) } else { gpu }
        };
        Self {
            model,
            params,
            gpus: backends.map(gpu).collect(),
            layers: number(layers),
            kept: Some(kept).filter(|&kept| kept != "-"),
            bytes: bytes.split(' ').map(|bytes| bytes.parse().unwrap()).collect(),
        }
    }

    fn estimate(&self, profile: &ModelProfile) -> Estimate {
        let gpus: Vec<&Gpu> = self.gpus.iter().collect();
        let estimate = Estimate::new(profile, &gpus, &self.params).unwrap();
        let kept = self.kept.map(|pattern| TensorOverride::new(pattern, Place::Host));
        estimate.overrides(kept.as_slice()).unwrap()
    }
}

/// All models of the record, by name.
fn models(folder: &std::path::Path) -> Vec<(String, ModelProfile)> {
    let sketches = synthetic::at_size().into_iter().chain(synthetic::all());
    let sketches = sketches.map(|sketch| {
        let header = Header::open(sketch.write(folder)).unwrap();
        (sketch.title(), ModelProfile::from_header(&header).unwrap())
    });
    let plain = |arch, name, shape| Shape { arch, name, rope_freqs: false, ..shape };
    let shapes = [
        LLAMA_8B,
        LLAMA_70B,
        LLAMA_1B,
        QWEN_14B,
        QWEN3_8B,
        QWEN3_30B_A3B,
        plain("gemma", "gemma", LLAMA_8B),
        Shape { arch: "granite", name: "granite", ..LLAMA_8B },
        plain("smollm3", "smollm3", LLAMA_1B),
    ];
    let shapes = shapes.iter().map(|shape| (shape.name.to_owned(), shape.profile()));
    sketches.chain(shapes).collect()
}

#[test]
fn totals_are_near_what_llama_cpp_takes_and_never_below_it_by_more_than_is_stated() {
    let folder = tempfile::tempdir().unwrap();
    let models = models(folder.path());
    let (mut devices, mut near) = (0, 0);
    for line in rows(RECORDED) {
        let recorded = Recorded::new(line);
        let (_, profile) = models.iter().find(|(name, _)| name == recorded.model).unwrap();
        let estimate = recorded.estimate(profile);
        let assignment = estimate.assignment(recorded.layers);
        let footprints = estimate.footprints_of(&assignment);
        let unsure = estimate.uncertainty(&assignment);
        let unsure = unsure.gpus.iter().chain([&unsure.host]);
        let ours = footprints.gpus.iter().chain([&footprints.host]);
        for (device, ((ours, unsure), &theirs)) in ours.zip(unsure).zip(&recorded.bytes).enumerate() {
            let output = if device == recorded.gpus.len() { footprints.output } else { 0 };
            let compute = ours.compute - output;
            assert!(theirs <= compute + unsure, "{line:?}: device {device}: {compute} and {unsure}");
            let total = ours.total() - compute + theirs;
            let bar = (total / 100 * 3).max(mib(32));
            devices += 1;
            near += usize::from(compute.abs_diff(theirs) <= bar);
        }
    }
    assert!(devices >= 150 && near * 100 >= devices * 95, "{near} of {devices}");
}

#[test]
fn more_tokens_more_context_and_more_outputs_never_take_less() {
    let card = Gpu::new("card").total(gib(24)).free(gib(24)).backend("CUDA");
    for shape in [LLAMA_8B, QWEN3_30B_A3B] {
        let profile = shape.profile();
        let compute = |params: &ContextParams, layers| {
            let estimate = Estimate::new(&profile, &[&card], params).unwrap();
            let footprints = estimate.footprints(layers);
            [footprints.gpus[0].compute, footprints.host.compute]
        };
        for layers in [0, 1, 8, profile.full_offload()] {
            let mut least = [0; 2];
            for step in 0..6 {
                let mut params = ContextParams::default();
                (params.n_ctx, params.n_outputs_max) = (4096 << step, 1 << step);
                (params.n_batch, params.n_ubatch) = (64 << step, 64 << step);
                let bytes = compute(&params, layers);
                assert!(bytes[0] >= least[0] && bytes[1] >= least[1], "{layers} {step}");
                least = bytes;
            }
        }
    }
}
