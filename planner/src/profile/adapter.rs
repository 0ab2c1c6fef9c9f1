//! LoRA adapters and control vectors: what is added to a model's computation. A [`Header`] flows in; what it holds,
//! checked against the model that it is for, becomes a part of the [`ModelProfile`].
//!
//! All that llama.cpp would refuse, and what would end its process in the middle of a graph, is refused here: by file,
//! tensor, what is needed and what was found (llama-adapter.cpp, `llama_adapter_lora_init_impl`).

use crate::gguf::{Header, Tensor, TensorType};

use super::adapter_error::AdapterError;
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
    fn of(tensor: &Tensor) -> Self {
        Self {
            ty: tensor.ty(),
            shape: tensor.shape(),
            bytes: tensor.bytes(),
        }
    }

    /// A row of 32-bit floats.
    pub(crate) const fn of_floats(width: u64) -> Self {
        Self {
            ty: TensorType::F32,
            shape: [width, 1, 1, 1],
            bytes: width.saturating_mul(4),
        }
    }

    /// What every backend multiplies by, and a few that only some do; integers and what is only ever an intermediate
    /// are not (ggml-cpu.c, `type_traits_cpu`: no `vec_dot`).
    const fn is_multiplied(&self) -> bool {
        matches!(
            self.ty,
            TensorType::F32 | TensorType::F16 | TensorType::BF16
        ) || (self.ty.is_quantized() && !matches!(self.ty, TensorType::Q8_1 | TensorType::Q8_K))
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
                found: found.map_or_else(|| "missing".to_owned(), |found| format!("`{found}`")),
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
        let mut lora = Self {
            name: name_of(header, &file),
            architecture: header.architecture()?.to_owned(),
            alpha: header
                .f32("adapter.lora.alpha")?
                .filter(|alpha| *alpha != 0.0),
            pairs: Vec::new(),
            ignored: 0,
            file,
        };
        for tensor in header.tensors() {
            lora.take(header, &tensor)?;
        }
        if lora.pairs.is_empty() {
            return Err(AdapterError::Empty { file: lora.file });
        }
        Ok(lora)
    }

    fn take(&mut self, header: &Header, tensor: &Tensor) -> Result<(), AdapterError> {
        let name = tensor.name();
        let Some(weight) = name.strip_suffix(".lora_a") else {
            let half = name.strip_suffix(".lora_b");
            if half.is_none() && name.ends_with("_norm.weight") {
                self.ignored += 1;
                return Ok(());
            }
            let Some(weight) = half else {
                return Err(AdapterError::UnknownTensor {
                    file: self.file.clone(),
                    tensor: name.to_owned(),
                });
            };
            return match header.tensor(&format!("{weight}.lora_a")) {
                Some(_) => Ok(()),
                None => Err(self.half(name, format!("{weight}.lora_a"))),
            };
        };
        let b = format!("{weight}.lora_b");
        let Some(other) = header.tensor(&b) else {
            return Err(self.half(name, b));
        };
        for tensor in [tensor, &other] {
            if !Factor::of(tensor).is_multiplied() {
                return Err(AdapterError::Type {
                    file: self.file.clone(),
                    tensor: tensor.name().to_owned(),
                    found: tensor.ty(),
                });
            }
        }
        self.pairs.push(LoraPair {
            weight: weight.to_owned(),
            a: Factor::of(tensor),
            b: Factor::of(&other),
        });
        Ok(())
    }

    fn half(&self, tensor: &str, missing: String) -> AdapterError {
        AdapterError::Half {
            file: self.file.clone(),
            tensor: tensor.to_owned(),
            missing,
        }
    }

    /// Bytes of its tensors, as they lie in the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = |pair: &LoraPair| pair.a.bytes.saturating_add(pair.b.bytes);
        self.pairs.iter().map(bytes).fold(0, u64::saturating_add)
    }

    fn shape(&self, tensor: String, needed: String, found: [u64; 4]) -> AdapterError {
        let found: Vec<String> = found.iter().map(u64::to_string).collect();
        AdapterError::Shape {
            file: self.file.clone(),
            tensor,
            needed,
            found: found.join(" x "),
        }
    }

    /// Checks one pair against its weight (llama-adapter.cpp, `llama_adapter_lora_init_impl`, and what the
    /// product then asserts).
    fn fits(&self, pair: &LoraPair, weight: &Weight) -> Result<(), AdapterError> {
        let LoraPair { a, b, .. } = pair;
        let [inputs, outputs, planes, beyond] = weight.shape;
        // llm_build_inp_embd looks up rows of `a`, so the two change places.
        let (of_a, of_b) = if is_embedding(&pair.weight) {
            ([b.shape[0], outputs], [a.shape[0], inputs])
        } else {
            ([inputs, b.shape[0]], [a.shape[1], outputs])
        };
        for (factor, suffix, [wide, high]) in [(a, "lora_a", of_a), (b, "lora_b", of_b)] {
            if factor.shape != [wide, high, planes, beyond] {
                let needed = format!("{wide} x {high} x {planes} x {beyond}");
                let tensor = format!("{}.{suffix}", pair.weight);
                return Err(self.shape(tensor, needed, factor.shape));
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
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.lora.is_empty() && !self.control_vector
    }

    /// Bytes of the adapters' tensors.
    #[must_use]
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
        let blocks = blocks.flat_map(|(index, block)| {
            let weights = block.weights.iter();
            weights.map(move |weight| (weight, Layer::Block(index)))
        });
        let input = weights.input.iter().map(|one| (one, Layer::Input));
        let output = weights.output.iter().map(|one| (one, Layer::Output));
        let known: std::collections::HashMap<&str, (&Weight, Layer)> = input
            .chain(output)
            .chain(blocks)
            .map(|(weight, layer)| (weight.name.as_str(), (weight, layer)))
            .collect();
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
                return Err(AdapterError::TiedEmbedding {
                    file: lora.file.clone(),
                    model: self.name.clone(),
                });
            }
            adapted.push(Adapted {
                adapter,
                weight: pair.weight.clone(),
                layer,
                a: pair.a,
                b: pair.b,
            });
        }
        self.adapters.adapted.extend(adapted);
        self.adapters.lora.push(lora.name.clone());
        Ok(self)
    }

    /// The same model with a control vector, which takes `n_embd` floats for each layer but the first, on
    /// the layer's device.
    #[must_use]
    pub const fn with_control_vector(mut self) -> Self {
        self.adapters.control_vector = true;
        self
    }
}

/// By the end of the name: llama-adapter.cpp, `llama_adapter_lora_init_impl`.
fn is_embedding(weight: &str) -> bool {
    weight.ends_with("token_embd.weight")
}

/// What people call the file.
fn name_of(header: &Header, file: &str) -> String {
    let stem = || {
        header
            .path()
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
    };
    let stated = header.name().map(str::to_owned);
    stated.or_else(stem).unwrap_or_else(|| file.to_owned())
}
