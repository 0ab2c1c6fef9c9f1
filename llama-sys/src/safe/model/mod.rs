//! A loaded model: its weights on their devices, its vocabulary, and its adapters.
//!
//! In: a path and [`ModelParams`]. Out: a [`Model`], its [`Vocab`], its tensors, and the facts that limit a context's
//! parameters.

mod adapter;
mod blueprint;
mod embedding;
mod params;
mod tensor_type;
mod tensors;
mod tokenize;
mod vocab;

use std::ffi::{CString, c_void};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use crate::raw;
use crate::safe::call::text::path_to_c;
use crate::safe::call::{self, Error};
use crate::safe::device::{Backend, Device, registry};
use params::Storage;

pub use adapter::LoraAdapter;
pub use blueprint::architectures;
pub use embedding::{EmbeddingShape, Pooling};
pub use params::{LoadMode, ModelParams, TensorOverride};
pub use tensor_type::{KvType, TensorTypeInfo, tensor_types};
pub use tensors::{ModelTensor, TensorPlace};
pub(crate) use vocab::check_token;
pub use vocab::{AddedTokens, FimTokens, Token, Vocab, WeakVocab};

/// Facts about a model's shape that limit the parameters of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelShape {
    /// Blocks, including prediction blocks.
    pub n_layer: u32,
    /// Experts of each mixture-of-experts layer; 0 for dense models.
    pub n_expert: u32,
    /// The greatest common divisor of the widths that a K head has in the layers; 0 without attention.
    pub head_k: u32,
    /// The greatest common divisor of the widths that a V head has in the layers; 0 without attention.
    pub head_v: u32,
    /// Whether a token attends only to earlier tokens.
    pub causal: bool,
}

/// The layers that can use a [cache of experts](crate::ContextParams::moe_cache_size) on a GPU. All experts of such a
/// layer lie in host memory, and the layer itself belongs to a GPU (llama-moe-cache.cpp).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoeCacheShape {
    /// The number of layers that can use a cache.
    pub n_layer: u32,
    /// The number of the model's GPUs.
    pub n_gpu: u32,
    /// The minimum size in bytes at which a cache is of use. A cache of this size has room for the experts that one
    /// token uses in the smallest of these layers, and for one expert more. 0 without such layers.
    pub least_bytes: u64,
    /// The size in bytes of a cache with room for all experts of these layers.
    pub most_bytes: u64,
    /// Whether the model is split by tensors (`LLAMA_SPLIT_MODE_TENSOR`), which excludes a cache.
    pub splits_tensors: bool,
}

/// A loaded model. Cloning is cheap. The weights are freed when the last clone and the last context have been dropped.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

/// A handle to a model. It does not keep the model loaded.
#[derive(Debug, Clone)]
struct WeakModel {
    inner: Weak<Inner>,
}

impl WeakModel {
    fn upgrade(&self) -> Option<Model> {
        self.inner.upgrade().map(|inner| Model { inner })
    }
}

struct Inner {
    raw: NonNull<raw::llama_model>,
    path: PathBuf,
    /// Whether the model has no data. With such a model nothing may be computed.
    no_alloc: bool,
    vocab_only: bool,
    /// Whether prediction blocks were loaded, if there are any.
    load_mtp: bool,
    devices: Vec<Device>,
    /// Guards the model's list of adapters, which contexts read while they reserve their graphs (llama-context.cpp,
    /// `graph_max_nodes`).
    adapters: RwLock<()>,
    /// The memory that the parameters point to. It must stay alive, because llama.cpp keeps the pointers.
    _storage: Storage,
}

// SAFETY: after loading, llama.cpp only reads a model (every use goes through `const llama_model &`); contexts on
// several threads share a model, as in its own server.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: created by the shim and freed once; contexts hold an `Arc` of this.
        unsafe { raw::shim_model_free(self.raw.as_ptr()) };
    }
}

struct Progress {
    callback: Box<dyn FnMut(f32) -> bool + Send>,
    cancelled: bool,
    panic: Option<Box<dyn std::any::Any + Send>>,
}

impl Model {
    /// Loads a GGUF file; for a split model, give the first file.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for parameters that llama.cpp would abort on, [`Error::Unreadable`] for a path
    /// without a readable file, [`Error::LoadCancelled`], and [`Error::ModelLoad`] with the reason for every other
    /// failure; [`Error::out_of_memory`] says which allocation failed.
    ///
    /// # Panics
    ///
    /// If the progress callback panics, the load is cancelled, and then the panic continues.
    pub fn load(path: impl AsRef<Path>, mut params: ModelParams) -> Result<Self, Error> {
        let path = path.as_ref();
        let backend = Backend::init()?;
        // llama.cpp reads ggml's registry throughout the load.
        let _unchanged = registry::reading();
        params.check(backend)?;
        readable(path)?;
        let text = path_to_c(path)?;
        let storage = Storage::new(&params)?;

        let mut native = storage.native(&params);

        let mut progress = params.progress.take().map(|callback| Progress { callback, cancelled: false, panic: None });
        if let Some(progress) = &mut progress {
            native.progress_callback = Some(on_progress);
            native.progress_callback_user_data = ptr::from_mut(progress).cast();
        } else {
            // Without a callback, llama.cpp prints dots as its progress.
            native.progress_callback = Some(no_progress);
        }

        let loaded = call::accepted(
            // SAFETY: the path is NUL-terminated; `native` points into `storage` and `progress`, which outlive
            // the call.
            |error| unsafe { raw::shim_model_load(text.as_ptr(), &raw const native, error) },
            |model| !model.is_null(),
        );
        if let Some(progress) = progress {
            if let Some(payload) = progress.panic {
                panic::resume_unwind(payload);
            }
            if progress.cancelled && loaded.is_err() {
                return Err(Error::LoadCancelled { path: path.to_owned() });
            }
        }
        let model = loaded.map_err(|failure| Error::ModelLoad { path: path.to_owned(), failure })?;
        let raw = NonNull::new(model).expect("accepted above");
        Ok(Self::adopt(raw, path, &params, storage))
    }

    /// Takes over a model that llama.cpp has just loaded with these parameters.
    fn adopt(raw: NonNull<raw::llama_model>, path: &Path, params: &ModelParams, storage: Storage) -> Self {
        let model = raw.as_ptr();
        // SAFETY: the model is loaded; indices below the count.
        let devices = unsafe {
            (0..raw::shim_model_n_devices(model))
                .filter_map(|index| Device::from_raw(raw::shim_model_device(model, index)))
                .collect()
        };
        Self {
            inner: Arc::new(Inner {
                raw,
                path: path.to_owned(),
                no_alloc: params.no_alloc,
                vocab_only: params.vocab_only,
                load_mtp: params.load_mtp,
                devices,
                adapters: RwLock::new(()),
                _storage: storage,
            }),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut raw::llama_model {
        self.inner.raw.as_ptr()
    }

    /// A lock for readers of the model's list of adapters. While it is held, no adapter of the model is loaded or
    /// freed.
    pub(crate) fn adapters(&self) -> RwLockReadGuard<'_, ()> {
        let adapters = self.inner.adapters.read();
        adapters.unwrap_or_else(PoisonError::into_inner)
    }

    /// A lock for changing the model's list of adapters. While it is held, nobody reads the list.
    pub(crate) fn change_adapters(&self) -> RwLockWriteGuard<'_, ()> {
        let adapters = self.inner.adapters.write();
        adapters.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are handles of the same load.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// How many handles keep the model loaded, including this one: clones, contexts, vocabularies, adapters, and
    /// samplers with a grammar. The model is freed when the last of them is dropped.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.inner)
    }

    fn downgrade(&self) -> WeakModel {
        WeakModel { inner: Arc::downgrade(&self.inner) }
    }

    /// The file that the model was loaded from.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Whether the model was loaded with `no_alloc`, so that it has sizes but no data.
    pub fn is_no_alloc(&self) -> bool {
        self.inner.no_alloc
    }

    pub(crate) fn is_vocab_only(&self) -> bool {
        self.inner.vocab_only
    }

    /// The devices on which parts of the model lie, without the host.
    pub fn devices(&self) -> &[Device] {
        &self.inner.devices
    }

    /// Facts about the shape that limit the parameters of a context.
    pub fn shape(&self) -> ModelShape {
        // SAFETY: the shim fills every field of the struct, whose all-zero state is valid.
        let shape = unsafe {
            let mut shape: raw::shim_model_shape = std::mem::zeroed();
            raw::shim_model_shape(self.as_ptr(), &raw mut shape);
            shape
        };
        ModelShape {
            n_layer: shape.n_layer,
            n_expert: shape.n_expert,
            head_k: shape.head_k_block,
            head_v: shape.head_v_block,
            causal: shape.causal,
        }
    }

    /// The layers that can use a cache of experts, and the sizes of a cache for them. A model without data returns the
    /// same as one with data.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for a model that was loaded with its vocabulary only.
    pub fn moe_cache_shape(&self) -> Result<MoeCacheShape, Error> {
        if self.is_vocab_only() {
            return Err(Error::parameter("vocab_only", true, "a model without tensors has no layers"));
        }
        // SAFETY: the model lives and has its layers. The shim fills every field of the struct, whose all-zero state is
        // valid.
        let shape = unsafe {
            let mut shape: raw::shim_moe_cache_shape = std::mem::zeroed();
            raw::shim_model_moe_cache_shape(self.as_ptr(), &raw mut shape);
            shape
        };
        Ok(MoeCacheShape {
            n_layer: shape.n_layer,
            n_gpu: shape.n_gpu,
            least_bytes: shape.least,
            most_bytes: shape.most,
            splits_tensors: shape.splits_tensors,
        })
    }

    /// Context length in tokens that the model was trained with.
    pub fn n_ctx_train(&self) -> u32 {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_n_ctx_train(self.as_ptr()) }.try_into().unwrap_or(0)
    }

    /// The number of blocks that predict further tokens, if they are loaded ([`ModelParams::load_mtp`]).
    pub fn n_layer_nextn(&self) -> u32 {
        if !self.inner.load_mtp {
            return 0;
        }
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_n_layer_nextn(self.as_ptr()) }.try_into().unwrap_or(0)
    }

    /// The number of blocks without the prediction blocks: llama.cpp's `n_layer`.
    pub fn n_layer(&self) -> u32 {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_n_layer(self.as_ptr()) }.try_into().unwrap_or(0)
    }

    /// Width of the embedding.
    pub fn n_embd(&self) -> u32 {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_n_embd(self.as_ptr()) }.try_into().unwrap_or(0)
    }

    /// Number of weights.
    pub fn n_params(&self) -> u64 {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_n_params(self.as_ptr()) }
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_size(self.as_ptr()) }
    }

    /// llama.cpp's one-line description, such as `llama 8B Q4_K - Medium`.
    pub fn description(&self) -> String {
        self.text(|buf, size| {
            // SAFETY: llama.cpp writes at most `size` bytes, NUL included (snprintf).
            unsafe { raw::llama_model_desc(self.as_ptr(), buf, size) }
        })
        .unwrap_or_default()
    }

    /// A scalar value from the GGUF's metadata, as text.
    pub fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        self.text(|buf, size| {
            // SAFETY: as in `description`; the key is NUL-terminated.
            unsafe { raw::llama_model_meta_val_str(self.as_ptr(), key.as_ptr(), buf, size) }
        })
    }

    /// True for models with an encoder (T5, BERT).
    pub fn has_encoder(&self) -> bool {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_has_encoder(self.as_ptr()) }
    }

    /// True for models with a decoder, which can generate.
    pub fn has_decoder(&self) -> bool {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_has_decoder(self.as_ptr()) }
    }

    /// True for models that fill in a whole text at once and do not continue a text token by token (LLaDA, Dream).
    pub fn is_diffusion(&self) -> bool {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_is_diffusion(self.as_ptr()) }
    }

    /// The size of the sliding window in tokens, in the layers that have one; 0 without a window.
    pub fn n_swa(&self) -> u32 {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_n_swa(self.as_ptr()) }.try_into().unwrap_or(0)
    }

    /// True for models such as Mamba and RWKV, whose state is not a list of positions.
    pub fn is_recurrent(&self) -> bool {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_is_recurrent(self.as_ptr()) }
    }

    /// True for models that mix attention with recurrent layers.
    pub fn is_hybrid(&self) -> bool {
        // SAFETY: the model is loaded.
        unsafe { raw::llama_model_is_hybrid(self.as_ptr()) }
    }

    /// Calls a function with the interface of `snprintf` twice: first for the length, then for the text.
    fn text(&self, read: impl Fn(*mut std::ffi::c_char, usize) -> i32) -> Option<String> {
        let length = usize::try_from(read(ptr::null_mut(), 0)).ok()?;
        let mut buffer = vec![0u8; length + 1];
        read(buffer.as_mut_ptr().cast(), buffer.len());
        buffer.truncate(length);
        Some(String::from_utf8_lossy(&buffer).into_owned())
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("path", &self.inner.path)
            .field("devices", &self.inner.devices)
            .finish_non_exhaustive()
    }
}

/// A missing file is the most common error, so it gets a better message than llama.cpp's log line.
pub(in crate::safe) fn readable(path: &Path) -> Result<(), Error> {
    let unreadable = |reason: String| Error::Unreadable { path: path.to_owned(), reason };
    let file = std::fs::File::open(path).map_err(|e| unreadable(e.to_string()))?;
    let metadata = file.metadata().map_err(|e| unreadable(e.to_string()))?;
    if metadata.is_dir() {
        return Err(unreadable("it is a folder, not a file".into()));
    }
    Ok(())
}

unsafe extern "C" fn no_progress(_progress: f32, _user_data: *mut c_void) -> bool {
    true
}

unsafe extern "C" fn on_progress(progress: f32, user_data: *mut c_void) -> bool {
    // SAFETY: `load` passes a `Progress` that outlives the call; llama.cpp calls back only on the loading thread.
    let state = unsafe { &mut *user_data.cast::<Progress>() };
    match panic::catch_unwind(AssertUnwindSafe(|| (state.callback)(progress))) {
        Ok(true) => true,
        Ok(false) => {
            state.cancelled = true;
            false
        }
        Err(payload) => {
            state.panic = Some(payload);
            false
        }
    }
}
