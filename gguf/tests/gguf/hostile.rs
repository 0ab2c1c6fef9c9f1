//! Every malformed header gives a typed error that names the file, the byte and the fault.

use autoplace_gguf::{Builder, Error, Header, TensorType};
use test_support::headers::{Raw, read_everything, says, small};
use test_support::table::{parts, rows};

const U8: u32 = 0;
const BOOL: u32 = 7;
const ARRAY: u32 = 9;
const F32: u32 = 0;

#[test]
fn errors_name_the_byte_and_the_fault_of_a_malformed_header() {
    for [wrong, file, variant, words] in rows(include_str!("hostile.txt")) {
        let Err(error) = Raw::assembled(file).parse() else {
            panic!("{wrong}: is read");
        };
        let (message, debug) = (error.to_string(), format!("{error:?}"));
        for word in parts(words).chain(["<memory>: byte "]) {
            assert!(message.contains(word), "{wrong}: no {word:?} in: {message}");
        }
        let (variant, fields) = variant.split_once(' ').unwrap_or((variant, ""));
        let is_variant = variant == "-" || debug.split(' ').next() == Some(variant);
        let has_fields = fields.split("; ").all(|field| debug.contains(field));
        assert!(is_variant && has_fields, "{wrong}: {debug}");
    }
}

#[test]
fn names_may_be_as_long_as_in_llama_cpp_but_not_longer() {
    let key = |len: usize| Raw::head(0, 1).key(&"k".repeat(len), U8).put(&[7]).parse();
    assert!(key(65_535).is_ok());
    says(&key(65_536).unwrap_err(), &["byte 24", "key 0", "65536", "65535"]);
    let tensor = |len: usize| Raw::head(1, 0).tensor(&"t".repeat(len), &[8], F32, 0).data(32).parse();
    assert!(tensor(63).is_ok());
    says(&tensor(64).unwrap_err(), &["byte 24", "tensor 0", "64", "63"]);
}

#[test]
fn any_bool_other_than_0_is_true_as_in_llama_cpp() {
    let header = Raw::head(0, 1).key("c", ARRAY).u32(BOOL).u64(3).put(&[0, 1, 255]).parse().unwrap();
    assert_eq!(header.u32_per_layer("c", 3).unwrap().unwrap(), [0, 1, 1]);
    for (byte, is_true) in [(0, false), (2, true)] {
        let header = Raw::head(0, 1).key("a", BOOL).put(&[byte]).parse().unwrap();
        assert_eq!(header.bool("a").unwrap(), Some(is_true));
    }
}

#[test]
fn sizes_that_only_a_huge_file_could_have_are_refused_in_a_huge_file_too() {
    // llama.cpp's reader accepts a product of almost 2^63, and `ggml_new_tensor_impl` then ends the process. The type
    // takes less than a byte per element, so that the number of bytes is not the reason for the rejection.
    let max = i64::MAX as u64;
    let n = (2..).find(|n| (max / n).is_multiple_of(256)).unwrap();
    let shaped = |ne0| Raw::head(1, 0).tensor("t", &[ne0, n], 10, 0);
    let n60 = 1 << 60;
    let added = Raw::head(2, 0).tensor("a", &[n60], F32, 0).tensor("b", &[n60], F32, n60 * 4);
    let parse = |raw: Raw, file_bytes| Header::parse_shards([(raw.0.into(), file_bytes)]);
    for (raw, file_bytes, words) in [
        (Raw::head((1 << 20) + 1, 0), 1 << 40, ["at most 0", "tensors"]),
        (shaped(max / n), max, ["'t'", "2^63"]),
        // The sum of the sizes exceeds 64 bits.
        (added, u64::MAX, ["'b'", "9223372036854775807"]),
    ] {
        says(&parse(raw, file_bytes).unwrap_err(), &words);
    }
    assert!(parse(shaped(max / n - 256), max).is_ok());
}

// Systematic damage.

#[test]
fn every_prefix_of_a_file_is_refused() {
    let bytes = small().to_bytes().unwrap();
    for end in 0..bytes.len() {
        let error = Header::parse(&bytes[..end]).expect_err("a prefix");
        let expected = matches!(error, Error::Truncated { .. } | Error::Malformed { .. } | Error::TensorOutside { .. });
        assert!(expected, "{end}: {error}");
    }
}

#[test]
fn no_byte_set_to_any_of_five_values_causes_a_panic() {
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

// Errors of the file system.

#[test]
fn a_missing_file_a_folder_and_a_device_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let error = Header::open(dir.path().join("missing.gguf")).unwrap_err();
    says(&error, &["missing.gguf", "cannot open"]);
    assert!(matches!(error, Error::Open { .. }));
    let error = Header::open(dir.path()).unwrap_err();
    says(&error, &["not a regular file"]);
    assert!(matches!(error, Error::NotAFile { .. }));
    #[cfg(unix)]
    says(&Header::open("/dev/zero").unwrap_err(), &["/dev/zero: not a regular file"]);
}

#[test]
fn an_incomplete_download_and_an_array_of_a_changed_file_give_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    small().write_sparse(&path).unwrap();
    let header = Header::open(&path).unwrap();
    let array = header.array("t.i32s").unwrap().unwrap();
    assert_eq!(array.raw_bytes().unwrap().len(), 12);

    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(header.file_bytes() - 1).unwrap();
    let error = Header::open(&path).unwrap_err();
    says(&error, &["incomplete", &(header.file_bytes() - 1).to_string()]);
    assert!(matches!(error, Error::TensorOutside { .. }));

    file.set_len(100).unwrap();
    let error = array.raw_bytes().unwrap_err();
    says(&error, &["changed", "100 bytes now"]);
    assert!(matches!(error, Error::Changed { is: 100, .. }));
    assert!(header.array("tokenizer.ggml.tokens").unwrap().unwrap().strings().is_err());
}

#[test]
fn a_builder_refuses_everything_that_the_reader_refuses() {
    use TensorType::{F32, Q4_K};
    let new = || Builder::new("llama");
    let tensor = |ty, shape: &[u64]| new().tensor("t", ty, shape);
    for (builder, words) in [
        (tensor(Q4_K, &[100]), "rows of 100 elements"),
        (tensor(F32, &[0]), "dimension 0 of tensor 't' has 0"),
        (tensor(F32, &[1; 5]), "5 dimensions"),
        (tensor(F32, &[1 << 62, 4]), "larger than 2^63"),
        (new().tensor(&"t".repeat(64), F32, &[1]), "at most 63"),
        (new().u32("general.alignment", 48), "is 48, not a power of two"),
        (tensor(F32, &[1]).u32("general.alignment", 0), "is 0, not a power of two"),
        (new().u32("", 1), "key 1 is empty"),
        (tensor(F32, &[1]).tensor("t", F32, &[1]), "'t' occurs twice"),
    ] {
        let error = builder.to_bytes().unwrap_err();
        says(&error, &["<builder>: byte ", words]);
    }
}
