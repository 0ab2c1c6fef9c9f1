//! Projector files for images and sound: the encoders of `mmproj.txt`, with the tensors that llama.cpp's loader
//! requires of them (tools/mtmd/clip.cpp, `load_tensors`).

use autoplace_gguf::{Builder, TensorType as T};

/// The encoder of this name.
pub fn named(name: &str) -> Builder {
    filled(name, 896, 2560)
}

/// The projector of Gemma 3 4B, 12B or 27B, which differ in the width of their embedding, for images with sides of 896
/// pixels.
pub fn gemma3(width: u64) -> Builder {
    gemma3_at(896, width)
}

/// The same projector for images of another size.
pub fn gemma3_at(image: u32, width: u64) -> Builder {
    filled("Gemma 3", image, width)
}

fn filled(name: &str, image: u32, width: u64) -> Builder {
    let mut lines = include_str!("mmproj.txt").lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" | "));
    let patches = (image / 14) * (image / 14);
    let line = line.expect(name).replace("$image", &image.to_string());
    let line = line.replace("$width", &width.to_string()).replace("$patches", &patches.to_string());
    let [encoder, differs, keys, tensors] = line.split(" | ").collect::<Vec<_>>()[..] else {
        panic!("{line}");
    };
    let (projector, sizes) = encoder.split_once(' ').expect(&line);
    let sizes: Vec<u32> = sizes.split(' ').map(|n| n.parse().unwrap()).collect();
    Encoder { projector, sizes: sizes.try_into().unwrap(), differs, keys, tensors }.file()
}

/// A line of `mmproj.txt`.
struct Encoder<'a> {
    projector: &'a str,
    sizes: [u32; 7],
    differs: &'a str,
    keys: &'a str,
    tensors: &'a str,
}

impl Encoder<'_> {
    fn is(&self, word: &str) -> bool {
        self.differs.split(' ').any(|listed| listed == word)
    }

    fn file(&self) -> Builder {
        let [image, patch, ..] = self.sizes;
        let mut file = Builder::new("clip").str("clip.projector_type", self.projector);
        if self.is("audio") {
            file = file.bool("clip.has_audio_encoder", true);
        } else {
            file = file
                .bool("clip.has_vision_encoder", true)
                .u32("clip.vision.image_size", image)
                .u32("clip.vision.patch_size", patch)
                .array_f32("clip.vision.image_mean", &[0.5; 3])
                .array_f32("clip.vision.image_std", &[0.5; 3]);
        }
        for key in self.keys.split_whitespace() {
            let (key, value) = key.split_once('=').expect(key);
            file = if let Some(signed) = value.strip_suffix('i') {
                file.i32(key, signed.parse().unwrap())
            } else if let Some(only) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                file.array_i32(key, &[only.parse().unwrap()])
            } else {
                file.u32(key, value.parse().unwrap())
            };
        }
        file = self.blocks(file);
        let tensors = self.tensors.split_whitespace();
        tensors.fold(file, |file, word| self.tensor(file, word))
    }

    /// The keys and blocks that every encoder has.
    fn blocks(&self, file: Builder) -> Builder {
        let [_, _, e, n_ff, n_head, n_layer, width] = self.sizes;
        let (kind, prefix) = match self.is("audio") {
            true => ("audio", "a"),
            false => ("vision", "v"),
        };
        let key = |name: &str| format!("clip.{kind}.{name}");
        let mut file = file.bool("clip.use_gelu", true).f32(&key("attention.layer_norm_epsilon"), 1e-6);
        for (name, n) in [
            ("embedding_length", e),
            ("feed_forward_length", n_ff),
            ("block_count", n_layer),
            ("projection_dim", width),
            ("attention.head_count", n_head),
        ] {
            file = file.u32(&key(name), n);
        }
        let [e, n_ff] = [e, n_ff].map(u64::from);
        let mut matrices = match self.is("fused") {
            true => vec![("attn_qkv", [e, 3 * e])],
            false => ["attn_q", "attn_k", "attn_v"].map(|part| (part, [e, e])).to_vec(),
        };
        matrices.extend([("attn_out", [e, e]), ("ffn_up", [e, n_ff])]);
        matrices.push(("ffn_down", [n_ff, e]));
        if self.is("gated") {
            matrices.push(("ffn_gate", [e, n_ff]));
        }
        for il in 0..n_layer {
            let name = |part: &str| format!("{prefix}.blk.{il}.{part}");
            file = self.norm(file, &name("ln1"), e);
            file = self.norm(file, &name("ln2"), e);
            for &(part, shape) in &matrices {
                // Whisper's keys have no bias.
                let plain = self.is("plain") || (self.is("audio") && part == "attn_k");
                file = linear(file, &name(part), shape, !plain);
            }
            if self.is("scales") {
                file = file.tensor(&name("ls1.weight"), T::F32, &[e]);
                file = file.tensor(&name("ls2.weight"), T::F32, &[e]);
            }
        }
        file
    }

    /// Adds the tensors that a word of the last column stands for.
    fn tensor(&self, file: Builder, word: &str) -> Builder {
        let numbers = |text: &str| -> Vec<u64> {
            let all = text.split('x').map(|n| n.parse().expect(word));
            all.collect()
        };
        let (kind, rest) = word.split_once(':').unwrap_or(("", word));
        let parts: Vec<&str> = rest.split(',').collect();
        match kind {
            "patches" => self.patches(file, numbers(parts[0])[0], parts.len() > 1),
            "norm" => self.norm(file, parts[0], numbers(parts[1])[0]),
            "linear" => linear(file, parts[0], numbers(parts[1]).try_into().unwrap(), true),
            _ => {
                let ty = if parts[1] == "F16" { T::F16 } else { T::F32 };
                file.tensor(parts[0], ty, &numbers(parts[2]))
            }
        }
    }

    fn norm(&self, file: Builder, name: &str, width: u64) -> Builder {
        let file = file.tensor(&format!("{name}.weight"), T::F32, &[width]);
        match self.is("rms") {
            true => file,
            false => file.tensor(&format!("{name}.bias"), T::F32, &[width]),
        }
    }

    /// The matrix of the patches, and `positions` learned positions.
    fn patches(&self, mut file: Builder, positions: u64, bias: bool) -> Builder {
        let [_, patch, n_embd, ..] = self.sizes.map(u64::from);
        let shape = [patch, patch, 3, n_embd];
        file = file.tensor("v.patch_embd.weight", T::F16, &shape);
        if self.projector.starts_with("qwen") {
            file = file.tensor("v.patch_embd.weight.1", T::F16, &shape);
        }
        if bias {
            file = file.tensor("v.patch_embd.bias", T::F32, &[n_embd]);
        }
        if positions > 0 {
            file = file.tensor("v.position_embd.weight", T::F32, &[n_embd, positions]);
        }
        file
    }
}

/// Adds a matrix and, if `bias` is true, its bias.
fn linear(file: Builder, name: &str, [from, to]: [u64; 2], bias: bool) -> Builder {
    let file = file.tensor(&format!("{name}.weight"), T::F16, &[from, to]);
    match bias {
        true => file.tensor(&format!("{name}.bias"), T::F32, &[to]),
        false => file,
    }
}
