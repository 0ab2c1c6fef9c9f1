//! Files that make a text model see or hear: encoders and projectors with the sizes that their makers published, and
//! the tensors that llama.cpp's loader asks of them (tools/mtmd/clip.cpp, `load_tensors`).

use autoplace_planner::gguf::{Builder, TensorType as T};

/// The sizes of an encoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoder {
    pub(crate) projector: &'static str,
    pub(crate) image: u32,
    pub(crate) patch: u32,
    pub(crate) n_embd: u64,
    pub(crate) n_ff: u64,
    pub(crate) n_head: u32,
    pub(crate) n_layer: u32,
    /// Width of the text model's embeddings.
    pub(crate) width: u64,
    /// The type of its matrices.
    pub(crate) ty: T,
    norms: Norms,
    attention: Attention,
    feed: Feed,
    /// Whether the matrices of a block have biases.
    biases: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Norms {
    Layer,
    Rms,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attention {
    Apart,
    Fused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feed {
    Plain,
    Gated,
}

const CLIP_L: Encoder = Encoder {
    projector: "mlp",
    image: 336,
    patch: 14,
    n_embd: 1024,
    n_ff: 4096,
    n_head: 16,
    n_layer: 23,
    width: 4096,
    ty: T::F16,
    norms: Norms::Layer,
    attention: Attention::Apart,
    feed: Feed::Plain,
    biases: true,
};

/// A file in the making: its keys and tensors.
pub(crate) struct Mmproj {
    builder: Builder,
}

impl Mmproj {
    pub(crate) fn builder(self) -> Builder {
        self.builder
    }

    fn u32(self, key: &str, value: u32) -> Self {
        Self {
            builder: self.builder.u32(key, value),
        }
    }

    fn tensor(self, name: &str, ty: T, shape: &[u64]) -> Self {
        Self {
            builder: self.builder.tensor(name, ty, shape),
        }
    }

    /// A matrix and the vector that is added to what it gives.
    fn linear(self, name: &str, ty: T, [from, to]: [u64; 2], bias: bool) -> Self {
        let this = self.tensor(&format!("{name}.weight"), ty, &[from, to]);
        if bias {
            this.tensor(&format!("{name}.bias"), T::F32, &[to])
        } else {
            this
        }
    }

    fn norm(self, name: &str, norms: Norms, width: u64) -> Self {
        let this = self.tensor(&format!("{name}.weight"), T::F32, &[width]);
        match norms {
            Norms::Layer => this.tensor(&format!("{name}.bias"), T::F32, &[width]),
            Norms::Rms => this,
        }
    }

    /// The matrix of the patches, and the learned positions of so many.
    fn patches(self, e: &Encoder, bias: bool, positions: u64) -> Self {
        let patch = u64::from(e.patch);
        let shape = [patch, patch, 3, e.n_embd];
        let mut this = self.tensor("v.patch_embd.weight", T::F16, &shape);
        if e.projector.starts_with("qwen") {
            this = this.tensor("v.patch_embd.weight.1", T::F16, &shape);
        }
        if bias {
            this = this.tensor("v.patch_embd.bias", T::F32, &[e.n_embd]);
        }
        if positions > 0 {
            this = this.tensor("v.position_embd.weight", T::F32, &[e.n_embd, positions]);
        }
        this
    }
}

impl Encoder {
    /// The keys and blocks that every encoder of images has.
    fn vision(&self) -> Mmproj {
        let builder = Builder::new("clip")
            .bool("clip.has_vision_encoder", true)
            .str("clip.projector_type", self.projector)
            .u32("clip.vision.image_size", self.image)
            .u32("clip.vision.patch_size", self.patch)
            .array_f32("clip.vision.image_mean", &[0.5; 3])
            .array_f32("clip.vision.image_std", &[0.5; 3]);
        self.blocks(builder, "vision", "v")
    }

    /// The keys and blocks that every encoder has.
    fn blocks(&self, builder: Builder, kind: &str, prefix: &str) -> Mmproj {
        let e = self.n_embd;
        let key = |name: &str| format!("clip.{kind}.{name}");
        let narrow = |n: u64| u32::try_from(n).unwrap();
        let builder = builder
            .bool("clip.use_gelu", true)
            .u32(&key("embedding_length"), narrow(e))
            .u32(&key("feed_forward_length"), narrow(self.n_ff))
            .u32(&key("block_count"), self.n_layer)
            .u32(&key("projection_dim"), narrow(self.width))
            .u32(&key("attention.head_count"), self.n_head)
            .f32(&key("attention.layer_norm_epsilon"), 1e-6);
        let mut file = Mmproj { builder };
        for il in 0..self.n_layer {
            let name = |part: &str| format!("{prefix}.blk.{il}.{part}");
            let linear = |file: Mmproj, part: &str, shape| {
                file.linear(&name(part), self.ty, shape, self.biases)
            };
            file = file.norm(&name("ln1"), self.norms, e);
            file = file.norm(&name("ln2"), self.norms, e);
            file = match self.attention {
                Attention::Apart => {
                    let file = linear(file, "attn_q", [e, e]);
                    // Whisper's keys have no bias.
                    let bias = self.biases && prefix != "a";
                    let file = file.linear(&name("attn_k"), self.ty, [e, e], bias);
                    linear(file, "attn_v", [e, e])
                }
                Attention::Fused => linear(file, "attn_qkv", [e, 3 * e]),
            };
            file = linear(file, "attn_out", [e, e]);
            if self.feed == Feed::Gated {
                file = linear(file, "ffn_gate", [e, self.n_ff]);
            }
            file = linear(file, "ffn_up", [e, self.n_ff]);
            file = linear(file, "ffn_down", [self.n_ff, e]);
        }
        file
    }
}

/// `LLaVA` 1.5 7B: CLIP ViT-L/14 at 336 pixels, of whose 24 blocks the last is not used.
pub(crate) fn llava_15() -> Mmproj {
    let e = CLIP_L;
    e.vision()
        .patches(&e, false, 577)
        .tensor("v.class_embd", T::F32, &[1024])
        .norm("v.pre_ln", Norms::Layer, 1024)
        .linear("mm.0", T::F16, [1024, 4096], true)
        .linear("mm.2", T::F16, [4096, 4096], true)
}

/// Gemma 3 4B, 12B and 27B: `SigLIP` So400m at 896 pixels, before an embedding of this width.
pub(crate) fn gemma3(width: u64) -> Mmproj {
    gemma3_at(896, width)
}

/// The same for images of another size.
pub(crate) fn gemma3_at(image: u32, width: u64) -> Mmproj {
    let e = Encoder {
        projector: "gemma3",
        image,
        n_embd: 1152,
        n_ff: 4304,
        n_layer: 27,
        width,
        ..CLIP_L
    };
    let per_side = u64::from(image / e.patch);
    e.vision()
        .patches(&e, true, per_side * per_side)
        .norm("v.post_ln", Norms::Layer, 1152)
        .tensor("mm.input_projection.weight", T::F16, &[width, 1152])
        .tensor("mm.soft_emb_norm.weight", T::F32, &[1152])
}

const QWEN2_VL: Encoder = Encoder {
    projector: "qwen2vl_merger",
    image: 560,
    n_embd: 1280,
    n_ff: 5120,
    n_layer: 32,
    width: 3584,
    ..CLIP_L
};

/// Qwen2-VL 7B.
pub(crate) fn qwen2_vl() -> Mmproj {
    let e = QWEN2_VL;
    e.vision()
        .patches(&e, false, 0)
        .norm("v.post_ln", Norms::Layer, 1280)
        .linear("mm.0", T::F16, [5120, 5120], true)
        .linear("mm.2", T::F16, [5120, 3584], true)
}

/// Qwen2.5-VL 7B: of eight blocks, seven attend to windows.
pub(crate) fn qwen25_vl() -> Mmproj {
    let e = Encoder {
        projector: "qwen2.5vl_merger",
        n_ff: 3420,
        norms: Norms::Rms,
        feed: Feed::Gated,
        ..QWEN2_VL
    };
    e.vision()
        .u32("clip.vision.n_wa_pattern", 8)
        .patches(&e, false, 0)
        .norm("v.post_ln", Norms::Rms, 1280)
        .linear("mm.0", T::F16, [5120, 5120], true)
        .linear("mm.2", T::F16, [5120, 3584], true)
}

/// Qwen3-VL 8B, which hands the text model features of three of its blocks beside the last.
pub(crate) fn qwen3_vl() -> Mmproj {
    let e = Encoder {
        projector: "qwen3vl_merger",
        image: 768,
        patch: 16,
        n_embd: 1152,
        n_ff: 4304,
        n_layer: 27,
        width: 4096,
        attention: Attention::Fused,
        ..CLIP_L
    };
    let mut file = e
        .vision()
        .u32("clip.vision.spatial_merge_size", 2)
        .patches(&e, true, 2304)
        .norm("v.post_ln", Norms::Layer, 1152)
        .linear("mm.0", T::F16, [4608, 4608], true)
        .linear("mm.2", T::F16, [4608, 4096], true);
    for il in [8, 16, 24] {
        let name = |part: &str| format!("v.deepstack.{il}.{part}");
        file = file
            .norm(&name("norm"), Norms::Layer, 4608)
            .linear(&name("fc1"), T::F16, [4608, 4608], true)
            .linear(&name("fc2"), T::F16, [4608, 4096], true);
    }
    file
}

const PIXTRAL: Encoder = Encoder {
    projector: "pixtral",
    image: 1024,
    patch: 16,
    n_layer: 24,
    width: 5120,
    norms: Norms::Rms,
    feed: Feed::Gated,
    biases: false,
    ..CLIP_L
};

/// Pixtral 12B.
pub(crate) fn pixtral() -> Mmproj {
    let e = PIXTRAL;
    e.vision()
        .patches(&e, false, 0)
        .norm("v.pre_ln", Norms::Rms, 1024)
        .linear("mm.1", T::F16, [1024, 5120], true)
        .linear("mm.2", T::F16, [5120, 5120], true)
        .tensor("v.token_embd.img_break", T::F32, &[5120])
}

/// Mistral Small 3.1: Pixtral's encoder with smaller patches, four of which are merged.
pub(crate) fn mistral_31() -> Mmproj {
    let e = Encoder {
        image: 1540,
        patch: 14,
        ..PIXTRAL
    };
    e.vision()
        .u32("clip.vision.spatial_merge_size", 2)
        .patches(&e, false, 0)
        .norm("v.pre_ln", Norms::Rms, 1024)
        .tensor("mm.input_norm.weight", T::F32, &[1024])
        .tensor("mm.patch_merger.weight", T::F16, &[4096, 1024])
        .linear("mm.1", T::F16, [1024, 5120], false)
        .linear("mm.2", T::F16, [5120, 5120], false)
        .tensor("v.token_embd.img_break", T::F32, &[5120])
}

/// `InternVL3` 8B: `InternViT` 300M at 448 pixels.
pub(crate) fn internvl3() -> Mmproj {
    let e = Encoder {
        projector: "internvl",
        image: 448,
        n_layer: 24,
        width: 3584,
        ..CLIP_L
    };
    let mut file = e
        .vision()
        .u32("clip.vision.projector.scale_factor", 2)
        .patches(&e, true, 1025)
        .tensor("v.class_embd", T::F32, &[1024])
        .norm("mm.model.mlp.0", Norms::Layer, 4096)
        .linear("mm.model.mlp.1", T::F16, [4096, 3584], true)
        .linear("mm.model.mlp.3", T::F16, [3584, 3584], true);
    for il in 0..e.n_layer {
        for part in ["ls1", "ls2"] {
            file = file.tensor(&format!("v.blk.{il}.{part}.weight"), T::F32, &[1024]);
        }
    }
    file
}

/// `SmolVLM2` 2.2B: `SigLIP` at 384 pixels, of whose patches nine are one token.
pub(crate) fn smolvlm2() -> Mmproj {
    let e = Encoder {
        projector: "idefics3",
        image: 384,
        n_embd: 1152,
        n_ff: 4304,
        n_layer: 27,
        width: 2048,
        ..CLIP_L
    };
    e.vision()
        .u32("clip.vision.projector.scale_factor", 3)
        .patches(&e, true, 729)
        .norm("v.post_ln", Norms::Layer, 1152)
        .tensor("mm.model.fc.weight", T::F16, &[10368, 2048])
}

/// Ultravox 0.5 for Llama 3.1 8B: the encoder of Whisper large v3 turbo.
pub(crate) fn ultravox() -> Mmproj {
    let e = Encoder {
        projector: "ultravox",
        n_embd: 1280,
        n_ff: 5120,
        n_head: 20,
        n_layer: 32,
        width: 4096,
        ..CLIP_L
    };
    let builder = Builder::new("clip")
        .bool("clip.has_audio_encoder", true)
        .str("clip.projector_type", e.projector)
        .u32("clip.audio.num_mel_bins", 128)
        .u32("clip.audio.projector.stack_factor", 8);
    e.blocks(builder, "audio", "a")
        .tensor("a.conv1d.1.weight", T::F16, &[3, 128, 1280])
        .tensor("a.conv1d.1.bias", T::F32, &[1, 1280])
        .tensor("a.conv1d.2.weight", T::F16, &[3, 1280, 1280])
        .tensor("a.conv1d.2.bias", T::F32, &[1, 1280])
        .tensor("a.position_embd.weight", T::F32, &[1280, 1500])
        .norm("a.post_ln", Norms::Layer, 1280)
        .tensor("mm.a.norm_pre.weight", T::F32, &[10240])
        .tensor("mm.a.norm_mid.weight", T::F32, &[2048])
        .tensor("mm.a.mlp.1.weight", T::F16, &[10240, 4096])
        .tensor("mm.a.mlp.2.weight", T::F16, &[2048, 4096])
}
