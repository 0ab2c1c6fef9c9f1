//! The settings and the splits for these tests.

use autoplace::memory::{ContextParams, FlashAttention, KvType, Place, Split, TensorOverride};

/// Twenty-four settings, in each of which eight choices are made. For any two of the choices, each of the four
/// combinations occurs six times. This is the design of Plackett and Burman, together with its mirror image. The
/// lengths of contexts and the types of caches alternate. In the mirror image, the lengths are not round numbers.
pub(crate) fn settings() -> Vec<ContextParams> {
    const FIRST: [bool; 11] = [true, true, false, true, true, true, false, false, false, true, false];
    const TYPES: [(KvType, KvType); 6] = [
        (KvType::Q8_0, KvType::Q8_0),
        (KvType::Q4_0, KvType::Q4_0),
        (KvType::Q8_0, KvType::F16),
        (KvType::Q5_1, KvType::Q5_1),
        (KvType::BF16, KvType::BF16),
        (KvType::F32, KvType::F32),
    ];
    let mut types = TYPES.iter().cycle();
    (0..24)
        .map(|row| {
            let (row, mirrored) = (row % 12, row >= 12);
            let choice = |factor: usize| (row < 11 && FIRST[(factor + row) % 11]) != mirrored;
            let (lengths, sequences) = if mirrored { ([300, 5000, 8192], 3) } else { ([512, 4096, 8192], 4) };
            let mut params = ContextParams::default();
            params.n_ctx = lengths[row % 3];
            if choice(0) {
                (params.type_k, params.type_v) = *types.next().unwrap();
            }
            params.n_ubatch = if choice(1) { 128 } else { 512 };
            params.n_seq_max = if choice(2) { sequences } else { 1 };
            params.kv_unified = choice(3);
            params.offload_kqv = !choice(4);
            params.swa_full = !choice(5);
            params.n_outputs_max = if choice(6) { 0 } else { params.n_seq_max };
            if choice(7) {
                // With quantised values, attention must be fused, so the values get another type too.
                params.flash_attn = FlashAttention::Off;
                if params.type_v.is_quantized() {
                    params.type_v = KvType::F16;
                }
            }
            // A load that allocates nothing does not map the file, either.
            params.mmap = false;
            params
        })
        .collect()
}

/// The splits that divide a model with `n_layer` blocks among `n_gpus` GPUs. They have any number of layers. They are
/// made by free memory or by proportions, and some have overrides.
///
/// With `thorough`, each number of layers occurs in each form. For a model with many blocks, only some numbers occur.
/// Without `thorough`, only the two ends and the middle occur, each in one form.
pub(crate) fn splits(n_layer: u32, n_gpus: usize, thorough: bool) -> Vec<Split> {
    let all = n_layer + 1;
    if n_gpus == 0 {
        return vec![Split::layers(0), overridden(Split::layers(all), 0, n_gpus)];
    }
    let mut layers: Vec<u32> = match (thorough, n_layer) {
        (true, ..=16) => (0..=all).collect(),
        (true, _) => vec![0, 1, 2, all / 3, all / 2, all - 1, all],
        (false, _) => vec![0, 1, all / 2, all - 1, all],
    };
    layers.dedup();
    let mut splits = Vec::new();
    for (turn, &n) in layers.iter().enumerate() {
        let free = Split::layers(n);
        // If all layers are offloaded, the inputs of several batches are kept at the same time, whatever the
        // proportions.
        let rules = if thorough && n == all { 0..3 } else { turn % 3..turn % 3 + 1 };
        let given = rules.map(|rule| free.clone().tensor_split(PROPORTIONS[rule]));
        let given: Vec<Split> = if n_gpus == 1 { Vec::new() } else { given.collect() };
        for (other, split) in [free].into_iter().chain(given).enumerate() {
            if thorough {
                splits.extend((0..3).map(|rule| overridden(split.clone(), rule, n_gpus)));
            } else if other == 0 {
                splits.push(overridden(split.clone(), turn % 3, n_gpus));
            }
            splits.push(split);
        }
    }
    splits
}

/// Proportions. Some are zero, and some lists have more or fewer entries than there are GPUs.
const PROPORTIONS: [&[f32]; 3] = [&[1.0, 3.0, 2.0], &[0.0, 1.0], &[0.7, 0.1, 0.1, 5.0]];

/// Overrides as users write them: the experts of some blocks on the host (or the feed-forward step of a block without
/// experts), the feed-forward step of a block on the host, and a few tensors on a GPU that does not have their layer.
fn overridden(split: Split, rule: usize, n_gpus: usize) -> Split {
    let rules = match rule {
        0 => vec![(r"blk\.(0|2)\.ffn_.*_exps", Place::Host), (r"blk\.3\.(ffn|ssm)_(up|down|in|out)\.", Place::Host)],
        1 if n_gpus > 0 => vec![
            // The first pattern that matches decides.
            (r"^blk\.1\.ffn_up", Place::Gpu(n_gpus - 1)),
            (r"^blk\.1\.ffn", Place::Host),
            (r"^output\.weight$", Place::Host),
        ],
        2 if n_gpus > 0 => vec![
            (r"^token_embd\.weight$|^rope_", Place::Gpu(n_gpus - 1)),
            (r"blk\.[02]\.attn_(q|qkv|norm)\b", Place::Gpu(0)),
        ],
        _ => vec![(r"\.ffn_down", Place::Host), (r"^token_embd", Place::Host)],
    };
    let rules = rules.into_iter().map(|(pattern, place)| TensorOverride::new(pattern, place));
    split.overrides(rules.collect::<Vec<_>>())
}
