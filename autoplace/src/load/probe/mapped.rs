//! The host's share of a mapped file. A load without data cannot report it.

use std::collections::{BTreeMap, BTreeSet};

use llama_sys::TensorPlace;

use crate::gguf::Header;

/// Alignment of tensors in host memory (ggml-impl.h, `TENSOR_ALIGNMENT`).
const ALIGNMENT: u64 = 32;

/// The host's weights in a mapped file, in bytes. The first number counts the weights with the alignment of a host
/// buffer; they must stay in memory. The second is llama.cpp's `CPU_Mapped`: the span from the first to the last of
/// them, file by file.
///
/// With mapping, all weights that would otherwise go to plain or pinned host memory become one buffer per file
/// (llama-model-loader.cpp, `create_tensor`; llama-model.cpp, `load_tensors`). A weight that a load without mapping
/// stores twice, once for each use, is stored once.
pub(super) fn mapped(header: &Header, places: &[TensorPlace]) -> (u64, u64) {
    let on_host = places.iter().filter(|place| place.on_host);
    let on_host: BTreeSet<&str> = on_host.map(|place| place.name.as_str()).collect();
    let mut resident: u64 = 0;
    // By shard, and separately for tensors that are read row by row (llama-model-loader.cpp, `create_tensor`).
    let mut spans: BTreeMap<(usize, bool), (u64, u64)> = BTreeMap::new();
    for tensor in on_host.into_iter().filter_map(|name| header.tensor(name)) {
        let (begin, bytes) = (tensor.offset(), tensor.bytes());
        resident = resident.saturating_add(bytes.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT));
        let end = begin.saturating_add(bytes);
        let mapping = (tensor.shard(), read_by_row(tensor.name(), bytes));
        let (first, last) = spans.entry(mapping).or_insert((begin, end));
        (*first, *last) = (begin.min(*first), end.max(*last));
    }
    let spans = spans.values().map(|(begin, end)| end.saturating_sub(*begin));
    (resident, spans.fold(0, u64::saturating_add))
}

/// Large embeddings of which a token needs only a few rows are a separate mapping (models/gemma4.cpp and
/// models/qwen4exp.cpp, `load_arch_tensors`; llama-model-loader.cpp, `lazy_read::add`).
fn read_by_row(name: &str, bytes: u64) -> bool {
    const LARGE: u64 = 4 << 30;
    bytes > LARGE && name == "per_layer_token_embd.weight"
}
