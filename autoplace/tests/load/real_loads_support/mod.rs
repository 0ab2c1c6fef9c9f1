//! The probe is compared with real loads, for several cards, splits and settings.
use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::path::{Path, PathBuf};

use autoplace::gguf::Header;
use autoplace::llama_sys::sim::Rules;
use autoplace::llama_sys::{self, Batch, Context};
use autoplace::load::{Breakdown, BufferBytes, NativeProbe};
use autoplace::memory::{ContextParams, FlashAttention, KvType, Place, Split, TensorOverride};

use crate::native_params;
use crate::rig::{Card, CardKind, Kind, Loaded, none_failed, nothing_left, vulkan};
use test_support::synthetic::Sketch;

/// The result of a comparison. If it is an error, it describes the difference.
pub(crate) type Compared = Result<(), Box<dyn Error>>;

/// On which cards a model is placed, and how it is split.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) cards: Vec<CardKind>,
    pub(crate) split: Split,
}

impl Placement {
    /// The placements for a model of which `layers` layers can be offloaded.
    pub(crate) fn all(layers: u32) -> Vec<Self> {
        const CUDA: CardKind = (Rules::Cuda, false);
        const PLAIN: CardKind = (Rules::Plain, false);
        const METAL: CardKind = (Rules::Metal, false);
        const ASYNC: CardKind = (Rules::Cuda, true);
        let vulkan = |max_alloc| (vulkan(64, max_alloc), false);
        let place = |cards: &[CardKind], n_gpu_layers, tensor_split: &[f32]| Self {
            cards: cards.to_vec(),
            split: Split::layers(n_gpu_layers).tensor_split(tensor_split),
        };
        let with = |placement: Self, pattern: &str, to| Self {
            split: placement.split.overrides([TensorOverride::new(pattern, to)]),
            ..placement
        };
        vec![
            place(&[], 0, &[]),
            place(&[CUDA], 0, &[]),
            place(&[CUDA], 1, &[]),
            place(&[CUDA], layers / 2, &[]),
            place(&[CUDA], layers, &[]),
            place(&[PLAIN], layers - 1, &[]),
            place(&[METAL], layers, &[]),
            place(&[vulkan(1 << 30)], layers / 2, &[]),
            // The maximum size of a buffer is so small that the computation needs several buffers.
            place(&[vulkan(1 << 21)], layers, &[]),
            place(&[CUDA, PLAIN], layers, &[1.0, 3.0]),
            place(&[CUDA, PLAIN], layers - 2, &[]),
            place(&[ASYNC; 3], layers, &[2.0, 1.0, 1.0]),
            place(&[ASYNC; 3], layers - 1, &[]),
            with(place(&[CUDA], layers, &[]), "ffn_(gate|up|down)", Place::Host),
            with(place(&[CUDA, CUDA], layers, &[1.0, 1.0]), r"blk\.[01]\.", Place::Gpu(1)),
        ]
    }
}

/// Four settings. Together, they contain every choice that changes the allocations.
pub(crate) fn settings() -> [ContextParams; 4] {
    let mut plain = ContextParams::default();
    (plain.n_ctx, plain.n_batch, plain.n_ubatch) = (512, 256, 64);

    let mut sequences = plain.clone();
    (sequences.n_seq_max, sequences.n_outputs_max) = (3, 0);
    (sequences.mmap, sequences.swa_full, sequences.flash_attn) = (false, false, FlashAttention::Off);

    let mut quantised = plain.clone();
    (quantised.n_ctx, quantised.n_ubatch) = (1000, 32);
    (quantised.type_k, quantised.type_v, quantised.flash_attn) = (KvType::Q8_0, KvType::Q8_0, FlashAttention::On);
    (quantised.n_seq_max, quantised.n_outputs_max, quantised.kv_unified) = (2, 2, true);
    quantised.offload_kqv = false;

    let mut lean = plain.clone();
    (lean.n_ctx, lean.n_ubatch) = (256, 1);
    (lean.repack, lean.op_offload, lean.mmap) = (false, false, false);
    [plain, sequences, quantised, lean]
}

/// A batch that has tokens at these positions in each of `sequences` sequences.
fn batch(sequences: u32, positions: Range<u32>, is_output: impl Fn(u32) -> bool) -> Batch {
    let mut batch = Batch::default();
    for sequence in 0..sequences {
        for position in positions.clone() {
            let token = 3 + (7 * position + sequence) % 500;
            let [token, at, sequence] = [token, position, sequence].map(|number| number.try_into().unwrap());
            batch.add(token, at, sequence, is_output(position));
        }
    }
    batch
}

/// Computes a prompt over all sequences that needs more than one graph, and then one token of each sequence. Returns
/// the last logits of the prompt and of the tokens.
pub(crate) fn decode(context: &mut Context) -> Result<Vec<f32>, llama_sys::Error> {
    if context.embeds() {
        let (sequences, most) = (context.n_seq_max(), context.n_ubatch());
        let longest = context.longest_text();
        return embed(context, &[(sequences, (most / sequences).clamp(1, longest)), (1, longest)]);
    }
    let (sequences, n_batch) = (context.n_seq_max(), context.n_batch());
    let everything = context.n_outputs_max() >= n_batch;
    let each = (2 * context.n_ubatch()).min(n_batch).max(sequences) / sequences;
    let mut all = Vec::new();
    for positions in [0..each, each..each + 1] {
        let last = positions.end - 1;
        context.decode(&batch(sequences, positions, |at| everything || at == last))?;
        all.extend_from_slice(context.logits(-1)?);
    }
    assert!(all.iter().all(|logit| logit.is_finite()), "random weights that overflow test nothing");
    Ok(all)
}

/// Computes texts that do not fill a whole computation. If they have fewer than 32 tokens, another device may compute,
/// with a graph that llama.cpp has not reserved. The buffers may grow by an eighth for this, but not more.
fn embed_short_texts(context: &mut Context) -> Compared {
    let longest = context.longest_text();
    let before = context.compute_buffers().bytes;
    embed(context, &[(1, longest.min(31)), (context.n_seq_max().min(3), (longest / 4).max(1)), (1, 1)])?;
    let grown = context.compute_buffers().bytes - before;
    if grown > before / 8 {
        return Err(format!("short texts grew {before} bytes of compute buffers by {grown}").into());
    }
    Ok(())
}

/// Computes several texts at once. Each pair is the number of texts, and the number of tokens that each of them has.
fn embed(context: &mut Context, sizes: &[(u32, u32)]) -> Result<Vec<f32>, llama_sys::Error> {
    let mut all = Vec::new();
    for &(sequences, each) in sizes {
        if context.has_memory() {
            context.kv_clear()?;
        }
        context.decode(&batch(sequences, 0..each, |_| true))?;
        all.extend_from_slice(match context.pooling() {
            llama_sys::Pooling::None => context.embeddings_ith(-1)?,
            _ => context.embeddings_seq(0)?,
        });
    }
    assert!(all.iter().all(|x| x.is_finite()));
    Ok(all)
}

/// Works with a context for multi-token prediction: computes the maximum number of tokens at once, and then one token
/// with its prediction.
fn predict(heads: &mut Context) -> Result<(), llama_sys::Error> {
    let width = heads.model().n_embd_out() as usize;
    let most = heads.n_batch().min(heads.n_ctx_seq() - 1);
    for positions in [0..most, most..most + 1] {
        let batch = batch(1, positions, |at| at == most);
        heads.decode_heads(&batch, &vec![0.5; batch.len() * width])?;
    }
    assert!(heads.logits(-1)?.iter().all(|logit| logit.is_finite()));
    assert!(heads.hidden(0)?.iter().all(|x| x.is_finite()));
    Ok(())
}

/// Makes new cards, and probes a model on them.
pub(crate) fn probed(
    probe: &NativeProbe,
    placement: &Placement,
    params: &ContextParams,
) -> Result<(Vec<Card>, Breakdown), Box<dyn Error>> {
    let cards: Vec<Card> = placement.cards.iter().map(|&card| Card::new(card)).collect();
    let gpus: Vec<_> = cards.iter().map(|card| &card.gpu).collect();
    let probed = probe.breakdown(&gpus, params, &placement.split)?;
    nothing_left("the probe", cards.iter().map(|card| &card.sim))?;
    Ok((cards, probed))
}

/// Probes, loads and runs a model on new cards.
pub(crate) fn compare(path: &Path, probe: &NativeProbe, placement: &Placement, params: &ContextParams) -> Compared {
    let (cards, probed) = probed(probe, placement, params)?;
    // The maximum that each card counted during the probe.
    let peaks: Vec<u64> = cards.iter().map(|card| card.sim.peak()).collect();
    let loaded = Loaded::new(path, &cards.iter().collect::<Vec<_>>(), &placement.split, params, Kind::Real)?;
    let mut context = loaded.context(params)?;
    if context.copies() != probed.copies {
        return Err(format!("{} copies, probed {}", context.copies(), probed.copies).into());
    }
    let heads = params.mtp.then(|| Context::new(&loaded.model, native_params::heads(params)));
    let mut heads = heads.transpose()?;
    check("at first", &probed, &context, heads.as_ref(), &cards)?;
    decode(&mut context)?;
    if let Some(heads) = &mut heads {
        predict(heads)?;
    }
    check("after the prompt and a token", &probed, &context, heads.as_ref(), &cards)?;
    for ((card, sum), probe_peak) in cards.iter().zip(&probed.footprints.gpus).zip(peaks) {
        let peak = card.sim.peak();
        if peak > sum.total().max(probe_peak) {
            return Err(format!("{peak} bytes at the most, probed {}", sum.total()).into());
        }
    }
    if context.embeds() {
        embed_short_texts(&mut context)?;
    }
    drop((heads, context, loaded));
    Ok(nothing_left("everything is dropped", cards.iter().map(|card| &card.sim))?)
}

/// Compares three counts of bytes: the probe's, llama.cpp's and the cards'.
fn check(when: &str, probed: &Breakdown, context: &Context, heads: Option<&Context>, cards: &[Card]) -> Compared {
    let mut taken = context.memory_breakdown()?;
    if let Some(heads) = heads {
        taken.add_context(&heads.memory_breakdown()?);
    }
    // For each buffer type, the bytes of weights, context and computation.
    let rows = taken.rows.iter();
    let rows = rows.map(|row| (&row.buffer_type, [row.model + row.transforms, row.context, row.compute]));
    let real: BTreeMap<_, _> = rows.filter(|(_, bytes)| *bytes != [0; 3]).collect();
    let rows = probed.rows.iter().map(|row| (&row.buffer_type, [row.model, row.context, row.compute]));
    let ours: BTreeMap<_, _> = rows.filter(|(_, bytes)| *bytes != [0; 3]).collect();
    if ours != real {
        return Err(format!("{when}: probed {ours:?}\n    loaded {real:?}").into());
    }
    for (index, card) in cards.iter().enumerate() {
        let rows = probed.rows.iter().filter(|row| row.place == Place::Gpu(index));
        let rows: u64 = rows.map(BufferBytes::total).sum();
        let (used, sum) = (card.sim.used(), probed.footprints.gpus[index].total());
        if (used, sum) != (rows, rows) {
            return Err(format!("{when}: card {index} counts {used}, the rows {rows}, the sums {sum}").into());
        }
    }
    Ok(())
}

/// Compares each of these models in every placement. Each placement is compared `turns` times, with the settings in
/// rotation. `probe` writes the model into a folder, or returns `None` to skip it. Returns the number of comparisons.
pub(crate) fn compare_all(
    models: &[Sketch],
    settings: &[ContextParams],
    turns: usize,
    probe: impl Fn(&Sketch, &Path) -> Option<(PathBuf, NativeProbe)>,
    compare: impl Fn(&Path, &NativeProbe, &Placement, &ContextParams) -> Compared,
) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let (mut failures, mut cases) = (Vec::new(), 0);
    for (number, sketch) in models.iter().enumerate() {
        let Some((path, probe)) = probe(sketch, folder.path()) else { continue };
        let all = u32::try_from(sketch.dims.n_layer).unwrap() + 1;
        for (place, placement) in Placement::all(all).iter().enumerate() {
            for turn in 0..turns {
                let params = &settings[(number + place + 2 * turn + turn / 2) % settings.len()];
                cases += 1;
                if let Err(fault) = compare(&path, &probe, placement, params) {
                    failures.push(format!("{}: {placement:?}, {params:?}\n    {fault}", sketch.title()));
                }
            }
        }
    }
    none_failed(&failures, cases);
    cases
}

/// A model with random weights, which is written into this folder, and its probe.
pub(crate) fn random(sketch: &Sketch, folder: &Path) -> (PathBuf, NativeProbe) {
    let path = test_support::random_weights::write(sketch, folder);
    let probe = NativeProbe::new(&Header::open(&path).unwrap()).unwrap();
    (path, probe)
}
