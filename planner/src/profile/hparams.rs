//! The hyper-parameters that determine memory, and the checks whose failure would abort llama.cpp's process.

use std::fmt::Display;

use crate::gguf::{self, Header, Value};

/// A problem in a model's header. Each message names the file, the value found there, and the limit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum Error {
    /// The header could not be read, or lacks a key that llama.cpp requires.
    #[error(transparent)]
    Header(#[from] gguf::Error),
    /// The file contains tensors of a projector for images or sound. llama.cpp needs the model and the projector in
    /// separate files.
    #[error(
        "{file}: {count} tensors of a projector are in the model's file, such as `{first}`, as Ollama's own files have \
         them: llama.cpp loads a model and its projector (mmproj) from two files; `autoplace extract` writes a file with the model alone"
    )]
    Projector { file: String, count: usize, first: String },
    /// A key has a value that llama.cpp does not accept. Most such values abort the process.
    #[error("{file}: `{key}` is {value}, but {limit}")]
    Value { file: String, key: String, value: String, limit: String },
}

/// `LLAMA_MAX_LAYERS` (llama-hparams.h).
pub(crate) const MAX_LAYERS: u32 = 512;
/// `LLAMA_MAX_EXPERTS` (llama-hparams.h).
const MAX_EXPERTS: u32 = 1024;

/// The function of llama.cpp that checks most of these values.
const LOAD: &str = "(llama-model.cpp, `load_hparams`)";

/// The numbers of a model that determine its memory (`llama_model_base::load_hparams`, llama-model.cpp).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hyperparameters {
    /// The number of blocks, including those that predict further tokens (`n_layer_all`): 1 to 512.
    pub n_layer: u32,
    /// Blocks in the file: fewer than `n_layer` if llama.cpp runs through them several times or adds a block.
    pub n_layer_stored: u32,
    /// How many of the last blocks predict further tokens (`n_layer_nextn`). These blocks count as layers even if they
    /// are not used.
    pub n_layer_nextn: u32,
    /// Context length in training, in tokens.
    pub n_ctx_train: u32,
    /// Width of the residual stream, in elements.
    pub n_embd: u32,
    /// Elements of an embedding that the model returns: `n_embd`, unless the header states another number.
    pub n_embd_out: u32,
    /// The number of entries of the vocabulary.
    pub n_vocab: u32,
    /// The number of query heads of each block.
    pub n_head: Vec<u32>,
    /// The number of key and value heads of each block.
    pub n_head_kv: Vec<u32>,
    /// The number of elements of a key head.
    pub head_dim_k: u32,
    /// The number of elements of a value head.
    pub head_dim_v: u32,
    /// The number of elements of a key head in blocks with a sliding window.
    pub head_dim_k_swa: u32,
    /// The number of elements of a value head in blocks with a sliding window.
    pub head_dim_v_swa: u32,
    /// Width of the dense feed-forward step of each block, in elements; 0 if the header states none.
    pub n_ff_of: Vec<u32>,
    /// Width of the widest dense feed-forward step, in elements.
    pub n_ff: u32,
    /// The experts of a mixture-of-experts model.
    pub experts: Option<Experts>,
    /// The pooling type of the header (`llama_pooling_type`); `None` if the header states none or 0, which means no
    /// pooling.
    pub pooling: Option<u32>,
    /// Whether queries are multiplied by a number for each token (`attention.temperature_scale`).
    pub(super) has_temperature: bool,
    /// The number of deepstack parts. A part is a slice of an input embedding beyond its first `n_embd` elements, and
    /// is added after a later block.
    pub(crate) n_deepstack_layers: u32,
    /// The numbers of elements of the keys and of the values that compressed keys represent; 0 if the header states
    /// none.
    pub(super) mla: (u32, u32),
}

/// The experts of a mixture-of-experts model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Experts {
    /// The number of experts in each block.
    pub count: u32,
    /// The largest number of experts that a token uses in any block.
    pub used: u32,
    /// Width of an expert's feed-forward step, in elements.
    pub n_ff: u32,
}

impl Hyperparameters {
    pub(super) fn read(keys: &Keys<'_>) -> Result<Self, Error> {
        let Keys { header, architecture } = *keys;
        let n_layer = keys.required("block_count")?;
        let limit = format_args!("llama.cpp takes 1 to 512 {LOAD}");
        let holds = (1..=MAX_LAYERS).contains(&n_layer);
        keys.check(holds, "block_count", &n_layer, &limit)?;
        let mut n_layer_nextn = keys.or("nextn_predict_layers", 0)?;
        let limit = format_args!("there are {n_layer} blocks {LOAD}");
        let holds = n_layer_nextn <= n_layer;
        keys.check(holds, "nextn_predict_layers", &n_layer_nextn, &limit)?;
        // If the file does not contain the weights of the prediction blocks, the other blocks are the whole model
        // (models/deepseek4.cpp, `load_arch_hparams`).
        let first = format!("blk.{}.nextn.eh_proj.weight", n_layer - n_layer_nextn);
        if matches!(architecture, "deepseek4" | "deepseek41") && header.tensor(&first).is_none() {
            n_layer_nextn = 0;
        }
        let n_ctx_train = keys.required("context_length")?;
        let n_embd =
            keys.required(if architecture == "wavtokenizer-dec" { "features_length" } else { "embedding_length" })?;
        keys.check(n_embd > 0, "embedding_length", &n_embd, &"a model must have a width above 0")?;
        keys.rope_scaling()?;
        keys.classifier()?;
        if architecture == "k2-horizon" {
            keys.value_experts()?;
        }

        let per_layer = |suffix| keys.per_layer(suffix, n_layer as usize);
        let none = || vec![0; n_layer as usize];
        let n_ff_of = per_layer("feed_forward_length")?.unwrap_or_else(none);
        let n_ff = n_ff_of.iter().copied().max().unwrap_or(0);
        let experts = keys.experts(n_layer, n_ff)?;

        let n_head = per_layer("attention.head_count")?.unwrap_or_else(none);
        let n_head_kv = per_layer("attention.head_count_kv")?.unwrap_or_else(|| n_head.clone());
        // llama-model.cpp, `load_hparams`: by default, the width is divided among the heads of the first block; if it
        // has no heads, there is no default.
        let head_dim = n_embd.checked_div(n_head[0]).unwrap_or(0);
        // plamo2 reads the lengths of keys and values again, even without heads (models/plamo2.cpp,
        // `load_arch_hparams`).
        let (mut head_dim_k, mut head_dim_v) = (0, 0);
        if head_dim > 0 || architecture == "plamo2" {
            head_dim_k = keys.or("attention.key_length", head_dim)?;
            head_dim_v = keys.or("attention.value_length", head_dim)?;
        }
        let head_dim_k_swa = keys.or("attention.key_length_swa", head_dim_k)?;
        let head_dim_v_swa = keys.or("attention.value_length_swa", head_dim_v)?;
        // The compressed keys serve as values (models/kimi-k3.cpp and models/glm5-next.cpp, `load_arch_hparams`).
        if matches!(architecture, "kimi-k3" | "glm5-next") {
            head_dim_v = keys.required("attention.kv_lora_rank")?;
        }
        let mut hparams = Self {
            n_layer,
            n_layer_stored: n_layer,
            n_layer_nextn,
            n_ctx_train,
            n_embd,
            n_embd_out: keys.n_embd_out(n_embd)?,
            n_vocab: keys.n_vocab()?,
            n_head,
            n_head_kv,
            head_dim_k,
            head_dim_v,
            head_dim_k_swa,
            head_dim_v_swa,
            n_ff_of,
            n_ff,
            experts,
            pooling: keys.stated("pooling_type")?.filter(|&pooling| pooling != 0),
            has_temperature: header.f32(&keys.key("attention.temperature_scale"))?.is_some_and(|scale| scale != 0.0),
            n_deepstack_layers: keys.deepstack()?,
            mla: (keys.or("attention.key_length_mla", 0)?, keys.or("attention.value_length_mla", 0)?),
        };
        match architecture {
            "nanbeige" => hparams.loops(keys)?,
            "graniteswitch" => hparams.routes(keys)?,
            _ => {}
        }
        Ok(hparams)
    }

    /// Repeats the blocks; each repetition counts as separate layers (models/nanbeige.cpp, `load_arch_hparams`).
    fn loops(&mut self, keys: &Keys<'_>) -> Result<(), Error> {
        let loops = keys.or("num_loops", 1)?;
        let blocks = self.n_layer_trunk();
        let all = blocks.checked_mul(loops);
        let holds = all.is_some_and(|all| (1..=MAX_LAYERS).contains(&all));
        let limit =
            format_args!("there may be 512 layers of {blocks} blocks (models/nanbeige.cpp, `load_arch_hparams`)");
        keys.check(holds, "num_loops", &loops, &limit)?;
        if loops > 1 {
            for each in [&mut self.n_head, &mut self.n_head_kv, &mut self.n_ff_of] {
                each.truncate(blocks as usize);
                *each = each.repeat(loops as usize);
            }
            self.n_layer = all.unwrap_or(self.n_layer);
            self.n_layer_nextn = 0;
        }
        Ok(())
    }

    /// Adds a layer with one head, which selects the adapter of each token (models/granite-switch.cpp,
    /// `load_arch_hparams`).
    fn routes(&mut self, keys: &Keys<'_>) -> Result<(), Error> {
        let blocks = self.n_layer_trunk();
        let limit = "llama.cpp adds a layer to at most 511 (models/granite-switch.cpp, `load_arch_hparams`)";
        keys.check(blocks < MAX_LAYERS, "block_count", &blocks, &limit)?;
        for (each, own) in [(&mut self.n_head, 1), (&mut self.n_head_kv, 1), (&mut self.n_ff_of, 0)] {
            each.truncate(blocks as usize);
            each.push(own);
        }
        self.n_layer = blocks + 1;
        self.n_layer_nextn = 1;
        Ok(())
    }

    /// The number of blocks that compute a token: all except those that predict further tokens (`n_layer()`,
    /// llama-hparams.cpp).
    pub const fn n_layer_trunk(&self) -> u32 {
        self.n_layer - self.n_layer_nextn
    }

    /// Whether keys are compressed (`is_mla`, llama-hparams.cpp).
    pub(super) const fn is_mla(&self) -> bool {
        self.mla.0 > 0 && self.mla.1 > 0
    }

    /// The number of elements in the widest row of a token: the residual stream, the queries, or the feed-forward step,
    /// which is dense or covers all experts in use.
    pub(crate) fn widest(&self) -> u64 {
        let experts = self.experts.map_or(0, |experts| u64::from(experts.n_ff) * u64::from(experts.used));
        let heads = self.n_head.iter().copied().max().unwrap_or(0);
        let queries = u64::from(heads) * u64::from(self.head_dim_k.max(self.head_dim_v));
        experts.max(queries).max(self.n_ff.max(self.n_embd).into())
    }
}

/// The `<architecture>.*` keys of one header.
pub(super) struct Keys<'a> {
    pub(super) header: &'a Header,
    pub(super) architecture: &'a str,
}

impl Keys<'_> {
    pub(super) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    pub(super) fn get(&self, suffix: &str) -> Option<Value<'_>> {
        self.header.get(&self.key(suffix))
    }

    pub(super) fn stated(&self, suffix: &str) -> Result<Option<u32>, Error> {
        Ok(self.header.u32(&self.key(suffix))?)
    }

    pub(super) fn required(&self, suffix: &str) -> Result<u32, Error> {
        let missing = || gguf::Error::MissingKey { path: self.header.path().to_owned(), key: self.key(suffix) };
        Ok(self.stated(suffix)?.ok_or_else(missing)?)
    }

    pub(super) fn or(&self, suffix: &str, default: u32) -> Result<u32, Error> {
        Ok(self.stated(suffix)?.unwrap_or(default))
    }

    /// One number for each of `n` blocks; a single number in the header applies to all.
    pub(super) fn per_layer(&self, suffix: &str, n: usize) -> Result<Option<Vec<u32>>, Error> {
        Ok(self.header.u32_per_layer(&self.key(suffix), n)?)
    }

    /// One flag for each of `n` blocks.
    pub(super) fn flags(&self, suffix: &str, n: u32) -> Result<Option<Vec<bool>>, Error> {
        let numbers = self.per_layer(suffix, n as usize)?;
        Ok(numbers.map(|numbers| numbers.iter().map(|&flag| flag != 0).collect()))
    }

    /// The numbers of a list of any length; `None` if the key is not a list.
    pub(super) fn list(&self, suffix: &str) -> Result<Option<Vec<u32>>, Error> {
        match self.get(suffix) {
            // A longer list would have more entries than any model has blocks.
            Some(Value::Array(list)) if list.len() <= u64::from(MAX_LAYERS) => {
                self.per_layer(suffix, list.len() as usize)
            }
            _ => Ok(None),
        }
    }

    pub(super) fn check(
        &self,
        holds: bool,
        suffix: &str,
        value: &dyn Display,
        limit: &dyn Display,
    ) -> Result<(), Error> {
        if holds {
            return Ok(());
        }
        Err(Error::Value {
            file: self.header.path().display().to_string(),
            key: self.key(suffix),
            value: value.to_string(),
            limit: limit.to_string(),
        })
    }

    pub(super) fn is_causal(&self) -> Result<bool, Error> {
        Ok(self.header.bool(&self.key("attention.causal"))? != Some(false))
    }

    /// Rejects unknown names: with them, `load_hparams` (llama-model.cpp) would abort the process.
    fn rope_scaling(&self) -> Result<(), Error> {
        let suffix = "rope.scaling.type";
        let name = self.header.str(&self.key(suffix))?.unwrap_or("linear");
        let holds = matches!(name, "none" | "linear" | "yarn" | "longrope");
        let limit = format_args!("llama.cpp knows none, linear, yarn and longrope {LOAD}");
        self.check(holds, suffix, &format_args!("{name:?}"), &limit)
    }

    /// Rejects unknown names: with them, `load_hparams` (llama-model.cpp) would abort the process.
    fn classifier(&self) -> Result<(), Error> {
        let suffix = "classifier.activation";
        let Some(name) = self.header.str(&self.key(suffix))? else {
            return Ok(());
        };
        let limit = format_args!("llama.cpp knows gelu, silu and tanh {LOAD}");
        self.check(matches!(name, "gelu" | "silu" | "tanh"), suffix, &format_args!("{name:?}"), &limit)
    }

    /// Rejects inconsistent counts: `load_arch_hparams` (models/k2-horizon.cpp) would abort the process.
    fn value_experts(&self) -> Result<(), Error> {
        const LOAD: &str = "(models/k2-horizon.cpp, `load_arch_hparams`)";
        let count = self.or("attention.value_expert_count", 0)?;
        let used = self.or("attention.value_expert_used_count", 0)?;
        let limit = format_args!("llama.cpp takes up to 1024 {LOAD}");
        self.check(count <= MAX_EXPERTS, "attention.value_expert_count", &count, &limit)?;
        let holds = used <= count && (used > 0 || count == 0);
        let limit = format_args!("there are {count} experts {LOAD}");
        self.check(holds, "attention.value_expert_used_count", &used, &limit)
    }

    /// Rejects inconsistent counts: `load_hparams` (llama-model.cpp) would abort the process.
    fn experts(&self, n_layer: u32, n_ff: u32) -> Result<Option<Experts>, Error> {
        let mut count = self.or("expert_count", 0)?;
        let used = self.per_layer("expert_used_count", n_layer as usize)?;
        let mut used = used.into_iter().flatten().max().unwrap_or(0);
        let groups = self.or("expert_group_count", 0)?;
        let groups_used = self.or("expert_group_used_count", 0)?;
        // llama-model.cpp, `load_hparams`: a single expert means a dense model.
        if matches!(self.architecture, "hunyuan-dense" | "hunyuan_vl") && count <= 1 {
            (count, used) = (0, 0);
        }
        let there_are = || format!("there are {count} experts");
        let refused = if count > MAX_EXPERTS {
            Some(("count", count, "llama.cpp takes up to 1024".to_owned()))
        } else if used > count || (used == 0 && count > 0) {
            Some(("used_count", used, there_are()))
        } else if groups > 0 && groups >= count {
            Some(("group_count", groups, there_are()))
        } else if groups > 1 && count % groups != 0 {
            Some(("group_count", groups, format!("that does not divide the {count} experts")))
        } else if groups > 1 && !(1..groups).contains(&groups_used) {
            Some(("group_used_count", groups_used, format!("it must be 1 to {}", groups - 1)))
        } else {
            None
        };
        if let Some((suffix, value, limit)) = refused {
            self.check(false, &format!("expert_{suffix}"), &value, &format_args!("{limit} {LOAD}"))?;
        }
        if count == 0 {
            return Ok(None);
        }
        let widths = self.per_layer("expert_feed_forward_length", n_layer as usize)?;
        let widest = widths.into_iter().flatten().max();
        let n_ff = widest.filter(|&width| width > 0).unwrap_or(n_ff);
        Ok(Some(Experts { count, used, n_ff }))
    }

    /// The number of deepstack parts: the header states it, or lists for each block which part the block receives
    /// (models/granite.cpp, `load_arch_hparams`).
    fn deepstack(&self) -> Result<u32, Error> {
        let Some(Value::Array(mapping)) = self.get("deepstack_mapping") else {
            return self.or("n_deepstack_layers", 0);
        };
        let bytes = mapping.raw_bytes()?;
        Ok(bytes.as_chunks().0.iter().filter(|part| i32::from_le_bytes(**part) >= 0).count() as u32)
    }

    /// The width of the output (llama-model.cpp, `load_hparams`).
    fn n_embd_out(&self, n_embd: u32) -> Result<u32, Error> {
        match self.architecture {
            "wavtokenizer-dec" => return self.or("embedding_length", n_embd),
            // The output is one score for each token (models/vllm-decision2.cpp, `load_arch_hparams`).
            "vllm-decision2" => return Ok(1),
            // The output is one score for each kind of decision (models/lfm2.cpp, `load_arch_hparams`).
            "lfm2" if self.or("decision.block_count", 0)? > 0 => return Ok(3),
            _ => {}
        }
        // A value of 0 means that the header does not state the width (llama-hparams.cpp, `n_embd_out`).
        Ok(match self.or("embedding_length_out", n_embd)? {
            0 => n_embd,
            stated => stated,
        })
    }

    /// The vocabulary's size: the length of its list, or else the number in the header (llama-vocab.cpp, `no_vocab`),
    /// or else the number of rows of the output matrix or of the token embedding.
    fn n_vocab(&self) -> Result<u32, Error> {
        if let Some(Value::Array(tokens)) = self.header.get("tokenizer.ggml.tokens") {
            return Ok(u32::try_from(tokens.len()).unwrap_or(u32::MAX));
        }
        if let Some(n) = self.stated("vocab_size")? {
            return Ok(n);
        }
        let rows = ["output.weight", "token_embd.weight"]
            .into_iter()
            .find_map(|name| self.header.tensor(name))
            .map_or(0, |tensor| tensor.shape()[1]);
        Ok(u32::try_from(rows).unwrap_or(u32::MAX))
    }
}
