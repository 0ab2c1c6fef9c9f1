//! LoRA adapters and control vectors: what is added to a model's computation. A [`Header`] flows in; what it holds,
//! checked against the model that it is for, becomes a part of the [`ModelProfile`].
//!
//! All that llama.cpp would refuse, and what would end its process in the middle of a graph, is refused here: by file,
//! tensor, what is needed and what was found (llama-adapter.cpp, `llama_adapter_lora_init_impl`).

use std::collections::HashMap;

use crate::gguf::{self, Header, Tensor, TensorType};

use super::{ModelProfile, Weight};

/// One of the two matrices whose product is added to a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Factor {
    /// The type of its elements.
    pub ty: TensorType,
    /// Its elements along each dimension, innermost first; unused dimensions are 1.
    pub shape: [u64; 4],
    /// Its bytes (`ggml_nbytes`).
    pub bytes: u64,
}

impl Factor {
    /// A factor of a type that every backend multiplies by, or that a few do; integers and what is only ever an
    /// intermediate are none (ggml-cpu.c, `type_traits_cpu`: no `vec_dot`).
    fn of(tensor: &Tensor, file: &str) -> Result<Self, AdapterError> {
        use TensorType::{BF16, F16, F32, Q8_1, Q8_K};
        let ty = tensor.ty();
        let is_float = matches!(ty, F32 | F16 | BF16);
        if !is_float && (!ty.is_quantized() || matches!(ty, Q8_1 | Q8_K)) {
            let problem = format!("is {ty}; an adapter's are floats or quantised");
            return Err(AdapterError::tensor(file, tensor.name(), problem));
        }
        Ok(Self { ty, shape: tensor.shape(), bytes: tensor.bytes() })
    }

    /// A row of 32-bit floats.
    pub(crate) const fn of_floats(width: u64) -> Self {
        Self { ty: TensorType::F32, shape: [width, 1, 1, 1], bytes: width.saturating_mul(4) }
    }
}

/// What an adapter adds to one weight: `scale * b * a`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoraPair {
    /// The name of the weight.
    pub weight: String,
    /// `lora_a`, from the weight's inputs to the rank; of an embedding from the rank to its rows.
    pub a: Factor,
    /// `lora_b`, from the rank to the weight's outputs.
    pub b: Factor,
}

/// A LoRA adapter, as its header describes it.
///
/// ```
/// # use autoplace_planner::{gguf::Header, profile::{Lora, ModelProfile}};
/// # fn f(model: &Header) -> Result<(), Box<dyn std::error::Error>> {
/// let adapter = Lora::from_header(&Header::open("adapter.gguf")?)?;
/// let profile = ModelProfile::from_header(model)?.with_lora(&adapter)?;
/// println!("{}: {} bytes beside the model", adapter.name, adapter.bytes());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Lora {
    /// The file, or `<memory>` where the header came from there.
    pub file: String,
    /// `general.name`, or the file's stem.
    pub name: String,
    /// `general.architecture`: that of the model which it is for.
    pub architecture: String,
    /// `adapter.lora.alpha`: what is added is multiplied by `scale * alpha / rank`, or without an alpha by `scale`.
    pub alpha: Option<f32>,
    /// What it adds, weight by weight.
    pub pairs: Vec<LoraPair>,
    /// Norms that it holds and llama.cpp leaves out.
    pub ignored: usize,
}

impl Lora {
    /// Reads an adapter's header.
    ///
    /// # Errors
    ///
    /// [`AdapterError`] for a file that is no LoRA adapter, one that is activated by tokens (aLoRA), and for a tensor
    /// without its other half or of a type that nothing multiplies by.
    pub fn from_header(header: &Header) -> Result<Self, AdapterError> {
        let file = header.path().display().to_string();
        let expect = |key: &str, wanted: &'static str| match header.str(key)? {
            Some(found) if found == wanted => Ok(()),
            found => Err(AdapterError::WrongKind {
                file: file.clone(),
                key: key.to_owned(),
                found: found.map_or_else(|| "missing".to_owned(), |it| format!("`{}`", it.escape_debug())),
                wanted,
            }),
        };
        expect("general.type", "adapter")?;
        expect("adapter.type", "lora")?;
        if let Some(tokens) = header.array("adapter.alora.invocation_tokens")?
            && !tokens.is_empty()
        {
            return Err(AdapterError::Activated { file });
        }
        let architecture = header.architecture()?.to_owned();
        let alpha = header.f32("adapter.lora.alpha")?;
        let (mut pairs, mut ignored) = (Vec::new(), 0);
        for tensor in header.tensors() {
            let name = tensor.name();
            let wrong = |problem: &str| AdapterError::tensor(&file, name, problem);
            let alone = |other: &str| wrong(&format!("is there without `{other}`"));
            if let Some(weight) = name.strip_suffix(".lora_a") {
                let b = format!("{weight}.lora_b");
                let b = header.tensor(&b).ok_or_else(|| alone(&b))?;
                pairs.push(LoraPair {
                    weight: weight.to_owned(),
                    a: Factor::of(tensor, &file)?,
                    b: Factor::of(b, &file)?,
                });
            } else if let Some(weight) = name.strip_suffix(".lora_b") {
                let a = format!("{weight}.lora_a");
                header.tensor(&a).ok_or_else(|| alone(&a))?;
            } else if name.ends_with("_norm.weight") {
                ignored += 1;
            } else {
                return Err(wrong("is none of an adapter's (.lora_a, .lora_b)"));
            }
        }
        if pairs.is_empty() {
            return Err(AdapterError::Empty { file });
        }
        Ok(Self {
            name: header.title().unwrap_or_else(|| file.clone()),
            architecture,
            alpha: alpha.filter(|alpha| *alpha != 0.0),
            pairs,
            ignored,
            file,
        })
    }

    /// Bytes of its tensors, as they lie in the file.
    pub fn bytes(&self) -> u64 {
        let bytes = |pair: &LoraPair| pair.a.bytes.saturating_add(pair.b.bytes);
        self.pairs.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Checks one pair against its weight (llama-adapter.cpp, `llama_adapter_lora_init_impl`, and what the
    /// product then asserts).
    fn fits(&self, pair: &LoraPair, weight: &Weight) -> Result<(), AdapterError> {
        let LoraPair { a, b, .. } = pair;
        let [inputs, outputs, planes, beyond] = weight.shape;
        // llm_build_inp_embd looks up rows of `a`, so the two change places. It is an embedding by the end of its name.
        let (of_a, of_b) = if pair.weight.ends_with("token_embd.weight") {
            ([b.shape[0], outputs], [a.shape[0], inputs])
        } else {
            ([inputs, b.shape[0]], [a.shape[1], outputs])
        };
        for (factor, suffix, [wide, high]) in [(a, "lora_a", of_a), (b, "lora_b", of_b)] {
            if factor.shape != [wide, high, planes, beyond] {
                let tensor = format!("{}.{suffix}", pair.weight);
                let found = factor.shape.map(|n| n.to_string()).join(" x ");
                let needed = format!("{wide} x {high} x {planes} x {beyond}");
                let problem = format!("is {found}, and {needed} is needed");
                return Err(AdapterError::tensor(&self.file, &tensor, problem));
            }
        }
        Ok(())
    }
}

/// The layer whose device a weight is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    Input,
    Block(usize),
    Output,
}

/// A weight that an adapter changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Adapted {
    /// Which of the adapters.
    pub(crate) adapter: usize,
    pub(crate) weight: String,
    pub(crate) layer: Layer,
    pub(crate) a: Factor,
    pub(crate) b: Factor,
}

/// What is added to a model's computation: LoRA adapters, a control vector.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adapters {
    /// The adapters' names, in the order in which they were added.
    pub lora: Vec<String>,
    /// Whether there is a control vector.
    pub control_vector: bool,
    pub(crate) adapted: Vec<Adapted>,
}

impl Adapters {
    /// Bytes of the adapters' tensors.
    pub fn bytes(&self) -> u64 {
        let bytes = |one: &Adapted| one.a.bytes.saturating_add(one.b.bytes);
        self.adapted.iter().map(bytes).fold(0, u64::saturating_add)
    }
}

impl ModelProfile {
    /// The same model with an adapter beside it: what is estimated of it holds the adapter's bytes on the device of
    /// each weight that it changes, and the computation with any or none of the adapters.
    ///
    /// # Errors
    ///
    /// [`AdapterError`] where the adapter is of another architecture, changes a weight that this model does not have,
    /// or has another shape than it.
    pub fn with_lora(mut self, lora: &Lora) -> Result<Self, AdapterError> {
        if lora.architecture != self.architecture {
            return Err(AdapterError::Architecture {
                file: lora.file.clone(),
                model: self.name.clone(),
                found: lora.architecture.clone(),
                needed: self.architecture.clone(),
            });
        }
        let adapter = self.adapters.lora.len();
        let weights = &self.weights;
        let blocks = weights.blocks.iter().enumerate();
        let layers = blocks
            .map(|(index, block)| (&block.weights, Layer::Block(index)))
            .chain([(&weights.input, Layer::Input), (&weights.output, Layer::Output)]);
        let known: HashMap<&str, (&Weight, Layer)> =
            layers.flat_map(|(weights, layer)| weights.iter().map(move |one| (&*one.name, (one, layer)))).collect();
        let mut adapted = Vec::with_capacity(lora.pairs.len());
        for pair in &lora.pairs {
            let Some(&(weight, layer)) = known.get(pair.weight.as_str()) else {
                return Err(AdapterError::NoSuchWeight {
                    file: lora.file.clone(),
                    model: self.name.clone(),
                    weight: pair.weight.clone(),
                });
            };
            lora.fits(pair, weight)?;
            if weights.tied_output && pair.weight == "token_embd.weight" {
                // As the output matrix it would be multiplied with the factors of a lookup (llama-graph.cpp,
                // `build_lora_mm`).
                return Err(AdapterError::TiedEmbedding { file: lora.file.clone(), model: self.name.clone() });
            }
            adapted.push(Adapted { adapter, weight: pair.weight.clone(), layer, a: pair.a, b: pair.b });
        }
        self.adapters.adapted.extend(adapted);
        self.adapters.lora.push(lora.name.clone());
        Ok(self)
    }

    /// The same model with a control vector, which takes `n_embd` floats for each layer but the first, on
    /// the layer's device.
    pub const fn with_control_vector(mut self) -> Self {
        self.adapters.control_vector = true;
        self
    }
}

/// What is wrong with an adapter's file, by itself or for the model that it was given for. Each names the file, what
/// was needed and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum AdapterError {
    /// The header itself could not be read as it claims to be.
    #[error(transparent)]
    Header(#[from] gguf::Error),
    /// The file's data cannot be read.
    #[error("cannot read {file}: {reason}")]
    Unreadable { file: String, reason: String },
    /// The file is something else.
    #[error("{file} is no LoRA adapter: `{key}` is {found} and not `{wanted}`")]
    WrongKind { file: String, key: String, found: String, wanted: &'static str },
    /// An adapter that takes effect only after certain tokens (aLoRA): from the first token on it would be another one.
    #[error("{file}: an adapter that is activated by tokens (aLoRA) cannot be used here")]
    Activated { file: String },
    /// There is nothing in it.
    #[error("{file} holds no tensor that changes a model")]
    Empty { file: String },
    /// A tensor that is no half of a pair or no direction of a layer, or that does not go with its weight.
    #[error("{file}: the tensor `{tensor}` {problem}")]
    Tensor { file: String, tensor: String, problem: String },
    /// An adapter of another architecture.
    #[error("{file} is an adapter for `{found}`, and {model} is `{needed}`")]
    Architecture { file: String, model: String, found: String, needed: String },
    /// A weight that the model does not have.
    #[error("{file} changes `{weight}`, which {model} does not have")]
    NoSuchWeight { file: String, model: String, weight: String },
    /// An adapter for a token embedding that is the output matrix too: llama.cpp's process ends on it.
    #[error("{file} changes the token embedding, which in {model} is the output matrix too")]
    TiedEmbedding { file: String, model: String },
    /// A scale that is no number.
    #[error("the scale of {name} is {scale}, and a finite number is needed")]
    Scale { name: String, scale: f32 },
    /// Two adapters of one name.
    #[error("two adapters are called {name}: one needs a name of its own")]
    Twice { name: String },
    /// An adapter that the model was not loaded with.
    #[error("the model was loaded without an adapter called {name}: {}", list(present))]
    NoSuchAdapter { name: String, present: Vec<String> },
    /// A range of layers without any that a control vector could be added to.
    #[error(
        "control vectors cannot be added to the layers {first} to {last}: the first is 1 at least, and no later than the last"
    )]
    Layers { first: u32, last: u32 },
}

impl AdapterError {
    pub(super) fn tensor(file: &str, tensor: &str, problem: impl Into<String>) -> Self {
        Self::Tensor { file: file.to_owned(), tensor: tensor.to_owned(), problem: problem.into() }
    }
}

fn list(present: &[String]) -> String {
    if present.is_empty() { "it has none".into() } else { format!("it has {}", present.join(", ")) }
}
