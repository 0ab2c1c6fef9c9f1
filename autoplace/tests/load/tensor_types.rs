//! The reader's table of tensor types against the compiled library's own.

use autoplace::gguf::TensorType;
use autoplace::llama_sys::tensor_types;

#[test]
fn every_type_has_the_sizes_that_ggml_has() {
    let native = tensor_types();
    for ty in TensorType::ALL {
        let theirs = native
            .iter()
            .find(|theirs| theirs.id == ty.id())
            .unwrap_or_else(|| panic!("ggml has no {ty}"));
        assert_eq!(
            ty.name().to_lowercase(),
            theirs.name.to_lowercase(),
            "id {}",
            ty.id()
        );
        assert_eq!(ty.block_size(), theirs.block_size, "{ty}");
        assert_eq!(ty.type_size(), theirs.type_size, "{ty}");
        assert_eq!(ty.is_quantized(), theirs.quantized, "{ty}");
    }
}

#[test]
fn no_type_of_ggml_is_missing() {
    for theirs in tensor_types().iter().filter(|theirs| theirs.type_size > 0) {
        assert!(
            TensorType::from_id(theirs.id).is_some(),
            "{} (id {}) is unknown to the reader",
            theirs.name,
            theirs.id
        );
    }
}
