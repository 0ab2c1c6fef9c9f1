//! A model with its context, made by llama.cpp's own functions.

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context as _, Result, bail, ensure};
use autoplace_planner::memory::{ContextParams, Split};
use llama_sys::{Backend, attach_threads, raw};

use crate::devices::{NO_OVERRIDE, handles, memory_of};
use crate::dice::Dice;
use crate::params::native_context;

/// A model with its context.
#[derive(Debug)]
pub struct Bare {
    model: NonNull<raw::llama_model>,
    context: NonNull<raw::llama_context>,
    pub(super) n_ctx: usize,
    pub(super) n_batch: usize,
    /// The number of tokens of sequence 0 in the context.
    pub(super) depth: usize,
    pub(super) dice: Dice,
}

impl Bare {
    /// Loads a model with llama.cpp's defaults, except for the parameters of the context that `set` changes.
    ///
    /// # Errors
    ///
    /// llama.cpp does not load the model, or does not make a context.
    pub fn load(
        path: &Path,
        n_gpu_layers: u32,
        threads: u32,
        set: impl FnOnce(&mut raw::llama_context_params),
    ) -> Result<Self> {
        Backend::init()?;
        // SAFETY: both return plain structs.
        let (mut model, mut context) =
            unsafe { (raw::llama_model_default_params(), raw::llama_context_default_params()) };
        model.n_gpu_layers = i32::try_from(n_gpu_layers)?;
        context.n_threads = i32::try_from(threads)?;
        context.n_threads_batch = context.n_threads;
        set(&mut context);
        // SAFETY: the parameters are defaults with plain numbers changed.
        unsafe { Self::open(path, model, context, threads) }
    }

    /// Loads a model on these devices (`CUDA0`, `SIM0`) with the split of a plan. Without devices the whole model is on
    /// the host.
    ///
    /// # Errors
    ///
    /// No device has one of the names; llama.cpp does not load the model, or does not make a context.
    pub fn with_split(
        path: &Path,
        devices: &[String],
        split: &Split,
        params: &ContextParams,
        threads: u32,
    ) -> Result<Self> {
        let mut list = handles(devices)?;
        let patterns: Vec<CString> =
            split.overrides.iter().map(|rule| CString::new(rule.pattern.as_str())).collect::<Result<_, _>>()?;
        let mut overrides = Vec::new();
        for (rule, pattern) in split.overrides.iter().zip(&patterns) {
            overrides.push(raw::llama_model_tensor_buft_override {
                pattern: pattern.as_ptr(),
                buft: memory_of(rule.place, &list)?,
            });
        }
        overrides.push(NO_OVERRIDE);
        // SAFETY: a function without arguments.
        let mut proportions = vec![0.0_f32; unsafe { raw::llama_max_devices() }];
        ensure!(
            split.tensor_split.len() <= proportions.len(),
            "llama.cpp accepts {} devices, but there are {}",
            proportions.len(),
            split.tensor_split.len()
        );
        proportions[..split.tensor_split.len()].copy_from_slice(&split.tensor_split);

        // SAFETY: returns a plain struct.
        let mut native = unsafe { raw::llama_model_default_params() };
        native.devices = list.as_mut_ptr();
        native.n_gpu_layers = i32::try_from(split.n_gpu_layers)?;
        if !split.tensor_split.is_empty() {
            native.tensor_split = proportions.as_ptr();
        }
        if !split.overrides.is_empty() {
            native.tensor_buft_overrides = overrides.as_ptr();
        }
        // SAFETY: every list ends as llama.h says and lives as long as the call.
        unsafe { Self::open(path, native, native_context(params, threads), threads) }
    }

    /// # Safety
    ///
    /// The objects that the model's parameters point to live as long as the call.
    unsafe fn open(
        path: &Path,
        mut params: raw::llama_model_params,
        context: raw::llama_context_params,
        threads: u32,
    ) -> Result<Self> {
        let text = CString::new(path.to_str().context("a path of UTF-8")?)?;
        params.progress_callback = Some(no_dots);
        // SAFETY: the path is NUL-terminated; the parameters are the caller's promise.
        let model = unsafe { raw::llama_model_load_from_file(text.as_ptr(), params) };
        let model = NonNull::new(model).with_context(|| format!("llama.cpp cannot load {}", path.display()))?;
        let n_ctx = context.n_ctx;
        // SAFETY: the model is loaded; plain numbers.
        let context = unsafe { raw::llama_init_from_model(model.as_ptr(), context) };
        let Some(context) = NonNull::new(context) else {
            // SAFETY: loaded above, and freed once.
            unsafe { raw::llama_model_free(model.as_ptr()) };
            bail!("llama.cpp cannot make a context of {n_ctx} tokens");
        };
        // SAFETY: model and context live.
        let (n_ctx, n_batch, n_vocab, first) = unsafe {
            let vocab = raw::llama_model_get_vocab(model.as_ptr());
            (
                raw::llama_n_ctx(context.as_ptr()),
                raw::llama_n_batch(context.as_ptr()),
                raw::llama_vocab_n_tokens(vocab),
                raw::llama_vocab_get_add_bos(vocab).then(|| raw::llama_vocab_bos(vocab)),
            )
        };
        let dice = Dice::new(n_vocab, first);
        let bare = Self { model, context, n_ctx: n_ctx as usize, n_batch: n_batch as usize, depth: 0, dice };
        // SAFETY: the context lives, is not computing, and was made for this number of threads.
        unsafe { attach_threads(bare.context.as_ptr(), threads) }?;
        Ok(bare)
    }

    /// Empties the memory of the context.
    pub fn clear(&mut self) {
        // SAFETY: the context lives.
        unsafe { raw::llama_memory_clear(raw::llama_get_memory(self.context.as_ptr()), true) };
        self.depth = 0;
    }

    pub(super) fn context(&mut self) -> *mut raw::llama_context {
        self.context.as_ptr()
    }

    /// The vocabulary. The pointer is valid as long as this value lives.
    pub(super) fn vocab(&self) -> *const raw::llama_vocab {
        // SAFETY: the model lives.
        unsafe { raw::llama_model_get_vocab(self.model.as_ptr()) }
    }

    /// The tokens of a text. With `add_special`, they have the tokens that the model adds around a text; with
    /// `parse_special`, the texts of control tokens become these tokens.
    ///
    /// # Panics
    ///
    /// The text has more than 500 MiB.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<raw::llama_token> {
        // A text has at most one token for each byte, a space counts as three bytes, and there may be tokens around the
        // text.
        let mut tokens = vec![0; 3 * text.len() + 8];
        // SAFETY: the vocabulary lives; both buffers have the stated lengths.
        let count = unsafe {
            raw::llama_tokenize(
                self.vocab(),
                text.as_ptr().cast(),
                text.len() as i32,
                tokens.as_mut_ptr(),
                tokens.len() as i32,
                add_special,
                parse_special,
            )
        };
        tokens.truncate(usize::try_from(count).expect("there is room for all"));
        tokens
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: both were made by `open` and are freed once, the context first.
        unsafe {
            raw::llama_free(self.context.as_ptr());
            raw::llama_model_free(self.model.as_ptr());
        }
    }
}

/// A callback that does nothing: without a progress callback, llama.cpp prints dots.
unsafe extern "C" fn no_dots(_: f32, _: *mut std::ffi::c_void) -> bool {
    true
}
