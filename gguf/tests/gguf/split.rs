//! Models in several files: the first file opens all of them, and files that do not belong together are refused.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use autoplace_gguf::{Builder, Error, Header, TensorType};
use test_support::headers::{read_everything, says};

/// The shards of a model of three tensors: two in the first file, none in the second, one in the third.
fn shards() -> [Builder; 3] {
    let keys = |first: Builder, no| first.u16("split.no", no).u16("split.count", 3).i32("split.tensors.count", 3);
    let first = keys(Builder::new("llama").u32("llama.block_count", 1), 0).tensor("a", TensorType::F32, &[5]);
    let third = keys(Builder::empty(), 2).tensor("c", TensorType::F16, &[3]);
    [first.tensor("b", TensorType::Q8_0, &[32, 2]), keys(Builder::empty(), 1), third]
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

#[test]
fn the_first_shard_opens_all() {
    let dir = tempfile::tempdir().unwrap();
    let header = Header::open(write(dir.path(), &shards())).unwrap();
    read_everything(&header);
    assert_eq!(header.shards().len(), 3);
    assert_eq!(header.path(), path(dir.path(), 0));
    let names: Vec<_> = header.tensors().map(|t| (t.name().to_owned(), t.shard())).collect();
    assert_eq!(names, [("a".into(), 0), ("b".into(), 0), ("c".into(), 2)]);
    assert_eq!(header.u32("llama.block_count").unwrap(), Some(1));

    let third = &header.shards()[2];
    assert_eq!((third.path(), third.file_bytes()), (&*path(dir.path(), 2), header.tensor("c").unwrap().offset() + 6));
    let lengths = (0..3).map(|i| std::fs::metadata(path(dir.path(), i)).unwrap().len());
    assert_eq!(header.file_bytes(), lengths.sum::<u64>());
}

#[test]
fn shards_in_memory_are_read_like_files() {
    let given: [(Arc<[u8]>, u64); 3] =
        shards().map(|shard| shard.encoded().unwrap()).map(|(bytes, file_bytes)| (bytes.into(), file_bytes));
    assert_eq!(Header::parse_shards(given.clone()).unwrap().tensors().len(), 3);
    let whole: Arc<[u8]> = Builder::new("llama").to_bytes().unwrap().into();
    for (result, words) in [
        (Header::parse_shards(given[..2].to_vec()), "3 shards, but 2 are given"),
        (Header::parse(shards()[0].to_bytes().unwrap()), "3 shards, but 1 are given"),
        (Header::parse_shards([(whole.clone(), 0), (whole, 0)]), "1 shards, but 2 are given"),
    ] {
        says(&result.unwrap_err(), &["<memory>", words]);
    }
    assert!(matches!(Header::parse_shards([]).unwrap_err(), Error::Truncated { .. }));
}

#[test]
fn a_shard_that_was_changed_or_replaced_is_named() {
    type Change = fn(&Path);
    const OPEN: fn(&Path) -> File = |path| File::options().write(true).open(path).unwrap();
    // The new file has the same bytes and the same modification time.
    let replace = |path: &Path| {
        let other = path.with_extension("other");
        std::fs::copy(path, &other).unwrap();
        OPEN(&other).set_modified(std::fs::metadata(path).unwrap().modified().unwrap()).unwrap();
        std::fs::rename(other, path).unwrap();
    };
    let changes: [(&str, Change); 4] = [
        ("changed", |path| OPEN(path).set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap()),
        ("7 bytes now", |path| OPEN(path).set_len(7).unwrap()),
        ("replaced", replace),
        ("open", |path| std::fs::remove_file(path).unwrap()),
    ];
    for (word, change) in changes {
        for index in 0..3 {
            let dir = tempfile::tempdir().unwrap();
            let header = Header::open(write(dir.path(), &shards())).unwrap();
            header.check_unchanged().unwrap();
            let shard = path(dir.path(), index);
            change(&shard);
            says(&header.check_unchanged().unwrap_err(), &[shard.to_str().unwrap(), word]);
        }
    }
}

/// Opens a shard, checks its error against these words, and returns the error's text.
#[track_caller]
fn refused(path: &Path, words: &str) -> String {
    let error = Header::open(path).unwrap_err();
    says(&error, &words.split("; ").collect::<Vec<_>>());
    format!("{error:?}")
}

#[test]
fn shards_that_do_not_belong_together_are_refused_by_name() {
    type Change = fn([Builder; 3]) -> [Builder; 3];
    let cases: [(&str, &str, Change); 8] = [
        ("big-00002-of-00003.gguf; 'split.no' is 2, not 1", "", |[a, b, c]| [a, c, b]),
        ("big-00003-of-00003.gguf; 'split.count' is 4, not 3", "", |[a, b, c]| [a, b, c.u16("split.count", 4)]),
        // llama.cpp aborts on these shards.
        ("big-00002-of-00003.gguf; 'split.no'; u32; u16", "WrongType", |[a, b, c]| [a, b.u32("split.no", 1), c]),
        ("'split.count'; u32; u16", "WrongType", |[a, b, c]| [a.u32("split.count", 3), b, c]),
        ("split.tensors.count is 4; contain 3", "", |[a, b, c]| [a.i32("split.tensors.count", 4), b, c]),
        ("big-00002-of-00003.gguf; 'split.no' is missing", "MissingKey", |[a, _, c]| [a, Builder::empty(), c]),
        ("'split.tensors.count' is missing", "MissingKey", |[_, b, c]| {
            [Builder::new("llama").u16("split.no", 0).u16("split.count", 3), b, c]
        }),
        ("big-00002-of-00003.gguf; 'a' occurs twice; big-00001-of-00003.gguf", "", |[a, b, c]| {
            [a, b.tensor("a", TensorType::F32, &[1]), c]
        }),
    ];
    for (words, variant, change) in cases {
        let dir = tempfile::tempdir().unwrap();
        let debug = refused(&write(dir.path(), &change(shards())), words);
        assert!(debug.starts_with(variant), "{debug}");
    }
}

#[test]
fn a_shard_that_is_later_missing_damaged_or_misnamed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = write(dir.path(), &shards());
    let [second, third] = [1, 2].map(|index| path(dir.path(), index));
    refused(&second, "big-00002-of-00003.gguf: this is shard 2 of 3; open the first; big-00001-of-00003.gguf");
    let renamed = dir.path().join("renamed.gguf");
    std::fs::copy(&third, &renamed).unwrap();
    refused(&renamed, "this is shard 3 of 3; open the first");
    std::fs::copy(&first, &renamed).unwrap();
    refused(&renamed, "renamed.gguf; \"-00001-of-00003.gguf\"");
    std::fs::write(&third, b"GGUF\x03\0\0\0").unwrap();
    refused(&first, "big-00003-of-00003.gguf; byte 8");
    std::fs::remove_file(&second).unwrap();
    let debug = refused(&first, "big-00002-of-00003.gguf; shard 2 of 3 is missing");
    let fields = debug.contains("index: 1") && debug.contains("count: 3");
    assert!(debug.starts_with("ShardMissing") && fields, "{debug}");
}

#[test]
fn a_split_count_of_1_means_a_single_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("one.gguf");
    let one = Builder::new("llama").u16("split.count", 1).u16("split.no", 0);
    one.write_sparse(&path).unwrap();
    assert_eq!(Header::open(&path).unwrap().shards().len(), 1);
}

#[cfg(unix)]
#[test]
fn the_shards_beside_a_link_are_found() {
    // In the Hugging Face cache, the names are links to files whose names are hashes.
    let dir = tempfile::tempdir().unwrap();
    for (index, shard) in shards().iter().enumerate() {
        let blob = dir.path().join(format!("blob{index}"));
        shard.write_sparse(&blob).unwrap();
        std::os::unix::fs::symlink(&blob, path(dir.path(), index)).unwrap();
    }
    let header = Header::open(path(dir.path(), 0)).unwrap();
    assert_eq!(header.tensors().len(), 3);
}
