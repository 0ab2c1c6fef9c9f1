//! Cards, splits and settings; the real load of each, and what llama.cpp says of it.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::Path;

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::llama_sys::{self, Batch, Context, LoadMode, MemoryBreakdown, Model, ModelParams};
use autoplace::machine::{Gpu, gib};
use autoplace::memory::{
    Breakdown, ContextParams, FlashAttention, KvType, Place, Split, TensorOverride,
};

use crate::native_params;

/// Rules of a card, and whether it computes asynchronously.
pub(crate) type CardKind = (Rules, bool);

/// A simulated card, and the same as the planner sees it.
pub(crate) struct Card {
    pub(crate) sim: SimGpu,
    pub(crate) gpu: Gpu,
}

impl Card {
    pub(crate) fn new(&(rules, asynchronous): &CardKind) -> Self {
        let backend = match rules {
            Rules::Metal => "MTL",
            Rules::Vulkan { .. } => "Vulkan",
            _ => "CUDA",
        };
        let sim = SimGpu::builder(format!("SIM {backend}"))
            .total(gib(400))
            .rules(rules)
            .backend(backend)
            .asynchronous(asynchronous)
            .register()
            .unwrap();
        let gpu = Gpu::new(backend)
            .device(sim.device().name())
            .total(gib(400))
            .backend(backend);
        Self { sim, gpu }
    }
}

/// Where a model goes.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) cards: Vec<CardKind>,
    pub(crate) split: Split,
}

impl Placement {
    /// Places for a model of which `all` layers can be put on GPUs.
    pub(crate) fn of(all: u32) -> Vec<Self> {
        const CUDA: CardKind = (Rules::Cuda, false);
        const PLAIN: CardKind = (Rules::Plain, false);
        let vulkan = |max_alloc| {
            let alignment = 64;
            let rules = Rules::Vulkan {
                alignment,
                max_alloc,
            };
            (rules, false)
        };
        let place = |cards: &[CardKind], n_gpu_layers, tensor_split: &[f32]| {
            let mut split = Split::layers(n_gpu_layers);
            split.tensor_split = tensor_split.to_vec();
            let cards = cards.to_vec();
            Self { cards, split }
        };
        let with = |placement: Self, pattern: &str, to| Self {
            split: placement
                .split
                .overrides([TensorOverride::new(pattern, to)]),
            ..placement
        };
        let asynchronous = [(Rules::Cuda, true); 3];
        vec![
            place(&[], 0, &[]),
            place(&[CUDA], 0, &[]),
            place(&[CUDA], 1, &[]),
            place(&[CUDA], all / 2, &[]),
            place(&[CUDA], all, &[]),
            place(&[PLAIN], all - 1, &[]),
            place(&[(Rules::Metal, false)], all, &[]),
            place(&[vulkan(1 << 30)], all / 2, &[]),
            // Buffers so small that the computation needs several.
            place(&[vulkan(1 << 21)], all, &[]),
            place(&[CUDA, PLAIN], all, &[1.0, 3.0]),
            place(&[CUDA, PLAIN], all - 2, &[]),
            place(&asynchronous, all, &[2.0, 1.0, 1.0]),
            place(&asynchronous, all - 1, &[]),
            with(place(&[CUDA], all, &[]), "ffn_(gate|up|down)", Place::Host),
            with(
                place(&[CUDA, CUDA], all, &[1.0, 1.0]),
                r"blk\.[01]\.",
                Place::Gpu(1),
            ),
        ]
    }
}

/// Settings that change what is allocated, all of them together in four.
pub(crate) fn settings() -> [ContextParams; 4] {
    let mut plain = ContextParams::default();
    plain.n_ctx = 512;
    plain.n_batch = 256;
    plain.n_ubatch = 64;

    let mut sequences = plain.clone();
    sequences.mmap = false;
    sequences.n_seq_max = 3;
    sequences.n_outputs_max = 0;
    sequences.swa_full = false;
    sequences.flash_attn = FlashAttention::Off;

    let mut quantised = plain.clone();
    quantised.n_ctx = 1000;
    quantised.n_ubatch = 32;
    quantised.type_k = KvType::Q8_0;
    quantised.type_v = KvType::Q8_0;
    quantised.flash_attn = FlashAttention::On;
    quantised.offload_kqv = false;
    quantised.n_seq_max = 2;
    quantised.n_outputs_max = 2;
    quantised.kv_unified = true;

    let mut lean = plain.clone();
    lean.n_ctx = 256;
    lean.n_ubatch = 1;
    lean.repack = false;
    lean.op_offload = false;
    lean.mmap = false;
    [plain, sequences, quantised, lean]
}

/// The load that was probed: mapped where a plan's load would map.
pub(crate) fn load(
    path: &Path,
    cards: &[Card],
    split: &Split,
    params: &ContextParams,
) -> Result<Model, llama_sys::Error> {
    let devices: Vec<_> = cards.iter().map(|card| card.sim.device()).collect();
    let metal = cards.iter().any(|card| card.gpu.backend == "MTL");
    Model::load(
        path,
        ModelParams {
            n_gpu_layers: i32::try_from(split.n_gpu_layers).unwrap(),
            tensor_split: split.tensor_split.clone(),
            overrides: native_params::overrides(&split.overrides, &devices),
            load_mode: if params.mmap && !metal {
                LoadMode::Auto
            } else {
                LoadMode::None
            },
            use_extra_bufts: params.repack,
            devices: Some(devices),
            ..ModelParams::default()
        },
    )
}

/// A prompt of more than one full batch of the graph over all sequences, and a token of each.
pub(crate) fn decode(context: &mut Context) -> Result<(), llama_sys::Error> {
    let sequences = context.n_seq_max();
    let (n_batch, n_ubatch) = (context.n_batch(), context.n_ubatch());
    let everything = context.n_outputs_max() >= n_batch;
    let each = (2 * n_ubatch).min(n_batch).max(sequences) / sequences;
    let mut batch = Batch::with_capacity(n_batch as usize);
    for (begin, length) in [(0, each), (each, 1)] {
        batch.clear();
        for sequence in 0..sequences {
            for position in begin..begin + length {
                let is_last = position + 1 == begin + length;
                let token = 3 + (7 * position + sequence) % 500;
                batch.add(
                    token.try_into().unwrap(),
                    position.try_into().unwrap(),
                    sequence.try_into().unwrap(),
                    everything || is_last,
                );
            }
        }
        context.decode(&batch)?;
        let logits = context.logits(-1)?;
        assert!(
            logits.iter().all(|logit| logit.is_finite()),
            "random weights that overflow test nothing"
        );
    }
    Ok(())
}

/// Weights, context and compute by buffer type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bytes(BTreeMap<String, [u64; 3]>);

impl Bytes {
    pub(crate) fn of_real(breakdown: &MemoryBreakdown) -> Self {
        let rows = breakdown.rows.iter();
        Self::of(rows.map(|row| (&row.buffer_type, [row.model, row.context, row.compute])))
    }

    pub(crate) fn of_probe(breakdown: &Breakdown) -> Self {
        let rows = breakdown.rows.iter();
        Self::of(rows.map(|row| (&row.buffer_type, [row.model, row.context, row.compute])))
    }

    fn of<'a>(rows: impl Iterator<Item = (&'a String, [u64; 3])>) -> Self {
        let rows = rows.filter(|(_, bytes)| bytes.iter().any(|bytes| *bytes > 0));
        Self(rows.map(|(name, bytes)| (name.clone(), bytes)).collect())
    }
}
