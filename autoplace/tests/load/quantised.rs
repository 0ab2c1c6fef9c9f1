//! The planner predicts the tensors of another quantisation. They are compared with those of llama.cpp's own quantiser.
//! In every architecture, every tensor must get the same type.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Mutex;

use autoplace::gguf::{Header, TensorType as T};
use autoplace::llama_sys::raw::{
    ggml_log_level, llama_log_set, llama_model_quantize_default_params, llama_model_quantize_params,
};
use autoplace::llama_sys::{self, Backend};
use autoplace::profile::{ModelProfile, Quantisation as Q, Weight};

use test_support::dims::Experts;
use test_support::shapes::{LLAMA_8B, Shape};

unsafe extern "C" {
    /// A function of llama.h. It is not in the bindings, because the library does not need it.
    fn llama_model_quantize(from: *const c_char, to: *const c_char, params: *const llama_model_quantize_params) -> u32;
}

/// The text that the quantiser has printed.
static SAID: Mutex<String> = Mutex::new(String::new());

unsafe extern "C" fn hear(_: ggml_log_level, text: *const c_char, _: *mut c_void) {
    // SAFETY: llama.cpp passes a text that ends with a NUL (llama-impl.cpp, `llama_log_internal_v`).
    let text = unsafe { CStr::from_ptr(text) };
    SAID.lock().unwrap().push_str(&text.to_string_lossy());
}

/// The number of a quantisation in llama.cpp (llama.h, `llama_ftype`).
fn file_type(quantisation: Q) -> u32 {
    match quantisation {
        Q::Q8_0 => 7,
        Q::Q2_K => 10,
        Q::Q3_K_S => 11,
        Q::Q3_K_M => 12,
        Q::Q3_K_L => 13,
        Q::Q4_K_S => 14,
        Q::Q4_K_M => 15,
        Q::Q5_K_S => 16,
        Q::Q5_K_M => 17,
        Q::Q6_K => 18,
        Q::IQ3_XS => 22,
        Q::IQ3_M => 27,
        Q::IQ2_M => 29,
        Q::IQ4_XS => 30,
        other => panic!("{other} has no number here"),
    }
}

/// The type that llama.cpp would give to each tensor of a file, in capitals; `None` if it refuses the file.
fn types(path: &Path, quantisation: Q) -> Option<BTreeMap<String, String>> {
    // SAFETY: the function has no conditions.
    let mut params = unsafe { llama_model_quantize_default_params() };
    params.nthread = 1;
    params.ftype = file_type(quantisation);
    params.allow_requantize = true;
    // With this, llama.cpp only chooses the types and prints them (tools/quantize, `--dry-run`).
    params.dry_run = true;
    let from = CString::new(path.to_str().unwrap()).unwrap();
    SAID.lock().unwrap().clear();
    // SAFETY: the paths end with a NUL and live longer than the call, and the parameters point to nothing else. The
    // function returns its errors (llama-quant.cpp, `llama_model_quantize`).
    let refused = unsafe { llama_model_quantize(from.as_ptr(), c"".as_ptr(), &raw const params) } != 0;
    (!refused).then(|| SAID.lock().unwrap().lines().filter_map(tensor).collect())
}

/// Parses `[ 1/ 272] NAME - [ 576, 49152, 1, 1], type = q4_1, size = 17 MiB -> 29 MiB (q8_0)`. Returns the name and the
/// type: the new one at the end of the line, or the old one if there is no new type.
fn tensor(line: &str) -> Option<(String, String)> {
    let (name, rest) = line.strip_prefix('[')?.split_once("] ")?.1.split_once(" - [")?;
    let now = rest.split_once("type =")?.1.split_once(',')?.0;
    let other = line.strip_suffix(')').and_then(|line| Some(line.rsplit_once('(')?.1));
    // In ggml, the names are `q6_K` and `iq4_xs`.
    Some((name.trim().to_owned(), other.unwrap_or(now).trim().to_uppercase()))
}

/// Compares a model in each of these quantisations. Returns whether llama.cpp supports any of them.
fn compare(case: &str, path: &Path, quantisations: &[Q], faults: &mut Vec<String>) -> bool {
    let Ok(mut profile) = ModelProfile::from_header(&Header::open(path).unwrap()) else { return false };
    // If a tensor already had the type of the whole file, it would not be changed.
    profile.file_type = None;
    let mut any = false;
    for &quantisation in quantisations {
        let Some(theirs) = types(path, quantisation) else { continue };
        any = true;
        let ours = profile.quantised(quantisation);
        let weights: Vec<&Weight> = ours.weights.loaded().chain(&ours.weights.skipped).collect();
        let names: BTreeSet<&str> = weights.iter().map(|weight| &*weight.name).collect();
        assert!(names.into_iter().eq(theirs.keys()), "{case}: other tensors than llama.cpp's");
        for weight in weights {
            let (ours, theirs) = (weight.ty.name(), &theirs[&*weight.name]);
            if ours != theirs {
                let (name, shape) = (&weight.name, weight.shape);
                faults.push(format!("{case}, {quantisation}: {name} {shape:?}: {theirs}, not {ours}"));
            }
            let rows: u64 = weight.shape[1..].iter().product();
            assert_eq!(weight.bytes, weight.ty.row_bytes(weight.shape[0]) * rows, "{case}: {}", weight.name);
        }
    }
    any
}

/// Sets the callback for the log, before anything is compared.
fn listen() {
    Backend::init().unwrap();
    // SAFETY: `hear` is a plain function that needs no data, and no other test runs in this process.
    unsafe { llama_log_set(Some(hear), null_mut()) };
}

fn check(faults: &[String]) {
    assert!(faults.is_empty(), "{} tensors differ:\n{}", faults.len(), faults.join("\n"));
}

/// Small models whose widths are those of real small models. They have enough blocks to influence which types are
/// chosen.
fn shapes() -> Vec<Shape> {
    let small = Shape { n_vocab: 96, rope_freqs: false, ..LLAMA_8B };
    let of = |name, arch, [n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim]: [u32; 6]| Shape {
        name,
        arch,
        n_layer,
        n_embd: n_embd.into(),
        n_ff: n_ff.into(),
        n_head: n_head.into(),
        n_head_kv: n_head_kv.into(),
        head_dim: head_dim.into(),
        ..small
    };
    let experts = |shape: Shape, n| Shape { experts: Some(Experts { n, used: 2, ff: 256 }), ..shape };
    vec![
        Shape { tied: true, ..of("SmolLM2-135M", "llama", [30, 576, 1536, 9, 3, 64]) },
        Shape { tied: true, ..of("SmolLM2-360M", "llama", [32, 960, 2560, 15, 5, 64]) },
        Shape { tied: true, qkv_bias: true, ..of("Qwen2.5-0.5B", "qwen2", [24, 896, 4864, 14, 2, 64]) },
        of("width 640", "llama", [18, 640, 2048, 4, 1, 256]),
        Shape { types: (T::F16, T::F16, T::F16), ..of("rows of no blocks", "llama", [8, 48, 80, 3, 1, 16]) },
        of("whole blocks", "llama", [17, 256, 512, 4, 4, 64]),
        of("whole blocks, shared keys", "llama", [33, 256, 512, 4, 1, 64]),
        of("as deep as a 70B", "llama", [80, 256, 256, 4, 2, 64]),
        of("as deep as a 65B", "llama", [80, 256, 256, 4, 4, 64]),
        of("as deep as Qwen's 72B", "qwen2", [80, 256, 256, 4, 4, 64]),
        experts(of("8 experts", "llama", [9, 256, 256, 4, 2, 64]), 8),
        experts(of("16 experts", "qwen3moe", [25, 256, 256, 4, 4, 64]), 16),
        experts(of("3 experts, shared keys", "llama", [12, 256, 256, 4, 1, 64]), 3),
    ]
}

#[test]
fn every_tensor_of_the_usual_shapes_has_the_type_that_llama_cpp_gives_it() {
    own_process!();
    listen();
    let folder = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    for (number, shape) in shapes().iter().enumerate() {
        let path = folder.path().join(format!("{number}.gguf"));
        shape.builder().write_sparse(&path).unwrap();
        assert!(compare(shape.name, &path, &Q::ALL, &mut faults), "{}: llama.cpp refuses it", shape.name);
    }
    check(&faults);
}

#[test]
fn every_tensor_of_every_architecture_has_the_type_that_llama_cpp_gives_it() {
    own_process!();
    every_architecture(5);
}

#[test]
#[ignore = "minutes: every architecture in every quantisation"]
fn every_tensor_of_every_architecture_has_that_type_in_every_quantisation() {
    own_process!();
    every_architecture(1);
}

/// Compares models of every architecture. Each model is compared in one of every `one_of` quantisations.
fn every_architecture(one_of: usize) {
    listen();
    let folder = tempfile::tempdir().unwrap();
    let (mut faults, mut compared) = (Vec::new(), BTreeSet::new());
    let architectures = llama_sys::architectures();
    let blueprints = architectures.iter().flat_map(|arch| crate::blueprints::all(arch));
    for (turn, blueprint) in blueprints.enumerate() {
        let Ok(model) = blueprint.make(folder.path()) else { continue };
        let path = blueprint.write(&model, folder.path());
        drop(model);
        let all = Q::ALL.into_iter().enumerate();
        let some: Vec<Q> =
            all.filter(|(at, _)| (at + turn).is_multiple_of(one_of)).map(|(_, quantisation)| quantisation).collect();
        if compare(&blueprint.title(), &path, &some, &mut faults) {
            compared.insert(blueprint.arch.clone());
        }
    }
    check(&faults);
    // Some architectures can only be created together with another model.
    let missing: Vec<&String> = architectures.iter().filter(|arch| !compared.contains(*arch)).collect();
    assert!(missing.len() <= 4, "llama.cpp quantises no model of {missing:?}");
}
