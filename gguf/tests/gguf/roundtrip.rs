//! A header reads back with the values that the builder was given.

use autoplace_gguf::{Builder, Error, Header, TensorType, Value, ValueType};
use proptest::prelude::*;
use test_support::headers::{Raw, read_everything, says, small};

#[test]
fn values_come_back_with_their_types() {
    let header = small().header().unwrap();
    read_everything(&header);
    let value = |key: &str| header.get(key).unwrap();
    for (key, ty, number) in [
        ("t.u8", ValueType::U8, Some(200.0)),
        ("t.i8", ValueType::I8, Some(-100.0)),
        ("t.u16", ValueType::U16, Some(60_000.0)),
        ("t.i16", ValueType::I16, Some(-30_000.0)),
        ("t.i32", ValueType::I32, Some(-2_000_000_000.0)),
        ("t.f32", ValueType::F32, Some(1.5)),
        ("t.bool", ValueType::Bool, None),
        ("t.u64", ValueType::U64, Some(2.0_f64.powi(60))),
        ("t.i64", ValueType::I64, Some(-2.0_f64.powi(60))),
        ("t.f64", ValueType::F64, Some(-0.25)),
    ] {
        assert_eq!((value(key).ty(), value(key).as_number().unwrap().as_f64()), (ty, number), "{key}");
    }
    assert_eq!(header.bool("t.bool").unwrap(), Some(true));
    assert_eq!(value("t.str"), Value::Str("déjà vu"));
    assert_eq!(value("t.bytes"), Value::Bytes(&[0xff, 0xfe, b'x']));
    assert_eq!(header.get("t.none"), None);
    assert_eq!(header.metadata().next().unwrap(), ("general.architecture", Value::Str("llama")));
}

#[test]
fn arrays_come_back_with_their_elements() {
    let header = small().header().unwrap();
    let array = |key: &str| header.array(key).unwrap().unwrap();
    let floats = [0.5_f32, -0.5].map(f32::to_le_bytes).concat();
    assert_eq!(array("t.f32s").raw_bytes().unwrap(), floats);
    assert_eq!(array("llama.attention.head_count_kv").to_u32s().unwrap(), [8, 4]);
    assert!(array("t.u64s").is_empty());
    let tokens = array("tokenizer.ggml.tokens");
    assert_eq!((tokens.element_type(), tokens.len()), (ValueType::Str, 4));
    let texts: Result<Vec<_>, Error> = tokens.strings().unwrap().collect();
    assert_eq!(texts.unwrap(), ["<s>".as_bytes(), b"</s>", b"", "Ġthe".as_bytes()]);
}

#[test]
fn tensors_come_back_where_the_alignment_puts_them() {
    let header = small().header().unwrap();
    let data = header.tensors().next().unwrap().offset();
    let header_bytes = small().encoded().unwrap().0.len() as u64;
    assert_eq!(data, header_bytes.next_multiple_of(64));
    let lines: Vec<_> = header.tensors().map(|t| (t.bytes(), t.offset() - data)).collect();
    assert_eq!(lines, [(102, 0), (20, 128), (864, 192), (42, 1088)]);
    let experts = header.tensor("blk.1.exps.weight").unwrap();
    assert_eq!((experts.shape(), experts.n_dims()), ([256, 2, 3, 1], 3));
    assert_eq!((experts.ty(), experts.elements()), (TensorType::Q4_K, 1536));
    assert_eq!(header.file_bytes(), data + 1088 + 42);
    assert!(header.tensor("blk.2").is_none());
}

#[test]
fn file_sparse_file_and_memory_give_the_same_header() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, hole) = (dir.path().join("whole.gguf"), dir.path().join("hole.gguf"));
    let bytes = small().to_bytes().unwrap();
    std::fs::write(&whole, &bytes).unwrap();
    small().write_sparse(&hole).unwrap();
    assert_eq!(std::fs::read(&hole).unwrap(), bytes);
    let content = |header: Result<Header, Error>| {
        let header = header.unwrap();
        let tensors = header.tensors().map(|tensor| (tensor.name().to_owned(), tensor.shape(), tensor.offset()));
        (header.vocabulary(u64::MAX).unwrap().encoded().unwrap(), tensors.collect::<Vec<_>>())
    };
    for header in [Header::open(whole), Header::open(hole), Header::parse(bytes)] {
        assert_eq!(content(header), content(small().header()));
    }
}

#[test]
fn setting_a_key_again_replaces_its_value() {
    let header = Builder::new("llama").u32("k", 1).str("k", "two").header().unwrap();
    assert_eq!(header.get("k"), Some(Value::Str("two")));
    assert_eq!(header.metadata().len(), 2);
}

#[test]
fn version_2_is_read_like_version_3() {
    let mut bytes = small().to_bytes().unwrap();
    bytes[4] = 2;
    read_everything(&Header::parse(bytes).unwrap());
}

#[test]
fn padding_may_be_missing_without_tensors_and_after_the_last_one() {
    let header = Header::parse(Builder::new("llama").to_bytes().unwrap()).unwrap();
    let (bytes, file_bytes) = Builder::new("llama").encoded().unwrap();
    assert_eq!((bytes.len() as u64, header.file_bytes()), (file_bytes, file_bytes));
    let header = Raw::assembled("head:1,0 tensor:t,5,F32,0 data:20").parse().unwrap();
    assert_eq!(header.tensor("t").unwrap().bytes(), 20);
}

#[test]
fn a_string_ends_at_its_first_nul_as_in_llama_cpp() {
    let header = Builder::new("llama\0x").str("k", [0xff, 0, b'y']).header().unwrap();
    assert_eq!(header.architecture().unwrap(), "llama");
    assert_eq!(header.get("k"), Some(Value::Bytes(&[0xff])));
}

#[test]
fn getters_return_existing_values_and_none_for_missing_keys() {
    let header = small().header().unwrap();
    assert_eq!(header.u32("llama.block_count").unwrap(), Some(2));
    assert_eq!(header.u32("absent").unwrap(), None);
    // `uint` reads every integer that is not negative.
    assert_eq!(header.uint("t.u8").unwrap(), Some(200));
    assert_eq!(header.uint("t.u64").unwrap(), Some(1 << 60));
    assert_eq!(header.uint("absent").unwrap(), None);
    // The value is an array with a number for each layer, or one number for all layers.
    let per_layer = |suffix: &str, n| header.u32_per_layer(&format!("llama.{suffix}"), n).unwrap();
    assert_eq!(per_layer("attention.head_count_kv", 2), Some(vec![8, 4]));
    assert_eq!(per_layer("attention.sliding_window_pattern", 2), Some(vec![1, 0]));
    assert_eq!(per_layer("block_count", 3), Some(vec![2, 2, 2]));
    assert_eq!(per_layer("absent", 3), None);
}

#[test]
fn getters_refuse_another_type_length_or_sign_with_an_error() {
    let header = small().header().unwrap();
    let numbers =
        Builder::new("llama").array_i32("llama.i32", &[1, -1]).array_u64("llama.u64", &[1, 1]).header().unwrap();
    let bare = Builder::empty().header().unwrap();
    for (error, words) in [
        (header.u32("t.u16").err(), "'t.u16' is of type u16, not u32"),
        (header.f32("t.f64").err(), "'t.f64'"),
        (header.bool("t.u8").err(), "'t.u8'"),
        (header.array("t.u8").err(), "'t.u8'"),
        (header.str("t.u8").err(), "'t.u8'"),
        (header.uint("t.str").err(), "'t.str'"),
        (header.str("t.bytes").err(), "byte ; 't.bytes' is not UTF-8"),
        (header.uint("t.i8").err(), "byte ; 't.i8' is -100, which is not a number >= 0"),
        (
            header.u32_per_layer("llama.attention.head_count_kv", 3).err(),
            "'llama.attention.head_count_kv' has 2 elements, not 3",
        ),
        (numbers.u32_per_layer("llama.i32", 2).err(), "element 1; -1"),
        (numbers.u32_per_layer("llama.u64", 2).err(), "byte ; of type u64, not u32 or i32"),
        (bare.architecture().err(), "'general.architecture' is missing"),
    ] {
        let error = error.expect(words);
        says(&error, &words.split("; ").collect::<Vec<_>>());
        let other_type = words.contains("of type u16") || words == "'t.str'";
        assert!(!other_type || matches!(error, Error::WrongType { .. }), "{error:?}");
    }
}

#[test]
fn headers_are_shared_between_threads() {
    fn shared<T: Send + Sync + Clone + std::fmt::Debug>(_: &T) {}
    shared(&small().header().unwrap());
}

/// A tensor type and a shape that fits it.
fn tensor() -> impl Strategy<Value = (TensorType, Vec<u64>)> {
    let shape = prop::collection::vec(1..5_u64, 1..=4);
    (prop::sample::select(TensorType::ALL), shape).prop_map(|(ty, mut shape)| {
        shape[0] *= ty.block_size();
        (ty, shape)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_builder_gives_a_header_with_the_same_content(
        texts in prop::collection::vec(prop::collection::vec(1..=255_u8, 0..30), 0..20),
        numbers in prop::collection::vec(any::<i64>(), 0..20),
        tensors in prop::collection::vec(tensor(), 0..12),
        alignment in 0..13_u32,
    ) {
        let mut builder = Builder::new("llama").u32("general.alignment", 1 << alignment);
        builder = builder.array_str("texts", &texts).array_i64("numbers", &numbers);
        for (i, text) in texts.iter().enumerate() {
            builder = builder.str(&format!("text.{i}"), text);
        }
        for (i, (ty, shape)) in tensors.iter().enumerate() {
            builder = builder.tensor(&format!("tensor.{i}"), *ty, shape);
        }
        let header = Header::parse(builder.to_bytes().unwrap()).unwrap();
        read_everything(&header);
        let read: Result<Vec<_>, Error> = header.array("texts").unwrap().unwrap().strings().unwrap().collect();
        prop_assert_eq!(read.unwrap(), texts);
        prop_assert_eq!(header.tensors().len(), tensors.len());
        for (tensor, (ty, shape)) in header.tensors().zip(&tensors) {
            prop_assert_eq!(tensor.ty(), *ty);
            prop_assert_eq!(&tensor.shape()[..tensor.n_dims()], shape.as_slice());
            prop_assert_eq!(tensor.bytes(), ty.row_bytes(shape[0]) * shape[1..].iter().product::<u64>());
            prop_assert!(tensor.offset().is_multiple_of(1 << alignment));
        }
        let skeleton = header.skeleton().unwrap().to_bytes().unwrap();
        prop_assert_eq!(skeleton, builder.str("tokenizer.ggml.model", "no_vocab").to_bytes().unwrap());
    }
}
