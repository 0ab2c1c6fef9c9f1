//! The tensors of a loaded model: their names, types and shapes, and the memory in which each of them lies.

use super::Model;
use crate::raw;
use crate::safe::call;
use crate::safe::call::text::owned;

/// A tensor of a model, without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelTensor {
    /// The tensor's name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// ggml's number for the tensor's type, as in a GGUF file.
    pub ty: u32,
    /// The number of elements along each dimension, innermost first; an unused dimension has 1.
    pub shape: [u64; 4],
}

/// The memory in which a tensor of a model lies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorPlace {
    /// The tensor's name in the file.
    pub name: String,
    /// ggml's name of the buffer type.
    pub buffer_type: String,
    /// Whether the tensor lies in plain or pinned host memory. A load that maps the file does not allocate these
    /// tensors (llama-model-loader.cpp, `create_tensor`). False for repacked weights.
    pub on_host: bool,
}

impl Model {
    /// The tensors of the model, in no particular order. A tensor that lies on several devices is listed once.
    pub fn tensors(&self) -> Vec<ModelTensor> {
        let mut all: Vec<ModelTensor> = self
            .list_tensors()
            .iter()
            .map(|tensor| ModelTensor {
                // SAFETY: the shim has set a NUL-terminated name that lives as long as the model.
                name: unsafe { owned(tensor.name) },
                #[allow(clippy::unnecessary_cast, reason = "ggml's enum is signed for MSVC")]
                ty: tensor.type_ as u32,
                shape: tensor.ne.map(|n| u64::try_from(n).unwrap_or(0)),
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup_by(|a, b| a.name == b.name);
        all
    }

    /// The memory in which each tensor lies, or with `no_alloc` would lie. A tensor that lies on two devices is listed
    /// twice.
    pub fn tensor_places(&self) -> Vec<TensorPlace> {
        self.list_tensors()
            .iter()
            .filter(|tensor| !tensor.buft.is_null())
            .map(|tensor| TensorPlace {
                // SAFETY: tensors have NUL-terminated names that live as long as the model.
                name: unsafe { owned(tensor.name) },
                // SAFETY: registered buffer types have NUL-terminated names.
                buffer_type: unsafe { owned(raw::ggml_backend_buft_name(tensor.buft)) },
                on_host: tensor.is_host,
            })
            .collect()
    }

    /// llama.cpp's own list. If a tensor lies on several devices, the list contains it once for each of them.
    fn list_tensors(&self) -> Vec<raw::shim_tensor> {
        // SAFETY: the model is loaded, and its list never changes; the shim writes at most as many entries as there is
        // room for.
        unsafe { call::list(|tensors, room| raw::shim_model_tensors(self.as_ptr(), tensors, room)) }
    }
}
