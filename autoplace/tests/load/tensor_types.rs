//! The types of tensors in the GGUF reader's table are compared with those in the compiled library.

use autoplace::gguf::TensorType;
use autoplace::llama_sys::tensor_types;

#[test]
fn every_type_has_the_sizes_that_ggml_has_and_none_is_missing() {
    let native = tensor_types().unwrap();
    for ty in TensorType::ALL {
        let theirs = native.iter().find(|theirs| theirs.id == ty.id());
        let theirs = theirs.unwrap_or_else(|| panic!("ggml has no {ty}"));
        assert_eq!(ty.name().to_lowercase(), theirs.name.to_lowercase());
        let ours = (ty.block_size(), ty.type_size(), ty.is_quantized());
        assert_eq!(ours, (theirs.block_size, theirs.type_size, theirs.quantized), "{ty}");
    }
    for theirs in native.iter().filter(|theirs| theirs.type_size > 0) {
        assert!(TensorType::from_id(theirs.id).is_some(), "{} is unknown to the reader", theirs.name);
    }
}
