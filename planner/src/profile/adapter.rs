//! LoRA adapters and control vectors. In: a [`Header`]. Out: its content, which is checked against the model and
//! becomes a part of the [`ModelProfile`]. Files that llama.cpp would reject, or that would abort the process while a
//! graph is built, are rejected here (llama-adapter.cpp, `llama_adapter_lora_init_impl`).

use std::collections::HashMap;

use crate::gguf::{self, Header, Tensor, TensorType};

use super::{Group, ModelProfile, Weight, WeightRole};

/// An adapter's addition to one weight: `scale * b * a`. Both factors are named after the weight.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoraPair {
    /// `lora_a`: its shape is the weight's inputs by the rank or, for an embedding, the rank by the embedding's rows.
    pub a: Weight,
    /// `lora_b`: its shape is the rank by the weight's outputs.
    pub b: Weight,
}

impl LoraPair {
    /// Bytes of both factors; saturates.
    pub(crate) fn bytes(&self) -> u64 {
        self.a.bytes.saturating_add(self.b.bytes)
    }
}

/// A LoRA adapter, as its header describes it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Lora {
    /// The file, or `<memory>` for a header in memory.
    pub file: String,
    /// `general.name`, or the file's stem.
    pub name: String,
    /// `general.architecture`: the architecture of the models that the adapter fits.
    pub architecture: String,
    /// The additions, one for each adapted weight.
    pub pairs: Vec<LoraPair>,
}

impl Lora {
    /// Reads an adapter's header.
    ///
    /// # Errors
    ///
    /// [`AdapterError`] if the file is not a LoRA adapter or is an adapter that tokens activate (aLoRA), and if a
    /// tensor lacks the other factor of its pair or has an unsupported type.
    pub fn from_header(header: &Header) -> Result<Self, AdapterError> {
        let file = header.path().display().to_string();
        let expect = |key: &str, wanted: &'static str| match header.str(key)? {
            Some(found) if found == wanted => Ok(()),
            found => {
                let found = found.map_or_else(|| "missing".to_owned(), |found| format!("`{}`", found.escape_debug()));
                let reason = format!("is not a LoRA adapter: `{key}` is {found} instead of `{wanted}`");
                Err(AdapterError::Unfit { file: file.clone(), reason })
            }
        };
        expect("general.type", "adapter")?;
        expect("adapter.type", "lora")?;
        if let Some(tokens) = header.array("adapter.alora.invocation_tokens")?
            && !tokens.is_empty()
        {
            let reason = "is activated by tokens (aLoRA), which is not supported".to_owned();
            return Err(AdapterError::Unfit { file, reason });
        }
        let architecture = header.architecture()?.to_owned();
        let mut pairs = Vec::new();
        for tensor in header.tensors() {
            let name = tensor.name();
            let wrong = |problem: &str| AdapterError::tensor(&file, name, problem);
            let alone = |other: &str| wrong(&format!("has no `{other}`"));
            if let Some(weight) = name.strip_suffix(".lora_a") {
                let b = format!("{weight}.lora_b");
                let b = header.tensor(&b).ok_or_else(|| alone(&b))?;
                pairs.push(LoraPair { a: factor(tensor, weight, &file)?, b: factor(b, weight, &file)? });
            } else if let Some(weight) = name.strip_suffix(".lora_b") {
                let a = format!("{weight}.lora_a");
                header.tensor(&a).ok_or_else(|| alone(&a))?;
            } else if !name.ends_with("_norm.weight") {
                // llama.cpp ignores norms.
                return Err(wrong("is not an adapter tensor (.lora_a, .lora_b)"));
            }
        }
        if pairs.is_empty() {
            let reason = "contains no tensor that changes a model".to_owned();
            return Err(AdapterError::Unfit { file, reason });
        }
        Ok(Self { name: header.title().unwrap_or_else(|| file.clone()), architecture, pairs, file })
    }

    /// Checks the shapes of one pair against its weight (llama-adapter.cpp, `llama_adapter_lora_init_impl`, and the
    /// asserts of ggml's matrix product).
    fn fits(&self, pair: &LoraPair, weight: &Weight) -> Result<(), AdapterError> {
        let LoraPair { a, b } = pair;
        let [inputs, outputs, planes, beyond] = weight.shape;
        // For an embedding, llm_build_inp_embd looks up rows of `a`, so the factors swap their roles. Only an
        // embedding's name has this ending.
        let (of_a, of_b) = if pair.a.name.ends_with("token_embd.weight") {
            ([b.shape[0], outputs], [a.shape[0], inputs])
        } else {
            ([inputs, b.shape[0]], [a.shape[1], outputs])
        };
        for (factor, suffix, [wide, high]) in [(a, "lora_a", of_a), (b, "lora_b", of_b)] {
            if factor.shape != [wide, high, planes, beyond] {
                let tensor = format!("{}.{suffix}", pair.a.name);
                let found = factor.shape.map(|n| n.to_string()).join(" x ");
                let needed = format!("{wide} x {high} x {planes} x {beyond}");
                let problem = format!("is {found}, but {needed} is needed");
                return Err(AdapterError::tensor(&self.file, &tensor, problem));
            }
        }
        Ok(())
    }
}

/// Reads one of the two factors of an addition and names it after its weight. Rejects types with which no backend can
/// multiply (ggml-cpu.c, `type_traits_cpu`: types without a `vec_dot`).
fn factor(tensor: &Tensor, weight: &str, file: &str) -> Result<Weight, AdapterError> {
    use TensorType::{BF16, F16, F32, Q8_1, Q8_K};
    let ty = tensor.ty();
    let is_float = matches!(ty, F32 | F16 | BF16);
    if !is_float && (!ty.is_quantized() || matches!(ty, Q8_1 | Q8_K)) {
        let problem = format!("is {ty}, but an adapter needs floats or a quantised type");
        return Err(AdapterError::tensor(file, tensor.name(), problem));
    }
    Ok(Weight { name: weight.into(), ty, shape: tensor.shape(), bytes: tensor.bytes(), role: WeightRole::Other })
}

/// The LoRA adapters and the control vector of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adapters {
    /// The adapters' names, in the order in which they were added.
    pub lora: Vec<String>,
    /// Whether there is a control vector.
    pub control_vector: bool,
    /// The additions, each with the group of the weight that it changes.
    pub(crate) adapted: Vec<(Group, LoraPair)>,
}

impl Adapters {
    /// Bytes of the adapters' tensors.
    pub fn bytes(&self) -> u64 {
        self.adapted.iter().map(|(_, pair)| pair.bytes()).fold(0, u64::saturating_add)
    }
}

impl ModelProfile {
    /// The same model with an adapter. The bytes of the adapter for a weight are on the device of that weight.
    ///
    /// # Errors
    ///
    /// [`AdapterError`] if the adapter is for another architecture, or changes a weight that the model lacks, that has
    /// another shape, or that is both the token embedding and the output matrix.
    pub fn with_lora(mut self, lora: &Lora) -> Result<Self, AdapterError> {
        let unfit = |reason| AdapterError::Unfit { file: lora.file.clone(), reason };
        if lora.architecture != self.architecture {
            let (found, needed) = (&lora.architecture, &self.architecture);
            return Err(unfit(format!("is an adapter for `{found}`, but {} is `{needed}`", self.name)));
        }
        let weights = &self.weights;
        let known: HashMap<&str, _> = weights.grouped().map(|(layer, one)| (&*one.name, (one, layer))).collect();
        let mut adapted = Vec::with_capacity(lora.pairs.len());
        for pair in &lora.pairs {
            let Some(&(weight, layer)) = known.get(&*pair.a.name) else {
                return Err(unfit(format!("changes `{}`, which {} does not have", pair.a.name, self.name)));
            };
            lora.fits(pair, weight)?;
            if weights.tied_output && &*pair.a.name == "token_embd.weight" {
                // llama.cpp would multiply the output matrix by factors whose shapes are made for a lookup
                // (llama-graph.cpp, `build_lora_mm`).
                let reason = format!("changes the token embedding, which is also the output matrix of {}", self.name);
                return Err(unfit(reason));
            }
            adapted.push((layer, pair.clone()));
        }
        self.adapters.adapted.extend(adapted);
        self.adapters.lora.push(lora.name.clone());
        Ok(self)
    }

    /// The same model with a control vector. The vector takes `n_embd` floats for each layer except the first, on the
    /// layer's device.
    pub const fn with_control_vector(mut self) -> Self {
        self.adapters.control_vector = true;
        self
    }

    /// The blocks that have a direction of the control vector, and the weight of one direction. llama.cpp allocates a
    /// direction for every block but the first, even for a block without a direction in the file (llama-adapter.cpp,
    /// `llama_adapter_cvec::init`).
    pub(crate) fn control_vector(&self) -> (std::ops::Range<usize>, Weight) {
        let blocks = if self.adapters.control_vector { 1..self.hparams.n_layer_trunk() as usize } else { 0..0 };
        let width = u64::from(self.hparams.n_embd);
        let (name, shape, bytes) = ("".into(), [width, 1, 1, 1], width.saturating_mul(4));
        (blocks, Weight { name, ty: TensorType::F32, shape, bytes, role: WeightRole::Other })
    }
}

/// A problem with an adapter's file, or with the use of the adapter for this model. Each message names the file, the
/// expected value and the value found there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum AdapterError {
    /// The header could not be read.
    #[error(transparent)]
    Header(#[from] gguf::Error),
    /// The file's data cannot be read.
    #[error("cannot read {file}: {reason}")]
    Unreadable { file: String, reason: String },
    /// The file is not an adapter or is for another model, or llama.cpp would abort on it.
    #[error("{file} {reason}")]
    Unfit { file: String, reason: String },
    /// A tensor is neither a factor of a pair nor a layer's direction, or its shape does not fit the weight to which it
    /// belongs.
    #[error("{file}: the tensor `{tensor}` {problem}")]
    Tensor { file: String, tensor: String, problem: String },
    /// The scale is not a finite number.
    #[error("the scale of {file} is {scale}, but a finite number is needed")]
    Scale { file: String, scale: f32 },
    /// Two adapters have the same name.
    #[error("two adapters are called `{name}`: each needs its own name")]
    Twice { name: String },
    /// A request names an adapter that the model was loaded without.
    #[error("the model was loaded without an adapter called `{name}`: {}", list(present))]
    NoSuchAdapter { name: String, present: Vec<String> },
    /// A range of layers contains no layer to which a control vector could be added.
    #[error(
        "control vectors cannot be added to the layers {first} to {last}: layers are numbered from 1, and the first must not be after the last"
    )]
    Layers { first: u32, last: u32 },
}

fn list(present: &[String]) -> String {
    if present.is_empty() { "it has none".into() } else { format!("it has {}", present.join(", ")) }
}

impl AdapterError {
    pub(super) fn tensor(file: &str, tensor: &str, problem: impl Into<String>) -> Self {
        Self::Tensor { file: file.to_owned(), tensor: tensor.to_owned(), problem: problem.into() }
    }
}
