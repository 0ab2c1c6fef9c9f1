//! Every malformed header is a typed error that names the file, the byte, and what was wrong.

use crate::gguf_support::{Raw, llama_70b, read_everything, says, small};
use autoplace_planner::gguf::{Builder, Error, Header, TensorType, ValueType};

const U8: u32 = 0;
const U32: u32 = 4;
const BOOL: u32 = 7;
const STR: u32 = 8;
const ARRAY: u32 = 9;
const F32: u32 = 0;
const Q4_K: u32 = 12;

// The first 24 bytes.

#[test]
fn an_empty_file_is_truncated_at_byte_0() {
    let error = Raw::default().refused(&["byte 0", "the magic needs 4 bytes", "only 0"]);
    assert!(matches!(
        error,
        Error::Truncated {
            at: 0,
            needed: 4,
            available: 0,
            ..
        }
    ));
}

#[test]
fn another_format_is_named_by_its_first_bytes() {
    let error = Raw::default()
        .put(b"PK\x03\x04....")
        .refused(&["PK\\x03\\x04", "zip"]);
    assert!(matches!(
        error,
        Error::NotGguf {
            found: [b'P', b'K', 3, 4],
            ..
        }
    ));
    Raw::default()
        .put(b"version https://git-lfs")
        .refused(&["git lfs pull"]);
    Raw::default()
        .put(b"<!doctype html>")
        .refused(&["web page"]);
    Raw::default().put(&[0; 64]).refused(&["incomplete"]);
}

#[test]
fn version_1_is_refused_as_too_old() {
    let error =
        Raw::default()
            .put(b"GGUF")
            .u32(1)
            .u64(0)
            .u64(0)
            .refused(&["byte 4", "version 1", "2023"]);
    assert!(matches!(error, Error::Version { version: 1, .. }));
}

#[test]
fn versions_0_and_4_are_refused() {
    for version in [0, 4, 0x0001_0003] {
        let raw = Raw::default().put(b"GGUF").u32(version).u64(0).u64(0);
        let error = raw.refused(&[&format!("version {version} ")]);
        assert!(matches!(error, Error::Version { .. }));
    }
}

#[test]
fn a_big_endian_file_is_called_so() {
    let error = Raw::default()
        .put(b"GGUF\0\0\0\x03")
        .put(&[0; 16])
        .refused(&["byte 4", "big-endian", "0x03000000"]);
    assert!(matches!(
        error,
        Error::BigEndian {
            version: 0x0300_0000,
            ..
        }
    ));
}

#[test]
fn a_count_that_the_file_has_no_room_for_is_refused_before_anything_is_read() {
    Raw::head(1 << 60, 0).refused(&["byte 8", "1152921504606846976 tensors", "at most 0"]);
    Raw::head(0, u64::MAX)
        .put(&[0; 140])
        .refused(&["byte 16", "keys", "at most 10 "]);
}

#[test]
fn more_than_a_million_tensors_are_refused_even_where_there_is_room() {
    let raw = Raw::head((1 << 20) + 1, 0);
    let error = Header::parse_shards([(raw.0.clone().into(), 1 << 40)]).unwrap_err();
    says(&error, &["at most 0"]); // What is not in memory cannot be header.
    raw.put(&vec![0; 30 << 20])
        .refused(&["1048577 tensors", "at most 1048576", "own limit"]);
}

// Keys and values.

#[test]
fn a_key_that_reaches_past_the_end_is_truncated() {
    let error = Raw::head(0, 1).u64(100).put(&[b'k'; 20]).refused(&[
        "byte 32",
        "the name of key 0 needs 100 bytes",
        "only 20",
    ]);
    assert!(matches!(
        error,
        Error::Truncated {
            at: 32,
            needed: 100,
            available: 20,
            ..
        }
    ));
}

#[test]
fn a_key_of_2_to_the_60_bytes_is_too_long() {
    Raw::head(0, 1)
        .u64(1 << 60)
        .put(&[0; 20])
        .refused(&["byte 24", "key 0", "1073741824"]);
}

#[test]
fn a_key_of_more_than_65535_bytes_is_too_long() {
    let key = |len: usize| Raw::head(0, 1).key(&"k".repeat(len), U8).put(&[7]);
    assert!(key(65_535).parse().is_ok());
    key(65_536).refused(&["byte 24", "key 0", "65536", "65535"]);
}

#[test]
fn an_empty_key_is_refused() {
    Raw::head(0, 1)
        .key("", U8)
        .put(&[0; 9])
        .refused(&["byte 24", "key 0 is empty"]);
}

#[test]
fn a_key_that_is_not_utf8_is_refused() {
    Raw::head(0, 1)
        .string(b"a\xffb")
        .u32(U8)
        .put(&[0])
        .refused(&["byte 24", "key 0", "UTF-8", "a\\xffb"]);
}

#[test]
fn a_key_with_a_nul_byte_is_refused_because_llama_cpp_would_cut_it() {
    Raw::head(0, 1)
        .key("a\0b", U8)
        .put(&[0])
        .refused(&["byte 24", "NUL", "a\\x00b"]);
}

#[test]
fn a_key_twice_is_refused_with_both_places() {
    let first = Raw::head(0, 3)
        .key("same", U8)
        .put(&[1])
        .key("other", U8)
        .put(&[1]);
    let again = first.at();

    first
        .key("same", U32)
        .u32(1)
        .refused(&["'same'", "byte 24", &format!("byte {again}")]);
}

#[test]
fn an_unknown_value_type_is_refused() {
    for id in [13, 1000, u32::MAX] {
        Raw::head(0, 1)
            .key("k", id)
            .u64(0)
            .refused(&["byte 33", "'k'", &id.to_string()]);
    }
}

#[test]
fn an_unknown_element_type_is_refused() {
    Raw::head(0, 1)
        .key("k", ARRAY)
        .u32(77)
        .u64(0)
        .refused(&["byte 37", "'k'", "77"]);
}

#[test]
fn an_array_of_arrays_is_refused() {
    Raw::head(0, 1)
        .key("k", ARRAY)
        .u32(ARRAY)
        .u64(1)
        .u32(U8)
        .u64(0)
        .refused(&["byte 37", "'k'", "array of arrays"]);
}

#[test]
fn a_value_cut_off_is_truncated() {
    let error = Raw::head(0, 1).key("k", U32).put(&[1, 2]).refused(&[
        "byte 37",
        "value of key 'k' needs 4 bytes",
        "only 2",
    ]);
    assert!(matches!(
        error,
        Error::Truncated {
            at: 37,
            needed: 4,
            available: 2,
            ..
        }
    ));
}

#[test]
fn a_string_that_reaches_past_the_end_is_truncated() {
    let error = Raw::head(0, 1)
        .key("k", STR)
        .u64(9)
        .put(b"12345678")
        .refused(&["byte 45", "'k'", "9 bytes", "only 8"]);
    assert!(matches!(
        error,
        Error::Truncated {
            at: 45,
            needed: 9,
            available: 8,
            ..
        }
    ));
}

#[test]
fn an_array_that_the_file_has_no_room_for_is_refused_before_it_is_read() {
    let error = Raw::head(0, 1)
        .key("k", ARRAY)
        .u32(U32)
        .u64(1000)
        .put(&[0; 100])
        .refused(&["byte 49", "'k'", "1000 u32", "4000 bytes", "only 100"]);
    assert!(matches!(
        error,
        Error::Truncated {
            at: 49,
            needed: 4000,
            available: 100,
            ..
        }
    ));
    Raw::head(0, 1)
        .key("k", ARRAY)
        .u32(STR)
        .u64(1000)
        .put(&[0; 100])
        .refused(&["8000 bytes"]);
}

#[test]
fn an_array_of_2_to_the_60_elements_is_too_long() {
    for count in [(1 << 30) + 1, 1 << 60, u64::MAX] {
        Raw::head(0, 1)
            .key("k", ARRAY)
            .u32(STR)
            .u64(count)
            .refused(&["byte 41", "'k'", &count.to_string()]);
    }
}

#[test]
fn a_string_in_an_array_that_reaches_past_the_end_is_named_by_its_number() {
    let raw = Raw::head(0, 1)
        .key("k", ARRAY)
        .u32(STR)
        .u64(3)
        .string("one")
        .u64(50)
        .put(&[0; 20]);
    let error = raw.refused(&[
        "byte 68",
        "string 1 of the array 'k'",
        "50 bytes",
        "only 20",
    ]);
    assert!(matches!(
        error,
        Error::Truncated {
            at: 68,
            needed: 50,
            available: 20,
            ..
        }
    ));
    let raw = Raw::head(0, 1)
        .key("k", ARRAY)
        .u32(STR)
        .u64(2)
        .string("one")
        .u64(u64::MAX);
    raw.refused(&[
        "byte 60",
        "string 1 of the array 'k'",
        "18446744073709551615",
    ]);
}

#[test]
fn any_bool_other_than_0_is_true_as_in_llama_cpp() {
    let header = Raw::head(0, 2)
        .key("a", BOOL)
        .put(&[2])
        .key("b", BOOL)
        .put(&[0])
        .parse()
        .unwrap();
    assert_eq!(header.bool("a").unwrap(), Some(true));
    assert_eq!(header.bool("b").unwrap(), Some(false));
    let header = Raw::head(0, 1)
        .key("c", ARRAY)
        .u32(BOOL)
        .u64(3)
        .put(&[0, 1, 255])
        .parse()
        .unwrap();
    let bools = header.u32_per_layer("c", 3).unwrap();
    assert_eq!(bools.unwrap(), [0, 1, 1]);
}

#[test]
fn an_alignment_of_another_type_is_refused() {
    let error = Raw::head(0, 1)
        .key("general.alignment", 10)
        .u64(32)
        .refused(&["general.alignment", "u64", "u32"]);
    assert!(matches!(
        error,
        Error::WrongType {
            wanted: ValueType::U32,
            found: ValueType::U64,
            ..
        }
    ));
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_refused() {
    for alignment in [0, 33, u32::MAX] {
        Raw::head(0, 1)
            .key("general.alignment", U32)
            .u32(alignment)
            .refused(&["byte 24", "power of two", &alignment.to_string()]);
    }
}

#[test]
fn an_alignment_larger_than_the_file_leaves_no_room_for_data() {
    let raw = Raw::head(1, 1)
        .key("general.alignment", U32)
        .u32(1 << 31)
        .tensor("t", &[8], F32, 0)
        .data(32);
    let error = raw.refused(&["padding"]);
    assert!(matches!(error, Error::Truncated { .. }));
}

// Tensors.

#[test]
fn a_tensor_name_of_64_bytes_is_too_long() {
    let named = |len: usize| {
        Raw::head(1, 0)
            .tensor(&"t".repeat(len), &[8], F32, 0)
            .data(32)
    };
    assert!(named(63).parse().is_ok());
    named(64).refused(&["byte 24", "tensor 0", "64", "63"]);
}

#[test]
fn a_tensor_name_that_is_not_utf8_or_holds_a_nul_is_refused() {
    let named = |name: &[u8]| Raw::head(1, 0).string(name).u32(0).u32(F32).u64(0).data(32);
    named(b"t\xff").refused(&["byte 24", "tensor 0", "not UTF-8", "t\\xff"]);
    named(b"t\0").refused(&["byte 24", "tensor 0", "NUL", "t\\x00"]);
}

#[test]
fn a_tensor_name_twice_is_refused_with_both_places() {
    let first = Raw::head(2, 0).tensor("t", &[8], F32, 0);
    let again = first.at();
    first.tensor("t", &[8], F32, 32).data(64).refused(&[
        "'t'",
        "byte 24",
        &format!("byte {again}"),
    ]);
}

#[test]
fn five_dimensions_are_too_many() {
    Raw::head(1, 0)
        .tensor("t", &[1; 5], F32, 0)
        .data(32)
        .refused(&["byte 33", "'t'", "5 dimensions"]);
    let huge = Raw::head(1, 0).string("t").u32(u32::MAX).data(64);
    huge.refused(&["byte 33", "'t'", "4294967295 dimensions"]);
}

#[test]
fn a_dimension_of_zero_or_fewer_elements_is_refused() {
    Raw::head(1, 0)
        .tensor("t", &[8, 0], F32, 0)
        .data(32)
        .refused(&["byte 45", "'t'", "dimension 1", "0 elements"]);
    Raw::head(1, 0)
        .tensor("t", &[u64::MAX], F32, 0)
        .data(32)
        .refused(&["byte 37", "-1 elements"]);
}

#[test]
fn a_shape_whose_product_overflows_is_refused() {
    for shape in [[1 << 32, 1 << 32, 1, 1], [1 << 62, 2, 1, 1], [1 << 21; 4]] {
        Raw::head(1, 0)
            .tensor("t", &shape, F32, 0)
            .data(32)
            .refused(&["byte 37", "'t'", "2^63"]);
    }
}

#[test]
fn a_shape_over_which_llama_cpp_would_abort_is_refused() {
    // Its reader lets a product of just about 2^63 pass, and then ggml_new_tensor_impl ends the process. A type of less
    // than a byte per element, so that the bytes are no reason.
    let max = i64::MAX as u64;
    let n = (2..).find(|n| (max / n).is_multiple_of(256)).unwrap();
    let shaped = |ne0| Raw::head(1, 0).tensor("t", &[ne0, n], 10, 0).0;
    let error = Header::parse_shards([(shaped(max / n).into(), max)]).unwrap_err();
    says(&error, &["'t'", "2^63"]);
    assert!(Header::parse_shards([(shaped(max / n - 256).into(), max)]).is_ok());
}

#[test]
fn a_shape_whose_bytes_overflow_is_refused() {
    Raw::head(1, 0)
        .tensor("t", &[1 << 62], F32, 0)
        .data(32)
        .refused(&["'t'", "2^63"]);
}

#[test]
fn a_removed_tensor_type_is_refused_by_its_old_name() {
    for (id, name) in [
        (4, "Q4_2"),
        (5, "Q4_3"),
        (31, "use Q4_0"),
        (36, "use IQ4_NL"),
    ] {
        Raw::head(1, 0)
            .tensor("t", &[256], id, 0)
            .data(512)
            .refused(&["byte 45", "'t'", name, "removed from llama.cpp"]);
    }
}

#[test]
fn an_unknown_tensor_type_is_refused() {
    for id in [43, 1000, u32::MAX] {
        Raw::head(1, 0)
            .tensor("t", &[256], id, 0)
            .data(512)
            .refused(&["byte 45", "'t'", &id.to_string(), "unknown"]);
    }
}

#[test]
fn rows_that_are_no_whole_number_of_blocks_are_refused() {
    Raw::head(1, 0)
        .tensor("t", &[100, 256], Q4_K, 0)
        .data(99_999)
        .refused(&["byte 37", "'t'", "100", "256", "Q4_K"]);
}

#[test]
fn a_misaligned_tensor_is_refused() {
    Raw::head(2, 0)
        .tensor("a", &[8], F32, 0)
        .tensor("b", &[8], F32, 33)
        .data(128)
        .refused(&["'b'", "not aligned to 32", "33", "not at 32"]);
}

#[test]
fn overlapping_tensors_are_refused() {
    Raw::head(2, 0)
        .tensor("a", &[64], F32, 0)
        .tensor("b", &[8], F32, 32)
        .data(512)
        .refused(&["'b'", "overlapping", "not at 256"]);
}

#[test]
fn a_gap_between_tensors_is_refused_as_in_llama_cpp() {
    Raw::head(2, 0)
        .tensor("a", &[8], F32, 0)
        .tensor("b", &[8], F32, 64)
        .data(512)
        .refused(&["'b'", "not directly after", "not at 32"]);
    Raw::head(1, 0)
        .tensor("a", &[8], F32, u64::MAX)
        .data(512)
        .refused(&["byte 24", "'a'", "not aligned"]);
}

#[test]
fn a_tensor_that_reaches_past_the_end_is_refused_as_incomplete() {
    let raw = Raw::head(1, 0).tensor("t", &[100], F32, 0).data(399);
    let bytes = raw.at();
    let error = raw.refused(&[
        "'t'",
        &(bytes + 1).to_string(),
        &bytes.to_string(),
        "incomplete",
    ]);
    assert!(matches!(error, Error::TensorOutside { .. }));
}

#[test]
fn the_padding_after_the_last_tensor_may_be_missing() {
    let header = Raw::head(1, 0)
        .tensor("t", &[5], F32, 0)
        .data(20)
        .parse()
        .unwrap();
    assert_eq!(header.tensor("t").unwrap().bytes(), 20);
}

#[test]
fn huge_tensors_that_add_up_past_64_bits_are_outside_the_file() {
    let n = 1 << 60;
    let raw = Raw::head(3, 0)
        .tensor("a", &[n], F32, 0)
        .tensor("b", &[n], F32, n * 4)
        .tensor("c", &[n], F32, n * 8);
    let error = Header::parse_shards([(raw.0.into(), u64::MAX)]).unwrap_err();
    says(&error, &["'b'", "9223372036854775807"]);
    assert!(matches!(error, Error::TensorOutside { .. }));
}

// Systematic damage.

#[test]
fn every_prefix_of_a_file_is_refused() {
    let bytes = small().to_bytes().unwrap();
    for end in 0..bytes.len() {
        let error = Header::parse(&bytes[..end]).expect_err("a prefix");
        let expected = matches!(
            error,
            Error::Truncated { .. } | Error::Malformed { .. } | Error::TensorOutside { .. }
        );
        assert!(expected, "{end}: {error}");
    }
}

#[test]
fn any_byte_set_to_any_of_five_values_is_no_reason_to_panic() {
    let bytes = small().to_bytes().unwrap();
    for at in 0..bytes.len() {
        for value in [0, 1, 9, 0x7f, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            if let Ok(header) = Header::parse(bytes) {
                read_everything(&header);
            }
        }
    }
}

// The file system.

#[test]
fn a_missing_file_a_folder_and_a_device_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.gguf");
    let error = Header::open(&missing).unwrap_err();
    says(&error, &["missing.gguf", "cannot open"]);
    assert!(matches!(error, Error::Open { .. }));
    let error = Header::open(dir.path()).unwrap_err();
    says(&error, &["not a regular file"]);
    assert!(matches!(error, Error::NotAFile { .. }));
    #[cfg(unix)]
    says(
        &Header::open("/dev/zero").unwrap_err(),
        &["/dev/zero: not a regular file"],
    );
}

#[test]
fn an_array_of_a_file_that_has_changed_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    small().write_sparse(&path).unwrap();
    let header = Header::open(&path).unwrap();
    let array = header.array("t.i32s").unwrap().unwrap();
    assert_eq!(array.raw_bytes().unwrap().len(), 12);

    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(100).unwrap();
    let error = array.raw_bytes().unwrap_err();
    says(&error, &["changed", "100 bytes now"]);
    assert!(matches!(error, Error::Changed { is: 100, .. }));
    assert!(
        header
            .array("tokenizer.ggml.tokens")
            .unwrap()
            .unwrap()
            .strings()
            .is_err()
    );
}

#[test]
fn a_download_cut_short_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    llama_70b().write_sparse(&path).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(20 << 30).unwrap();
    let error = Header::open(&path).unwrap_err();
    says(&error, &["incomplete", "21474836480"]);
    assert!(matches!(error, Error::TensorOutside { .. }));
}

#[test]
fn a_builder_refuses_what_the_reader_refuses() {
    use TensorType::{F32, Q4_K};
    let new = || Builder::new("llama");
    let tensor = |ty, shape: &[u64]| new().tensor("t", ty, shape);
    for (builder, words) in [
        (tensor(Q4_K, &[100]), "rows of 100 elements"),
        (tensor(F32, &[0]), "dimension 0 of tensor 't' has 0"),
        (tensor(F32, &[1; 5]), "5 dimensions"),
        (tensor(F32, &[1 << 62, 4]), "larger than 2^63"),
        (new().tensor(&"t".repeat(64), F32, &[1]), "at most 63"),
        (
            new().u32("general.alignment", 48),
            "is 48, not a power of two",
        ),
        (
            tensor(F32, &[1]).u32("general.alignment", 0),
            "is 0, not a power of two",
        ),
        (new().version(1), "version 1 is not supported"),
        (new().u32("", 1), "key 1 is empty"),
        (tensor(F32, &[1]).tensor("t", F32, &[1]), "'t' again"),
    ] {
        let error = builder.to_bytes().unwrap_err();
        says(&error, &["<builder>: byte ", words]);
    }
}
