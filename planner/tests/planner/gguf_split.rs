//! Models in several files: the first one opens all, and whatever does not belong together is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::gguf_support::{read_everything, says};
use autoplace_planner::gguf::{Builder, Error, Header, TensorType, ValueType};

/// The shards of a model of three tensors: two in the first file, none in the second, one in the third.
fn shards() -> [Builder; 3] {
    let keys = |builder: Builder, no: u16| {
        builder
            .u16("split.no", no)
            .u16("split.count", 3)
            .i32("split.tensors.count", 3)
    };
    [
        keys(Builder::new("llama").u32("llama.block_count", 1), 0)
            .tensor("a", TensorType::F32, &[5])
            .tensor("b", TensorType::Q8_0, &[32, 2]),
        keys(Builder::empty(), 1),
        keys(Builder::empty(), 2).tensor("c", TensorType::F16, &[3]),
    ]
}

fn path(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("big-{:05}-of-00003.gguf", index + 1))
}

fn write(dir: &Path, shards: &[Builder]) -> PathBuf {
    for (index, shard) in shards.iter().enumerate() {
        shard.write_sparse(path(dir, index)).unwrap();
    }
    path(dir, 0)
}

/// The error that these shards give, whose message contains all of `words`.
#[track_caller]
fn refused(shards: &[Builder], words: &[&str]) -> Error {
    let dir = tempfile::tempdir().unwrap();
    let error = Header::open(write(dir.path(), shards)).unwrap_err();
    says(&error, words);
    error
}

#[test]
fn the_first_shard_opens_all() {
    let dir = tempfile::tempdir().unwrap();
    let header = Header::open(write(dir.path(), &shards())).unwrap();
    read_everything(&header);
    assert_eq!(header.shards().len(), 3);
    assert_eq!(header.path(), path(dir.path(), 0));
    let names: Vec<_> = header
        .tensors()
        .map(|t| (t.name().to_owned(), t.shard()))
        .collect();
    assert_eq!(names, [("a".into(), 0), ("b".into(), 0), ("c".into(), 2)]);
    assert_eq!(header.arch_u32("block_count").unwrap(), Some(1));

    let third = &header.shards()[2];
    assert_eq!(third.path(), path(dir.path(), 2));
    let data = header.tensor("c").unwrap().offset();
    assert_eq!(third.file_bytes(), data + 6);
    let lengths = (0..3).map(|i| std::fs::metadata(path(dir.path(), i)).unwrap().len());
    assert_eq!(header.file_bytes(), lengths.sum::<u64>());
}

#[test]
fn shards_in_memory_are_read_like_files() {
    let given: Vec<(Arc<[u8]>, u64)> = shards()
        .iter()
        .map(|s| s.encoded().unwrap())
        .map(|(bytes, file_bytes)| (bytes.into(), file_bytes))
        .collect();
    let header = Header::parse_shards(given.clone()).unwrap();
    assert_eq!(header.tensors().len(), 3);
    let error = Header::parse_shards(given[..2].to_vec()).unwrap_err();
    says(&error, &["<memory>", "3 shards", "2 are given"]);
    let error = Header::parse(shards()[0].to_bytes().unwrap()).unwrap_err();
    says(&error, &["<memory>", "3 shards", "1 are given"]);
    let whole = Builder::new("llama").to_bytes().unwrap();
    let error = Header::parse_shards([(whole.clone().into(), 0), (whole.into(), 0)]).unwrap_err();
    says(&error, &["<memory>", "1 shards", "2 are given"]);
    assert!(matches!(
        Header::parse_shards([]).unwrap_err(),
        Error::Truncated { .. }
    ));
}

#[test]
fn a_later_shard_is_refused_and_names_the_first() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &shards());
    let error = Header::open(path(dir.path(), 1)).unwrap_err();
    says(
        &error,
        &[
            "big-00002-of-00003.gguf: this is shard 2 of 3",
            "open the first",
            "big-00001-of-00003.gguf",
        ],
    );
}

#[test]
fn a_later_shard_under_another_name_is_refused_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("renamed.gguf");
    shards()[2].write_sparse(&path).unwrap();
    let error = Header::open(&path).unwrap_err();
    says(&error, &["this is shard 3 of 3"]);
    assert!(error.to_string().ends_with("open the first"), "{error}");
}

#[test]
fn a_missing_shard_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = write(dir.path(), &shards());
    std::fs::remove_file(path(dir.path(), 1)).unwrap();
    let error = Header::open(first).unwrap_err();
    says(
        &error,
        &["big-00002-of-00003.gguf", "shard 2 of 3 is missing"],
    );
    assert!(matches!(
        error,
        Error::ShardMissing {
            index: 1,
            count: 3,
            ..
        }
    ));
}

#[test]
fn a_first_shard_under_another_name_says_what_it_should_be_called() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("renamed.gguf");
    shards()[0].write_sparse(&path).unwrap();
    let error = Header::open(&path).unwrap_err();
    says(&error, &["renamed.gguf", "\"-00001-of-00003.gguf\""]);
}

#[test]
fn shards_in_the_wrong_place_are_refused() {
    let [first, second, third] = shards();
    refused(
        &[first, third, second],
        &["00002-of-00003", "'split.no' is 2, not 1"],
    );
}

#[test]
fn a_shard_of_a_model_with_another_count_is_refused() {
    let [first, second, third] = shards();
    refused(
        &[first, second, third.u16("split.count", 4)],
        &["00003-of-00003", "'split.count' is 4, not 3"],
    );
}

#[test]
fn a_split_no_that_is_no_u16_is_refused_where_llama_cpp_aborts() {
    let [first, second, third] = shards();
    let error = refused(
        &[first, second.u32("split.no", 1), third],
        &["00002-of-00003", "'split.no'", "u32", "u16"],
    );
    assert!(matches!(
        error,
        Error::WrongType {
            wanted: ValueType::U16,
            found: ValueType::U32,
            ..
        }
    ));
}

#[test]
fn a_split_count_that_is_no_u16_is_refused() {
    let [first, second, third] = shards();
    let error = refused(
        &[first.u32("split.count", 3), second, third],
        &["'split.count'", "u32", "u16"],
    );
    assert!(matches!(error, Error::WrongType { .. }));
}

#[test]
fn a_tensor_count_that_is_not_the_sum_is_refused() {
    let [first, second, third] = shards();
    refused(
        &[first.i32("split.tensors.count", 4), second, third],
        &["split.tensors.count is 4", "hold 3"],
    );
}

#[test]
fn missing_split_keys_are_named() {
    let [first, _, third] = shards();
    let bare = Builder::empty();
    let error = refused(
        &[first, bare, third],
        &["00002-of-00003", "'split.no' is missing"],
    );
    assert!(matches!(error, Error::MissingKey { .. }));
    let [_, second, third] = shards();
    let first = Builder::new("llama")
        .u16("split.no", 0)
        .u16("split.count", 3);
    refused(
        &[first, second, third],
        &["'split.tensors.count' is missing"],
    );
}

#[test]
fn a_tensor_in_two_shards_is_refused_with_both_files() {
    let [first, second, third] = shards();
    refused(
        &[first, second.tensor("a", TensorType::F32, &[1]), third],
        &[
            "big-00002-of-00003.gguf",
            "'a' again",
            "big-00001-of-00003.gguf",
        ],
    );
}

#[test]
fn a_damaged_shard_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = write(dir.path(), &shards());
    std::fs::write(path(dir.path(), 2), b"GGUF\x03\0\0\0").unwrap();
    let error = Header::open(first).unwrap_err();
    says(&error, &["big-00003-of-00003.gguf", "byte 8"]);
}

#[test]
fn a_split_count_of_1_is_no_split() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("one.gguf");
    let one = Builder::new("llama")
        .u16("split.count", 1)
        .u16("split.no", 0);
    one.write_sparse(&path).unwrap();
    assert_eq!(Header::open(&path).unwrap().shards().len(), 1);
}

#[cfg(unix)]
#[test]
fn links_in_one_folder_are_followed_from_there() {
    // As the Hugging Face cache keeps files: the names are links, what they lead to is called after its hash.
    let dir = tempfile::tempdir().unwrap();
    for (index, shard) in shards().iter().enumerate() {
        let blob = dir.path().join(format!("blob{index}"));
        shard.write_sparse(&blob).unwrap();
        std::os::unix::fs::symlink(&blob, path(dir.path(), index)).unwrap();
    }
    let header = Header::open(path(dir.path(), 0)).unwrap();
    assert_eq!(header.tensors().len(), 3);
}
