//! Each backend's allocation rules, against a sum over the file's tensors.

use crate::support::sim::{MIB, card_by, context, demo_path, load, params, vulkan};
use llama_sys::sim::{Rules, SimGpu};
use llama_sys::{LoadMode, Model, TensorTypeInfo, tensor_types};

/// A tensor of the file.
struct Weight {
    name: String,
    ty: TensorTypeInfo,
    /// Elements of a row, and how many rows there are.
    row: u64,
    rows: u64,
}

impl Weight {
    fn bytes(&self) -> u64 {
        self.row_bytes(self.row) * self.rows
    }

    /// Bytes of so many elements, which are whole blocks.
    fn row_bytes(&self, elements: u64) -> u64 {
        elements / self.ty.block_size * self.ty.type_size
    }

    /// The largest tensor that llama.cpp tries a matrix with: itself, 512 tokens in, 512 tokens out
    /// (llama-model-loader.cpp, weight_buft_supported).
    fn largest_operand(&self) -> u64 {
        self.bytes().max(512 * 4 * self.rows.max(self.row))
    }
}

fn weights(model: &Model) -> Vec<Weight> {
    let types = tensor_types();
    let weight = |tensor: llama_sys::ModelTensor| {
        let ty = types.iter().find(|ty| ty.id == tensor.ty).unwrap().clone();
        let [row, rows @ ..] = tensor.shape;
        Weight { name: tensor.name, ty, row, rows: rows.iter().product() }
    };
    model.tensors().into_iter().map(weight).collect()
}

/// What the weights of the blocks and the output take on a GPU, those that it can hold, and how many of them get a
/// longer last row.
fn expected(model: &Model, alignment: u64, pad_rows_to: Option<u64>, fits: impl Fn(&Weight) -> bool) -> (u64, usize) {
    let mut padded = 0;
    let all = weights(model);
    let tied = !all.iter().any(|weight| weight.name == "output.weight");
    let held = all.iter().filter(|weight| (tied || weight.name != "token_embd.weight") && fits(weight));
    let bytes = held.map(|weight| {
        let longer = pad_rows_to.map_or(0, |row_of| weight.row.next_multiple_of(row_of) - weight.row);
        let is_longer = longer > 0 && weight.ty.quantized;
        padded += usize::from(is_longer);
        let more = if is_longer { weight.row_bytes(longer) } else { 0 };
        (weight.bytes() + more).next_multiple_of(alignment)
    });
    (bytes.sum(), padded)
}

fn register(rules: Rules) -> SimGpu {
    card_by(rules, 256 * MIB)
}

#[test]
fn plain_weights_are_aligned_to_32_and_cuda_pads_rows_to_512_and_aligns_to_128() {
    own_process!();
    let gpu = register(Rules::Plain);
    let model = load(&[&gpu], -1);
    assert_eq!(gpu.used(), expected(&model, 32, None, |_| true).0);
    assert_eq!(gpu.buffers(), 1);
    drop(model);
    let gpu = register(Rules::Cuda);
    let model = load(&[&gpu], -1);
    let (bytes, padded) = expected(&model, 128, Some(512), |_| true);
    assert!(padded > 0, "the demo model has no row to pad");
    assert_eq!(gpu.used(), bytes);
}

#[test]
fn vulkan_aligns_as_the_device_does_and_cuts_lists_at_its_largest_allocation() {
    own_process!();
    // The largest operand of a block just fits; the output's, a whole vocabulary wide, may not.
    let model = load(&[], 0);
    let (all, of_block) = (weights(&model), |it: &&Weight| it.name.starts_with("blk."));
    let largest = all.iter().filter(of_block).map(Weight::largest_operand);
    let max_alloc = largest.max().unwrap();
    for alignment in [16, 64, 256, 4096] {
        let gpu = register(vulkan(alignment, max_alloc));
        let model = load(&[&gpu], -1);
        let fits = |weight: &Weight| weight.name.contains("norm") || weight.largest_operand() <= max_alloc;
        assert_eq!(gpu.used(), expected(&model, alignment, None, fits).0);
        // As few buffers as hold it, or some more where the next tensor no longer fitted.
        let least = gpu.used().div_ceil(max_alloc);
        assert!(least > 1 && (least..=2 * least).contains(&gpu.buffers()));
    }
}

#[test]
fn metal_maps_the_file_from_the_first_to_the_last_tensor_of_its_own() {
    own_process!();
    let gpu = register(Rules::Metal);
    let model = load(&[&gpu], -1);
    let breakdown = context(&model).memory_breakdown().unwrap();
    let name = format!("{}_Mapped", gpu.device().name());
    let mapped = breakdown.rows.iter().find(|row| row.buffer_type == name);
    let mapped = mapped.expect("a mapped buffer");
    assert_eq!(mapped.model, gpu.used());
    let (sum, _) = expected(&model, 32, None, |_| true);
    // The span holds whatever of the others' lies in between.
    let file = std::fs::metadata(demo_path()).unwrap().len();
    assert!((sum..file).contains(&mapped.model), "{mapped:?} {sum}");
    // Read instead, it is the sum.
    let mut read = params(&[gpu.device()], -1);
    drop((breakdown, model));
    read.load_mode = LoadMode::None;
    let model = Model::load(demo_path(), read).unwrap();
    assert_eq!(gpu.used(), expected(&model, 32, None, |_| true).0);
}

#[test]
fn cuda_and_vulkan_keep_what_stays_on_the_host_in_pinned_memory() {
    own_process!();
    for (rules, pinned) in
        [(Rules::Plain, false), (Rules::Cuda, true), (vulkan(64, 64 * MIB), true), (Rules::Metal, false)]
    {
        let gpu = register(rules);
        let mut read = params(&[gpu.device()], 3);
        read.load_mode = LoadMode::None;
        let model = Model::load(demo_path(), read).unwrap();
        let breakdown = context(&model).memory_breakdown().unwrap();
        let name = format!("{}_Host", gpu.device().name());
        let row = breakdown.rows.iter().find(|row| row.buffer_type == name);
        assert_eq!(row.is_some_and(|row| row.model > 0), pinned, "{rules:?}");
        assert!(row.is_none_or(|row| row.on_host));
    }
}
