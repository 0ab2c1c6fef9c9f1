//! Uses only llama.cpp's own API, as the reference for the library.
//!
//! In: a file, a split over devices and context parameters. Out: the loaded model, and its tokens per second by the
//! protocol of llama.cpp's llama-bench (tools/llama-bench/llama-bench.cpp, `test_prompt` and `test_gen`), which the
//! packaged source leaves out: random tokens in an empty memory, a prompt in batches, a generation of one token at a
//! time without reading logits, and synchronization with the devices.

use std::ffi::CString;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use autoplace::llama_sys::{attach_threads, raw};
use autoplace::memory::estimate::Place;
use autoplace::memory::{ContextParams, FlashAttention, Split};

/// A model with its context, created by llama.cpp's own functions.
#[derive(Debug)]
pub(crate) struct Plain {
    model: NonNull<raw::llama_model>,
    context: NonNull<raw::llama_context>,
    n_ctx: usize,
    n_batch: usize,
    dice: Dice,
}

impl Plain {
    /// Loads the model on these devices. An open rig has opened the backends.
    pub(crate) fn load(
        path: &Path,
        devices: &[String],
        split: &Split,
        params: &ContextParams,
        threads: u32,
    ) -> Result<Self> {
        let text = CString::new(path.to_str().context("a path of UTF-8")?)?;
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
            "llama.cpp takes {} devices, and there are {}",
            proportions.len(),
            split.tensor_split.len()
        );
        proportions[..split.tensor_split.len()].copy_from_slice(&split.tensor_split);

        // SAFETY: returns a plain struct.
        let mut native = unsafe { raw::llama_model_default_params() };
        native.devices = list.as_mut_ptr();
        native.n_gpu_layers = i32::try_from(split.n_gpu_layers)?;
        native.progress_callback = Some(no_dots);
        if !split.tensor_split.is_empty() {
            native.tensor_split = proportions.as_ptr();
        }
        if !split.overrides.is_empty() {
            native.tensor_buft_overrides = overrides.as_ptr();
        }
        // SAFETY: the path is NUL-terminated; every list ends as llama.h says and lives as long as the call.
        let model = unsafe { raw::llama_model_load_from_file(text.as_ptr(), native) };
        let model = NonNull::new(model).with_context(|| format!("llama.cpp cannot load {}", path.display()))?;
        // SAFETY: the model is loaded; plain numbers.
        let context = unsafe { raw::llama_init_from_model(model.as_ptr(), native_context(params, threads)) };
        let Some(context) = NonNull::new(context) else {
            // SAFETY: loaded above, and freed once.
            unsafe { raw::llama_model_free(model.as_ptr()) };
            anyhow::bail!("llama.cpp cannot make a context of {} tokens", params.n_ctx);
        };
        // SAFETY: the context lives, and was made for so many threads.
        unsafe { attach_threads(context.as_ptr(), threads) }?;
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
        Ok(Self {
            model,
            context,
            n_ctx: n_ctx as usize,
            n_batch: n_batch as usize,
            dice: Dice { state: 1, n_vocab: u64::try_from(n_vocab)?.max(1), first },
        })
    }

    /// The speed of a prompt with this many tokens, in tokens per second.
    pub(crate) fn prompt(&mut self, tokens: usize) -> Result<f64> {
        self.clear();
        let begin = Instant::now();
        for done in (0..tokens).step_by(self.n_batch) {
            let batch = self.n_batch.min(tokens - done);
            let mut batch: Vec<_> = (0..batch).map(|n| self.dice.roll(done + n == 0)).collect();
            self.decode(&mut batch)?;
        }
        self.wait();
        Ok(tokens as f64 / begin.elapsed().as_secs_f64())
    }

    /// The speed of generating this many tokens, in tokens per second.
    pub(crate) fn generation(&mut self, tokens: usize) -> Result<f64> {
        self.clear();
        let begin = Instant::now();
        for n in 0..tokens {
            let token = self.dice.roll(n == 0);
            self.decode(&mut [token])?;
            self.wait();
        }
        Ok(tokens as f64 / begin.elapsed().as_secs_f64())
    }

    /// Computes a prompt to the last position of the context. Returns its tokens.
    pub(crate) fn fill(&mut self) -> Result<usize> {
        self.prompt(self.n_ctx)?;
        Ok(self.n_ctx)
    }

    fn clear(&mut self) {
        // SAFETY: the context lives.
        unsafe { raw::llama_memory_clear(raw::llama_get_memory(self.context.as_ptr()), false) };
    }

    fn decode(&mut self, tokens: &mut [raw::llama_token]) -> Result<()> {
        let count = i32::try_from(tokens.len())?;
        // SAFETY: the context lives; the batch points to as many tokens as it says, no more than a batch may have, all
        // of the vocabulary.
        let status = unsafe {
            let batch = raw::llama_batch_get_one(tokens.as_mut_ptr(), count);
            raw::llama_decode(self.context.as_ptr(), batch)
        };
        ensure!(status == 0, "llama_decode answers {status} to {count} tokens");
        Ok(())
    }

    fn wait(&mut self) {
        // SAFETY: the context lives.
        unsafe { raw::llama_synchronize(self.context.as_ptr()) };
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: both were made by `load` and are freed once, the context first.
        unsafe {
            raw::llama_free(self.context.as_ptr());
            raw::llama_model_free(self.model.as_ptr());
        }
    }
}

/// Random tokens, the same in every process.
#[derive(Debug)]
struct Dice {
    state: u64,
    n_vocab: u64,
    /// The token at the beginning of a text, if the vocabulary has one.
    first: Option<raw::llama_token>,
}

impl Dice {
    fn roll(&mut self, begins: bool) -> raw::llama_token {
        // Knuth's linear congruential generator (MMIX). Its upper bits are the better ones.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let token = (self.state >> 33) % self.n_vocab;
        let first = self.first.filter(|_| begins);
        first.unwrap_or_else(|| i32::try_from(token).unwrap_or_default())
    }
}

/// The end of a list of overrides.
pub(crate) const NO_OVERRIDE: raw::llama_model_tensor_buft_override =
    raw::llama_model_tensor_buft_override { pattern: ptr::null(), buft: ptr::null_mut() };

/// The devices with these names, and the null that ends the list. An empty list puts everything on the host.
pub(crate) fn handles(devices: &[String]) -> Result<Vec<raw::ggml_backend_dev_t>> {
    let mut list = Vec::new();
    for name in devices {
        let text = CString::new(name.as_str())?;
        // SAFETY: the name is NUL-terminated; the registry was initialised when the rig was opened.
        let device = unsafe { raw::ggml_backend_dev_by_name(text.as_ptr()) };
        ensure!(!device.is_null(), "there is no device {name}");
        list.push(device);
    }
    list.push(ptr::null_mut());
    Ok(list)
}

/// The buffer type of a place, for a null-terminated list of devices.
pub(crate) fn memory_of(place: Place, devices: &[raw::ggml_backend_dev_t]) -> Result<raw::ggml_backend_buffer_type_t> {
    match place {
        // SAFETY: a function without arguments.
        Place::Host => Ok(unsafe { raw::ggml_backend_cpu_buffer_type() }),
        Place::Gpu(gpu) => {
            let device = devices.get(gpu).filter(|device| !device.is_null());
            let device = device.with_context(|| format!("there is no GPU {gpu}"))?;
            // SAFETY: a device that is found lives until the process ends, and has a buffer type.
            Ok(unsafe { raw::ggml_backend_dev_buffer_type(*device) })
        }
    }
}

/// The context parameters for llama.cpp, with its defaults where a plan sets nothing.
pub(crate) fn native_context(params: &ContextParams, threads: u32) -> raw::llama_context_params {
    // SAFETY: returns a plain struct.
    let mut native = unsafe { raw::llama_context_default_params() };
    native.n_ctx = params.n_ctx;
    native.n_batch = params.n_batch;
    native.n_ubatch = params.n_ubatch;
    native.n_seq_max = params.n_seq_max;
    native.n_outputs_max = params.n_outputs_max;
    native.n_threads = i32::try_from(threads).unwrap_or(i32::MAX);
    native.n_threads_batch = native.n_threads;
    native.flash_attn_type = match params.flash_attn {
        FlashAttention::On => raw::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => raw::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        _ => raw::LLAMA_FLASH_ATTN_TYPE_AUTO,
    };
    native.type_k = params.type_k.tensor_type().id() as raw::ggml_type;
    native.type_v = params.type_v.tensor_type().id() as raw::ggml_type;
    native.offload_kqv = params.offload_kqv;
    native.op_offload = params.op_offload;
    native.swa_full = params.swa_full;
    native.kv_unified = params.kv_unified;
    native
}

/// Without a progress callback, llama.cpp prints dots.
unsafe extern "C" fn no_dots(_: f32, _: *mut std::ffi::c_void) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::Dice;

    #[test]
    fn a_text_begins_as_its_vocabulary_says_and_goes_on_by_chance() {
        let mut dice = Dice { state: 1, n_vocab: 50, first: Some(49) };
        assert_eq!(dice.roll(true), 49);
        let rolls: Vec<i32> = (0..200).map(|_| dice.roll(false)).collect();
        assert!(rolls.iter().all(|token| (0..50).contains(token)));
        let kinds: std::collections::BTreeSet<i32> = rolls.iter().copied().collect();
        assert!(kinds.len() > 40, "{kinds:?}");
    }
}
