//! Models that people run, of every kind, at their full size and as `llama-quantize` makes them in Q4_K_M: what our
//! plans are compared on with llama.cpp's own fit.

use autoplace_planner::gguf::TensorType as T;

use super::block::{ALL_NORMS, Better, Block, Feed, PRE_NORMS, QKV, QkNorms};
use super::dims::{
    DEEPSEEK_V3, Experts, GEMMA3_27B, GPT_OSS_20B, GPT_OSS_120B, LLAMA_1B, LLAMA_8B, LLAMA_70B,
    MISTRAL_24B, MIXTRAL_8X7B, Mixture, QWEN_14B, QWEN3_8B, QWEN3_30B_A3B,
};
use super::experts::{Deep, deepseek2};
use super::windowed::gpt_oss_of;
use super::{Dims, Sketch};

/// All of them, each of another name.
pub(crate) fn all() -> Vec<Sketch> {
    let qwen3 = QWEN3_8B;
    vec![
        llama("Llama 3.2 1B", LLAMA_1B, true),
        llama("Llama 3.2 3B", LLAMA_3B, true),
        phi3_mini(),
        llama("Llama 3.1 8B", LLAMA_8B, false),
        plain("qwen3", "Qwen3 8B", qwen3, QkNorms::PerHead, &[]),
        llama("Llama 2 13B", LLAMA2_13B, false),
        plain("qwen2", "Qwen2.5 14B", QWEN_14B, QkNorms::None, QKV),
        plain(
            "mistral3",
            "Mistral Small 24B",
            MISTRAL_24B,
            QkNorms::None,
            &[],
        ),
        plain("qwen3", "Qwen3 32B", QWEN3_32B, QkNorms::PerHead, &[]),
        llama("Llama 3.3 70B", LLAMA_70B, false),
        gemma2("Gemma 2 9B", GEMMA2_9B),
        gemma2("Gemma 2 27B", GEMMA2_27B),
        gemma3("Gemma 3 4B", GEMMA3_4B),
        gemma3("Gemma 3 12B", GEMMA3_12B),
        gemma3("Gemma 3 27B", GEMMA3_27B),
        command_r7b(),
        gpt_oss_of("gpt-oss 20B", GPT_OSS_20B.dims, GPT_OSS_20B.experts),
        gpt_oss_of("gpt-oss 120B", GPT_OSS_120B.dims, GPT_OSS_120B.experts),
        mixtral(),
        qwen3_a3b(),
        glm_air(),
        deepseek_v3(),
        mamba_codestral(),
        jamba_mini(),
        granite_4_small(),
        falcon_h1(),
        nemotron_nano(),
        qwen3_next(),
    ]
}

const Q4_K_M: Block = Block {
    better: Better::Half,
    ..Block::new(T::Q4_K, T::Q6_K)
};

/// Llama 3.2.
const LLAMA_3B: Dims = Dims {
    n_layer: 28,
    n_embd: 3072,
    n_ff: 8192,
    n_head: 24,
    ..LLAMA_8B
};

/// Every head has keys of its own.
const LLAMA2_13B: Dims = Dims {
    n_layer: 40,
    n_embd: 5120,
    n_ff: 13824,
    n_head: 40,
    n_head_kv: 40,
    head_dim: 128,
    n_vocab: 32000,
};

const QWEN3_32B: Dims = Dims {
    n_layer: 64,
    n_embd: 5120,
    n_ff: 25600,
    n_head: 64,
    ..QWEN3_8B
};

const GEMMA2_9B: Dims = Dims {
    n_layer: 42,
    n_embd: 3584,
    n_ff: 14336,
    n_head: 16,
    n_head_kv: 8,
    head_dim: 256,
    n_vocab: 256_000,
};

const GEMMA2_27B: Dims = Dims {
    n_layer: 46,
    n_embd: 4608,
    n_ff: 36864,
    n_head: 32,
    n_head_kv: 16,
    head_dim: 128,
    n_vocab: 256_000,
};

const GEMMA3_4B: Dims = Dims {
    n_layer: 34,
    n_embd: 2560,
    n_ff: 10240,
    n_head: 8,
    n_head_kv: 4,
    head_dim: 256,
    n_vocab: 262_208,
};

const GEMMA3_12B: Dims = Dims {
    n_layer: 48,
    n_embd: 3840,
    n_ff: 15360,
    n_head: 16,
    n_head_kv: 8,
    ..GEMMA3_4B
};

fn plain(
    arch: &'static str,
    name: &'static str,
    dims: Dims,
    qk_norms: QkNorms,
    biases: &'static [&'static str],
) -> Sketch {
    let mut sketch = Sketch::new(arch, name, dims);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(&Block {
        qk_norms,
        biases,
        ..Q4_K_M
    });
    sketch
}

fn llama(name: &'static str, dims: Dims, tied: bool) -> Sketch {
    let mut sketch = Sketch::new("llama", name, dims);
    match tied {
        true => sketch.ends(T::Q6_K, None),
        false => sketch.ends(T::Q4_K, Some(T::Q6_K)),
    }
    sketch.tensor("rope_freqs.weight", T::F32, &[dims.head_dim / 2]);
    sketch.stack(&Q4_K_M);
    sketch
}

fn phi3_mini() -> Sketch {
    let dims = Dims {
        n_layer: 32,
        n_embd: 3072,
        n_ff: 8192,
        n_head: 32,
        n_head_kv: 32,
        head_dim: 96,
        n_vocab: 32064,
    };
    let mut sketch = Sketch::new("phi3", "Phi-3 mini", dims);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for name in ["rope_factors_long.weight", "rope_factors_short.weight"] {
        sketch.tensor(name, T::F32, &[dims.head_dim / 2]);
    }
    for il in 0..dims.n_layer {
        sketch.norms(il);
        let qkv = dims.q() + 2 * dims.kv();
        sketch.block(il, "attn_qkv.weight", T::Q5_K, &[dims.n_embd, qkv]);
        sketch.block(il, "attn_output.weight", T::Q4_K, &[dims.q(), dims.n_embd]);
        sketch.block(il, "ffn_up.weight", T::Q4_K, &[dims.n_embd, 2 * dims.n_ff]);
        sketch.block(il, "ffn_down.weight", T::Q6_K, &[dims.n_ff, dims.n_embd]);
    }
    sketch
}

fn gemma2(name: &'static str, dims: Dims) -> Sketch {
    let mut sketch = Sketch::new("gemma2", name, dims);
    sketch.u32("attention.sliding_window", 4096);
    sketch.ends(T::Q6_K, None);
    sketch.stack(&Block {
        norms: ALL_NORMS,
        ..Q4_K_M
    });
    sketch
}

fn gemma3(name: &'static str, dims: Dims) -> Sketch {
    let mut sketch = Sketch::new("gemma3", name, dims);
    sketch.u32("attention.sliding_window", 1024);
    sketch.ends(T::Q6_K, None);
    sketch.stack(&Block {
        norms: ALL_NORMS,
        qk_norms: QkNorms::PerHead,
        ..Q4_K_M
    });
    sketch
}

fn command_r7b() -> Sketch {
    let dims = Dims {
        n_vocab: 256_000,
        ..LLAMA_8B
    };
    let mut sketch = Sketch::new("cohere2", "Command R7B", dims);
    sketch.u32("attention.sliding_window", 4096);
    sketch.f32("attention.layer_norm_epsilon", 1e-5);
    sketch.f32("logit_scale", 0.25);
    sketch.ends(T::Q6_K, None);
    sketch.stack(&Block {
        norms: &["attn_norm.weight"],
        ..Q4_K_M
    });
    sketch
}

const fn experts(experts: Experts) -> Feed {
    Feed::Experts {
        n: experts.n,
        ff: experts.ff,
        ty: T::Q4_K,
    }
}

fn mixtral() -> Sketch {
    let Mixture { dims, experts: all } = MIXTRAL_8X7B;
    let mut sketch = Sketch::new("llama", "Mixtral 8x7B", dims);
    sketch.u32("expert_count", all.n);
    sketch.u32("expert_used_count", all.used);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(&Block {
        feed: experts(all),
        ..Q4_K_M
    });
    sketch
}

fn qwen3_a3b() -> Sketch {
    let Mixture { dims, experts: all } = QWEN3_30B_A3B;
    let mut sketch = Sketch::new("qwen3moe", "Qwen3 30B A3B", dims);
    sketch.mixture(all.n, all.used, all.ff);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    sketch.stack(&Block {
        qk_norms: QkNorms::PerHead,
        feed: experts(all),
        ..Q4_K_M
    });
    sketch
}

/// Its first block is dense, the others have a shared expert. Without the block that predicts.
fn glm_air() -> Sketch {
    let dims = Dims {
        n_layer: 46,
        n_embd: 4096,
        n_ff: 10944,
        n_head: 96,
        n_head_kv: 8,
        head_dim: 128,
        n_vocab: 151_552,
    };
    let (n, used, ff) = (128, 8, 1408);
    let mut sketch = Sketch::new("glm4moe", "GLM 4.5 Air", dims);
    sketch.u32("leading_dense_block_count", 1);
    sketch.u32("expert_shared_count", 1);
    sketch.mixture(n, used, ff);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    let dense = Block {
        norms: &["attn_norm.weight", "post_attention_norm.weight"],
        biases: QKV,
        ..Q4_K_M
    };
    let (ty, shared) = (T::Q4_K, (ff, T::Q8_0));
    let mixture = Block {
        feed: Feed::Shared { n, ff, ty, shared },
        ..dense
    };
    sketch.put(0, &dense);
    for il in 1..dims.n_layer {
        sketch.put(il, &mixture);
        sketch.vector(il, "exp_probs_b.bias", n);
    }
    sketch
}

fn deepseek_v3() -> Sketch {
    let Mixture { dims, experts } = DEEPSEEK_V3;
    let deep = Deep {
        dims,
        mla: true,
        q_rank: 1536,
        leading: 3,
        experts: (experts.n, experts.used, 1, experts.ff),
    };
    deepseek2("DeepSeek V3", &deep)
}

/// A state-space mixer.
#[derive(Clone, Copy)]
struct Mixer {
    inner: u64,
    state: u64,
    /// Heads; of the first kind the rank of the steps.
    rank: u64,
    /// 0: of the first kind.
    groups: u64,
}

impl Mixer {
    fn keys(self, sketch: &mut Sketch) {
        sketch.u32("ssm.conv_kernel", 4);
        sketch.u32("ssm.inner_size", self.inner);
        sketch.u32("ssm.state_size", self.state);
        sketch.u32("ssm.time_step_rank", self.rank);
        if self.groups > 0 {
            sketch.u32("ssm.group_count", self.groups);
        }
    }

    /// Of the second kind.
    fn put(self, sketch: &mut Sketch, il: u64) {
        let Self {
            inner,
            state,
            rank: heads,
            groups,
        } = self;
        let n_embd = sketch.dims.n_embd;
        let conv = inner + 2 * groups * state;
        let into = [n_embd, inner + conv + heads];
        sketch.block(il, "ssm_in.weight", T::Q4_K, &into);
        sketch.block(il, "ssm_conv1d.weight", T::F32, &[4, conv]);
        sketch.vector(il, "ssm_conv1d.bias", conv);
        sketch.vector(il, "ssm_dt.bias", heads);
        sketch.block(il, "ssm_a", T::F32, &[1, heads]);
        sketch.block(il, "ssm_d", T::F32, &[1, heads]);
        let norm = [inner / groups, groups];
        sketch.block(il, "ssm_norm.weight", T::F32, &norm);
        sketch.block(il, "ssm_out.weight", T::Q4_K, &[inner, n_embd]);
    }

    /// Of the first kind, with Jamba's norms.
    fn put_first(self, sketch: &mut Sketch, il: u64) {
        let Self {
            inner, state, rank, ..
        } = self;
        let n_embd = sketch.dims.n_embd;
        sketch.block(il, "ssm_in.weight", T::Q4_K, &[n_embd, 2 * inner]);
        sketch.block(il, "ssm_conv1d.weight", T::F32, &[4, inner]);
        sketch.vector(il, "ssm_conv1d.bias", inner);
        sketch.block(il, "ssm_x.weight", T::Q4_K, &[inner, rank + 2 * state]);
        sketch.block(il, "ssm_dt.weight", T::F32, &[rank, inner]);
        sketch.vector(il, "ssm_dt.bias", inner);
        sketch.block(il, "ssm_a", T::F32, &[state, inner]);
        sketch.vector(il, "ssm_d", inner);
        sketch.block(il, "ssm_out.weight", T::Q4_K, &[inner, n_embd]);
        sketch.vector(il, "ssm_dt_norm.weight", rank);
        sketch.vector(il, "ssm_b_norm.weight", state);
        sketch.vector(il, "ssm_c_norm.weight", state);
    }
}

fn mamba_codestral() -> Sketch {
    let dims = Dims {
        n_layer: 64,
        n_vocab: 32768,
        ..LLAMA_8B
    };
    let mixer = Mixer {
        inner: 8192,
        state: 128,
        rank: 128,
        groups: 8,
    };
    let mut sketch = Sketch::bare("mamba2", "Mamba Codestral 7B", dims);
    mixer.keys(&mut sketch);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for il in 0..dims.n_layer {
        sketch.vector(il, "attn_norm.weight", dims.n_embd);
        mixer.put(&mut sketch, il);
    }
    sketch
}

/// Keys and values by block: these heads where `attends`, none elsewhere.
fn heads(dims: Dims, attends: impl Fn(u64) -> bool) -> Vec<u32> {
    let heads = u32::try_from(dims.n_head_kv).unwrap();
    let all = (0..dims.n_layer).map(|il| if attends(il) { heads } else { 0 });
    all.collect()
}

/// One block in eight attends, every second has experts.
fn jamba_mini() -> Sketch {
    let dims = Dims {
        n_vocab: 65536,
        ..LLAMA_8B
    };
    let mixer = Mixer {
        inner: 8192,
        state: 16,
        rank: 256,
        groups: 0,
    };
    let attends = |il: u64| il % 8 == 4;
    let mut sketch = Sketch::new("jamba", "Jamba Mini", dims);
    sketch.u32s("attention.head_count_kv", &heads(dims, attends));
    sketch.u32("expert_count", 16);
    sketch.u32("expert_used_count", 2);
    mixer.keys(&mut sketch);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for il in 0..dims.n_layer {
        sketch.norms(il);
        if attends(il) {
            sketch.attention(il, T::Q4_K);
        } else {
            mixer.put_first(&mut sketch, il);
        }
        if il % 2 == 1 {
            sketch.experts(il, T::Q4_K, 16, dims.n_ff);
        } else {
            sketch.feed_forward(il, T::Q4_K, T::Q6_K);
        }
    }
    sketch
}

/// Four blocks in forty attend; all have experts and a shared one.
fn granite_4_small() -> Sketch {
    let dims = Dims {
        n_layer: 40,
        n_ff: 768,
        n_vocab: 100_352,
        ..LLAMA_8B
    };
    let mixer = Mixer {
        inner: 8192,
        state: 128,
        rank: 128,
        groups: 1,
    };
    let attends = |il: u64| matches!(il, 5 | 15 | 25 | 35);
    let mut sketch = Sketch::new("granitehybrid", "Granite 4 H Small", dims);
    sketch.u32s("attention.head_count_kv", &heads(dims, attends));
    sketch.u32("expert_count", 72);
    sketch.u32("expert_used_count", 10);
    sketch.u32("expert_shared_feed_forward_length", 1536);
    mixer.keys(&mut sketch);
    sketch.ends(T::Q6_K, None);
    for il in 0..dims.n_layer {
        for norm in PRE_NORMS {
            sketch.vector(il, norm, dims.n_embd);
        }
        if attends(il) {
            sketch.attention(il, T::Q4_K);
        } else {
            mixer.put(&mut sketch, il);
        }
        sketch.experts(il, T::Q4_K, 72, dims.n_ff);
        sketch.shared_expert(il, T::Q4_K, 1536);
    }
    sketch
}

/// Every block attends and mixes.
fn falcon_h1() -> Sketch {
    let dims = Dims {
        n_layer: 72,
        n_embd: 5120,
        n_ff: 21504,
        n_head: 20,
        n_head_kv: 4,
        head_dim: 128,
        n_vocab: 261_120,
    };
    let mixer = Mixer {
        inner: 4096,
        state: 256,
        rank: 32,
        groups: 2,
    };
    let mut sketch = Sketch::new("falcon-h1", "Falcon-H1 34B", dims);
    mixer.keys(&mut sketch);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for il in 0..dims.n_layer {
        sketch.vector(il, "attn_norm.weight", dims.n_embd);
        sketch.vector(il, "ffn_norm", dims.n_embd);
        sketch.attention(il, T::Q4_K);
        mixer.put(&mut sketch, il);
        sketch.feed_forward(il, T::Q4_K, T::Q6_K);
    }
    sketch
}

/// A block mixes, attends or feeds forward, and does nothing else.
fn nemotron_nano() -> Sketch {
    let dims = Dims {
        n_layer: 56,
        n_embd: 4480,
        n_ff: 15680,
        n_head: 40,
        n_head_kv: 8,
        head_dim: 128,
        n_vocab: 131_072,
    };
    let mixer = Mixer {
        inner: 10240,
        state: 128,
        rank: 128,
        groups: 8,
    };
    let attends = |il: u64| matches!(il, 14 | 21 | 30 | 39);
    let feeds = |il: u64| il % 2 == 1 && !attends(il);
    let ff = |il: u64| if feeds(il) { 15680 } else { 0 };
    let mut sketch = Sketch::new("nemotron_h", "Nemotron Nano 9B", dims);
    sketch.u32s("attention.head_count_kv", &heads(dims, attends));
    let widths: Vec<u32> = (0..dims.n_layer).map(ff).collect();
    sketch.u32s("feed_forward_length", &widths);
    sketch.f32("attention.layer_norm_epsilon", 1e-5);
    mixer.keys(&mut sketch);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    for il in 0..dims.n_layer {
        sketch.vector(il, "attn_norm.weight", dims.n_embd);
        if attends(il) {
            sketch.attention(il, T::Q4_K);
        } else if feeds(il) {
            sketch.block(il, "ffn_up.weight", T::Q4_K, &[dims.n_embd, dims.n_ff]);
            sketch.block(il, "ffn_down.weight", T::Q6_K, &[dims.n_ff, dims.n_embd]);
        } else {
            mixer.put(&mut sketch, il);
        }
    }
    sketch
}

/// Three blocks in four keep a state by the delta rule; all have experts and a shared one.
fn qwen3_next() -> Sketch {
    let dims = Dims {
        n_layer: 48,
        n_embd: 2048,
        n_ff: 5120,
        n_head: 16,
        n_head_kv: 2,
        head_dim: 256,
        n_vocab: 151_936,
    };
    let (state, keys, values) = (128, 16, 32);
    let (conv, inner) = (state * (2 * keys + values), state * values);
    let mixer = Mixer {
        inner,
        state,
        rank: values,
        groups: keys,
    };
    let mut sketch = Sketch::new("qwen3next", "Qwen3 Next 80B A3B", dims);
    sketch.mixture(512, 10, 512);
    sketch.u32("expert_shared_feed_forward_length", 512);
    mixer.keys(&mut sketch);
    sketch.ends(T::Q4_K, Some(T::Q6_K));
    let n_embd = dims.n_embd;
    for il in 0..dims.n_layer {
        sketch.vector(il, "attn_norm.weight", n_embd);
        sketch.vector(il, "post_attention_norm.weight", n_embd);
        if il % 4 == 3 {
            sketch.block(il, "attn_q.weight", T::Q4_K, &[n_embd, 2 * dims.q()]);
            sketch.block(il, "attn_k.weight", T::Q4_K, &[n_embd, dims.kv()]);
            sketch.block(il, "attn_v.weight", T::Q6_K, &[n_embd, dims.kv()]);
            sketch.block(il, "attn_output.weight", T::Q4_K, &[dims.q(), n_embd]);
            sketch.qk_norms(il);
        } else {
            sketch.block(il, "attn_qkv.weight", T::Q4_K, &[n_embd, conv]);
            sketch.block(il, "attn_gate.weight", T::Q4_K, &[n_embd, inner]);
            sketch.block(il, "ssm_conv1d.weight", T::F32, &[4, conv]);
            sketch.vector(il, "ssm_dt.bias", values);
            sketch.vector(il, "ssm_a", values);
            sketch.block(il, "ssm_ba.weight", T::Q4_K, &[n_embd, 2 * values]);
            sketch.vector(il, "ssm_norm.weight", state);
            sketch.block(il, "ssm_out.weight", T::Q4_K, &[inner, n_embd]);
        }
        sketch.experts(il, T::Q4_K, 512, 512);
        sketch.vector(il, "ffn_gate_inp_shexp.weight", n_embd);
        sketch.shared_expert(il, T::Q4_K, 512);
    }
    sketch
}
