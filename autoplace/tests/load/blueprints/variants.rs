//! The models of each architecture, with their sizes and keys.

use autoplace::gguf::TensorType;

use super::Blueprint;
use super::header::keys;

pub(super) fn among(list: &str, arch: &str) -> bool {
    list.split_whitespace().any(|name| name == arch)
}

/// Architectures in which every block has experts.
const EXPERTS_ONLY: &str = "llama4 cohere2moe grok qwen2moe qwen3moe qwen3next qwen3vlmoe qwen35moe qwen4exp phimoe
    dbrx olmoe arctic deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 dots1 dots3note glm4moe glm-dsa glm5-next
    exaone-moe bailingmoe bailingmoe2 bailingmoe3 afmoe ernie4_5-moe hunyuan-moe hy_v3 hy_v4 gpt-oss lfm2moe
    smallthinker llada-moe grovemoe maple minimax-01 minimax-m2 minimax-m3 rnd1 mimo2 kimi-linear kimi-k3 step35
    mistral4 mistral-large4 mellum laguna nemotron_h_moe nomic-bert-moe deepseek41 beam flint kolibri1 maion-coder
    muse-spark";
/// Architectures that exist with experts and without them.
const EXPERTS_TOO: &str = "llama refact minicpm granite granitemoe granitehybrid mistral3 llama-embed jamba gemma4
    ernie4_5 paddleocr k2-horizon";
/// Architectures with a loader that knows prediction blocks (`TENSOR_SKIP` in models/*.cpp).
const PREDICTS: &str = "bailingmoe2 bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 dots3note exaone-moe exaone4
    glm-dsa glm4 glm4moe glm5-next hy_v3 mellum mimo2 nemotron_h_moe qwen35 qwen35moe qwen3next qwen4exp step35";
/// Architectures in `PREDICTS` whose prediction blocks are nevertheless never loaded.
const NEVER_PREDICTS: &str = "bailingmoe2 dots3note exaone-moe exaone4 glm4";
/// Architectures in which a block without key heads is recurrent.
pub(super) const HYBRID_BY_HEADS: &str = "plamo2 jamba nemotron_h nemotron_h_moe granitehybrid lfm2 lfm2moe kimi-linear
    kimi-k3 bailingmoe3 glm5-next lfm3";
/// Architectures whose keys are compressed.
pub(super) const LATENT: &str = "deepseek2 deepseek32 glm-dsa glm5-next dots3note hy_v4 kimi-linear kimi-k3 bailingmoe3
    mistral4 mistral-large4";
/// Architectures in which a list states which blocks have a window.
pub(super) const LISTED_WINDOWS: &str = "cohere2moe mimo2 step35 muse-glimmer granite_swa dots3note maple spark2_5
    gemma4 gemma4-assistant beam flint kolibri1 lfm3 maion-coder muse-spark";
/// Architectures in which the heads of queries, keys and values have the same size.
const EVEN_HEADS: &str =
    "gpt2 starcoder bloom gptneox bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3 neo-bert
    modern-bert codeshell phi2 mpt plm t5 t5encoder minicpm3 qwen cogvlm chameleon pockettts jais talkie rwkv6qwen2
    arwkv7 olmoe bitnet plamo deepseek2-ocr dots1";
/// Endings of the names of tensors that few files contain.
const USUALLY_ABSENT: &[&str] = &["scale", "cls.output.weight", "cls.output.bias"];

/// Headers that are unusual and change how much memory a model needs: the architecture, a name, and keys with other
/// values. If a key has a minus, it is left out.
const TWISTS: &str = include_str!("twists.txt");

/// The sizes that are the same for most architectures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dims {
    /// The number of blocks. Prediction blocks are counted too.
    pub(super) n_layer: u32,
    pub(super) n_nextn: u32,
    pub(super) n_embd: u32,
    pub(super) n_head: u32,
    pub(super) n_head_kv: u32,
    pub(super) n_ff: u32,
    pub(super) n_vocab: u32,
}

/// With `large` there are more blocks, and several queries have the same key if the architecture allows that.
fn dims(arch: &str, large: bool) -> Dims {
    let (n_layer, n_head) = if large { (7, 4) } else { (2, 2) };
    let mut dims = Dims { n_layer, n_nextn: 0, n_embd: 256, n_head, n_head_kv: 2, n_ff: 384, n_vocab: 128 };
    let mut set = |n_embd, n_head, n_head_kv, n_ff| {
        (dims.n_embd, dims.n_ff) = (n_embd, n_ff);
        (dims.n_head, dims.n_head_kv) = (n_head, n_head_kv);
    };
    match arch {
        "gemma4" | "gemma4-assistant" => set(128, n_head, 2, 192),
        "gemma3n" => set(64, 1, 1, 96),
        "deepseek4" | "deepseek41" => set(512, 8, 1, 1024),
        "step35" | "laguna" => set(if large { 320 } else { 160 }, n_head, 2, 384),
        "qwen3" => set(256, 4, 1, 384),
        "muse-glimmer" | "afmoe" => set(256, 4, 2, 384),
        "rwkv6" | "minimax-01" => set(256, 2, 2, 384),
        latent if among(LATENT, latent) => set(128, 1, 1, 192),
        even if among(EVEN_HEADS, even) => set(256, n_head, n_head, 384),
        _ => {}
    }
    match arch {
        "llama4" | "deepseek4" | "deepseek41" => dims.n_layer = n_layer.max(4),
        "gemma4" | "gemma4-assistant" => dims.n_layer = n_layer.max(5),
        // The other blocks use the cache of the first 20.
        "gemma3n" => dims.n_layer = if large { 25 } else { 22 },
        "nemotron_h" | "nemotron_h_moe" => dims.n_layer = n_layer.max(3),
        "hrm_text" => dims.n_layer = if large { 12 } else { 2 },
        "wavtokenizer-dec" => dims.n_layer = 6,
        "eagle3" => dims.n_layer = 1,
        "chameleon" => dims.n_vocab = 10240,
        "qwen3tts" => dims.n_vocab = 4096,
        _ => {}
    }
    dims
}

/// All models of this architecture.
pub(crate) fn all(arch: &str) -> Vec<Blueprint> {
    let dense = !among(EXPERTS_ONLY, arch);
    let experts = !dense || among(EXPERTS_TOO, arch);
    let (small, large) = (dims(arch, false), dims(arch, true));
    let mut all = Vec::new();
    let mut push = |name, dims, experts, matrices, lacks| {
        all.push(Blueprint { name, matrices, lacks, ..Blueprint::new(arch, keys(arch, dims, experts, &[]).build()) });
    };
    if dense {
        push("dense", small, false, TensorType::F32, &[][..]);
    }
    if experts {
        push("experts", small, true, TensorType::F32, &[]);
    }
    push("deep", large, !dense, TensorType::Q8_0, &[]);
    if arch != "dflash" {
        // If a draft has no output, it uses the output of its model. Without such a model, llama.cpp ends the process.
        push("tied", large, !dense, TensorType::Q4_0, &[]);
    }
    // The tensors that published files contain: no scales, and few biases. Some architectures are left out, because
    // these tensors are required there, or because the KV layout is not known.
    if !matches!(arch, "clef" | "eagle3" | "gemma4" | "vllm-decision2") {
        let usual = USUALLY_ABSENT;
        if dense {
            push("dense-usual", small, !dense, TensorType::F16, usual);
        }
        if experts {
            push("experts-usual", small, true, TensorType::F16, usual);
        }
        push("deep-usual", large, !dense, TensorType::Q8_0, usual);
        let bare = &["scale", ".bias", "cls.output.weight"];
        push("bare", large, !dense, TensorType::Q8_0, bare);
    }
    for tied in all.iter_mut().filter(|model| model.name == "tied") {
        tied.without = vec!["output.weight".to_owned(), "output.bias".to_owned()];
    }
    if among(PREDICTS, arch) {
        all.push(predicting(arch, large, !dense));
    }
    for twist in TWISTS.lines() {
        let (title, said) = twist.split_once(": ").unwrap();
        let (of, name) = title.split_once(' ').unwrap();
        if of == arch {
            all.push(twisted(arch, name, said, !dense));
        }
    }
    if arch == "rwkv6qwen2" {
        // With `time_mix_first`, llama.cpp would treat the file as a plain RWKV6 model, half of which is missing.
        for model in &mut all {
            let first = |il| format!("blk.{il}.time_mix_first.weight");
            model.without.extend((0..large.n_layer).map(first));
        }
    }
    for model in &mut all {
        let dims = if model.name == "dense" { small } else { large };
        match arch {
            "clef" => head_of_decisions(model, dims),
            "vllm-decision2" => head_of_scores(model, dims),
            _ => {}
        }
    }
    all
}

fn twisted(arch: &str, name: &'static str, said: &'static str, experts: bool) -> Blueprint {
    let said = said.split(';').map(str::trim);
    let omitted: Vec<&str> = said.clone().filter_map(|pair| pair.strip_prefix('-')).collect();
    let mut dims = dims(arch, true);
    if let Some(n) = said.clone().find_map(|pair| pair.strip_prefix("block_count = ")) {
        dims.n_layer = n.parse().unwrap();
    }
    let mut keys = keys(arch, dims, experts, &omitted);
    for pair in said.filter(|pair| !pair.starts_with('-')) {
        keys.say(pair);
    }
    Blueprint { name, lacks: USUALLY_ABSENT, ..Blueprint::new(arch, keys.build()) }
}

/// A model whose last block predicts further tokens.
fn predicting(arch: &str, dims: Dims, experts: bool) -> Blueprint {
    let il = dims.n_layer;
    let of = |n_nextn| {
        let n_layer = il + 1;
        let dims = Dims { n_layer, n_nextn, ..dims };
        keys(arch, dims, experts, &[]).build()
    };
    let mut model = Blueprint { name: "nextn", predicts_from: il, ..Blueprint::new(arch, of(1)) };
    if !among(NEVER_PREDICTS, arch) {
        return model;
    }
    // llama.cpp creates the tensors of the block only if it is a normal block.
    model.made_of = Some(of(0));
    // llama.cpp creates this tensor once for each block and counts it, even for blocks that are skipped.
    model.without.push("rope_freqs.weight".to_owned());
    let [n_embd, n_ff, n_vocab] = [dims.n_embd, dims.n_ff, dims.n_vocab].map(u64::from);
    let mut also = |name: &str, shape: &[u64]| {
        let name = format!("blk.{il}.{name}.weight");
        model.also.push((name, shape.to_vec()));
    };
    also("nextn.eh_proj", &[2 * n_embd, n_embd]);
    for name in ["enorm", "hnorm", "shared_head_norm"] {
        also(&format!("nextn.{name}"), &[n_embd]);
    }
    match arch {
        "bailingmoe2" => also("layer_output_norm", &[n_embd]),
        "dots3note" => also("nextn.embed_tokens", &[n_embd, n_vocab]),
        "exaone-moe" => {
            also("ffn_gate", &[n_embd, n_ff]);
            also("ffn_up", &[n_embd, n_ff]);
            also("ffn_down", &[n_ff, n_embd]);
        }
        _ => {}
    }
    if matches!(arch, "dots3note" | "exaone-moe") {
        // In this block, the feed-forward step is dense.
        let experts = "gate_inp gate_exps up_exps down_exps gate_shexp up_shexp down_shexp";
        let names =
            experts.split(' ').map(|tensor| format!("ffn_{tensor}.weight")).chain(["exp_probs_b.bias".to_owned()]);
        model.without.extend(names.map(|name| format!("blk.{il}.{name}")));
    }
    model
}

/// A qwen3 with a head that returns scores. llama.cpp reads the head's width from the file.
fn head_of_scores(model: &mut Blueprint, dims: Dims) {
    model.made_of = Some(keys("qwen3", dims, false, &[]).build());
    // With these tensors, the output would have the width of qwen3's output.
    model.without.extend(["dense_2.weight", "dense_2.bias"].map(str::to_owned));
    let (n, head) = (u64::from(dims.n_embd), 64);
    let mut also = |name: &str, shape: &[u64]| model.also.push((format!("decision.{name}"), shape.to_vec()));
    for name in ["option_norm", "query_norm"] {
        also(&format!("{name}.weight"), &[n]);
        also(&format!("{name}.bias"), &[n]);
    }
    for name in ["key", "query", "option_mlp", "query_mlp"] {
        also(&format!("{name}.weight"), &[n, head]);
    }
    also("option_mlp.bias", &[head]);
    also("scorer_out.weight", &[head, 1]);
}

/// A qwen35 with a head that makes decisions. llama.cpp itself creates no tensors for that head.
fn head_of_decisions(model: &mut Blueprint, dims: Dims) {
    model.made_of = Some(keys("qwen35", dims, false, &[]).build());
    model.without.extend(["cls.output.weight", "cls.output.bias"].map(str::to_owned));
    let (n, head, ff) = (u64::from(dims.n_embd), 64, 96);
    let mut also = |name: String, shape: &[u64]| model.also.push((name, shape.to_vec()));
    let mut pairs = |prefix: &str, names: &str, weight: &[u64]| {
        for name in names.split(' ') {
            also(format!("{prefix}.{name}.weight"), weight);
            also(format!("{prefix}.{name}.bias"), &weight[weight.len() - 1..]);
        }
    };
    pairs("decision", "hidden_norm", &[n]);
    pairs("decision", "option_summary_norm field_norm option_norm", &[head]);
    // One block that routes, and one block that joins.
    pairs("dec.blk.0", "cross_attn_norm_kv", &[head]);
    pairs("dec.blk.1", "attn_norm", &[head]);
    pairs("dec.blk.1", "attn_q attn_k attn_v attn_o", &[head, head]);
    for block in ["dec.blk.0", "dec.blk.1"] {
        pairs(block, "cross_attn_norm ffn_norm", &[head]);
        pairs(block, "cross_attn_q cross_attn_k cross_attn_v cross_attn_o", &[head, head]);
        pairs(block, "ffn_up", &[head, ff]);
        pairs(block, "ffn_down", &[ff, head]);
    }
    pairs("decision", "scorer", &[4 * head, head]);
    pairs("decision", "scorer_out", &[head, 1]);
    for name in "memory question option_question global option_context option_lexical".split(' ') {
        also(format!("decision.proj_{name}.weight"), &[n, head]);
    }
    also("decision.scales".to_owned(), &[3]);
    also("token_types.weight".to_owned(), &[head, 3]);
}
