//! The estimate is compared with llama.cpp, on up to three simulated cards of three families. The numbers of layers,
//! the adapters and the settings are pseudo-random. A systematic grid is in `conformance.rs`.

use std::path::{Path, PathBuf};

use crate::rig::tally::Tally;
use crate::rig::{Card, estimate, gpus, none_failed, vulkan};
use autoplace::gguf::{Header, TensorType};
use autoplace::llama_sys::sim::Rules;
use autoplace::load::NativeProbe;
use autoplace::memory::{ContextParams, FlashAttention, KvType, Place, Split, TensorOverride};
use autoplace::profile::{Lora, ModelProfile};
use test_support::lora::Adapter;
use test_support::random_weights::Dice;

#[test]
fn compute_buffers_are_close_in_models_of_every_kind_with_adapters_and_without() {
    own_process!();
    let families = [Rules::Cuda, vulkan(256, 1 << 40), Rules::Metal];
    let families = families.map(|rules| [(); 3].map(|()| Card::new((rules, true))));
    let folder = tempfile::tempdir().unwrap();
    let (mut plain, mut adapted) = (Tally::default(), Tally::default());
    for sketch in test_support::synthetic::all() {
        let header = Header::open(sketch.write(folder.path())).unwrap();
        let mut dice = Dice::new(1 + sketch.title().len() as u64);
        let bare = ModelProfile::from_header(&header).unwrap();
        plain.model(sketch.arch);
        for turn in 0..8 {
            let mut profile = bare.clone();
            let mut probe = NativeProbe::new(&header).unwrap();
            let adapters = dice.one_of(&[0, 0, 0, 1, 2]);
            for number in 0..adapters {
                let file = adapter(&mut dice, &header, &bare, folder.path(), number);
                profile = profile.with_lora(&Lora::from_header(&Header::open(&file).unwrap()).unwrap()).unwrap();
                probe = probe.lora(&file);
            }
            let cards: Vec<&Card> = families[dice.below(3)].iter().take(dice.below(4)).collect();
            let split = split(&mut dice, profile.full_offload(), cards.len());
            let params = params(&mut dice, &profile);
            let names: Vec<&str> = cards.iter().map(|card| card.gpu.backend.as_str()).collect();
            let case = format!("{} turn {turn}, {adapters}, {names:?}, {split:?}, {params:?}", sketch.title());
            let mut theirs = match probe.breakdown(&gpus(&cards), &params, &split) {
                Ok(probed) => probed.footprints,
                // No block on this card keeps a cache, so this case is left out.
                Err(error) if error.to_string().contains("keep none") => continue,
                Err(error) => panic!("{case}: {error}"),
            };
            // The sums of a probe contain the buffer for logits.
            theirs.host.compute -= theirs.output;
            let ours = estimate(&profile, &cards, &split, &params).unwrap();
            // For each buffer of pinned memory, Vulkan takes another 32 bytes.
            let (tally, slack) = if adapters == 0 { (&mut plain, 0) } else { (&mut adapted, 4 * 32) };
            tally.hold(sketch.arch, &case, &ours, split.n_gpu_layers, &theirs, slack);
        }
    }
    none_failed(&adapted.faults, adapted.devices());
    plain.check();
}

/// An adapter that changes some of the model's matrices.
fn adapter(dice: &mut Dice, model: &Header, profile: &ModelProfile, folder: &Path, number: usize) -> PathBuf {
    // Weights with which a graph does not compute a plain matrix product.
    const OTHER: &str = "conv ssm_ shexp_gate rope_ attn_k_b attn_v_b kv_b token_embd";
    let ty = dice.one_of(&[TensorType::F32, TensorType::F16, TensorType::Q8_0]);
    let (part, every) = (dice.one_of(&["attn_q.", "attn_", "ffn_", "."]), 1 + dice.below(3));
    let rank = dice.one_of(&[1, 8, 32, 64]);
    // Blocks for multi-token prediction are not loaded here.
    let weights = profile.weights.blocks.iter().flatten().chain(&profile.weights.output);
    let matrices = weights.filter(|weight| weight.is_matrix() && weight.name.ends_with(".weight"));
    let names = matrices.map(|weight| &*weight.name).filter(|name| !OTHER.split(' ').any(|other| name.contains(other)));
    let all: Vec<&str> = names.collect();
    let mut chosen: Vec<&str> = all.iter().copied().filter(|name| name.contains(part)).step_by(every).collect();
    if chosen.is_empty() {
        // In Mamba there is no other weight.
        chosen.push(all.first().copied().unwrap_or("blk.0.ssm_in.weight"));
    }
    let lora = Adapter::new(model.architecture().unwrap()).alpha(16.0);
    let mut lora = lora.of_weights(model, rank, ty, |name| chosen.contains(&name));
    if model.tensor("output.weight").is_some() && dice.percent(33) {
        // For the token embedding, the two factors change places.
        let [n_embd, n_vocab, ..] = model.tensor("token_embd.weight").unwrap().shape();
        lora = lora.tensor("token_embd.weight.lora_a", TensorType::F32, &[rank, n_vocab]);
        lora = lora.tensor("token_embd.weight.lora_b", TensorType::F32, &[rank, n_embd]);
    }
    lora.write(folder, &format!("adapter {number}"))
}

/// A split. In a third of the cases, it has all layers. In half of the cases, some weights do not lie with their
/// layers: experts, or parts of every second block.
fn split(dice: &mut Dice, all: u32, cards: usize) -> Split {
    let layers = if dice.percent(33) { all } else { dice.below(all + 1) };
    let pattern = dice.one_of(&["_exps", r"blk\.[0-9]*[02468]\.ffn", r"blk\.[0-3]\.attn_k", "nothing"]);
    let on_gpu = cards > 0 && dice.percent(25);
    let place = if on_gpu { Place::Gpu(dice.below(cards)) } else { Place::Host };
    let overrides = vec![TensorOverride::new(pattern, place); dice.below(2)];
    Split::layers(layers).overrides(overrides)
}

/// Parameters of a context that llama.cpp accepts with this model.
fn params(dice: &mut Dice, profile: &ModelProfile) -> ContextParams {
    let mut params = ContextParams::default();
    params.n_ctx = dice.one_of(&[300, 512, 2048, 4096, 5000, 8192, 32768, 131_072]);
    params.n_ubatch = dice.one_of(&[4, 16, 31, 32, 128, 512, 512, 1024]);
    params.n_seq_max = dice.one_of(&[1, 1, 2, 3, 4]);
    params.kv_unified = dice.percent(50);
    params.n_outputs_max = dice.one_of(&[0, params.n_seq_max, 40]);
    let half = KvType::F16;
    params.type_k = dice.one_of(&[half, half, KvType::Q8_0, KvType::Q4_0, KvType::BF16]);
    // If keys and values are compressed together, they have the same type.
    let same = profile.architecture == "deepseek2" || dice.percent(50);
    params.type_v = if same { params.type_k } else { half };
    let (on, off) = (FlashAttention::On, FlashAttention::Off);
    params.flash_attn = dice.one_of(&[FlashAttention::Auto, FlashAttention::Auto, on, off]);
    if params.type_v.is_quantized() && params.flash_attn == FlashAttention::Off {
        params.flash_attn = FlashAttention::On;
    }
    params.offload_kqv = dice.percent(75);
    params.op_offload = dice.percent(75);
    params.swa_full = dice.percent(50);
    (params.mmap, params.repack) = (dice.percent(50), dice.percent(50));
    params
}
