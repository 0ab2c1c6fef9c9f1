//! Computes the host's share of a mapped file, because a load without data cannot report it.

use std::collections::BTreeSet;

use llama_sys::TensorPlace;

use crate::gguf::Header;

/// Alignment of tensors in host memory (ggml-impl.h, `TENSOR_ALIGNMENT`).
const ALIGNMENT: u64 = 32;

/// The host's weights in a mapped file, in bytes. The first number is the memory that must stay resident. It includes
/// the alignment in a host buffer. The second number is llama.cpp's count for `CPU_Mapped`: only the data of the
/// weights.
///
/// With mapping, all weights that would otherwise go to plain or pinned host memory become buffers, one for each range
/// of the file without padding and without other weights (llama-model-loader.cpp, `create_tensor` and
/// `get_mapping_ranges`; llama-model.cpp, `load_tensors`). A load without mapping stores a weight twice if it has two
/// uses. With mapping, the weight is stored once.
pub(super) fn mapped(header: &Header, places: &[TensorPlace]) -> (u64, u64) {
    let on_host = places.iter().filter(|place| place.on_host);
    let on_host: BTreeSet<&str> = on_host.map(|place| place.name.as_str()).collect();
    let (mut resident, mut data): (u64, u64) = (0, 0);
    for tensor in on_host.into_iter().filter_map(|name| header.tensor(name)) {
        let bytes = tensor.bytes();
        resident = resident.saturating_add(bytes.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT));
        data = data.saturating_add(bytes);
    }
    (resident, data)
}
