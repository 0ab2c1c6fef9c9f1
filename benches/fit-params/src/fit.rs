//! llama.cpp's own fit, called through llama-cpp-sys-2, on the simulated card.

use std::ffi::{CStr, CString, c_int};
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, bail, ensure};
use autoplace::memory::estimate::Place;
use autoplace::memory::{Split, TensorOverride};
use llama_cpp_sys_2 as sys;

unsafe extern "C" {
    fn fit_params_card(total: usize);
    fn fit_params_contexts() -> usize;
}

/// What llama.cpp's fit answers.
#[derive(Default)]
pub(crate) struct Fitted {
    /// On the card, the output layer counted; negative: all.
    pub(crate) layers: i32,
    /// Parts of layers that are moved to the host by patterns: it does that with experts.
    pub(crate) overrides: Vec<TensorOverride>,
    /// Loads without allocation that it took.
    pub(crate) loads: usize,
}

/// Gives the simulated card so many bytes, all of them free.
pub(crate) fn set_card(bytes: usize) {
    // SAFETY: no other thread uses ggml.
    unsafe { fit_params_card(bytes) };
}

/// llama.cpp's fit for so many tokens of context, with `margin` bytes of the card left free.
pub(crate) fn fit(path: &Path, n_ctx: u32, margin: u64) -> Result<Fitted> {
    // SAFETY: functions without arguments.
    let (model, before) = unsafe { (sys::llama_model_default_params(), fit_params_contexts()) };
    let mut overrides = no_overrides();
    let (status, layers) = call(path, n_ctx, margin, model, &mut overrides)?;
    ensure!(status == 0, "common_fit_params answered {status}");
    // SAFETY: as above.
    let after = unsafe { fit_params_contexts() };
    Ok(Fitted {
        layers,
        overrides: read(&overrides)?,
        loads: after - before,
    })
}

/// Whether a split leaves `margin` bytes of the card free by the fit's own reckoning: then it changes nothing, else it refuses, since
/// it does not change what somebody has chosen.
pub(crate) fn leaves_free(path: &Path, n_ctx: u32, margin: u64, split: &Split) -> Result<bool> {
    // SAFETY: functions without arguments.
    let (mut model, host) = unsafe {
        (
            sys::llama_model_default_params(),
            sys::ggml_backend_cpu_buffer_type(),
        )
    };
    model.n_gpu_layers = i32::try_from(split.n_gpu_layers)?;
    let patterns = split.overrides.iter();
    let patterns: Vec<CString> = patterns
        .map(|one| {
            ensure!(one.place == Place::Host, "there is one card");
            Ok(CString::new(one.pattern.as_str())?)
        })
        .collect::<Result<_>>()?;
    let overrides: Vec<_> = patterns
        .iter()
        .map(|pattern| override_of(pattern.as_ptr(), host))
        .chain([override_of(ptr::null(), ptr::null_mut())])
        .collect();
    model.tensor_buft_overrides = overrides.as_ptr();
    match call(path, n_ctx, margin, model, &mut no_overrides())? {
        (0, _) => Ok(true),
        (1, _) => Ok(false),
        (status, _) => bail!("common_fit_params answered {status}"),
    }
}

type Override = sys::llama_model_tensor_buft_override;

const fn override_of(
    pattern: *const std::ffi::c_char,
    buft: sys::ggml_backend_buffer_type_t,
) -> Override {
    Override { pattern, buft }
}

/// Room for as many overrides as the fit may write, and the end.
fn no_overrides() -> Vec<Override> {
    // SAFETY: a function without arguments.
    let most = unsafe { sys::llama_max_tensor_buft_overrides() };
    vec![override_of(ptr::null(), ptr::null_mut()); most + 1]
}

/// The fit's status, and the layers on the card that it made of `model`.
fn call(
    path: &Path,
    n_ctx: u32,
    margin: u64,
    mut model: sys::llama_model_params,
    overrides: &mut [Override],
) -> Result<(c_int, i32)> {
    let path = CString::new(path.to_str().context("a path of UTF-8")?)?;
    let mut margins = [usize::try_from(margin)?; 16];
    // SAFETY: functions without arguments.
    let (mut context, devices) = unsafe {
        (
            sys::llama_context_default_params(),
            sys::llama_max_devices(),
        )
    };
    ensure!(
        devices <= margins.len(),
        "llama.cpp takes {devices} devices"
    );
    context.n_ctx = n_ctx;
    context.n_outputs_max = 1;
    // As llama.cpp's tools call it (common.h, `common_params`), and as our plans have it.
    context.swa_full = false;
    let mut split = vec![0.0f32; devices];
    // SAFETY: every buffer has the length that common/fit.h asks for and outlives the call; no other thread uses llama.cpp.
    let status = unsafe {
        sys::llama_rs_fit_params(
            path.as_ptr(),
            &raw mut model,
            &raw mut context,
            split.as_mut_ptr(),
            overrides.as_mut_ptr(),
            margins.as_mut_ptr(),
            n_ctx,
            ptr::null_mut(),
            sys::GGML_LOG_LEVEL_ERROR,
        )
    };
    ensure!(context.n_ctx == n_ctx, "the fit changed the context");
    Ok((status, model.n_gpu_layers))
}

/// The overrides up to the first without a pattern.
fn read(overrides: &[Override]) -> Result<Vec<TensorOverride>> {
    // SAFETY: a function without arguments.
    let host = unsafe { sys::ggml_backend_cpu_buffer_type() };
    let written = overrides.iter().take_while(|one| !one.pattern.is_null());
    written
        .map(|one| {
            ensure!(one.buft == host, "the fit moves weights elsewhere");
            // SAFETY: not null, and of common_fit_params, whose patterns are static strings.
            let pattern = unsafe { CStr::from_ptr(one.pattern) };
            Ok(TensorOverride::new(pattern.to_str()?, Place::Host))
        })
        .collect()
}
